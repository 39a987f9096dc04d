//! Commands of a host to the shared ledger, as the ledger's thread sends them: admission and release of requests,
//! records, and the host's lease.

use super::code::{ADMIT, ADMITTED, ANNOUNCE, CALLED, ENDED, LATE, LESS, LOOKED, REFUSED, RELEASE};
use super::resp::{LinkError, RedisCommand, Value, integer, list, text};
use super::{CALLS, Done, Holding, Holds, Remote, RemoteCommand, Speaker, grant_name, is_wrong_type, places};
use crate::base::time::{Mono, Unix};
use crate::io::clock;
use crate::io::entropy::fresh_name;
use crate::policy::keys::{KeyId, KeyRecord};
use crate::policy::ledger::{Ask, AskAnswer, Grant, Release, Ruling, Wish};
use crate::policy::meter::{Amount, LimitReason, SharedCounts};
use crate::policy::plan::caps::Resource;
use crate::policy::window::DAY_MS;
use crate::store::api::StoreError;
use crate::store::bounds;
use crate::store::keyform::record_from;
use crate::store::shared::SharedStore;
use crate::store::watch::WatchedLedger;
use crate::store::writer_clocks::WriterClocks;
use serde::Serialize;
use std::io;

impl WatchedLedger for Remote {
    /// Returns the records of these keys that exist.
    fn find_keys(&mut self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
        let mut cmd = RedisCommand::new("HMGET");
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
        cmd.arg(self.server.nodes.prefix()).arg(&speaker.host).arg(old).number(bounds::LEASE.as_millis() as u64);
        let mut all: Vec<(String, String, u64, u64)> = Vec::new();
        let field = |resource: usize| format!("{resource}:{}", speaker.host);
        for (place, Holding { reserved, running, asked }) in holds {
            let (hash, amounts) = (place.hash(), [*asked, reserved.tokens, reserved.nano]);
            let each = amounts.into_iter().enumerate().filter(|(_, amount)| *amount > 0);
            all.extend(each.map(|(at, amount)| (hash.clone(), field(at + 1), amount, place.kept())));
            all.extend(place.is_first().then(|| (place.running(), field(RUNNING), *running, 0)));
        }
        cmd.arg(json(&all));
        let done = self.server.query(&cmd)?;
        self.server.read_done(&done);
        self.server.replicated()
    }

    /// Renews the host's lease. False if it has ended.
    fn renew(&mut self, speaker: &Speaker) -> Result<bool, StoreError> {
        let name = self.server.named("host:") + &speaker.host;
        let length = bounds::LEASE.as_millis() as u64;
        self.server.query_number(RedisCommand::new("PEXPIRE").arg(&name).number(length)).map(|renewed| renewed > 0)
    }

    /// Ends the host's lease and all its reservations.
    fn leave(&mut self, speaker: &Speaker) -> Result<(), StoreError> {
        let name = self.server.named("host:") + &speaker.host;
        self.server.query(RedisCommand::new("DEL").arg(&name)).map(drop)
    }

    /// Sends commands in one pipeline and returns the outcome of each; an error if all are [`Done::Late`]. After an
    /// error the caller cannot know which commands were executed. So it sends rows again under the same number, and
    /// takes a new name for the host: all reservations under the former name end.
    fn send(&mut self, speaker: &Speaker, commands: &[RemoteCommand<'_>]) -> Result<Vec<Done>, StoreError> {
        self.server.connect()?;
        let (mut sent, mut before) = (Vec::with_capacity(commands.len() + 1), 0);
        let late = clock::unix().0.saturating_add(bounds::ASK_FRESH.as_millis() as u64);
        for command in commands {
            sent.push(match command {
                RemoteCommand::Ask(ask) => self.ask_command(speaker, ask, late),
                RemoteCommand::Release(releases) => self.release_command(speaker, releases),
                RemoteCommand::Rows(number, rows, uses) => {
                    let numbers = (*number, std::mem::replace(&mut before, *number));
                    self.rows_command(speaker, numbers, rows, uses)
                }
                RemoteCommand::Return(number) => {
                    let mut cmd = RedisCommand::new("DEL");
                    cmd.arg(self.server.named("host:") + &grant_name(&speaker.writer, *number));
                    cmd
                }
            });
        }
        let count = commands.len();
        sent.extend(self.server.wait());
        let asked = self.server.clock.mono();
        let mut answers = self.server.ask(&sent)?;
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
        let found = self.server.read_text(RedisCommand::new("GET").arg(name))?;
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
            (RemoteCommand::Ask(ask), Value::Error(error)) if is_wrong_type(&error) => {
                self.server.pass_over(format_args!("what is counted for key {}", ask.key), error);
                Ok(Done::Unanswered((*ask).clone()))
            }
            (_, Value::Error(error)) => Err(self.server.failed(&LinkError::Server(error))),
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

    fn ask_command(&mut self, speaker: &Speaker, ask: &Ask, late: u64) -> RedisCommand {
        let prefix = self.server.nodes.prefix();
        let named = |name: String| format!("{prefix}{name}");
        let (mut parts, mut running) = (Vec::new(), Vec::new());
        let mut totals = ask.limits.running.iter();
        for (at, (place, limits)) in places(&ask.key, &ask.lease).zip(&ask.limits.parts).enumerate() {
            let (owner, first_day) = (place.names().0, place.bounds.0.0 / DAY_MS);
            // Money without a limit is not read.
            let days = |what: &str, is_read: bool| match is_read && place.is_sum_of_days() {
                true => named(format!("{what}:{owner}")),
                false => String::new(),
            };
            if place.is_first() {
                let limit = totals.next().copied().unwrap_or(0);
                running.push(AskedRun { hash: named(place.running()), part: at, limit });
            }
            parts.push(AskedPart {
                hash: named(place.hash()),
                account: named(place.running()),
                limits: *limits,
                days: [String::new(), days("use", true), days("cost", limits[2] > 0)],
                first_day,
                day_count: (place.bounds.1.0 / DAY_MS).saturating_sub(first_day).min(DAYS_MAX),
                kept: place.kept(),
                ends: place.bounds.1.0,
            });
        }
        let Wish { part, number, requests, amount, waits, known, by: _, epoch: _ } = ask.wish;
        self.server.spared.asked(number);
        let question = ScriptQuestion {
            host: &speaker.host,
            host_prefix: self.server.named("host:"),
            reserved: [1, ask.lease.reserved.tokens, ask.lease.reserved.nano],
            least: ask.limits.strict.map(|least| [1, least.tokens, least.nano]),
            admits: ask.admits,
            grant: if part > 0 { grant_name(&speaker.writer, number) } else { String::new() },
            grant_lasts: bounds::GRANT.as_millis() as u64,
            grant_parts: part.max(1),
            wanted: [requests.max(1), amount.tokens, amount.nano],
            calls: waits,
            channel: self.server.named(CALLS),
            enlarges: known,
            late,
            parts,
            running,
        };
        let mut cmd = self.server.script(ADMIT, &[self.server.named("wins")]);
        cmd.arg(json(&question));
        cmd
    }

    fn release_command(&self, speaker: &Speaker, releases: &[Release]) -> RedisCommand {
        let mut all: Vec<(String, String, u64)> = Vec::new();
        let field = |resource: usize| format!("{resource}:{}", speaker.host);
        for Release { key, lease, unsent } in releases {
            for place in places(key, lease) {
                let amounts = [u64::from(*unsent), lease.reserved.tokens, lease.reserved.nano];
                let each = amounts.into_iter().enumerate().filter(|(_, amount)| *amount > 0);
                all.extend(each.map(|(at, amount)| (place.hash(), field(at + 1), amount)));
                all.extend(place.is_first().then(|| (place.running(), field(RUNNING), 1)));
            }
        }
        let mut cmd = self.server.script(RELEASE, &[]);
        cmd.arg(self.server.nodes.prefix()).arg(&speaker.host).arg(json(&all));
        cmd
    }
}

/// Number of running requests among the resources, from 1.
pub(super) const RUNNING: usize = Resource::Running as usize + 1;

/// ScriptQuestion as the admitting script takes it.
#[derive(Serialize)]
struct ScriptQuestion<'a> {
    host: &'a str,
    host_prefix: String,
    /// Amount of each resource that the request takes.
    reserved: [u64; 3],
    /// If all of that must fit into each limit: the least with which the host would ask again. Otherwise a limit that
    /// is not reached admits.
    #[serde(skip_serializing_if = "Option::is_none")]
    least: Option<[u64; 3]>,
    /// False if the host only asks for counts.
    admits: bool,
    /// Name of the grant that is wanted, `""` for none; its duration in milliseconds; and the divisor of what is left:
    /// it is at most one such part.
    grant: String,
    grant_lasts: u64,
    grant_parts: u32,
    wanted: [u64; 3],
    /// True if other hosts are to return their grants before a request is refused; the channel that asks them.
    calls: bool,
    channel: String,
    /// True if the host has this grant already and wants more.
    enlarges: bool,
    /// Time after which the script must not run any more, in milliseconds.
    late: u64,
    parts: Vec<AskedPart>,
    running: Vec<AskedRun>,
}

/// Part of the lease.
#[derive(Serialize)]
struct AskedPart {
    hash: String,
    /// Name of its key or group in calls.
    account: String,
    /// Of each resource; 0 for none.
    limits: [u64; 3],
    /// Hash with the sums of each resource by day; `""`: its own hash has the sum.
    days: [String; 3],
    first_day: u64,
    day_count: u64,
    /// For how long its hash is kept, in milliseconds.
    kept: u64,
    ends: u64,
}

/// Running requests of a key or a group.
#[derive(Serialize)]
struct AskedRun {
    hash: String,
    /// Index of the first of its parts.
    part: usize,
    limit: u64,
}

/// Argument of a script. It consists of text and numbers, so this cannot fail.
pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Days of the longest period.
const DAYS_MAX: u64 = 92;

/// True for the answer to a question that the server executed too late.
fn is_late(answer: &Value) -> bool {
    matches!(list(answer), [code, _, _, _, _, _, _, _] if integer(code) == Some(LATE))
}

/// Reads the result of the admitting script.
fn read_ruling(ask: &Ask, value: &Value) -> Option<AskAnswer> {
    let parts: Vec<u64> = list(value).iter().map(integer).collect::<Option<_>>()?;
    let ([code, part, resource, waits, gives, requests, tokens, nano], counts) = parts.split_first_chunk()?;
    let ruling = match *code {
        REFUSED => {
            let by = if *waits > 0 { LimitReason::Reserved } else { LimitReason::Spent };
            let resource = usize::try_from(*resource).ok()?.checked_sub(1)?;
            Ruling::Refused(*Resource::ALL.get(resource)?, usize::try_from(*part).ok()?, by)
        }
        ADMITTED => Ruling::Admitted,
        LESS => Ruling::Less(Amount { tokens: *tokens, nano: *nano }),
        LOOKED => Ruling::Looked,
        CALLED => Ruling::Called,
        ENDED => Ruling::Unavailable,
        _ => return None,
    };
    let told = ask.lease.parts.iter().zip(counts.as_chunks::<3>().0).map(|(part, [requests, tokens, nano])| {
        let used = Amount { tokens: *tokens, nano: *nano };
        SharedCounts { bounds: part.bounds, requests: *requests, used }
    });
    // The caller, who knows when it asked, sets the end.
    let (amount, until) = (Amount { tokens: *tokens, nano: *nano }, Mono(0));
    let grant = (*gives > 0).then_some(Grant { number: ask.wish.number, requests: *requests, amount, until });
    Some(AskAnswer { ask: ask.clone(), ruling, counts: told.collect(), grant })
}
