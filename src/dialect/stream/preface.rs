//! The events of a stream before its first content: they are held, so that another upstream can still answer.

/// What the client gets of the stream.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Progress {
    /// An event, which may be held.
    pub(super) opened: bool,
    /// Content, or the end of an answer without any, or more than `limits::PREFACE_MAX`: nothing is held any more.
    pub(super) begun: bool,
}

impl Progress {
    /// Notes an event, which was written from `before` on, and `shows` content or not. Heartbeats before the first one
    /// are not passed on, so that the client's bytes do not depend on whether one arrived together with it.
    #[inline]
    pub(super) fn event(&mut self, life: bool, shows: impl FnOnce() -> bool, before: usize, out: &mut Vec<u8>) {
        self.opened |= life && out.len() > before;
        match life {
            _ if self.begun => {}
            true => self.begun = out.len() > before && shows(),
            false if self.opened => {}
            false => out.truncate(before),
        }
    }
}
