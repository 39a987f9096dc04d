//! Handing over to a successor, with a way back until the successor serves. At most one process admits requests at a
//! time. If none does, a request gets 503, and a new connection waits in the kernel's queue.
//!
//! | state here | the successor | admits | owns the ledger | owns the listeners |
//! |---|---|---|---|---|
//! | `None` | does not exist | old | old | old |
//! | `Starting` | reads its configuration and certificates, checks the ledger, reports `ready` | old | old | old |
//! | `Quieting` | waits | old, requests that have begun to arrive | old | old, which does not accept |
//! | `Given` | takes the ledger, reports `taken` | none | in transfer | old, which does not accept at first |
//! | `Returning` | is being ended | none if the ledger was given, else old | in transfer back | old, which does not accept at first |
//! | `Served` | serves, or has died since | new | new | new |
//!
//! The match in [`Handover::on`] defines all transitions and their effects ([`UpgradeStep`]). Tests compare this table
//! and the one above with the code:
//!
//! | state | event → next: step |
//! |---|---|
//! | `None` | Asked → Starting: Start |
//! | `Starting` | Ready → Quieting: Quiet; Failed, CalledOff → Returning: TakeBack |
//! | `Quieting` | Looked → Quieting: Nothing; Looked → Given: GiveAway; Failed, CalledOff → Returning: TakeBack |
//! | `Given` | Impatient → Given: Nothing; Taken → Served: LetServe; Failed, CalledOff → Returning: TakeBack |
//! | `Returning` | Impatient, Ready, Taken, Failed → Returning: Nothing; Gone → None: Resume |
//! | `Served` | Failed → Served: Nothing |
//!
//! - USR2 starts a successor, unless rows are late or cannot be written: they must be written before the ledger is
//!   given.
//! - `ready` begins to quiet: no connection is accepted, and requests that have begun to arrive are admitted, for
//!   [`QUIET_WAIT`] at most. After that the ledger is given away with a list of the running requests.
//! - `taken` is the point of no return: the successor has the ledger and is ready to serve, and waits for permission.
//! - Before that point every failure leads back: a successor that reports why it cannot, dies, or is late
//!   ([`SUCCESSOR_WAIT`] for `ready`, [`TAKE_WAIT`] for `taken`), a ledger that fails, TERM. The successor is killed
//!   unless it is dead, the ledger returns, the listeners accept again, and the log gives the reason. `Gone` waits for
//!   one attempt to write the ledger: if that fails the ledger's thread keeps trying, and a stop bounds that.
//! - After it the successor is independent. The old process serves its running requests. Their rows are sent to the
//!   successor and kept here until it reports that they are committed. If the successor dies, they are spilled, and the
//!   next start reads them; see `cli::serve::upgrade`. Counters and cool-downs stay here: the successor has none.
//!
//! If the old process dies, the successor does everything that remains, whatever its progress.

use crate::base::limits::STORE_BUSY;
use crate::base::time::Mono;
use std::time::Duration;

/// Time that a process that hands over waits for requests that have begun to arrive. New ones wait in the kernel.
/// Arrived requests wait as long again for the successor to take the ledger. Later ones are asked to retry.
const QUIET_WAIT: Duration = Duration::from_secs(2);
/// Interval at which all connections are checked for such requests.
const QUIET_LOOK: Duration = Duration::from_millis(5);
/// Time that a successor may take to report that it is ready.
const SUCCESSOR_WAIT: Duration = Duration::from_secs(30);
/// Time that a successor may take to confirm that it has the ledger. Nothing is admitted meanwhile. Longer than two
/// waits for a ledger that another process is writing to: at its opening and once more.
const TAKE_WAIT: Duration = Duration::from_secs(15);
const _: () = assert!(TAKE_WAIT.as_secs() > 2 * STORE_BUSY.as_secs());

/// State of a hand-over; see the table above.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Handover {
    /// No successor.
    #[default]
    None,
    /// The successor starts.
    Starting {
        /// Deadline.
        until: Mono,
    },
    /// The successor is ready. Requests that are arriving may still be admitted.
    Quieting {
        /// Time of the next check for arriving requests: not in the iteration that stopped accepting.
        look: Mono,
        /// Deadline.
        until: Mono,
    },
    /// The successor is given the ledger.
    Given {
        /// Time until which new clients wait; later ones get 503.
        wait_until: Mono,
        /// Deadline for the successor to take the ledger.
        until: Mono,
    },
    /// The successor is being ended, and the ledger returns.
    Returning {
        /// True if the ledger had been given away.
        given: bool,
        /// Time until which new clients wait, as in `Given`.
        wait_until: Mono,
    },
    /// The successor serves, or has died since.
    Served,
}

/// Event of a hand-over.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum UpgradeEvent {
    /// USR2, if nothing prevents it.
    Asked,
    /// The successor has checked everything that it can without the ledger.
    Ready,
    /// Time of the check; `quiet`: no request is arriving.
    Looked { quiet: bool },
    /// New clients have waited long enough.
    Impatient,
    /// The successor has the ledger.
    Taken,
    /// The successor cannot continue, or has died.
    Failed,
    /// A deadline has passed, the ledger has failed, or the process is to stop.
    CalledOff,
    /// The successor has ended, and the ledger's thread has everything back.
    Gone,
}

/// Effect of an event.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum UpgradeStep {
    /// Do nothing.
    Nothing,
    /// Start a successor.
    Start,
    /// Stop accepting connections, and keep none for later requests.
    Quiet,
    /// Give the ledger away, with a list of the running requests.
    GiveAway,
    /// Close the listeners and let the successor serve.
    LetServe,
    /// End the successor, and take back the ledger.
    TakeBack,
    /// Serve as before.
    Resume,
}

impl Handover {
    /// Handles an event: returns the next state and the effect.
    pub(crate) fn on(self, event: UpgradeEvent, now: Mono) -> (Handover, UpgradeStep) {
        self.step(event, now).unwrap_or_else(|| {
            debug_assert!(false, "{event:?} in {self:?}");
            (self, UpgradeStep::Nothing)
        })
    }

    /// Transition of an event; `None` for an event that cannot occur in this state.
    fn step(self, event: UpgradeEvent, now: Mono) -> Option<(Handover, UpgradeStep)> {
        use Handover::{Given, None, Quieting, Returning, Served, Starting};
        Some(match (self, event) {
            (None, UpgradeEvent::Asked) => (Starting { until: now.after(SUCCESSOR_WAIT) }, UpgradeStep::Start),
            (Starting { .. }, UpgradeEvent::Ready) => {
                (Quieting { look: Mono(now.0 + 1), until: now.after(QUIET_WAIT) }, UpgradeStep::Quiet)
            }
            (Quieting { until, .. }, UpgradeEvent::Looked { quiet }) if !quiet && now < until => {
                (Quieting { look: now.after(QUIET_LOOK), until }, UpgradeStep::Nothing)
            }
            (Quieting { .. }, UpgradeEvent::Looked { .. }) => {
                (Given { wait_until: now.after(QUIET_WAIT), until: now.after(TAKE_WAIT) }, UpgradeStep::GiveAway)
            }
            (Given { until, .. }, UpgradeEvent::Impatient) => {
                (Given { wait_until: Mono::NEVER, until }, UpgradeStep::Nothing)
            }
            (Returning { given, .. }, UpgradeEvent::Impatient) => {
                (Returning { given, wait_until: Mono::NEVER }, UpgradeStep::Nothing)
            }
            (Given { .. }, UpgradeEvent::Taken) => (Served, UpgradeStep::LetServe),
            (Starting { .. } | Quieting { .. }, UpgradeEvent::Failed | UpgradeEvent::CalledOff) => {
                (Returning { given: false, wait_until: now.after(QUIET_WAIT) }, UpgradeStep::TakeBack)
            }
            (Given { wait_until, .. }, UpgradeEvent::Failed | UpgradeEvent::CalledOff) => {
                (Returning { given: true, wait_until }, UpgradeStep::TakeBack)
            }
            (Returning { .. }, UpgradeEvent::Gone) => (None, UpgradeStep::Resume),
            (Served, UpgradeEvent::Failed) => (Served, UpgradeStep::Nothing),
            // Sent before it was killed, or caused by that.
            (Returning { .. }, UpgradeEvent::Ready | UpgradeEvent::Taken | UpgradeEvent::Failed) => {
                (self, UpgradeStep::Nothing)
            }
            _ => return Option::None,
        })
    }

    /// Time of its next event.
    #[inline]
    pub(crate) fn due(&self) -> Option<Mono> {
        match self {
            Handover::Quieting { look, until } => Some((*look).min(*until)),
            Handover::Starting { until } => Some(*until),
            Handover::Given { wait_until, until } => Some((*wait_until).min(*until)),
            Handover::Returning { wait_until, .. } => Some(*wait_until).filter(|wait_until| *wait_until != Mono::NEVER),
            Handover::None | Handover::Served => None,
        }
    }

    /// True if new clients have waited long enough.
    pub(crate) fn is_impatient(&self, now: Mono) -> bool {
        use Handover::{Given, Returning};
        matches!(self, Given { wait_until, .. } | Returning { wait_until, .. } if *wait_until <= now)
    }

    /// True if an event is due: [`UpgradeEvent::Looked`] while it quiets, [`UpgradeEvent::Impatient`], otherwise
    /// [`UpgradeEvent::CalledOff`].
    pub(crate) fn is_due(&self, now: Mono) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// True while requests that are arriving may still be admitted; a check for them is due.
    pub(crate) fn is_quieting(&self) -> bool {
        matches!(self, Handover::Quieting { .. })
    }

    /// True during a hand-over, or while a cancelled one is undone.
    pub(crate) fn is_under_way(&self) -> bool {
        use Handover::{Given, Quieting, Returning, Starting};
        matches!(self, Starting { .. } | Quieting { .. } | Given { .. } | Returning { .. })
    }

    /// True if new connections wait in the kernel's queue, for the successor or for the end of the hand-over. When the
    /// successor serves, the listeners are closed later in the same iteration.
    pub(crate) fn holds_clients_back(&self) -> bool {
        match self {
            Handover::None | Handover::Starting { .. } => false,
            Handover::Given { wait_until, .. } | Handover::Returning { wait_until, .. } => *wait_until != Mono::NEVER,
            Handover::Quieting { .. } | Handover::Served => true,
        }
    }

    /// True if nothing is admitted here.
    pub(crate) fn is_given(&self) -> bool {
        use Handover::{Given, Returning, Served};
        matches!(self, Given { .. } | Returning { given: true, .. } | Served)
    }

    /// True if the successor has served.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Handover::Served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const NOW: Mono = Mono(1_000_000);

    fn run(events: &[UpgradeEvent]) -> (Handover, Vec<UpgradeStep>) {
        let (mut handover, mut steps) = (Handover::default(), Vec::new());
        for event in events {
            let (next, step) = handover.on(*event, NOW);
            handover = next;
            steps.push(step);
        }
        (handover, steps)
    }

    type Steps = BTreeSet<(String, String, String, String)>;

    /// The name of a state, an event or a step, without its values.
    fn name(value: &impl std::fmt::Debug) -> String {
        format!("{value:?}").chars().take_while(char::is_ascii_alphanumeric).collect()
    }

    fn states() -> [Handover; 6] {
        let (until, look, wait_until) = (NOW.after(TAKE_WAIT), NOW, NOW.after(QUIET_WAIT));
        [
            Handover::None,
            Handover::Starting { until },
            Handover::Quieting { look, until },
            Handover::Given { wait_until, until },
            Handover::Returning { given: true, wait_until },
            Handover::Served,
        ]
    }

    /// The cells of the documentation's row with `count` cells that begins with this state.
    fn row(state: &Handover, count: usize) -> Option<Vec<&'static str>> {
        let begin = format!("//! | `{}` | ", name(state));
        let rows = include_str!("upgrade.rs").lines().filter(|line| line.starts_with(&begin));
        let cells = rows.map(|row| row.trim_end_matches(" |").split(" | ").skip(2).collect::<Vec<_>>());
        cells.into_iter().find(|cells| cells.len() == count)
    }

    #[test]
    fn table_of_steps_equals_the_match() {
        let events = [
            UpgradeEvent::Asked,
            UpgradeEvent::Ready,
            UpgradeEvent::Looked { quiet: false },
            UpgradeEvent::Looked { quiet: true },
            UpgradeEvent::Impatient,
            UpgradeEvent::Taken,
            UpgradeEvent::Failed,
            UpgradeEvent::CalledOff,
            UpgradeEvent::Gone,
        ];
        let (mut matched, mut documented) = (Steps::new(), Steps::new());
        for state in states() {
            for event in events {
                if let Some((next, step)) = state.step(event, NOW) {
                    matched.insert((name(&state), name(&event), name(&next), name(&step)));
                }
            }
            for arm in row(&state, 1).into_iter().flatten().flat_map(|cell| cell.split("; ")) {
                let (before, after) = arm.split_once(" → ").unwrap();
                let (next, step) = after.split_once(": ").unwrap();
                let of = |event: &str| (name(&state), event.to_string(), next.to_string(), step.to_string());
                documented.extend(before.split(", ").map(of));
            }
        }
        assert!(matched.len() > 12, "{matched:?}");
        assert_eq!(matched, documented);
    }

    #[test]
    fn table_of_owners_matches_the_states() {
        for state in states() {
            let cells = row(&state, 4).unwrap_or_else(|| panic!("{state:?} is in no row"));
            let (admits, listeners) = (cells[1], cells[3]);
            assert_eq!(admits.starts_with("old"), !state.is_given(), "{state:?}: {admits}");
            if listeners.starts_with("old") {
                assert_eq!(listeners.contains("does not accept"), state.holds_clients_back(), "{state:?}: {listeners}");
            } else {
                assert!(state.is_final(), "{state:?}: {listeners}");
            }
        }
    }

    const TO_READY: [UpgradeEvent; 2] = [UpgradeEvent::Asked, UpgradeEvent::Ready];
    const TO_GIVEN: [UpgradeEvent; 3] =
        [UpgradeEvent::Asked, UpgradeEvent::Ready, UpgradeEvent::Looked { quiet: true }];

    #[test]
    fn hand_over_passes_all_states() {
        let (end, steps) = run(&[&TO_GIVEN[..], &[UpgradeEvent::Taken]].concat());
        assert_eq!(
            (end, steps),
            (
                Handover::Served,
                vec![UpgradeStep::Start, UpgradeStep::Quiet, UpgradeStep::GiveAway, UpgradeStep::LetServe]
            )
        );
        assert!(end.is_given() && end.is_final() && !end.is_under_way() && end.due().is_none());
    }

    #[test]
    fn every_failure_before_taken_leads_back() {
        for begun in [&TO_READY[..1], &TO_READY[..], &TO_GIVEN[..]] {
            for why in [UpgradeEvent::Failed, UpgradeEvent::CalledOff] {
                let (returning, steps) = run(&[begun, &[why]].concat());
                assert_eq!(steps.last(), Some(&UpgradeStep::TakeBack), "{begun:?} {why:?}");
                let wait_until = NOW.after(QUIET_WAIT);
                assert_eq!(returning, Handover::Returning { given: begun.len() == 3, wait_until });
                // Until it is gone no other event counts, whatever it reports.
                for late in [UpgradeEvent::Ready, UpgradeEvent::Taken, UpgradeEvent::Failed] {
                    assert_eq!(returning.on(late, NOW), (returning, UpgradeStep::Nothing));
                }
                assert_eq!(returning.on(UpgradeEvent::Gone, NOW), (Handover::None, UpgradeStep::Resume));
            }
        }
    }

    #[test]
    fn wait_for_arriving_requests_is_bounded() {
        let (quieting, _) = run(&TO_READY);
        assert!(quieting.is_quieting() && !quieting.is_given() && !quieting.is_due(NOW));
        let (later, step) = quieting.on(UpgradeEvent::Looked { quiet: false }, NOW.after(QUIET_LOOK));
        assert!(later.is_quieting() && step == UpgradeStep::Nothing);
        let end = NOW.after(QUIET_WAIT);
        assert!(later.is_due(end));
        let (given, step) = later.on(UpgradeEvent::Looked { quiet: false }, end);
        let (wait_until, until) = (end.after(QUIET_WAIT), end.after(TAKE_WAIT));
        assert_eq!((given, step), (Handover::Given { wait_until, until }, UpgradeStep::GiveAway));
        // New clients wait for a while, and then get 503.
        assert!(given.holds_clients_back() && !given.is_impatient(end) && given.is_impatient(wait_until));
        let (given, _) = given.on(UpgradeEvent::Impatient, wait_until);
        assert!(!given.holds_clients_back() && given.is_given() && given.due() == Some(until));
        let (returning, _) = given.on(UpgradeEvent::CalledOff, until);
        assert!(!returning.holds_clients_back() && returning.is_given() && returning.due().is_none());
    }

    #[test]
    fn successor_that_served_and_died_gives_nothing_back() {
        let (served, _) = run(&[&TO_GIVEN[..], &[UpgradeEvent::Taken]].concat());
        assert_eq!(served.on(UpgradeEvent::Failed, NOW), (Handover::Served, UpgradeStep::Nothing));
    }
}
