//! Stopping: idle connections are closed after requests on their way have had a moment to arrive; requests that take
//! too long are ended; then the process exits. Each step is done once. A connection that becomes idle later closes by
//! its own deadline, so that stopping costs running requests nothing.

use crate::base::time::Mono;

/// Progress of stopping.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Drain {
    /// Time at which idle connections are closed.
    idle_after: Mono,
    /// Time at which running requests are ended.
    until: Mono,
    done: Option<DrainStep>,
}

/// Next step of stopping.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum DrainStep {
    /// Close idle connections.
    CloseIdle,
    /// End the running requests.
    EndAll,
}

impl Drain {
    /// Begins to stop.
    pub(crate) fn new(idle_after: Mono, until: Mono) -> Drain {
        Drain { idle_after, until, done: None }
    }

    /// True if running requests have a deadline. They have none if the process hands over.
    pub(crate) fn is_bounded(&self) -> bool {
        self.until != Mono::NEVER
    }

    /// Ends running requests at `until` at the latest.
    pub(crate) fn bound(&mut self, until: Mono) {
        self.until = self.until.min(until);
    }

    /// Returns the step that is due now; each step is returned once.
    pub(crate) fn step(&mut self, now: Mono) -> Option<DrainStep> {
        let step = match self.done {
            None | Some(DrainStep::CloseIdle) if now >= self.until => DrainStep::EndAll,
            None if now >= self.idle_after => DrainStep::CloseIdle,
            _ => return None,
        };
        self.done = Some(step);
        Some(step)
    }

    /// Returns the time of the next step.
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
    fn each_step_is_taken_once_when_due() {
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
