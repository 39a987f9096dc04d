//! The next state of a client's connection after a response.

/// Input that is still read from a connection that ends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Remainder {
    /// Remaining bytes of a body; the connection closes after the last.
    Body(u32),
    /// Bytes of any kind; the connection is cut beyond this number.
    Unknown(u32),
}

impl Remainder {
    pub(super) fn take(&mut self, bytes: usize) {
        let (Remainder::Body(left) | Remainder::Unknown(left)) = self;
        *left = left.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
    }
}

/// Next state of a connection after an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum AfterResponse {
    /// Another message may follow.
    KeepAlive,
    /// Another message may follow after the rest of this body has been dropped.
    Discard,
    /// The connection closes.
    Close,
    /// The connection closes after further input has been dropped for a while.
    Linger(Remainder),
}

impl AfterResponse {
    /// True if the answer may announce keep-alive.
    pub(crate) fn keeps_alive(self) -> bool {
        matches!(self, AfterResponse::KeepAlive | AfterResponse::Discard)
    }
}
