//! Refusals by the queue of a model.

use super::{About, Refusal, RefusalKind, shown};
use crate::base::text::plural;
use std::time::Duration;

/// Reason why a request cannot wait, or wait any longer, for a slot of its model.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum QueueRefusal {
    /// The queue is full: this number of requests wait already.
    Full(u32),
    /// The key's share of the queue is full: this number of its requests wait already.
    Share(u32),
    /// No slot became free in this time, the queue's `wait`.
    Wait(Duration),
}

impl QueueRefusal {
    /// Detail of the cause, for the operator.
    pub fn what(self) -> &'static str {
        match self {
            QueueRefusal::Full(_) => "full",
            QueueRefusal::Share(_) => "share of this key",
            QueueRefusal::Wait(_) => "wait",
        }
    }

    /// 429. `again`: seconds until there is room.
    pub fn refusal(self, again: u64) -> Refusal {
        let text = match self {
            QueueRefusal::Full(max) => {
                let waits = if max == 1 { " waits" } else { "s wait" };
                format!("the queue of the model is full: {max} request{waits} for a slot (queue.max)")
            }
            QueueRefusal::Share(share) => {
                let s = plural(share.into());
                format!("this key already has {share} request{s} in the queue of the model: half of queue.max")
            }
            QueueRefusal::Wait(waited) => {
                format!("no slot of the model became free within queue.wait ({})", shown(waited))
            }
        };
        Refusal { retry_after: Some(again), ..Refusal::new(RefusalKind::RateLimit, 429, text) }
            .because(About::Queue, self.what())
    }
}
