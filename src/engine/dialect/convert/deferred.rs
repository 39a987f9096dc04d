//! Holds text and reasoning that arrive while a call is incomplete.
//!
//! Messages and responses have one open block at a time, and a closed one cannot be opened again. So the text waits for
//! the end of the call. Must never hold more than [`TOOL_HELD_MAX`]. Called by [`super::Convert`].

use super::super::answer::StreamFault;
use crate::dialect::messages::stream_writer::is_blank;
use crate::dialect::neutral::delta::{Delta, TOOL_HELD_MAX};

/// Kind of a delta that waits.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum DeltaKind {
    Text,
    Refuse,
    Think,
    /// End of a piece of reasoning, with the block that its target must get back, and without one.
    Thought,
    Unsigned,
}

/// Deltas that wait, in order.
#[derive(Debug, Default)]
pub struct Deferred {
    /// Calls that have begun and not ended.
    open: usize,
    deltas: Vec<(DeltaKind, Vec<u8>)>,
    /// Bytes that wait.
    pub bytes: usize,
}

impl Deferred {
    /// Notes a delta; true if it must wait and has been stored.
    pub fn defers(&mut self, delta: &Delta<'_>) -> Result<bool, StreamFault> {
        let (kind, text) = match *delta {
            Delta::ToolOpen { .. } => {
                self.open += 1;
                return Ok(false);
            }
            Delta::Text(text) => (DeltaKind::Text, text),
            Delta::Refuse(text) => (DeltaKind::Refuse, text),
            Delta::Think(text) => (DeltaKind::Think, text),
            Delta::Thought { block: Some(block) } => (DeltaKind::Thought, block),
            Delta::Thought { block: None } => (DeltaKind::Unsigned, &b""[..]),
            _ => return Ok(false),
        };
        if self.open == 0 {
            return Ok(false);
        }
        match self.deltas.last_mut() {
            Some((last, before)) if *last == kind && kind != DeltaKind::Thought => before.extend_from_slice(text),
            // Servers send a line feed between calls.
            _ if kind == DeltaKind::Text && is_blank(text) => return Ok(true),
            _ => self.deltas.push((kind, text.to_vec())),
        }
        self.bytes += text.len();
        if self.bytes > TOOL_HELD_MAX { Err(StreamFault::TooLarge) } else { Ok(true) }
    }

    /// Notes the end of a call, or of all calls. If none is open any more, passes on the stored deltas.
    pub fn release(
        &mut self,
        all: bool,
        mut write: impl FnMut(Delta<'_>) -> Result<(), StreamFault>,
    ) -> Result<(), StreamFault> {
        self.open = if all { 0 } else { self.open.saturating_sub(1) };
        if self.open > 0 {
            return Ok(());
        }
        self.bytes = 0;
        for (kind, text) in std::mem::take(&mut self.deltas) {
            write(match kind {
                DeltaKind::Text => Delta::Text(&text),
                DeltaKind::Refuse => Delta::Refuse(&text),
                DeltaKind::Think => Delta::Think(&text),
                DeltaKind::Thought => Delta::Thought { block: Some(&text) },
                DeltaKind::Unsigned => Delta::Thought { block: None },
            })?;
        }
        Ok(())
    }
}
