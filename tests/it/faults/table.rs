//! The table: the outcome of each provider fault, for a complete answer and for a stream. Unless a row says otherwise,
//! it applies to clients of both API formats, whether or not the provider has the same format.
//!
//! With a second target, [`Out::Fails`] with `next` becomes an answer of that target, at the second attempt.

use Out::{Breaks, Fails, Served, Skip};

/// Expected answer to the client if the provider misbehaves.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Out {
    /// The healthy answer, complete, charged as the provider reports. `kept`: the connection serves the next request.
    Served { kept: bool },
    /// An error with its own status and no charge. `next`: another target may be tried.
    Fails { status: u16, next: bool, kept: bool, says: &'static str },
    /// 200, the first tokens, then an error event with this status, which is also in the usage record. The relayed
    /// tokens are charged.
    Breaks { status: u16, says: &'static str },
    /// The fault does not exist for this kind of answer.
    Skip,
}

/// Transports over which a fault is played.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Over {
    Both,
    TlsAlone,
    /// Only plain: the provider has no TLS variant, or the fault does not depend on the transport and is slow.
    Plain,
}

/// A fault.
pub struct Row {
    /// Script that the provider follows.
    pub script: &'static str,
    /// Address of the provider: `usual`, or an address that is itself a fault.
    pub place: &'static str,
    pub over: Over,
    /// Outcome for a complete answer.
    pub whole: Out,
    /// Outcome for a stream.
    pub stream: Out,
    /// Bytes of padding in the request.
    pub padding: usize,
}

const KEPT: Out = Served { kept: true };
const SERVED: Out = Served { kept: false };

const fn fails(status: u16, says: &'static str) -> Out {
    Fails { status, next: true, kept: false, says }
}

/// Returns the outcome of an error that the provider sent properly: its connection can be used again.
const fn told(status: u16, next: bool, says: &'static str) -> Out {
    Fails { status, next, kept: true, says }
}

const fn breaks(status: u16, says: &'static str) -> Out {
    Breaks { status, says }
}

const fn at(place: &'static str, over: Over, outcome: Out) -> Row {
    Row { script: "good", place, over, whole: outcome, stream: outcome, padding: 0 }
}

const fn row(script: &'static str, whole: Out, stream: Out) -> Row {
    Row { script, place: "usual", over: Over::Both, whole, stream, padding: 0 }
}

const fn plain(row: Row) -> Row {
    Row { over: Over::Plain, ..row }
}

const fn tls(row: Row) -> Row {
    Row { over: Over::TlsAlone, ..row }
}

const fn long(row: Row, padding: usize) -> Row {
    Row { padding, ..row }
}

const UNREACHABLE: &str = "cannot be reached";
const BROKEN: &str = "ended the response early";
const REFUSED: &str = "does not accept";
const NOT_VALID: &str = "not valid";
const FAILED: &str = "did not complete";
const NO_STREAM: &str = "not a stream";

/// All faults except those that wait for a timeout.
pub const FAULTS: &[Row] = &[
    // Healthy answers in all forms.
    row("good", KEPT, KEPT),
    row("chunked", KEPT, KEPT),
    row("one_byte_chunks", KEPT, KEPT),
    row("drip", KEPT, KEPT),
    row("interim", KEPT, KEPT),
    row("good_close", SERVED, SERVED),
    row("to_end", SERVED, SERVED),
    // Over TLS, a missing close_notify is harmless if the JSON object or the stream is complete in itself.
    tls(row("to_end_no_notify", SERVED, SERVED)),
    row("extra_bytes", SERVED, SERVED),
    row("no_done", Skip, KEPT),
    Row { place: "roomy", ..plain(row("huge", KEPT, Skip)) },
    // The connection fails.
    at("refused", Over::Plain, fails(500, UNREACHABLE)),
    at("not-tls", Over::TlsAlone, fails(500, UNREACHABLE)),
    at("untrusted", Over::TlsAlone, fails(500, UNREACHABLE)),
    at("wrong-name", Over::TlsAlone, fails(500, UNREACHABLE)),
    at("slams", Over::Plain, fails(500, BROKEN)),
    at("slams-tls", Over::TlsAlone, fails(500, UNREACHABLE)),
    // There is no answer, or it is not HTTP.
    row("close", fails(500, BROKEN), fails(500, BROKEN)),
    row("reset", fails(500, BROKEN), fails(500, BROKEN)),
    row("garbage", fails(500, BROKEN), fails(500, BROKEN)),
    row("bad_status", fails(500, BROKEN), fails(500, BROKEN)),
    row("switching", fails(500, BROKEN), fails(500, BROKEN)),
    row("two_lengths", fails(500, BROKEN), fails(500, BROKEN)),
    row("length_and_chunks", fails(500, BROKEN), fails(500, BROKEN)),
    row("long_head", fails(500, BROKEN), fails(500, BROKEN)),
    row("head_cut", fails(500, BROKEN), fails(500, BROKEN)),
    row("cut_at_head", fails(500, BROKEN), fails(500, BROKEN)),
    // Errors that the client receives.
    row("status_400", told(400, false, "the model"), told(400, false, "the model")),
    row("status_413", told(400, false, "the model"), told(400, false, "the model")),
    row("status_422", told(400, false, "the model"), told(400, false, "the model")),
    row("status_401", told(500, true, REFUSED), told(500, true, REFUSED)),
    row("status_402", told(500, true, REFUSED), told(500, true, REFUSED)),
    row("status_403", told(500, true, REFUSED), told(500, true, REFUSED)),
    row("status_404", told(500, true, REFUSED), told(500, true, REFUSED)),
    row("status_408", told(500, true, "408"), told(500, true, "408")),
    row("status_429", told(500, true, "429"), told(500, true, "429")),
    row("status_500", told(500, true, "500"), told(500, true, "500")),
    row("status_503", told(500, true, "503"), told(500, true, "503")),
    row("status_529", told(500, true, "529"), told(500, true, "529")),
    row("status_302", told(500, true, "302"), told(500, true, "302")),
    row("html_502", told(500, true, "502"), told(500, true, "502")),
    row("no_content", told(500, true, "204"), told(500, true, "204")),
    row(
        "body_of_204",
        Fails { status: 500, next: true, kept: false, says: "204" },
        Fails { status: 500, next: true, kept: false, says: "204" },
    ),
    // Status 200, but the body is not an answer.
    row("html_200", fails(500, NOT_VALID), fails(500, NO_STREAM)),
    row("wrong_type", KEPT, KEPT),
    row("plain_for_stream", Skip, KEPT),
    row("stream_for_plain", KEPT, Skip),
    row("gzip", fails(500, "compressed"), fails(500, "compressed")),
    row("empty", fails(500, NOT_VALID), fails(500, BROKEN)),
    row("not_json", fails(500, NOT_VALID), fails(500, NOT_VALID)),
    row("error_200", fails(500, "overloaded"), fails(500, "overloaded")),
    // Failures in mid-answer.
    row("cut", fails(500, BROKEN), breaks(500, BROKEN)),
    row("to_end_cut", fails(500, NOT_VALID), breaks(500, BROKEN)),
    tls(row("cut_no_notify", fails(500, BROKEN), breaks(500, BROKEN))),
    row("reset_mid", fails(500, BROKEN), breaks(500, BROKEN)),
    row("bad_chunk", fails(500, "badly framed"), breaks(500, "badly framed")),
    row("malformed_mid", Skip, breaks(500, NOT_VALID)),
    row("error_mid", Skip, breaks(500, "overloaded")),
    row("no_finish", Skip, breaks(500, BROKEN)),
    row("no_reason", Skip, breaks(500, BROKEN)),
    row("failed", fails(500, FAILED), breaks(500, FAILED)),
    Row { place: "narrow", ..plain(row("too_large", fails(500, "max_response"), breaks(500, "max_event"))) },
    // Answers before the request was sent completely.
    long(row("early_good", SERVED, SERVED), 6 << 20),
    long(plain(row("early_413", Fails { status: 400, next: false, kept: false, says: "too much" }, Skip)), 6 << 20),
    long(plain(row("early_503_close", fails(500, "503"), fails(500, "503"))), 6 << 20),
    long(plain(row("early_reset", fails(500, BROKEN), fails(500, BROKEN))), 6 << 20),
];

const CONNECT: &str = "connect_timeout";
const FIRST: &str = "first_byte_timeout";
const REQUEST: Out = Fails { status: 504, next: false, kept: false, says: "request_timeout" };

/// The faults that wait for a timeout. They are played concurrently.
pub const WAITS: &[Row] = &[
    at("silent", Over::Plain, fails(504, CONNECT)),
    at("silent-tls", Over::TlsAlone, fails(504, CONNECT)),
    at("no-name", Over::Plain, fails(500, UNREACHABLE)),
    row("stall", REQUEST, fails(504, FIRST)),
    row("stall_at_head", REQUEST, fails(504, FIRST)),
    row("stall_mid", REQUEST, breaks(504, "idle_timeout")),
    row("pings", Skip, fails(504, FIRST)),
    row("pings_mid", Skip, breaks(504, "idle_timeout")),
    row("no_done_stall", Skip, SERVED),
    row("tail_missing", REQUEST, SERVED),
];
