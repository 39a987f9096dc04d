//! Invariants of the bytes that a client receives, and of the ledger.

use super::clients::{Ask, Kind};
use super::media::Media;
use super::providers::Book;
use crate::support::answers::{Answers, Piece, field, nano};
use serde_json::Value;
use std::collections::BTreeMap;
use tollgate::policy::row::Row;
use tollgate::policy::usage::UsageSource;

/// Result of one request, as its client saw it.
#[derive(Clone, PartialEq, Debug)]
pub struct Seen {
    pub marker: u64,
    pub status: u16,
    /// Status in the error event that ended the stream.
    pub told: Option<u16>,
    /// The attempt whose text the client received.
    pub attempt: Option<u64>,
    /// True if the answer was complete and not an error.
    pub whole: bool,
    /// True if the client read it to its end.
    pub ended: bool,
    /// True if the request was translated.
    pub crossed: bool,
    /// Bytes of the request's text that the client received.
    pub received: u64,
    /// Cost in nano-dollars in the head, or in the last usage of the stream so far.
    pub cost: Option<u64>,
}

/// Parser of the bytes that a client receives.
#[derive(Debug, Default)]
pub struct Reading {
    answers: Answers,
    status: u16,
    id: String,
    body: Vec<u8>,
    open: bool,
    /// True if the connection is to be closed after the current answer.
    pub last: bool,
    /// True if answers can no longer be matched to requests.
    pub lenient: bool,
    /// True if a `100 Continue` has arrived, until the client handles it.
    pub go_on: bool,
}

impl Reading {
    /// Returns true between two answers.
    pub fn is_between(&self) -> bool {
        !self.open && self.answers.is_between()
    }

    /// Returns the request id of the current answer, or of the last one.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns a summary to print in a failure.
    pub fn brief(&self) -> String {
        format!("{} {} open {} after {} bytes", self.id, self.status, self.open, self.body.len())
    }

    /// Returns true if the current answer has no length, and ends with the connection.
    pub fn runs_to_end(&self) -> bool {
        self.answers.runs_to_end()
    }

    /// The connection was closed properly, which ends an answer without a length.
    pub fn closed(
        &mut self,
        asks: &mut std::collections::VecDeque<Ask>,
        book: &Book,
        seen: &mut BTreeMap<String, Seen>,
    ) -> Result<(), String> {
        let Some(ask) = asks.pop_front().filter(|_| self.open && self.runs_to_end()) else { return Ok(()) };
        self.open = false;
        self.judge(&ask, true, book, seen)
    }

    /// Parses bytes. `asks` are the unanswered requests in order; those whose answers are complete are removed.
    pub fn take(
        &mut self,
        bytes: &[u8],
        asks: &mut std::collections::VecDeque<Ask>,
        book: &Book,
        seen: &mut BTreeMap<String, Seen>,
    ) -> Result<(), String> {
        let mut pieces = Vec::new();
        self.answers.feed(bytes, &mut pieces)?;
        if self.lenient {
            asks.clear();
            self.open = false;
            return Ok(());
        }
        for piece in pieces {
            match piece {
                Piece::Head(100, _) => self.go_on = true,
                Piece::Head(status, lines) => self.head(status, &lines, asks, seen)?,
                Piece::Body(data) => {
                    self.body.extend_from_slice(&data);
                    let ask = asks.front().ok_or("a body without a request")?;
                    self.judge(ask, false, book, seen)?;
                }
                Piece::End(_) => {
                    let ask = asks.pop_front().ok_or("an end without a request")?;
                    self.open = false;
                    self.judge(&ask, true, book, seen)?;
                }
            }
        }
        Ok(())
    }

    fn head(
        &mut self,
        status: u16,
        lines: &[String],
        asks: &std::collections::VecDeque<Ask>,
        seen: &mut BTreeMap<String, Seen>,
    ) -> Result<(), String> {
        let Some(ask) = asks.front() else {
            // A request that was never completed may be answered with a timeout.
            return Err(format!("an answer without a request: {lines:?}"));
        };
        let id = field(lines, "x-gateway-request-id").ok_or("an answer without its id")?;
        if field(lines, "request-id") != Some(id) || field(lines, "x-request-id") != Some(id) {
            return Err(format!("ids differ in {lines:?}"));
        }
        if self.last {
            return Err("an answer after connection: close".to_string());
        }
        if !may_be_answered(ask.kind, status) {
            return Err(format!("{:?} was answered {status}", ask.kind));
        }
        let cost = field(lines, "x-tollgate-cost");
        let needs_cost = matches!(ask.kind, Kind::Generate { stream: false, .. }) && status == 200;
        if needs_cost && cost.is_none() {
            return Err("a complete answer without its cost".to_string());
        }
        let crossed = ask.crosses();
        let known = Seen {
            marker: ask.marker,
            status,
            told: None,
            attempt: None,
            whole: false,
            ended: false,
            crossed,
            received: 0,
            cost: cost.map(|cost| nano(cost).ok_or_else(|| format!("not a cost: {cost}"))).transpose()?,
        };
        if seen.insert(id.to_string(), known).is_some() {
            return Err(format!("the id {id} was used twice"));
        }
        (self.status, self.id, self.open) = (status, id.to_string(), true);
        self.body.clear();
        self.last = field(lines, "connection") == Some("close");
        if (ask.last || ask.old) && !self.last {
            return Err("the client requested close, but the answer does not confirm it".to_string());
        }
        Ok(())
    }

    /// Checks a body, at its end or before.
    fn judge(&self, ask: &Ask, ended: bool, book: &Book, all: &mut BTreeMap<String, Seen>) -> Result<(), String> {
        let seen = all.get_mut(&self.id).ok_or("an answer without a head")?;
        seen.ended = ended;
        let text = String::from_utf8_lossy(&self.body).into_owned();
        let stream = matches!(ask.kind, Kind::Generate { stream: true, .. }) && self.status == 200;
        let is_media = ask.kind == Kind::Media;
        let outcome = if is_media && ended {
            media_holds(&text, self.status, &self.id, ask, book)
        } else if is_media {
            return Ok(());
        } else if stream {
            stream_holds(&text, ended, &self.id, ask, book)
        } else if ended {
            whole_holds(&text, self.status, &self.id, ask, book)
        } else {
            return Ok(());
        };
        seen.told = if stream || is_media { told(&text) } else { None };
        seen.received = received(&text, ask);
        if stream {
            seen.cost = last_cost(&text)?;
        }
        (seen.attempt, seen.whole) = outcome.map_err(|error| format!("{ask:?}: {error}\n{text:.2000}"))?;
        Ok(())
    }
}

/// Returns true if a request of this kind may get this status.
fn may_be_answered(kind: Kind, status: u16) -> bool {
    match kind {
        Kind::Generate { .. } | Kind::Media => matches!(status, 200 | 400 | 401 | 408 | 429 | 500 | 503 | 504),
        Kind::Models | Kind::Quota => matches!(status, 200 | 401 | 408 | 503),
        Kind::Root => matches!(status, 200 | 408 | 503),
        Kind::BadKey => matches!(status, 401 | 408 | 503),
        // 504: a helper thread takes too long to read the body.
        Kind::UnknownModel => matches!(status, 404 | 401 | 408 | 429 | 503 | 504),
        Kind::BadJson => matches!(status, 400 | 401 | 408 | 429 | 503 | 504),
        Kind::TooLarge => matches!(status, 413 | 401 | 408 | 503),
        Kind::NotHttp => matches!(status, 400 | 408),
        Kind::Mangled | Kind::Form => true,
    }
}

/// Checks the pieces `m<marker>.a<attempt>.<n>;` in a text: they belong to this request and to one attempt, are in
/// order, and none is repeated.
fn pieces_hold(text: &str, ask: &Ask) -> Result<(Option<u64>, u64), String> {
    let start = format!("m{}.a", ask.marker);
    let (mut attempt, mut count) = (None, 0);
    for part in text.split("\"m").skip(1).map(|part| format!("m{}", part.split(';').next().unwrap_or_default())) {
        let Some(rest) = part.strip_prefix(&start) else {
            let foreign = part[1..].starts_with(|c: char| c.is_ascii_digit());
            if foreign {
                return Err(format!("part of the answer to another request: {part}"));
            }
            continue;
        };
        let (which, piece) = rest.split_once('.').ok_or("a broken piece")?;
        let (which, piece): (u64, u64) = (which.parse().map_err(|_| "attempt")?, piece.parse().map_err(|_| "piece")?);
        if *attempt.get_or_insert(which) != which {
            return Err("two attempts in one answer: a retry after the commit point".to_string());
        }
        if piece != count {
            return Err(format!("piece {piece} instead of {count}"));
        }
        count += 1;
    }
    Ok((attempt, count))
}

/// Returns the bytes of the pieces in a text.
fn received(text: &str, ask: &Ask) -> u64 {
    let start = format!("\"m{}.a", ask.marker);
    let pieces = text.match_indices(&start).filter_map(|(at, _)| text[at + 1..].split_inclusive(';').next());
    pieces.filter(|piece| piece.ends_with(';')).map(|piece| piece.len() as u64).sum()
}

/// Returns the status in the error event at the end of a stream.
fn told(text: &str) -> Option<u16> {
    let data = text.lines().rev().find_map(|line| line.strip_prefix("data: "))?;
    let value: Value = serde_json::from_str(data).ok()?;
    value["error"]["code"].as_u64().and_then(|code| u16::try_from(code).ok())
}

/// Returns the cost in the last usage of a stream. No provider sends one.
fn last_cost(text: &str) -> Result<Option<u64>, String> {
    let complete = text.rfind("\n\n").map_or("", |end| &text[..end]);
    let Some((_, rest)) = complete.rsplit_once("\"cost\":") else { return Ok(None) };
    let cost = rest.split([',', '}']).next().unwrap_or_default();
    nano(cost).map(Some).ok_or_else(|| format!("not a cost: {cost}"))
}

/// Checks that an answer names the cost of its usage record.
pub fn cost_holds(row: &Row, seen: Option<&Seen>) -> Result<bool, String> {
    let Some(seen) = seen else { return Ok(false) };
    let Some(cost) = seen.cost else { return Ok(false) };
    // A stream that was broken after its usage, or a record that was not committed in time, costs what it did cost.
    let is_whole = seen.status == row.status && seen.told.is_none() && (seen.ended || row.status == 499);
    if is_whole && cost != row.cost_nano {
        return Err(format!("the answer costs {cost} and the ledger says {row:?}"));
    }
    Ok(is_whole)
}

fn stream_holds(text: &str, ended: bool, id: &str, ask: &Ask, book: &Book) -> Result<(Option<u64>, bool), String> {
    // Lines may also end in CR LF: the gateway forwards a provider's bytes unchanged.
    let text = &text.replace("\r\n", "\n");
    let complete = text.rfind("\n\n").map_or("", |end| &text[..end + 2]);
    if ended && complete.len() != text.len() {
        return Err("the stream does not end with a whole event".to_string());
    }
    let (mut done, mut error) = (false, false);
    for event in complete.split_terminator("\n\n") {
        if done || error {
            return Err("something follows the end of the stream".to_string());
        }
        let Some(data) = data_of(event, is_hostile(ask, book))? else { continue };
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let value: Value = serde_json::from_str(data).map_err(|error| format!("{error} in {data}"))?;
        error = value.get("error").is_some_and(|error| !error.is_null());
        done = value["type"] == "message_stop";
        let named = if value["type"] == "message_start" { &value["message"]["id"] } else { &value["id"] };
        if named.is_string() && named != id && !is_hostile(ask, book) {
            return Err(format!("an event of {named} is in the stream of {id}"));
        }
        if error && value["error"]["request_id"] != id {
            return Err("an error without its request id".to_string());
        }
    }
    if ended && !done && !error {
        return Err("a stream ended without its final event and without an error".to_string());
    }
    if is_hostile(ask, book) {
        return Ok((None, false));
    }
    let (attempt, count) = pieces_hold(complete, ask)?;
    if done && ask.wants_cost() && last_cost(complete)?.is_none() {
        return Err("a complete stream without its cost".to_string());
    }
    if done {
        let served =
            attempt.or_else(|| last_attempt(ask, book)).and_then(|attempt| book.served.get(&(ask.marker, attempt)));
        let served = served.ok_or("a complete stream that no provider sent")?;
        if !served.complete || (attempt.is_some() && served.pieces != count) {
            return Err(format!("a broken stream was ended as if it were complete: {count} of {served:?}"));
        }
    }
    Ok((attempt, done))
}

/// Returns the single data line of an event; `None` for a comment. A hostile provider may send lines with unknown
/// fields.
fn data_of(event: &str, hostile: bool) -> Result<Option<&str>, String> {
    let mut found = None;
    for line in event.lines() {
        match line.split_once(':') {
            Some(("data", data)) if found.is_none() => found = Some(data.strip_prefix(' ').unwrap_or(data)),
            Some(("" | "event", _)) => {}
            _ if hostile => {}
            _ => return Err(format!("not an event: {event:?}")),
        }
    }
    Ok(found)
}

/// Returns true if a provider has sent corrupted bytes for this request. Then the answer must only be well-formed.
pub fn is_hostile(ask: &Ask, book: &Book) -> bool {
    book.served.range((ask.marker, 0)..(ask.marker + 1, 0)).any(|(_, served)| served.hostile)
}

fn last_attempt(ask: &Ask, book: &Book) -> Option<u64> {
    book.served.range((ask.marker, 0)..(ask.marker + 1, 0)).next_back().map(|((_, attempt), _)| *attempt)
}

fn whole_holds(text: &str, status: u16, id: &str, ask: &Ask, book: &Book) -> Result<(Option<u64>, bool), String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
    if status != 200 {
        let error = &value["error"];
        let bound =
            error["message"].as_str().is_some_and(|text| text.contains("max_response") || text.contains("max_buf"));
        // All clients that ask for media share the buffers of one key.
        if bound && !is_hostile(ask, book) && ask.kind != Kind::Media {
            return Err("a provider's answer was discarded although it is within the bound".to_string());
        }
        if error["request_id"] != id || error["code"] != status || !error["message"].is_string() {
            return Err("not an error of the gateway".to_string());
        }
        return Ok((None, false));
    }
    if !matches!(ask.kind, Kind::Generate { .. }) {
        return Ok((None, false));
    }
    if is_hostile(ask, book) {
        return Ok((None, false));
    }
    let (attempt, count) = pieces_hold(text, ask)?;
    let served =
        attempt.and_then(|attempt| book.served.get(&(ask.marker, attempt))).ok_or("an answer that no provider sent")?;
    if count != 1 || !served.complete || value["id"] != id {
        return Err(format!("not the answer that was sent: {served:?}"));
    }
    // A cheaper model answers if a limit has no room.
    if value["model"] != ask.model() && value["model"] != "small" {
        return Err("not the requested model".to_string());
    }
    Ok((attempt, true))
}

/// Checks a complete answer with audio or images: if it is no error, it has all that the provider sent.
fn media_holds(text: &str, status: u16, id: &str, ask: &Ask, book: &Book) -> Result<(Option<u64>, bool), String> {
    if status != 200 {
        return whole_holds(text, status, id, ask, book);
    }
    let served = last_attempt(ask, book).and_then(|attempt| book.served.get(&(ask.marker, attempt)));
    let served = served.ok_or("an answer that no provider sent")?;
    let (is_whole, has_error) = (text.contains(&Media::of(ask.marker).end()), text.contains("\"error\""));
    // A provider may also answer with something else, which passes.
    if !is_whole && !has_error && !is_hostile(ask, book) && served.pieces > 0 {
        return Err(format!("a broken answer was ended as if it were complete: {served:?}"));
    }
    Ok((None, is_whole && !has_error))
}

/// Checks one usage record against what its client received and its provider sent.
pub fn row_holds(row: &Row, seen: Option<&Seen>, book: &Book) -> Result<bool, String> {
    let Some(seen) = seen else { return Ok(false) };
    // An answer whose record was not committed in time ends in an error, although the record has status 200 and is
    // charged.
    let status = seen.told.unwrap_or(seen.status);
    let late = status == 503 && row.status == 200;
    if seen.ended && status != row.status && !late {
        return Err(format!("the client saw {status} and the ledger says {row:?}"));
    }
    let served = seen.attempt.and_then(|attempt| book.served.get(&(seen.marker, attempt)));
    let (true, Some(served)) = (seen.whole && seen.ended, served) else { return Ok(false) };
    match (served.usage, row.usage.source) {
        (Some((input, output)), UsageSource::Provider) => {
            // Earlier attempts whose answers were rejected are charged, too, as each of them reported.
            let before = book
                .served
                .iter()
                .filter(|((marker, attempt), _)| *marker == seen.marker && Some(*attempt) != seen.attempt);
            let mut sums = vec![(input, output)];
            for (more_input, more_output) in before.filter_map(|(_, served)| served.usage) {
                let more = sums.iter().map(|sum| (sum.0 + more_input, sum.1 + more_output));
                sums.extend(more.collect::<Vec<_>>());
            }
            if !sums.contains(&(row.usage.uncached_in, row.usage.out)) {
                return Err(format!("{input} and {output} tokens were reported, the ledger says {row:?}"));
            }
            Ok(true)
        }
        (None, UsageSource::Provider) => Err(format!("no usage was reported, but the record is {row:?}")),
        _ => Ok(false),
    }
}
