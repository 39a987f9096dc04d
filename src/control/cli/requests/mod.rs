//! `tollgate requests`: the last requests of a running gateway from its request recorder, and with `--live` those that
//! end from then on.

mod names;
mod reasons;
mod row;

use super::args::ConfigArg;
use super::http::admin_client::{AskArg, Listener};
use super::http::blocking_http::NoAnswer;
use super::http::provider_client::encoded;
use super::keys;
use super::load::{self, Secrets};
use super::output::{Failure, Table, clean, grouped, money, print, remark};
use crate::base::text::plural;
use crate::io::channel::{BoundedSender, bounded};
use crate::io::clock::unix;
use crate::io::machine::terminal_width;
use crate::io::worker::start_thread;
use crate::policy::settings::secret::{Origin, Secret};
use crate::policy::window::iso;
use crate::wire::json::{self, Raw};
use clap::Args;
use names::{KeyNames, TIMEOUT, name_of};
use row::{COLUMNS, SPARE, asked, cells, cost, details, parse_id};
use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::time::Duration;

/// Pages of recorded requests that are read after the first.
const PAGES_MAX: usize = 1000;
/// Number of attempts to reach a lost gateway again, and the pause between them.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_secs(1);
/// Event that tells of another process, which serves new connections.
const SUCCESSOR: &[u8] = b"event: successor\n";
/// Maximum number of events that wait to be printed.
const FEED_QUEUE: usize = 64;
/// Maximum number of requests that are remembered, so that each is printed once.
const SEEN_MAX: usize = 10_000;
/// Maximum bytes of an incomplete event.
const EVENT_MAX: usize = 1 << 20;

/// `tollgate requests`.
#[derive(Args, Debug)]
pub struct RequestsArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Gateway options.
    #[command(flatten)]
    pub admin: AskArg,
    /// Keep running and print requests as they finish
    #[arg(long)]
    pub live: bool,
    /// Count the failures of the last day by reason, target and key
    #[arg(long, conflicts_with_all = ["live", "failed", "key", "id", "model", "status", "session"])]
    pub reasons: bool,
    /// Only requests with a status of 400 or more, or with a failed attempt
    #[arg(long)]
    pub failed: bool,
    /// Only requests of this key, by id or name
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Show one request in full, by its id or the beginning of its id
    #[arg(long, value_name = "ID", conflicts_with = "live", value_parser = parse_id)]
    pub id: Option<String>,
    /// Only requests for this model
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Only requests with this status, or a class such as 5xx (4xx leaves out 499: the client left)
    #[arg(long, value_name = "STATUS", value_parser = parse_status)]
    pub status: Option<String>,
    /// Only requests of this session: the name the client sent, or the hash in a report
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
    /// Print every column and name whole, however narrow the terminal
    #[arg(long)]
    pub wide: bool,
    /// Requests to print, of the last 1000 at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,
    /// Print JSON Lines instead of a table
    #[arg(long)]
    pub json: bool,
}

fn parse_status(text: &str) -> Result<String, String> {
    let is_class = text.len() == 3 && text.starts_with(['2', '3', '4', '5']) && text.ends_with("xx");
    match text.parse::<u16>() {
        Ok(200..600) => Ok(text.to_string()),
        _ if is_class => Ok(text.to_string()),
        _ => Err("expected a status such as 429, or a class such as 5xx".to_string()),
    }
}

/// Width of a terminal from which times and ids are written out.
const ROOM: usize = 200;
/// The printed table. Rows can be added later.
struct RequestTable {
    table: Table<'static>,
    /// Numbers of its columns.
    columns: Vec<usize>,
    is_short: bool,
}

impl RequestTable {
    fn new(args: &RequestsArgs) -> RequestTable {
        let is_short = !args.wide && terminal_width().is_some_and(|width| width < ROOM);
        let is_kept = |at: &usize| !(is_short && args.live && SPARE.contains(&COLUMNS[*at].0));
        let columns: Vec<usize> = (0..COLUMNS.len()).filter(is_kept).collect();
        let heads: Vec<_> = columns.iter().map(|at| COLUMNS[*at]).collect();
        RequestTable { table: Table::new(&heads).fit(args.wide, &SPARE), columns, is_short }
    }

    fn row(&mut self, request: Raw<'_>, names: &mut KeyNames<'_>) {
        let cells = cells(request, self.is_short, names);
        self.table.row(self.columns.iter().map(|at| cells[*at].clone()).collect());
    }
}

impl RequestsArgs {
    /// True if a request matches the filters. `session_hash`: stored name of the requested session.
    fn takes(&self, request: Raw<'_>, session_hash: &str, names: &mut KeyNames<'_>) -> bool {
        let has_failed = || request.get("failed").is_some() || request.get("status").and_then(Raw::count) >= Some(400);
        let is = |name: &str, text: &str| request.get(name).is_some_and(|value| value.is(text));
        let status = request.get("status").and_then(Raw::count).unwrap_or_default().to_string();
        let has_status = |wanted: &str| {
            if wanted.ends_with("xx") { status.starts_with(&wanted[..1]) && status != "499" } else { status == wanted }
        };
        (!self.failed || has_failed())
            && self
                .id
                .as_deref()
                .is_none_or(|id| request.get("id").and_then(Raw::text).is_some_and(|own| own.starts_with(id)))
            && self.model.as_deref().is_none_or(|model| is("model", model) || asked(request).as_deref() == Some(model))
            && self.status.as_deref().is_none_or(has_status)
            && self.session.as_deref().is_none_or(|name| is("session", name) || is("session", session_hash))
            && self.key.as_deref().is_none_or(|key| is("key", key) || names.of(request).as_deref() == Some(key))
    }
}

/// Prints the requests, the newest last; with `--live`, continues with those that end.
pub fn run(args: &RequestsArgs) -> Result<(), Failure> {
    let listener = Listener::with_token(&args.admin, &args.config)?;
    if args.reasons {
        let body = read(&listener, "/admin/v1/reasons", &args.admin, &args.config)?;
        return reasons::run(&body, args.json, args.wide);
    }
    let ask = |id: &str| name_of(&listener, id);
    let names = &mut KeyNames::new(&ask);
    let table = &mut RequestTable::new(args);
    match args.live {
        true => live(args, &listener, table, names),
        false => list(args, &listener, Recorded::default(), table, names).map(drop),
    }
}

/// Facts about the requests seen so far that the live feed needs.
#[derive(Default)]
struct Recorded {
    /// True if the recorded requests have been printed.
    is_listed: bool,
    /// Hash of the session whose requests are printed.
    session_hash: String,
    /// Ids of the last requests, and the same in the order in which they were seen.
    ids: HashSet<String>,
    order: VecDeque<String>,
}

/// Returns the JSON document at a path of the admin API.
pub(super) fn read(listener: &Listener, path: &str, named: &AskArg, config: &ConfigArg) -> Result<Vec<u8>, Failure> {
    let answer = listener.get(path, TIMEOUT).map_err(|why| no_answer(listener, &why))?;
    json::check(&answer.body)
        .map_err(|_| Failure::failed(format!("{listener} returned a response that is not JSON")))?;
    if answer.status == 200 {
        return Ok(answer.body);
    }
    let message = Raw::new(&answer.body).get("error").and_then(|error| error.get("message")?.text());
    let message = clean(&message.unwrap_or_default());
    if answer.status == 404 {
        return Err(Failure::failed(listener.is_for_clients()));
    }
    if answer.status == 401 && named.at.admin.is_none() {
        return Err(refused_token(listener, config));
    }
    let hint = match answer.status {
        401 if named.at.admin.is_some() && listener.token.is_none() => {
            " (--send-token sends the admin_token of the configuration there)"
        }
        _ => "",
    };
    Err(Failure::failed(format!("{listener} returned {}: {message}{hint}", answer.status)))
}

impl Recorded {
    /// True for a request that was not seen before. It is remembered.
    fn is_new(&mut self, request: Raw<'_>) -> bool {
        let Some(id) = request.get("id").and_then(Raw::text) else { return true };
        if !self.ids.insert(id.to_string()) {
            return false;
        }
        self.order.push_back(id.into_owned());
        if self.order.len() > SEEN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        true
    }
}

/// Prints the recorded requests: all that were not seen before if they have been listed before.
fn list(
    args: &RequestsArgs,
    listener: &Listener,
    mut seen: Recorded,
    table: &mut RequestTable,
    names: &mut KeyNames<'_>,
) -> Result<Recorded, Failure> {
    let begun = iso(unix());
    let asked = [("id", &args.id), ("session", &args.session)];
    let asked = asked.map(|(name, value)| value.as_ref().map(|value| format!("&{name}={}", encoded(value))));
    let path = ["/admin/v1/requests?limit=1000".to_string()].into_iter().chain(asked.into_iter().flatten());
    let path = path.collect::<String>();
    let body = read(listener, &path, &args.admin, &args.config)?;
    let document = Raw::new(&body);
    // Older requests follow if the page was full. After a break, the last ones are enough.
    let (mut pages, mut next) = (Vec::new(), document.get("next").and_then(Raw::text).map(Cow::into_owned));
    while !seen.is_listed
        && let Some(older) = next.and_then(|next| listener.get(&format!("{path}&after={next}"), TIMEOUT).ok())
        && pages.len() < PAGES_MAX
        && older.status == 200
        && json::check(&older.body).is_ok()
    {
        next = Raw::new(&older.body).get("next").and_then(Raw::text).map(Cow::into_owned);
        pages.push(older.body);
    }
    let session_hash = document.get("session_hash").and_then(Raw::text).unwrap_or_default();
    let lists = std::iter::once(document).chain(pages.iter().map(|page| Raw::new(page)));
    let kept: Vec<Raw<'_>> = lists.filter_map(|list| list.get("data")).flat_map(Raw::items).collect();
    let new: Vec<bool> = kept.iter().rev().map(|request| seen.is_new(*request)).collect();
    if seen.is_listed {
        for (one, _) in kept.iter().rev().zip(new).filter(|(one, new)| *new && one.get("id").is_some()) {
            if args.takes(*one, &session_hash, names) {
                print_one(args, *one, table, names)?;
            }
        }
        return Ok(seen);
    }
    let mut shown: Vec<Raw<'_>> = kept.iter().filter(|one| args.takes(**one, &session_hash, names)).copied().collect();
    // An item with a count stands for that many requests.
    let number = |list: &[Raw<'_>]| -> u64 {
        list.iter().map(|one| one.get("count").and_then(Raw::count).unwrap_or(1)).fold(0, u64::saturating_add)
    };
    let sums = ListSums {
        kept: number(&kept),
        taken: number(&shown),
        nano: shown.iter().filter_map(|one| cost(*one)).fold(0, u64::saturating_add),
    };
    shown.truncate(args.limit);
    shown.reverse();
    if args.json {
        shown.iter().try_for_each(|request| print_one(args, *request, table, names))?;
    } else if args.id.is_some() {
        shown.iter().try_for_each(|request| print(&details(*request)))?;
    } else {
        shown.iter().for_each(|request| table.row(*request, names));
        if args.live || !shown.is_empty() {
            print(&table.table.take_text())?;
        }
    }
    if shown.is_empty()
        && let (Some(key), None) = (&args.key, &args.admin.at.admin)
        && let Ok(high) = load::load(&args.config, Secrets::Optional)
    {
        keys::known(&high, key)?;
    }
    remark_on(args, listener, document, (&begun, &sums))?;
    (seen.is_listed, seen.session_hash) = (true, session_hash.into_owned());
    Ok(seen)
}

/// Requests that the gateway keeps, those of them that match, and the cost of these.
struct ListSums {
    kept: u64,
    taken: u64,
    nano: u64,
}

/// Prints the time since which requests are kept. Returns an error if the requested id is not among them.
fn remark_on(
    args: &RequestsArgs,
    listener: &Listener,
    document: Raw<'_>,
    (begun, sums): (&str, &ListSums),
) -> Result<(), Failure> {
    let member = |name: &str| document.get(name).and_then(Raw::text).unwrap_or_default();
    let (all, failures) = (member("recorded_since"), member("failures_recorded_since"));
    let mut since = format!("all since {all}");
    if failures < all {
        since += &format!("\nand failures (5xx) since {failures}");
    }
    let requests = |count: u64| format!("{} request{}", grouped(count), plural(count));
    match (&args.id, sums.taken) {
        (Some(_), 0) => {
            let since = since.replace('\n', " ");
            return Err(Failure::failed(format!(
                "no such request, nor in the ledger; kept: {since}; the log has older ones"
            )));
        }
        (None, count @ 1..)
            if !args.json
                && let Some(session) = &args.session =>
        {
            let kept = format!("{}, {}", requests(count), money(sums.nano));
            match of_ledger(args, listener, session)? {
                Some([all, nano]) => remark(&format!(
                    "The whole session, from the ledger: {}, {}.\nKept of it, with refused requests: {kept},\n{since}.",
                    requests(all),
                    money(nano)
                )),
                None => remark(&format!("The ledger has no request of the session. Kept: {kept},\n{since}.")),
            }
        }
        _ if *all >= *begun => remark(&format!("Recording begins now; failures are kept since {failures}.")),
        // Of a session, the gateway lists only its requests.
        (None, 0) if sums.kept == 0 && args.session.is_none() => {
            remark(&format!("No request is recorded. Kept: {since}."));
        }
        (_, 0) => remark(&format!("No such request. Kept: {since}.")),
        (None, _) if !args.json => remark(&format!("Kept: {}, {since}.", requests(sums.kept))),
        _ => {}
    }
    Ok(())
}

/// Number and cost in nano-dollars of all requests of a session in the ledger, if it has any.
fn of_ledger(args: &RequestsArgs, listener: &Listener, session: &str) -> Result<Option<[u64; 2]>, Failure> {
    let path = ["/admin/v1/usage?by=session&session=", &encoded(session)].concat();
    let body = read(listener, &path, &args.admin, &args.config)?;
    let line = Raw::new(&body).get("data").and_then(|data| data.items().next());
    Ok(line
        .map(|line| ["requests", "cost_nano_usd"].map(|name| line.get(name).and_then(Raw::count).unwrap_or_default())))
}

/// Error for a token that the configured listener has refused or not received.
fn refused_token(listener: &Listener, config: &ConfigArg) -> Failure {
    let token = load::load(config, Secrets::Optional).ok().and_then(|high| high.server.admin_token);
    let name = match token.as_ref().map(Secret::origin) {
        Some(Origin::Env(name)) => ["$", name].concat(),
        Some(Origin::File(file)) => clean(file),
        _ => "admin_token".to_string(),
    };
    Failure::failed(match token.filter(|token| !token.expose().is_empty() && load::is_known(token)) {
        None => format!("{listener} needs a token: set {name} (server.admin_token)"),
        Some(_) => format!("{listener} refuses the token in {name} (server.admin_token): correct it"),
    })
}

fn no_answer(listener: &Listener, why: &NoAnswer) -> Failure {
    Failure::failed(match why {
        NoAnswer::Refused(_) => format!("nothing listens at {listener}: start the gateway or check the address"),
        NoAnswer::Broken(why) => format!("no response from {listener}: {why}"),
        _ => format!("no response from {listener}"),
    })
}

fn print_one(
    args: &RequestsArgs,
    request: Raw<'_>,
    table: &mut RequestTable,
    names: &mut KeyNames<'_>,
) -> Result<(), Failure> {
    if args.json {
        return print(&[&String::from_utf8_lossy(request.bytes()), "\n"].concat());
    }
    table.row(request, names);
    print(&table.table.take_text())
}

/// Part of a live feed, or its end.
enum Feed {
    /// The feed is open: every request that ends from now on will be in it.
    Open,
    /// A server-sent event.
    Event(Vec<u8>),
    /// Status of the response, or the reason for the lack of one.
    Ended(Result<u16, NoAnswer>),
}

/// Reads a live feed on a thread of its own. Each message has the feed's `number`.
fn read_feed(listener: &Listener, number: u64, feeds: &BoundedSender<(u64, Feed)>) {
    let (listener, theirs) = (listener.clone(), feeds.clone());
    let read = move || {
        let (mut held, mut is_open) = (Vec::new(), false);
        let ended = listener.follow("/admin/v1/requests/live", &mut |piece| {
            if piece.is_empty() {
                return true;
            }
            let mut goes_on = is_open || theirs.send((number, Feed::Open)).is_ok();
            is_open = true;
            held.extend_from_slice(piece);
            while let Some(end) = held.windows(2).position(|two| two == b"\n\n") {
                goes_on &= theirs.send((number, Feed::Event(held.drain(..end + 2).collect()))).is_ok();
            }
            goes_on && held.len() <= EVENT_MAX
        });
        // An error means that nobody listens any more.
        let _ = theirs.send((number, Feed::Ended(ended)));
    };
    if let Err(why) = start_thread("feed", Box::new(read)) {
        let _ = feeds.send((number, Feed::Ended(Err(NoAnswer::Broken(why.to_string())))));
    }
}

/// Follows the gateway's live feed until standard output or the gateway is gone. The recorded requests are printed once
/// the feed is open, so that none that ends in between is missed. During an upgrade two processes have a feed.
fn live(
    args: &RequestsArgs,
    listener: &Listener,
    table: &mut RequestTable,
    names: &mut KeyNames<'_>,
) -> Result<(), Failure> {
    let (sender, feeds) = bounded(FEED_QUEUE);
    let (mut recorded, mut newest, mut tries) = (Recorded::default(), 0, 0);
    read_feed(listener, newest, &sender);
    while let Ok((number, part)) = feeds.recv() {
        match part {
            Feed::Open => {
                recorded = list(args, listener, recorded, table, names)?;
                tries = 0;
            }
            Feed::Event(event) => {
                if event.starts_with(SUCCESSOR) {
                    newest += 1;
                    read_feed(listener, newest, &sender);
                }
                if let Some(count) = missed(&event) {
                    remark(&format!("Requests that ended too fast to be shown: {}", grouped(count)));
                }
                let Some(data) = event.strip_prefix(b"data: ") else { continue };
                if json::check(data.trim_ascii()).is_err() {
                    continue;
                }
                let request = Raw::new(data);
                if recorded.is_new(request) && args.takes(request, &recorded.session_hash, names) {
                    print_one(args, request, table, names)?;
                }
            }
            Feed::Ended(_) if number < newest => {}
            Feed::Ended(ended) => {
                // A new gateway may have replaced this one.
                let ends = !recorded.is_listed || tries == TRIES || matches!(ended, Ok(201..));
                let why = match ended {
                    Ok(status) => Failure::failed(format!("{listener} ended the list ({status})")),
                    Err(why) => no_answer(listener, &why),
                };
                if ends {
                    return Err(why);
                }
                remark(&format!("{}; trying again", why.text()));
                (newest, tries) = (newest + 1, tries + 1);
                std::thread::sleep(PAUSE);
                read_feed(listener, newest, &sender);
            }
        }
    }
    Ok(())
}

/// Number of requests that an event reports as missed.
fn missed(event: &[u8]) -> Option<u64> {
    Raw::new(event.strip_prefix(b"event: missed\ndata: ")?).get("requests").and_then(Raw::count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::http::admin_client::AdminArg;

    #[test]
    fn requests_are_selected_by_key_and_outcome() {
        let all = [
            r#"{"key":"AAAAAAAAAAAA","name":"ann","status":200}"#,
            r#"{"key":"BBBBBBBBBBBB","name":"bob","status":502}"#,
            r#"{"key":"BBBBBBBBBBBB","name":"bob","status":200,"failed":[{"target":"p/m"}]}"#,
            r#"{"key":"AAAAAAAAAAAA","status":401}"#,
            r#"{"status":401}"#,
        ];
        let ask = |id: &str| Ok((id == "AAAAAAAAAAAA").then(|| "ann".to_string()));
        let args = |key: Option<&str>, failed| RequestsArgs {
            config: ConfigArg::default(),
            admin: AskArg { at: AdminArg { admin: None }, send_token: false },
            live: false,
            reasons: false,
            failed,
            key: key.map(String::from),
            id: None,
            model: None,
            status: None,
            session: None,
            wide: false,
            limit: 20,
            json: false,
        };
        let taken = |args: &RequestsArgs| {
            all.map(|request| args.takes(Raw::new(request.as_bytes()), "", &mut KeyNames::new(&ask)))
        };
        assert_eq!(taken(&args(None, false)), [true; 5]);
        assert_eq!(taken(&args(None, true)), [false, true, true, true, true]);
        assert_eq!(taken(&args(Some("ann"), false)), [true, false, false, true, false]);
        assert_eq!(taken(&args(Some("BBBBBBBBBBBB"), true)), [false, true, true, false, false]);
        assert_eq!(cells(Raw::new(all[3].as_bytes()), true, &mut KeyNames::new(&ask))[5], "ann");
    }

    #[test]
    fn number_of_questions_for_names_is_bounded() {
        let asked = std::cell::Cell::new(0);
        let ask = |id: &str| {
            asked.set(asked.get() + 1);
            if id == "lost" { Err(NoAnswer::Silent) } else { Ok(None) }
        };
        let names = &mut KeyNames::new(&ask);
        let of = |names: &mut KeyNames<'_>, id: &str| names.of(Raw::new(format!(r#"{{"key":"{id}"}}"#).as_bytes()));
        assert_eq!([of(names, "0"), of(names, "0")], [None, None]);
        assert_eq!(asked.get(), 1, "each key is asked for once");
        (0..1000).for_each(|id| drop(of(names, &id.to_string())));
        assert_eq!(asked.get(), names::NAMES_MAX);
        let names = &mut KeyNames::new(&ask);
        assert_eq!([of(names, "lost"), of(names, "0")], [None, None]);
        assert_eq!(asked.get(), names::NAMES_MAX + 1, "a gateway that does not answer is not asked again");
    }

    #[test]
    fn event_reports_the_number_of_missed_requests() {
        assert_eq!(missed(b"event: missed\ndata: {\"requests\":4001}\n\n"), Some(4001));
        assert_eq!(missed(b"data: {\"requests\":4001}\n\n"), None);
    }
}
