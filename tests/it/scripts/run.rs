//! Runs a case with different splits of its bytes, and compares the outcomes.

use super::case::{Act, Case, Direction, Framed, Step};
use super::pattern::{Bindings, compare, cost_of, shown};
use super::text::{Names, Token, bytes, tokens};
use super::world::{Cut, DialPlan, END_OF_CHUNKS, World};
use crate::support::answers::{nano, request_id};
use crate::support::setting::{KeyRing, Setting, begin, extras};
use crate::support::world::Driver;
use std::sync::Arc;
use tollgate::base::rng::Rng;
use tollgate::base::seam::{Ending, Shut, Signal};
use tollgate::base::time::Unix;
use tollgate::cli::alerts::body::body;
use tollgate::gateway::orders::{List, Listing, NoList, Notice};
use tollgate::gateway::{Past, Start};
use tollgate::policy::alert::AlertNews;
use tollgate::policy::config::{AlertForm, Origin, units};
use tollgate::policy::discover::Listed;
use tollgate::policy::keys::{KeyAnswer, KeyId, KeyNews, KeyRecord};
use tollgate::policy::ledger::LedgerNotice;
use tollgate::policy::ledger::Ruling;
use tollgate::policy::meter::{Amount, LimitReason};
use tollgate::policy::plan::caps::{Cap, Resource};
use tollgate::policy::row::Row;
use tollgate::policy::usage::{Usage, UsageSource};
use tollgate::wire::ModelEndpoint;

/// Runs with random splits, in addition to the run without splits and the one byte by byte.
const RANDOM_RUNS: u64 = 3;

/// Outcome of a run, which must not depend on the splits.
#[derive(PartialEq, Debug)]
struct Outcome {
    connections: Vec<(String, String, Option<Shut>)>,
    rows: Vec<String>,
}

/// Runs a case with every kind of split.
pub fn check(case: &Case) -> Result<(), String> {
    let whole = Player::play(case, Cut::Whole)?;
    let mut cuts = vec![Cut::Drip];
    cuts.extend((0..RANDOM_RUNS).map(|seed| Cut::Random(Rng::from_u64(seed + 1))));
    for cut in cuts {
        let words = format!("{cut:?}");
        let outcome = Player::play(case, cut)?;
        if outcome != whole {
            return Err(format!(
                "{}: with input cut as {words} the outcome differs:\n{whole:#?}\n{outcome:#?}",
                case.name
            ));
        }
    }
    Ok(())
}

struct Player<'a> {
    case: &'a Case,
    names: Names,
    keys: KeyRing,
    setting: Setting,
    world: World,
    bound: Bindings,
    seen_rows: Vec<String>,
}

impl Player<'_> {
    fn play(case: &Case, cut: Cut) -> Result<Outcome, String> {
        let words = format!("{cut:?}").chars().take(6).collect::<String>();
        let mut setting = Setting::default();
        for (section, line) in &case.preamble.settings {
            setting.set(section, line);
        }
        let mut keys = KeyRing::default();
        keys.issue("key", &[]);
        for key in &case.preamble.keys {
            let words: Vec<&str> = key[1..].iter().map(String::as_str).collect();
            keys.issue(&key[0], &words);
        }
        let names = Names { lets: case.preamble.lets.iter().cloned().collect(), keys: keys.texts.clone() };
        let start = start(&case.preamble.starts, &keys)?;
        let mut world = World::new(setting.high(), start, cut);
        world.unannounced = keys.unannounced.clone();
        let (bound, seen_rows) = (Bindings::new(), Vec::new());
        let mut player = Player { case, names, keys, setting, world, bound, seen_rows };
        for (index, step) in case.steps.iter().enumerate() {
            player
                .step(index, step)
                .map_err(|error| format!("{} (line {}, {words}):\n{error}", case.name, step.line))?;
        }
        player.finish().map_err(|error| format!("{} (at the end, {words}):\n{error}", case.name))
    }

    fn step(&mut self, index: usize, step: &Step) -> Result<(), String> {
        match &step.act {
            Act::Wait(micros) => self.world.advance(*micros),
            Act::Words(words) => self.words(&words.iter().map(String::as_str).collect::<Vec<_>>()),
            Act::Block { direction, label, framed, lines } => {
                let label = self.label(*direction, label);
                match direction {
                    Direction::ClientSends => {
                        if !self.world.ends.contains_key(&label) {
                            self.world.connect(&label, false)?;
                        }
                        self.send(&label, *framed, lines)
                    }
                    Direction::ProviderSends => self.send(&label, *framed, lines),
                    Direction::ClientGets | Direction::ProviderGets => self.expect(index, &label, *framed, lines),
                }
            }
        }
    }

    fn label(&self, direction: Direction, label: &str) -> String {
        match direction {
            _ if !label.is_empty() => label.to_string(),
            Direction::ClientSends | Direction::ClientGets => "c1".to_string(),
            Direction::ProviderSends | Direction::ProviderGets => format!("u{}", self.world.dials),
        }
    }

    fn send(&mut self, label: &str, framed: Framed, lines: &[String]) -> Result<(), String> {
        let payload = match framed {
            Framed::LastChunk => b"0\r\n\r\n".to_vec(),
            _ => bytes(lines, &self.names)?,
        };
        let payload = match framed {
            Framed::Chunk => [format!("{:x}\r\n", payload.len()).as_bytes(), &payload, b"\r\n"].concat(),
            _ => payload,
        };
        self.world.send(label, &payload)
    }

    fn expect(&mut self, index: usize, label: &str, framed: Framed, lines: &[String]) -> Result<(), String> {
        let tokens = match framed {
            Framed::LastChunk => vec![Token::Bytes(END_OF_CHUNKS.to_vec())],
            _ => tokens(lines, &self.names)?,
        };
        let end = self.world.ends.get_mut(label).ok_or_else(|| format!("there is no connection {label}"))?;
        let matched = compare(&tokens, &end.got, &mut self.bound)?;
        end.got.drain(..matched);
        let more = self.case.steps.get(index + 1).is_some_and(|next| match &next.act {
            Act::Block {
                direction: direction @ (Direction::ClientGets | Direction::ProviderGets),
                label: next,
                ..
            } => self.label(*direction, next) == label,
            _ => false,
        });
        let left = &self.world.ends[label].got;
        if !more && !left.is_empty() {
            return Err(format!("{label} received more than expected: {}", shown(&left[..left.len().min(4000)])));
        }
        Ok(())
    }

    fn words(&mut self, words: &[&str]) -> Result<(), String> {
        let (label, rest) = match words {
            [first, rest @ ..] if !rest.is_empty() && self.is_label(first) => (*first, rest),
            _ => ("c1", words),
        };
        let world = &mut self.world;
        match rest {
            ["connect", name] => world.connect(name, false),
            ["connect", name, "admin"] => world.connect(name, true),
            ["admin-reply", status, body] => {
                let ask = world.admin_requests.pop_front().ok_or("no admin request is pending")?;
                let status = status.parse().map_err(|_| "a status")?;
                let body = if status == 200 { Ok(body.as_bytes().to_vec()) } else { Err((*body).to_string()) };
                world.notice(Notice::Desk(ask.answer(status, body)))
            }
            ["connect"] => world.connect(label, false),
            ["up"] => world.come_up(label),
            ["refused"] => world.fail_dial(label),
            ["fin"] => world.finish(label, Ending::Fin),
            ["reset"] => world.finish(label, Ending::Broken),
            ["stall"] => world.end(label).map(|end| end.reads = false),
            ["read"] => {
                world.end(label)?.reads = true;
                world.settle()
            }
            ["closed"] => match world.end(label)?.closed {
                Some(_) => world.end(label).map(|end| end.close_seen = true),
                None => Err(format!("{label} is still open")),
            },
            ["finished"] => match world.end(label)? {
                end if end.finished && end.closed.is_none() => Ok(()),
                _ => Err(format!("{label} is not half closed")),
            },
            ["open"] => match world.end(label)?.closed {
                Some(how) => Err(format!("{label} was closed ({how:?})")),
                None => Ok(()),
            },
            _ => self.event(rest),
        }
    }

    fn is_label(&self, word: &str) -> bool {
        self.world.ends.contains_key(word)
    }

    fn event(&mut self, words: &[&str]) -> Result<(), String> {
        let world = &mut self.world;
        match words {
            ["refuse-dial"] => world.plans.push_back(DialPlan::Refuse),
            ["tls-fail"] => world.plans.push_back(DialPlan::TlsFail),
            ["stall-dial"] => world.plans.push_back(DialPlan::Stall),
            ["hang-dial"] => world.plans.push_back(DialPlan::Hang),
            ["buffered", most] => {
                let (most, now) = (most.parse::<usize>().unwrap_or(0), world.gateway.vitals().buffered);
                return if now <= most { Ok(()) } else { Err(format!("{now} bytes are buffered")) };
            }
            ["dials", count] if world.dials.to_string() == **count => {}
            ["dials", count] => return Err(format!("{} dials instead of {count}", world.dials)),
            ["dialed", addr] if world.dialed == addr.parse().ok() => {}
            ["dialed", addr] => return Err(format!("{:?} was dialed instead of {addr}", world.dialed)),
            ["resolve", host, addrs @ ..] => return world.resolve(host, addrs),
            ["row", expected @ ..] => return self.row(expected),
            ["log", expected @ ..] => {
                let (expected, newest) = (expected.join(" "), world.log.last().cloned().unwrap_or_default());
                return if newest.contains(&expected) { Ok(()) } else { Err(format!("the log says {newest}")) };
            }
            ["logged", expected @ ..] => {
                let expected = expected.join(" ");
                let found = world.log.iter().any(|line| line.contains(&expected));
                return if found { Ok(()) } else { Err(format!("not in the log: {:#?}", world.log)) };
            }
            ["trouble"] => return world.notice(Notice::LookForTrouble),
            ["alerts", count] if world.alerts.len().to_string() == **count => {}
            ["alerts", count] => return Err(format!("{:?} instead of {count} alerts", world.alerts)),
            ["alert", expected @ ..] => {
                let Some(AlertNews::Raised(alert)) = world.alerts.pop_front() else {
                    return Err("there is no alert".to_string());
                };
                let body = body(&alert, AlertForm::Generic);
                let missing = expected.iter().find(|word| !body.contains(**word));
                return missing.map_or(Ok(()), |word| Err(format!("the alert has no {word}: {body}")));
            }
            ["ended", subject @ ..] => {
                let next = world.alerts.pop_front();
                let is_next = matches!(&next, Some(AlertNews::Over(found, _)) if *found == subject.join(" "));
                return if is_next { Ok(()) } else { Err(format!("{next:?} instead of an end")) };
            }
            ["hold-rows"] => world.hold_rows = true,
            ["commit"] => {
                world.hold_rows = false;
                return world.settle();
            }
            ["store-fails"] => return world.notice(Notice::Ledger(LedgerNotice::Failed("no room".to_string()))),
            ["store-recovers"] => return world.notice(Notice::Ledger(LedgerNotice::Recovered)),
            ["hold-lookups"] => world.hold_lookups = true,
            ["lookups", count] if world.lookups.len().to_string() == **count => {}
            ["lookups", count] => return Err(format!("{} keys are looked up instead of {count}", world.lookups.len())),
            ["lookup"] => {
                world.hold_lookups = false;
                return world.settle();
            }
            ["lookup-fails"] => {
                let id = world.lookups.pop().ok_or("no key lookup is pending")?;
                return world.notice(Notice::Ledger(LedgerNotice::LookedUp(vec![(id, KeyAnswer::Unavailable)])));
            }
            ["renewals", count] if world.renewals.to_string() == **count => {}
            ["renewals", count] => return Err(format!("{} secrets are renewed instead of {count}", world.renewals)),
            ["secret", outcome @ ("is" | "fails"), rest @ ..] => {
                let providers = self.setting.high().providers;
                let mut secrets = providers.iter().flat_map(|provider| &provider.credentials).map(|one| &one.secret);
                let fresh = secrets.find(|secret| !matches!(secret.origin(), Origin::Env(_)));
                let origin = fresh.ok_or("no renewable secret is configured")?.origin().clone();
                let said = if *outcome == "is" { Ok(rest.join(" ")) } else { Err(rest.join(" ")) };
                return world.notice(Notice::SecretTold(origin, said));
            }
            ["lists", count] if world.lists.len().to_string() == **count => {}
            ["lists", count] => return Err(format!("{} lists are requested instead of {count}", world.lists.len())),
            ["listed", provider, models @ ..] => return self.listed(provider, models),
            ["drain"] => return world.signal(Signal::Terminate),
            ["hold-work"] => world.hold_work = true,
            ["work"] => return world.work(),
            ["hangup"] => {
                world.reading = true;
                return world.signal(Signal::Reload);
            }
            ["reload", change @ ..] => return self.reload(&change.join(" ")),
            ["exit"] if world.exit => {}
            ["exit"] => return Err("the gateway has not requested its exit".to_string()),
            ["revoke", name] => {
                let now = world.now.unix;
                return self.edit(name, |record| record.revoked = Some(now));
            }
            ["edit", name, "extra", text] => {
                let extra = extras(text);
                return self.edit(name, |record| record.limits = extra.clone());
            }
            ["edit", name, "budget", dollars] => {
                let text = format!("budget={dollars}/period");
                return self.edit(name, |record| record.limits = Cap::parse(&text).into_iter().collect());
            }
            other => return self.among_processes(other),
        }
        Ok(())
    }

    /// Changes the ledger's record of a key.
    fn edit(&mut self, name: &str, change: impl Fn(&mut KeyRecord)) -> Result<(), String> {
        if !self.keys.texts.contains_key(name) {
            return Err(format!("there is no key {name}"));
        }
        self.keys.records.iter_mut().filter(|record| record.name == *name).for_each(change);
        self.world.notice(Notice::Ledger(LedgerNotice::Keys(KeyNews::all(self.keys.records.clone()))))
    }

    /// Runs a step of a predecessor, a successor or a shared ledger.
    fn among_processes(&mut self, words: &[&str]) -> Result<(), String> {
        let world = &mut self.world;
        match words {
            ["upgrade"] => {
                world.signal(Signal::Upgrade)?;
                world.successor.then_some(()).ok_or("no successor was started")?;
            }
            ["upgrade-refused"] => {
                world.signal(Signal::Upgrade)?;
                (!world.successor).then_some(()).ok_or("a successor was started")?;
            }
            ["successor-ready"] => return world.notice(Notice::SuccessorReady),
            ["successor-taken"] => return world.notice(Notice::SuccessorTaken),
            ["successor-failed"] => return world.notice(Notice::SuccessorFailed("failed: it died".to_string())),
            ["successor-gone"] => return world.notice(Notice::SuccessorGone),
            ["hold-successor"] => world.hold_successor = true,
            ["taken-back"] if !world.successor => {}
            ["taken-back"] => return Err("the upgrade has not been cancelled".to_string()),
            ["served"] => {
                world.settle()?;
                world.served.then_some(()).ok_or("the successor has not been told to serve")?;
            }
            ["waits"] if !world.wants_clients() => {}
            ["waits"] => return Err("the gateway accepts connections".to_string()),
            ["accepts"] if world.wants_clients() => {}
            ["accepts"] => return Err("the gateway does not accept connections".to_string()),
            ["admits"] if world.handed_over.is_none() => {}
            ["admits"] => return Err("the gateway has handed over".to_string()),
            ["handed-over", running] => match world.handed_over {
                Some(count) if count.to_string() == **running => {}
                other => return Err(format!("handed over with {other:?} requests running")),
            },
            ["inherits", name, tokens, more @ ..] => {
                let key = self.keys.records.iter().find(|record| record.name == **name).ok_or("no such key")?;
                let mut row = foreign_row(key.id, world.now.unix, tokens.parse().map_err(|_| "tokens")?);
                if let [dollars, group] = more {
                    row.cost_nano = units::dollars(dollars).ok_or("dollars")?;
                    row.group = (*group).into();
                }
                return world.notice(Notice::Inherited(row));
            }
            ["predecessor-left"] => return world.notice(Notice::PredecessorLeft),
            ["check", number, "less", tokens] => {
                let left = Amount { tokens: tokens.parse().unwrap_or(0), nano: u64::MAX };
                return world.answer_check(number.parse().unwrap_or(0), Ruling::Less(left));
            }
            ["check", number, "admitted"] => return world.answer_check(number.parse().unwrap_or(0), Ruling::Admitted),
            ["check", number, "refused", "budget", which, by @ ..] => {
                // The key and each group have two parts; the first is that of its budget.
                let which: usize = which.parse().map_err(|_| "which")?;
                let by = if by == ["reserved"] { LimitReason::Reserved } else { LimitReason::Spent };
                return world
                    .answer_check(number.parse().unwrap_or(0), Ruling::Refused(Resource::Budget, 2 * which, by));
            }
            ["check", number, "refused"] => {
                return world.answer_check(
                    number.parse().unwrap_or(0),
                    Ruling::Refused(Resource::Requests, 1, LimitReason::Spent),
                );
            }
            ["checks", count] if world.checks.len().to_string() == **count => {}
            ["checks", count] => return Err(format!("{} admissions requested instead of {count}", world.checks.len())),
            ["released", count] if world.released.to_string() == **count => {}
            ["released", count] => return Err(format!("{} leases were returned instead of {count}", world.released)),
            other => return Err(format!("unknown event: {}", other.join(" "))),
        }
        Ok(())
    }

    /// Reloads the configuration with one line changed: `[section] key = value`.
    fn reload(&mut self, change: &str) -> Result<(), String> {
        let change = change.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (section, line) = change.ok_or("`reload` needs a changed line")?;
        self.setting.set(section, line.trim());
        self.world.reload(self.setting.high())
    }

    /// Answers the oldest request for a provider's models: `ID` or `ID=CONTEXT` each, `!ID` for a skipped one; or
    /// `fails WHY`, `fails 401`.
    fn listed(&mut self, name: &str, models: &[&str]) -> Result<(), String> {
        let number = self.setting.high().providers.iter().position(|provider| *provider.name == *name);
        let at = self
            .world
            .lists
            .iter()
            .position(|(_, asked)| Some(*asked) == number)
            .ok_or("no list of that provider is requested")?;
        let (epoch, provider) = self.world.lists.remove(at);
        let list = match models {
            ["fails", why @ ..] => Err(NoList { why: why.join(" "), refused: *why == ["401"] }),
            _ => {
                let (odd, good): (Vec<&str>, Vec<&str>) =
                    models.iter().copied().partition(|word| word.starts_with('!'));
                let listed = |word: &str| match word.split_once('=') {
                    Some((model, context)) => Listed { model: model.to_string(), context: context.parse().ok() },
                    None => Listed { model: word.to_string(), context: None },
                };
                let skipped = odd.first().map(|first| (odd.len(), first[1..].to_string()));
                Ok(List { models: good.into_iter().map(listed).collect(), skipped })
            }
        };
        self.world.notice(Notice::Listed(Listing { epoch, provider, list }))
    }

    fn row(&mut self, expected: &[&str]) -> Result<(), String> {
        let row = self.world.rows.pop_front().ok_or("there is no ledger row")?;
        let text = self.row_text(&row);
        let words: Vec<&str> = text.split(' ').collect();
        self.seen_rows.push(text.clone());
        if let Some(line) = self.bound.get(&cost_of(&request_id(&row)))
            && line.trim_end().split_once(": ").and_then(|(_, cost)| nano(cost)) != Some(row.cost_nano)
        {
            return Err(format!("the answer has {line:?}, the ledger row says {text}"));
        }
        match expected.iter().find(|word| !words.contains(word)) {
            Some(word) => Err(format!("the ledger row has no {word}: {text}")),
            None => Ok(()),
        }
    }

    fn row_text(&self, row: &Row) -> String {
        let key = self.keys.records.iter().find(|record| record.id == row.key).map_or("?", |record| &record.name);
        let usage = &row.usage;
        format!(
            "status={} key={key} endpoint={} model={} target={} stream={} in={} read={} write={} out={} source={} \
             cost={} cost_source={} attempts={} micros={} admitted={} queued_ms={} user={} session={} client={} group={} \
             asked={}",
            row.status,
            row.endpoint.name(),
            row.model,
            row.target,
            row.stream,
            usage.uncached_in,
            usage.cache_read,
            usage.cache_write,
            usage.out,
            usage.source.as_str(),
            row.cost_nano,
            usage.cost_source.as_str(),
            row.attempts,
            row.micros,
            row.admitted.0,
            row.queued_ms,
            row.names.user.as_deref().unwrap_or("none"),
            row.names.session.as_deref().unwrap_or("none"),
            row.client.name(),
            row.group,
            row.names.asked.as_deref().unwrap_or("none"),
        )
    }

    /// Checks that no bytes are left, and that no resources are in use after all clients have disconnected.
    fn finish(mut self) -> Result<Outcome, String> {
        if let Some(row) = self.world.rows.pop_front() {
            return Err(format!("an unexpected ledger row: {}", self.row_text(&row)));
        }
        let ends = std::mem::take(&mut self.world.ends);
        let mut connections = Vec::new();
        for (label, end) in &ends {
            if !end.got.is_empty() {
                let got = &end.got[..end.got.len().min(400)];
                return Err(format!("{label} received more than expected: {}", shown(got)));
            }
            if end.closed.is_some() && !end.close_seen {
                return Err(format!("{label} was closed ({:?})", end.closed));
            }
            connections.push((label.clone(), shown(&end.all), end.closed));
        }
        let rows = std::mem::take(&mut self.seen_rows);
        self.world.ends = ends;
        self.leave()?;
        Ok(Outcome { connections, rows })
    }

    fn leave(&mut self) -> Result<(), String> {
        let labels: Vec<String> = self.world.ends.keys().cloned().collect();
        for label in labels {
            let end = self.world.end(&label)?;
            end.reads = true;
            if end.closed.is_none() {
                self.world.finish(&label, Ending::Fin)?;
            }
        }
        self.world.advance(3_600_000_000)?;
        let vitals = self.world.gateway.vitals();
        let nothing = [vitals.clients, vitals.exchanges, vitals.upstreams, vitals.idle, vitals.holds, vitals.buffered];
        if nothing != [0; 6] || vitals.timers != 0 || vitals.flying != 0 {
            return Err(format!("resources are in use after all clients have left: {vitals:?}"));
        }
        Ok(())
    }
}

/// Returns the start state of the gateway: `work-min BYTES`, `predecessor`, `row KEY TOKENS [DOLLARS [PATH]]` (admitted
/// five seconds ago).
fn start(lines: &[Vec<String>], keys: &KeyRing) -> Result<Start, String> {
    let mut start = Start { keys: keys.records.clone().into(), ..Start::default() };
    for line in lines {
        match &line.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["work-min", bytes] => start.work_min = bytes.parse().ok(),
            ["predecessor"] => start.running = Some(Vec::new()),
            ["row", name, tokens, more @ ..] => {
                let key = keys.records.iter().find(|record| record.name == **name).ok_or("no such key")?.id;
                let (tokens, at) = (tokens.parse().map_err(|_| "tokens")?, begin().unix.0 - 5000);
                let nano = more.first().map_or(Ok(0), |dollars| units::dollars(dollars).ok_or("dollars"))?;
                let group: Arc<str> = more.get(1).copied().unwrap_or_default().into();
                let model = more.get(2).copied().unwrap_or("small").into();
                let past = Past {
                    key,
                    group,
                    at: Unix(at),
                    used: Amount { tokens, nano },
                    requests: 1,
                    model,
                    target: Arc::default(),
                };
                start.recent.push(past.clone());
                start.days.push(Past { at: Unix(at / 86_400_000 * 86_400_000), ..past });
            }
            other => return Err(format!("unknown start state: {}", other.join(" "))),
        }
    }
    Ok(start)
}

/// Returns the usage record of a request that another process has admitted and settled, and which this one does not
/// know.
fn foreign_row(key: KeyId, admitted: Unix, tokens: u64) -> Row {
    let usage = Usage { uncached_in: tokens, source: UsageSource::Provider, ..Usage::default() };
    Row {
        request: [tokens as u8; 16],
        key,
        admitted,
        model: "small".into(),
        target: "up/up-small".into(),
        endpoint: ModelEndpoint::CHAT,
        stream: false,
        status: 200,
        usage,
        cost_nano: 0,
        attempts: 1,
        micros: 1000,
        queued_ms: 0,
        group: Default::default(),
        client: Default::default(),
        names: Default::default(),
        lease: None,
    }
}
