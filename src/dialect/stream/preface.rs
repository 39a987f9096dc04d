//! The events of a stream before its first content: they are held, so that another upstream can still answer.

use super::{EventHandler, SseStream};
use crate::base::buf::Pool;
use crate::base::limits::PREFACE_MAX;

/// What the client gets of the stream.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Progress {
    /// An event, which may be held.
    pub(super) opened: bool,
    /// Content, or the end of an answer without any, or more than [`PREFACE_MAX`]: nothing is held any more.
    pub(super) begun: bool,
}

impl Progress {
    /// Notes an event, which was written from `before` on. Heartbeats before the first one are not passed on, so that
    /// the client's bytes do not depend on whether one arrived together with it.
    #[inline]
    pub(super) fn event(
        &mut self,
        inner: &EventHandler,
        (life, data): (bool, &[u8]),
        before: usize,
        out: &mut Vec<u8>,
    ) {
        self.opened |= life && out.len() > before;
        match life {
            _ if self.begun => {}
            true => self.begun = out.len() > before && inner.shows(data),
            false if self.opened => {}
            false => out.truncate(before),
        }
    }
}

impl SseStream {
    /// Before the first content, puts what is held back into the output. Returns where it begins there.
    #[inline]
    pub(super) fn take_preface(&mut self, out: &mut Vec<u8>) -> Option<usize> {
        let from = (!self.progress.begun).then_some(out.len());
        if from.is_some() {
            out.extend_from_slice(self.preface.bytes());
        }
        from
    }

    /// Holds the output from `from` on if it has no content yet. That of a stream that `fails` is dropped.
    #[inline]
    pub(super) fn hold_preface(&mut self, from: Option<usize>, fails: bool, pool: &mut Pool, out: &mut Vec<u8>) {
        let Some(from) = from else { return };
        self.progress.begun |= !fails && (self.inner.finished() || out.len() - from > PREFACE_MAX);
        if !self.progress.begun {
            if !fails {
                self.preface.push(pool, &out[from + self.preface.len()..]);
            }
            return out.truncate(from);
        }
        self.preface.release(pool);
    }
}
