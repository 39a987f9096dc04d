//! Events of a stream before its first content. They are held, so that another upstream can still answer.

/// Progress of the client's stream.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Progress {
    /// True once an event has been handled; it may be held.
    pub(super) opened: bool,
    /// True if nothing is held any more: content has arrived, or the end of an answer without content, or more than
    /// `limits::PREFACE_MAX` bytes.
    pub(super) begun: bool,
}

impl Progress {
    /// Notes an event that was written from `before` on. `shows`: it has content. Heartbeats before the first event are
    /// dropped, so that the client's bytes do not depend on the time at which they arrive.
    #[inline]
    pub(super) fn event(&mut self, is_progress: bool, shows: impl FnOnce() -> bool, before: usize, out: &mut Vec<u8>) {
        self.opened |= is_progress && out.len() > before;
        match is_progress {
            _ if self.begun => {}
            true => self.begun = out.len() > before && shows(),
            false if self.opened => {}
            false => out.truncate(before),
        }
    }
}
