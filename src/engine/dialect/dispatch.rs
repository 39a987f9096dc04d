//! Finds the format of a shape: its properties, its reader and its writer of streams.
//!
//! Must never be imported by a format.

use super::answer::{Destination, Frame, StreamFault};
use super::chat::read_stream::ChatReader;
use super::chat::replay::chunks;
use super::chat::write_stream::ChatWriter;
use super::messages::read_stream::MessagesReader;
use super::messages::write_stream::MessagesWriter;
use super::neutral::delta::{Delta, Take};
use super::responses::read_stream::ResponsesReader;
use super::responses::write_stream::ResponsesWriter;
use crate::wire::json::Raw;
use crate::wire::{ModelEndpoint, Shape};

/// Evaluates an expression in which `$format` is the type of a shape's format.
macro_rules! with_format {
    ($shape:expr, $format:ident => $value:expr) => {{
        #[allow(unused_imports)]
        use $crate::dialect::format::Format as _;
        match $shape {
            $crate::wire::Shape::Chat => {
                type $format = $crate::dialect::chat::Chat;
                $value
            }
            $crate::wire::Shape::Messages => {
                type $format = $crate::dialect::messages::Messages;
                $value
            }
            $crate::wire::Shape::Responses => {
                type $format = $crate::dialect::responses::Responses;
                $value
            }
        }
    }};
}
pub(super) use with_format;

/// Adds the finish reasons in these bytes of an answer. `ends`: all choices have ended. Text of the model cannot be
/// mistaken for a member name: its quotes are escaped within a string. Any other match must be one of the known
/// reasons.
pub fn add_reasons(shape: Shape, ends: bool, out: &[u8], reasons: &mut Vec<&'static str>) {
    with_format!(shape, F => F::add_reasons(ends, out, reasons));
}

/// Appends the events of `body`, a complete response of `endpoint` that has been checked.
pub(super) fn write_events(endpoint: ModelEndpoint, body: &[u8], out: &mut Vec<u8>) {
    // The data of an event must have no line ends. Valid JSON has them only between tokens.
    let line: Vec<u8> = body.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }).collect();
    let body = Raw::new(&line);
    match endpoint.is_passthrough() {
        true => chunks(true, body, out),
        false => with_format!(endpoint.shape, F => F::write_events(body, out)),
    }
}

/// Reader of a stream.
#[derive(Debug)]
pub(super) enum StreamReader {
    Chat(ChatReader),
    Messages(MessagesReader),
    Responses(ResponsesReader),
}

/// Writer of a stream.
#[derive(Debug)]
pub(super) enum StreamWriter {
    Chat(ChatWriter),
    Messages(MessagesWriter),
    Responses(Box<ResponsesWriter>),
}

impl StreamReader {
    /// `keeps`: the client receives each piece of reasoning, to send it back.
    pub(super) fn new(from: Shape, keeps: bool) -> StreamReader {
        match from {
            Shape::Chat => StreamReader::Chat(ChatReader::new(keeps)),
            Shape::Messages => StreamReader::Messages(MessagesReader::new(keeps)),
            Shape::Responses => StreamReader::Responses(ResponsesReader::new(keeps)),
        }
    }

    /// Reads an event with data; true if it counts as a sign of progress.
    pub(super) fn event(&mut self, frame: &Frame<'_>, sink: &mut dyn Take) -> Result<bool, StreamFault> {
        match self {
            StreamReader::Chat(reader) => reader.event(frame, sink),
            StreamReader::Messages(reader) => reader.event(frame, sink),
            StreamReader::Responses(reader) => reader.event(frame, sink),
        }
    }

    /// Reads a complete answer, which is valid JSON, as the deltas of a stream.
    pub(super) fn whole(&mut self, body: Raw<'_>, sink: &mut dyn Take) -> Result<(), StreamFault> {
        match self {
            StreamReader::Chat(reader) => reader.whole(body, sink),
            StreamReader::Messages(reader) => reader.whole(body, sink),
            StreamReader::Responses(reader) => reader.whole(body, sink),
        }
    }

    /// Handles a stream that lacks only its formal end.
    pub(super) fn finish(&mut self, sink: &mut dyn Take) -> Result<(), StreamFault> {
        match self {
            StreamReader::Chat(reader) => reader.finish(sink),
            _ => sink.take(Delta::End),
        }
    }

    /// True if an event with one text may be followed by another one that need not be read. The reader of responses
    /// compares each text with its repetition at the end.
    pub(super) fn may_repeat(&self) -> bool {
        !matches!(self, StreamReader::Responses(_))
    }

    /// Bytes that wait.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        match self {
            StreamReader::Chat(reader) => reader.waiting(),
            StreamReader::Messages(reader) => reader.waiting(),
            StreamReader::Responses(reader) => reader.waiting,
        }
    }
}

impl StreamWriter {
    /// `show_usage`: a chat client asked for the usage chunk.
    pub(super) fn new(to: Shape, show_usage: bool) -> StreamWriter {
        match to {
            Shape::Chat => StreamWriter::Chat(ChatWriter::new(show_usage)),
            Shape::Messages => StreamWriter::Messages(MessagesWriter::default()),
            Shape::Responses => StreamWriter::Responses(Box::default()),
        }
    }

    /// Writes a delta.
    #[inline]
    pub(super) fn take(&mut self, delta: Delta<'_>, to: &mut Destination<'_>) {
        match self {
            StreamWriter::Chat(writer) => writer.take(delta, to),
            StreamWriter::Messages(writer) => writer.take(delta, to),
            StreamWriter::Responses(writer) => writer.take(delta, to),
        }
    }

    /// Position of the last text in the output, if its event may repeat.
    pub(super) fn text_at(&self) -> Option<usize> {
        match self {
            StreamWriter::Chat(writer) => Some(writer.text_at),
            StreamWriter::Messages(writer) => Some(writer.text_at),
            StreamWriter::Responses(_) => None,
        }
    }

    /// Bytes that wait.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        match self {
            StreamWriter::Chat(writer) => writer.waiting(),
            StreamWriter::Messages(writer) => writer.waiting(),
            StreamWriter::Responses(writer) => writer.waiting(),
        }
    }
}
