//! Stopping: idle connections are closed once requests under way have had a moment to arrive; requests that take too
//! long are ended; when nothing is left the process exits. Each of these is done once; a connection that becomes idle
//! later closes by its own deadline, so that stopping costs running requests nothing.

use crate::base::time::Mono;

/// Progress of stopping.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Drain {
    /// When idle connections are closed.
    idle_after: Mono,
    /// When running requests are ended.
    until: Mono,
    done: Option<DrainStep>,
}

/// Next step of stopping.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum DrainStep {
    /// Close the connections that are idle.
    CloseIdle,
    /// End the requests that still run.
    EndAll,
}

impl Drain {
    /// Begins to stop.
    pub(crate) fn new(idle_after: Mono, until: Mono) -> Drain {
        Drain { idle_after, until, done: None }
    }

    /// True if running requests are ended at some time. A process that hands over ends none.
    pub(crate) fn is_bounded(&self) -> bool {
        self.until != Mono::NEVER
    }

    /// Ends running requests at `until` at the latest.
    pub(crate) fn bound(&mut self, until: Mono) {
        self.until = self.until.min(until);
    }

    /// The step to take now, each once.
    pub(crate) fn step(&mut self, now: Mono) -> Option<DrainStep> {
        let step = match self.done {
            None | Some(DrainStep::CloseIdle) if now >= self.until => DrainStep::EndAll,
            None if now >= self.idle_after => DrainStep::CloseIdle,
            _ => return None,
        };
        self.done = Some(step);
        Some(step)
    }

    /// When the next step is due.
    pub(crate) fn due(&self) -> Option<Mono> {
        match self.done {
            None => Some(self.idle_after.min(self.until)),
            Some(DrainStep::CloseIdle) => Some(self.until),
            Some(DrainStep::EndAll) => None,
        }
    }

    /// True if running requests have been ended.
    pub(crate) fn is_over(&self) -> bool {
        self.done == Some(DrainStep::EndAll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_taken_once_and_in_its_time() {
        let mut drain = Drain::new(Mono(10), Mono(100));
        assert_eq!((drain.due(), drain.step(Mono(9))), (Some(Mono(10)), None));
        assert_eq!((drain.step(Mono(10)), drain.step(Mono(11))), (Some(DrainStep::CloseIdle), None));
        drain.bound(Mono(50));
        assert_eq!(
            (drain.due(), drain.step(Mono(50)), drain.step(Mono(51))),
            (Some(Mono(50)), Some(DrainStep::EndAll), None)
        );
        assert!(drain.is_over() && drain.due().is_none());
    }
}
