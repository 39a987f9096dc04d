//! Transcripts: the gateway driven through its seam from text files, with a virtual clock and no sockets.
//!
//! Every file in `tests/fixtures/{http,chat,messages,responses,relay,translated}/` holds cases about one topic. A case is a conversation:
//!
//! ```text
//! === a key that was revoked opens nothing
//! # a revoked key                                  comments name the rule that is tested
//! key old revoked=2026-11-01                       a further key; clients send it as {old}
//!
//! > @get /v1/models old
//! >
//!
//! < @401
//! < www-authenticate: Bearer
//! < @error authentication_error the API key is malformed, unknown, expired or revoked
//! ```
//!
//! **Directions.** `>` a client sends, `<` the client must have received, `>>` the provider must have received, `<<` the
//! provider sends. A client is `c1` unless another name stands before the arrow (`c2>`); it connects when it first
//! sends, or by `connect c2 [admin]`. Dialed connections are `u1`, `u2`, … in order; `>>` and `<<` mean the newest
//! unless a name stands before them. What is expected is *all* that came since the last look; at the end of a case
//! nothing may be left over: no byte, no ledger row, no connection that closed unseen.
//!
//! **Blocks.** Lines of one direction without an empty line between them are one block: one message, or more of one.
//! A block whose first line names `HTTP/` begins with a head: its lines end in CRLF, up to the first empty line. Other
//! lines end in LF, but the last of a block only if it is empty; so a JSON body ends where it ends, and events end
//! in their empty line. A body ends where a further request or status line begins another message. A line that ends in ` \` has no line end of its own. Escapes: `\r \n \0 \xHH \\`.
//!
//! **Chunks.** `>+` and `<<+` send their block as one chunk, `>.` and `<<.` the last chunk. An answer's chunks are not
//! compared (they depend on how bytes happened to arrive), but checked and taken off: `<` shows the payload and `<.`
//! the end of a chunked answer.
//!
//! **Placeholders**, sent: `{key}` or another key's name, `{length}` (of the rest of the block after the head),
//! `{a*70000}` (repeated), and whatever `let NAME = text` defines. Expected, besides: `{id}` `{id2}` … (request ids:
//! the same name is the same id, another name another), `{date}`, `{n}` (digits), `{iso}`, `{any}` (the rest of the
//! line, or up to the character that stands after it), `{head}` (the lines of a head up to its end),
//! `{length}` (must be the length of the rest of the block).
//!
//! **Shorthands** for the lines that are always alike (in `text.rs`): `@chat [KEY]`, `@messages [KEY]`, `@responses [KEY]`,
//! `@get PATH [KEY]`, `@relay NAME [KEY]` for clients; `@up-chat`, `@up-relay NAME`, `@up-responses`, `@up-messages [VERSION]` for what a provider receives; `@ok`, `@stream`,
//! `@status N` for what it sends; `@401 [ID]`, `@limits [REQUESTS TOKENS [RESET]]`, `@length`, `@events [ID]`,
//! `@answer N` (whatever its head has), `@error [close] TYPE MESSAGE` and `@error-messages …` for what a client receives.
//!
//! **Settings.** `[server] max_header = "1KiB"` sets one line of the configuration (sections: the tables of the
//! manual; `[provider up]`, `[model small]`, `[plan team]`, or new ones). Before the first case of a file, settings,
//! keys and lets hold for all of it.
//!
//! **Events.** `+500ms`, `+15s` (time passes, deadlines fire) · `fin`, `reset`, `closed`, `finished` (the gateway has
//! said that it writes nothing more, and still reads), `open` (of `c1`, or `c2 fin`, `u1 closed`) · `stall`, `read` (the client stops reading, or goes on) · `refuse-dial`, `tls-fail`, `hang-dial`, `stall-dial`
//! (the next dial; a stalled one comes up and takes no byte) · `u1 up`,
//! `u1 refused` (a dial that hung comes up, or fails) · `dials 2` (so far) · `dialed ADDRESS` (last) · `buffered 262144` (bytes at
//! most) · `resolve HOST [ADDRESS…]` (the resolver answers) · `row status=200 in=9 …` (the
//! next ledger row has these) · `log TEXT` (the newest log line has this) · `logged TEXT` (some log line has) · `hold-rows`, `commit`, `store-fails`,
//! `store-recovers` · `revoke KEY` · `edit KEY budget DOLLARS` · `hold-looks`, `looks 2`, `look`, `look-fails` (the
//! ledger does not answer when it is asked for a key that is not known, so many are asked for, it answers, it cannot) ·
//! `renews 1` (secrets were to be asked for again so often), `secret says WORD`, `secret fails WHY` (its file or program) ·
//! `lists 1` (so many providers are asked for their models and have not answered), `listed up a b=8192 !c` (one says
//! that it has these, the second with its context, and that one is left out), `listed up fails WHY` ·
//! `drain` (SIGTERM) · `exit` (the gateway has asked to leave) · `reload [server]
//! max_header = "1KiB"` · `hold-work`, `work` (the helper thread stands still, or does what it was given).
//!
//! **Other processes.** `upgrade` (SIGUSR2), `successor-ready`, `admits` (it has not handed over yet), `handed-over 2`
//! (it has, with so many requests running) · `inherits KEY TOKENS [DOLLARS PATH]` (a predecessor's row that was not announced),
//! `predecessor-left` · of a ledger that is shared: `asks 2` (questions without an answer), `ask 1 admitted`, `ask 1
//! refused [budget N [reserved]]`, `released 1` (leases given back without a row). What the gateway starts from stands before the steps:
//! `start work-min 100`, `start predecessor`, `start row KEY TOKENS [DOLLARS [PATH]]` (admitted five seconds ago), `start rest TARGET
//! SECONDS` (which a predecessor has told of); `rests 1` (the successor has been told of so many).
//!
//! Each case runs as written, with every byte on its own in both directions, and in random pieces: client bytes,
//! upstream bytes and ledger rows must be the same. `SCRIPT=words` runs the cases whose file or title has the words.

mod case;
mod pattern;
mod run;
mod text;
pub mod world;

use std::fs;
use std::path::Path;

fn all_hold(folder: &str) {
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
fn http_transcripts_hold() {
    all_hold("http");
}

#[test]
fn chat_transcripts_hold() {
    all_hold("chat");
}

#[test]
fn messages_transcripts_hold() {
    all_hold("messages");
}

#[test]
fn responses_transcripts_hold() {
    all_hold("responses");
}

#[test]
fn relayed_transcripts_hold() {
    all_hold("relay");
}

#[test]
fn translated_transcripts_hold() {
    all_hold("translated");
}
