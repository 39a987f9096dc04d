//! Output of an exchange: bytes for its client, and connections that it needs no more.

use crate::gateway::ids::ProviderId;

/// Results of an event besides its [`super::Effect`].
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// An answer, or events of a stream, before they are framed into the client's unsent bytes.
    pub(crate) bytes: Vec<u8>,
    /// The connections that the exchange has released, each with true if the answer is complete.
    released: [Option<(ProviderId, bool)>; 2],
}

impl Output {
    /// Releases a connection to a provider. `complete`: the exchange needs no more of the answer.
    pub(super) fn release(&mut self, provider: ProviderId, complete: bool) {
        debug_assert!(self.released[1].is_none());
        self.released[1] = self.released[0].replace((provider, complete));
    }

    /// True if a connection is released.
    #[inline]
    pub(crate) fn releases(&self) -> bool {
        self.released[0].is_some()
    }

    /// Takes a released connection.
    #[inline]
    pub(crate) fn take_released(&mut self) -> Option<(ProviderId, bool)> {
        self.released[0].take().or_else(|| self.released[1].take())
    }
}
