//! Transcripts: text files that drive the gateway through its seam, with a virtual clock and no sockets.
//!
//! Every file in `tests/fixtures/{http,chat,messages,responses,relay,translated}/` contains cases about one topic. A
//! case is a conversation:
//!
//! ```text
//! === a revoked key is refused
//! # a revoked key                                  comments name the rule that is tested
//! key old revoked=2026-11-01                       an additional key; clients send it as {old}
//!
//! > @get /v1/models old
//! >
//!
//! < @401
//! < www-authenticate: Bearer
//! < @error authentication_error the API key is malformed, unknown, expired or revoked
//! ```
//!
//! **Directions.** `>`: a client sends. `<`: the client must have received. `>>`: the provider must have received.
//! `<<`: the provider sends. The client is `c1` unless another name precedes the arrow (`c2>`). It connects when it
//! first sends, or with `connect c2 [admin]`. Dialed connections are `u1`, `u2`, … in order; `>>` and `<<` refer to the
//! newest one unless a name precedes them. An expectation must match *all* bytes since the last one. At the end of a
//! case nothing may be left: no byte, no usage record, no connection whose end was not expected.
//!
//! **Blocks.** Consecutive lines of one direction are one block, which contains one or more messages. A block whose
//! first line contains `HTTP/` starts with a head: its lines end in CRLF, up to the first empty line. Other lines end
//! in LF, except the last line of a block unless it is empty; so a JSON body has no final line end, and events end with
//! their empty line. A body ends where a request or status line starts another message. A line that ends in ` \` has no
//! line end. Escapes: `\r \n \0 \xHH \\`.
//!
//! **Chunks.** `>+` and `<<+` send their block as one chunk, `>.` and `<<.` send the last chunk. The chunks of an
//! answer are checked but not compared, since they depend on how bytes happened to arrive: `<` shows the payload, and
//! `<.` the end of a chunked answer.
//!
//! **Placeholders** in sent blocks: `{key}` or the name of another key, `{length}` (of the rest of the block after the
//! head), `{a*70000}` (repeated), and any name that `let NAME = text` defines. Additionally in expected blocks: `{id}`
//! `{id2}` … (request ids; equal names are equal ids, different names different ids), `{date}`, `{n}` (digits),
//! `{iso}`, `{any}` (the rest of the line, or up to the character that follows the placeholder), `{head}` (the
//! remaining lines of a head), `{length}` (must equal the length of the rest of the block),
//! `{cost}` (the line `x-tollgate-cost`, if any; every cost must equal that of the request's ledger row).
//!
//! **Shorthands** for frequent lines (in `text.rs`). For clients: `@chat [KEY]`, `@messages [KEY]`, `@responses [KEY]`,
//! `@get PATH [KEY]`, `@relay NAME [KEY]`. For requests that a provider receives: `@up-chat`, `@up-relay NAME`,
//! `@up-responses`, `@up-messages [VERSION]`. For answers that it sends: `@ok`, `@stream`, `@status N`. For answers
//! that a client receives: `@401 [ID]`, `@limits [REQUESTS TOKENS [RESET]]`, `@length`, `@events [ID]`, `@answer N`
//! (with any head), `@error [close] TYPE MESSAGE` and `@error-messages …`.
//!
//! **Settings.** `[server] max_header = "1KiB"` sets one line of the configuration. Sections are the tables of the
//! manual, and `[provider up]`, `[model small]`, `[plan team]` or new ones. Settings, keys and lets before the first
//! case of a file apply to all of its cases.
//!
//! **Events of connections and time**
//! - `+500ms`, `+15s`: time passes, and deadlines fire.
//! - `fin`, `reset`: the client ends the connection. `closed`, `open`: it must be closed or open. `finished`: the
//!   gateway has announced that it writes nothing more, and still reads. All of them apply to `c1`, or to another
//!   connection as in `c2 fin` or `u1 closed`.
//! - `stall`, `read`: the client stops reading, or continues.
//! - `refuse-dial`, `tls-fail`, `hang-dial`, `stall-dial`: result of the next dial. A stalled one opens, and accepts no
//!   bytes. `u1 up`, `u1 refused`: a dial that hangs opens or fails.
//! - `dials 2`: number of dials so far. `dialed ADDRESS`: the last one. `resolve HOST [ADDRESS…]`: the resolver
//!   answers.
//! - `buffered 262144`: maximum number of buffered bytes.
//! - `drain`: SIGTERM. `exit`: the gateway must have requested its end. `reload [server] max_header = "1KiB"`.
//! - `hangup`: the configuration is read again, until `reload`.
//! - `hold-work`, `work`: the helper thread pauses, or does its work. `admin-reply STATUS BODY`: it answers the oldest
//!   request to the admin API.
//!
//! **Events of the log and the ledger**
//! - `row status=200 in=9 …`: the next usage record must have these values.
//! - `log TEXT`: the newest log line must contain this. `logged TEXT`: some log line must contain it.
//! - `alert WORDS`: the next alert must contain these words. `ended SUBJECT`: the next report is the end of this
//!   trouble. `alerts 1`: number of other reports. `trouble`: the gateway checks targets and the ledger.
//! - `hold-rows`, `commit`, `store-fails`, `store-recovers`.
//! - `revoke KEY`, `edit KEY budget DOLLARS`.
//! - `hold-lookups`: the ledger does not answer lookups of unknown keys. `lookups 2`: number of lookups without an
//!   answer. `lookup`, `lookup-fails`: the ledger answers them, or fails.
//! - `renewals 1`: number of renewals requested for secrets. `secret is WORD`, `secret fails WHY`: result of their file
//!   or program.
//! - `lists 1`: number of providers whose model list was requested and is missing. `listed up a b=8192 !c`: a provider
//!   lists `a`, `b` with its context, and `c`, which is skipped. `listed up fails WHY`.
//!
//! **Events of other processes**
//! - `upgrade`: SIGUSR2. `successor-ready`. `admits`: the gateway must not have handed over yet. `handed-over 2`: it
//!   must have handed over with this number of running requests.
//! - `inherits KEY TOKENS [DOLLARS PATH]`: a predecessor's usage record that was not announced. `predecessor-left`.
//! - For a shared ledger, `checks 2`: number of checks without an answer. `check 1 admitted`, `check 1 less TOKENS`,
//!   `check 1 refused [budget N [reserved]]`: the ledger answers one. `released 1`: number of leases released without a usage record.
//!
//! **Start state**, before the steps: `start work-min 100`, `start predecessor`, `start row KEY TOKENS [DOLLARS
//! [PATH]]` (admitted five seconds ago).
//!
//! Each case runs as written, with every byte sent separately in both directions, and in random pieces. Client bytes,
//! provider bytes and usage records must be identical. `SCRIPT=words` runs only cases whose file or title contains the
//! words.

mod case;
mod pattern;
mod run;
mod text;
pub mod world;

use std::fs;
use std::path::Path;

fn all_pass(folder: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder);
    let mut files: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "txt"));
    files.sort();
    let wanted = std::env::var("SCRIPT").unwrap_or_default();
    let (mut failures, mut count) = (Vec::new(), 0);
    for file in &files {
        let name = format!("{folder}/{}", file.file_name().unwrap().to_string_lossy());
        for case in case::read(&name, &fs::read_to_string(file).unwrap()) {
            if case.name.contains(&wanted) {
                count += 1;
                failures.extend(run::check(&case).err());
            }
        }
    }
    assert!(count > 0 || !wanted.is_empty(), "no case in {folder}");
    assert!(failures.is_empty(), "{} of {count} cases failed:\n\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn http_transcripts_pass() {
    all_pass("http");
}

#[test]
fn chat_transcripts_pass() {
    all_pass("chat");
}

#[test]
fn messages_transcripts_pass() {
    all_pass("messages");
}

#[test]
fn responses_transcripts_pass() {
    all_pass("responses");
}

#[test]
fn relayed_transcripts_pass() {
    all_pass("relay");
}

#[test]
fn translated_transcripts_pass() {
    all_pass("translated");
}
