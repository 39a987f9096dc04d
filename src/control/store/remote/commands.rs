//! Commands of a host to the shared ledger, as the ledger's thread sends them: admission and release of requests,
//! records, and the host's lease.

use super::code::{ADMIT, ADMITTED, ANNOUNCE, CALLED, ENDED, LATE, LOOKED, RELEASE};
use super::values::{integer, list, text};
use super::{CALLS, Done, Holding, Holds, Remote, RemoteCommand, Speaker};
use super::{accounts, grant_name, is_wrong_type, kept, window_part};
use crate::base::time::{Mono, Unix};
use crate::io::clock;
use crate::io::entropy::fresh_name;
use crate::policy::ask::{Ask, AskAnswer, Grant, Release, Ruling, Wish};
use crate::policy::keys::{KeyId, KeyRecord};
use crate::policy::meter::{Amount, LimitReason, SharedCounts};
use crate::policy::plan::LimitKind;
use crate::policy::window::DAY_MS;
use crate::store::api::StoreError;
use crate::store::bounds;
use crate::store::keyform::record_from;
use crate::store::shared::SharedStore;
use crate::store::watch::WatchedLedger;
use crate::store::writer_clocks::WriterClocks;
use redis::{Cmd, ConnectionLike, Pipeline, Value};
use std::io;

impl WatchedLedger for Remote {
    /// Returns the records of these keys that exist.
    fn find_keys(&mut self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(self.server.named("keys"));
        ids.iter().for_each(|id| _ = cmd.arg(id.as_str()));
        let found = self.server.read(&cmd)?;
        Ok(list(&found).iter().filter_map(text).filter_map(record_from).collect())
    }

    fn fold(&mut self, before: Unix, max: usize) -> Result<u64, StoreError> {
        Remote::fold(self, before, max)
    }

    fn writer_clocks(&mut self) -> Result<WriterClocks, StoreError> {
        Remote::writer_clocks(self)
    }

    fn hold_fold(&mut self, held: Option<Unix>) -> Result<(), StoreError> {
        Remote::hold_fold(self, held)
    }
}

impl SharedStore for Remote {
    fn is_connected(&self) -> bool {
        self.server.is_connected()
    }

    fn epoch(&self) -> Option<&str> {
        self.server.epoch()
    }

    /// Announces the host as `speaker.host` with its reservations. Ends the reservations under its former names `old`,
    /// which are separated by spaces. See the script.
    fn announce(&mut self, speaker: &Speaker, old: &str, holds: &Holds) -> Result<(), StoreError> {
        self.server.connect()?;
        self.server.spare(speaker)?;
        let mut cmd = self.server.script(ANNOUNCE, &[self.server.named("wins")]);
        cmd.arg(self.server.nodes.prefix()).arg(&speaker.host).arg(old).arg(bounds::LEASE.as_millis() as u64);
        for ((account, window, period), Holding { reserved, running, asked }) in holds {
            cmd.arg(account.to_string()).arg(window_part(*window)).arg(kept(*window)).arg(period.0.0);
            cmd.arg(reserved.tokens).arg(*running).arg(reserved.nano).arg(*asked);
        }
        let done: Value = self.server.query(&cmd)?;
        self.server.read_done(&done);
        self.server.replicated()
    }

    /// Renews the host's lease. False if it has ended.
    fn renew(&mut self, speaker: &Speaker) -> Result<bool, StoreError> {
        let name = self.server.named("host:") + &speaker.host;
        let length = bounds::LEASE.as_millis() as u64;
        self.server.query(redis::cmd("PEXPIRE").arg(&name).arg(length))
    }

    /// Ends the host's lease and all its reservations.
    fn leave(&mut self, speaker: &Speaker) -> Result<(), StoreError> {
        let name = self.server.named("host:") + &speaker.host;
        self.server.query(redis::cmd("DEL").arg(&name))
    }

    /// Sends commands in one pipeline and returns the outcome of each; an error if all are [`Done::Late`]. After an
    /// error the caller cannot know which commands were executed. So it sends rows again under the same number, and
    /// takes a new name for the host: all reservations under the former name end.
    fn send(&mut self, speaker: &Speaker, commands: &[RemoteCommand<'_>]) -> Result<Vec<Done>, StoreError> {
        self.server.connect()?;
        let (mut pipe, mut before) = (Pipeline::with_capacity(commands.len()), 0);
        let late = clock::unix().0.saturating_add(bounds::ASK_FRESH.as_millis() as u64);
        for command in commands {
            pipe.add_command(match command {
                RemoteCommand::Ask(ask) => self.ask_command(speaker, ask, late),
                RemoteCommand::Release(releases) => self.release_command(speaker, releases),
                RemoteCommand::Rows(number, rows, uses) => {
                    let numbers = (*number, std::mem::replace(&mut before, *number));
                    self.rows_command(speaker, numbers, rows, uses)
                }
                RemoteCommand::Return(number) => {
                    let mut cmd = redis::cmd("DEL");
                    cmd.arg(self.server.named("host:") + &grant_name(&speaker.writer, *number));
                    cmd
                }
            });
        }
        let (wait, count) = (self.server.wait(), commands.len());
        let sent = count + usize::from(wait.is_some());
        wait.into_iter().for_each(|wait| _ = pipe.add_command(wait));
        let bytes = pipe.get_packed_pipeline();
        let asked = self.server.clock.mono();
        let mut answers = self.server.run_once(|connection| connection.req_packed_commands(&bytes, 0, sent))?;
        if self.server.clock.mono().micros_since(asked) >= bounds::ASK_FRESH.as_micros() as u64 {
            self.server.spared.stalled(self.server.clock.mono());
        }
        let have = answers.split_off(answers.len().min(count)).pop();
        let mut done = Vec::with_capacity(count);
        for (command, answer) in commands.iter().zip(answers) {
            done.push(self.read_answer(command, answer).inspect_err(|_| self.server.connection = None)?);
        }
        if done.len() < count {
            self.server.connection = None;
            return Err(self.server.nonsense());
        }
        self.server.judge_wait(have)?;
        // Grants may have ended before their hosts could report their use. They are spared as after an outage.
        if done.contains(&Done::Late) {
            self.server.spared.broke(self.server.clock.mono());
            // The clock may have been read incorrectly, too.
            self.server.ask_clock()?;
            if done.iter().all(|done| *done == Done::Late) {
                return Err(StoreError::Interrupted(self.server.name.clone()));
            }
        }
        Ok(done)
    }

    fn last_batch(&mut self, speaker: &Speaker) -> Result<u64, StoreError> {
        let name = self.server.named("seq:") + &speaker.writer;
        let found = self.server.read_text(redis::cmd("GET").arg(name))?;
        Ok(found.and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    fn follow_clock(&mut self) -> Result<(), StoreError> {
        self.server.follow_clock()
    }

    fn watch(&self) -> Mono {
        clock::watch()
    }

    fn unix(&self) -> Unix {
        clock::unix()
    }

    fn fresh_name(&mut self) -> io::Result<String> {
        fresh_name()
    }
}

impl Remote {
    fn read_answer(&mut self, command: &RemoteCommand<'_>, answer: Value) -> Result<Done, StoreError> {
        match (command, answer) {
            (RemoteCommand::Ask(ask), Value::ServerError(error)) if is_wrong_type(&error) => {
                self.server.pass_over(format_args!("what is counted for key {}", ask.key), error);
                Ok(Done::Unanswered((*ask).clone()))
            }
            (_, Value::ServerError(error)) => Err(self.server.failed(&error.into())),
            (RemoteCommand::Ask(_), answer) if is_late(&answer) => Ok(Done::Late),
            (RemoteCommand::Ask(ask), answer) => {
                read_ruling(ask, &answer).map(Done::Answer).ok_or_else(|| self.server.nonsense())
            }
            // The grant may have ended before.
            (RemoteCommand::Return(_), _) => Ok(Done::Done),
            (_, answer) => match self.server.read_done(&answer) {
                Some(0) => Ok(Done::Ended),
                Some(1) => Ok(Done::Done),
                Some(2) => Ok(Done::Before),
                _ => Err(self.server.nonsense()),
            },
        }
    }

    fn ask_command(&mut self, speaker: &Speaker, ask: &Ask, late: u64) -> Cmd {
        let (prefix, mut keys) = (self.server.nodes.prefix(), vec![self.server.named("wins")]);
        for (account, window, _) in accounts(&ask.key, &ask.lease) {
            keys.extend(["live", "due", "use", "cost"].map(|what| format!("{prefix}{what}:{account}")));
            keys.push(format!("{prefix}win:{account}:{}", window_part(window)));
        }
        let (mut cmd, reserved) = (self.server.script(ADMIT, &keys), ask.lease.reserved);
        cmd.arg(&speaker.host).arg(self.server.named("host:")).arg(reserved.tokens).arg(reserved.nano);
        cmd.arg(u8::from(ask.admits));
        let Wish { part, number, requests, amount, waits, known, by: _, epoch: _ } = ask.wish;
        self.server.spared.asked(number);
        let grant = if part > 0 { grant_name(&speaker.writer, number) } else { String::new() };
        cmd.arg(grant).arg(bounds::GRANT.as_millis() as u64).arg(part.max(1)).arg(requests.max(1));
        cmd.arg(amount.tokens).arg(amount.nano).arg(u8::from(waits)).arg(self.server.named(CALLS)).arg(u8::from(known));
        cmd.arg(late);
        let limits = std::iter::once(&ask.limits).chain(&ask.groups);
        for ((_, window, period), limits) in accounts(&ask.key, &ask.lease).zip(limits) {
            let first = period.0.0 / DAY_MS;
            LimitKind::ALL.iter().for_each(|kind| _ = cmd.arg(limits.get(*kind)));
            cmd.arg(kept(window)).arg(period.0.0).arg(first);
            cmd.arg((period.1.0 / DAY_MS).saturating_sub(first).clamp(1, 31)).arg(window.1.0).arg(period.1.0);
        }
        cmd
    }

    fn release_command(&self, speaker: &Speaker, releases: &[Release]) -> Cmd {
        let mut cmd = self.server.script(RELEASE, &[]);
        cmd.arg(self.server.nodes.prefix()).arg(&speaker.host);
        for Release { key, lease, unsent } in releases {
            for (account, window, period) in accounts(key, lease) {
                cmd.arg(account.to_string()).arg(window_part(window)).arg(period.0.0);
                cmd.arg(lease.reserved.tokens).arg(lease.reserved.nano).arg(u8::from(*unsent));
            }
        }
        cmd
    }
}

/// True for the answer to a question that the server executed too late.
fn is_late(answer: &Value) -> bool {
    matches!(answer, Value::Array(parts) if parts.len() == 7 && integer(&parts[0]) == Some(LATE))
}

/// Reads the result of the admitting script.
fn read_ruling(ask: &Ask, value: &Value) -> Option<AskAnswer> {
    let Value::Array(parts) = value else { return None };
    let parts: Vec<u64> = parts.iter().map(integer).collect::<Option<_>>()?;
    let ([code, which, waits, gives, requests, tokens, nano], counts) = parts.split_first_chunk()?;
    let kind = LimitKind::ALL.into_iter().find(|kind| kind.ruling() == *code);
    let ruling = match (*code, kind) {
        (_, Some(kind)) => {
            let by = if *waits > 0 { LimitReason::Reserved } else { LimitReason::Spent };
            Ruling::Refused(kind, usize::try_from(*which).ok()?, by)
        }
        (ADMITTED, _) => Ruling::Admitted,
        (LOOKED, _) => Ruling::Looked,
        (CALLED, _) => Ruling::Called,
        (ENDED, _) => Ruling::Unavailable,
        _ => return None,
    };
    let mut told = accounts(&ask.key, &ask.lease).zip(counts.as_chunks::<4>().0).map(|((_, window, period), told)| {
        let [requests, window_used, tokens, nano] = *told;
        SharedCounts { window, requests, window_used, period, period_used: Amount { tokens, nano } }
    });
    let (counts, groups) = (told.next()?, told.collect());
    // The caller, who knows when it asked, sets the end.
    let (amount, until) = (Amount { tokens: *tokens, nano: *nano }, Mono(0));
    let grant = (*gives > 0).then_some(Grant { number: ask.wish.number, requests: *requests, amount, until });
    Some(AskAnswer { ask: ask.clone(), ruling, counts, groups, grant })
}
