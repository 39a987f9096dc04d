//! Requests to pass-through endpoints that are forms with files (`multipart/form-data`): the fields that are read, and
//! the form that is sent.
//!
//! Owns the treatment of fields. Must never hold content: a form is read where it lies, and written on while it
//! arrives. Called by [`crate::dialect::request`] and by the gateway when it writes a request upstream.

use super::PassthroughFormat;
use crate::base::limits::{DROPPED_MAX, NAME_BYTES_MAX, TOLD_LOOKED_AT_MAX, UPLOAD_HOLD};
use crate::dialect::capabilities::{Capabilities, UnknownMembers};
use crate::dialect::request::{Fields, Invalid, Name, stored};
use crate::dialect::tokens::{CountLater, Estimator};
use crate::dialect::translate::RequestTarget;
use crate::wire::multipart::{FormPiece, Multipart, PART_HEAD_MAX, write_head};
use crate::wire::{Passthrough, Span};

/// Bytes at the beginning of a form that must contain its model: however it arrives, the bytes that are held show
/// whether they do, with the head of the next part.
const MODEL_WITHIN: usize = UPLOAD_HOLD - PART_HEAD_MAX;
/// Least bytes of compressed audio for one prompt token: providers count about ten for each second.
const AUDIO_BYTES_PER_TOKEN: u64 = 100;
/// Least bytes of compressed audio for one millisecond of it: speech in MP3 or Opus has 2 kB or more a second.
const AUDIO_BYTES_PER_MILLI: u64 = 2;
/// Bytes of a field that is read, such as `n`; a longer value is not one.
const VALUE_MAX: usize = 1024;

/// A field of a form, as far as its content matters.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum FormField {
    Model,
    Stream,
    Format,
    N,
    Prompt,
    Other,
}

impl FormField {
    fn of(passthrough: Passthrough, name: &[u8]) -> FormField {
        match name {
            b"model" => FormField::Model,
            b"stream" => FormField::Stream,
            b"response_format" => FormField::Format,
            b"n" | b"n[]" if passthrough.makes_images() => FormField::N,
            b"prompt" | b"prompt[]" => FormField::Prompt,
            _ => FormField::Other,
        }
    }
}

/// The fields of a form that have begun so far: some may occur only once, and some must occur.
#[derive(Copy, Clone, Debug)]
struct FieldsBegun {
    passthrough: Passthrough,
    /// One bit for each field in [`FieldsBegun::NAMES`].
    begun: u8,
}

impl FieldsBegun {
    /// Names, each with its alternative: Groq also takes the address of audio. The first four may occur only once.
    const NAMES: [[&'static str; 2]; 7] = [
        ["model", "model"],
        ["stream", "stream"],
        ["response_format", "response_format"],
        ["n", "n[]"],
        ["file", "url"],
        ["image", "image[]"],
        ["prompt", "prompt"],
    ];
    const SINGLE: usize = 4;

    fn new(passthrough: Passthrough) -> FieldsBegun {
        FieldsBegun { passthrough, begun: 0 }
    }

    fn has_model(self) -> bool {
        self.begun & 1 != 0
    }

    fn has_prompt(self) -> bool {
        self.begun & 1 << 6 != 0
    }

    /// Records that a field of this name begins.
    fn begin(&mut self, name: &[u8]) -> Result<(), Invalid> {
        let Some(at) = FieldsBegun::NAMES.iter().position(|names| names.iter().any(|one| one.as_bytes() == name))
        else {
            return Ok(());
        };
        if at < FieldsBegun::SINGLE && self.begun & (1 << at) != 0 {
            return Err(Invalid(format!("{}: expected it only once", FieldsBegun::NAMES[at][0])));
        }
        self.begun |= 1 << at;
        Ok(())
    }

    /// Checks that no field is missing at the end of the form.
    fn end(self) -> Result<(), Invalid> {
        let required: &[usize] = if self.passthrough.makes_images() { &[5, 6] } else { &[4] };
        match required.iter().find(|at| self.begun & (1 << **at) == 0) {
            Some(at) => Err(Invalid(format!("{}: missing", FieldsBegun::NAMES[*at][0]))),
            None => Ok(()),
        }
    }
}

/// Reads the fields of a form that has not been sent yet.
#[derive(Debug)]
pub struct RequestForm {
    passthrough: Passthrough,
    reader: Multipart,
    /// Bytes of the body that have been read.
    at: usize,
    begun: FieldsBegun,
    /// The current field, the beginning of its content, and true for a file.
    field: (FormField, usize, bool),
    /// The answer is to be plain text: VTT, SRT or only the words.
    pub is_plain: bool,
    /// True if enough has been read to send the request.
    pub may_be_sent: bool,
    /// True if all of it has arrived.
    pub is_complete: bool,
    /// Bytes of the form that its audio counts as: those announced or received. Of a form of unknown length, and of
    /// audio that the provider fetches by its address, the most that a form may have.
    bytes: u64,
    most: u64,
    /// Its audio is named by its address.
    is_fetched: bool,
}

impl RequestForm {
    /// A form at its start, of `declared` bytes, at most `most`.
    pub fn new(passthrough: Passthrough, boundary: &[u8], declared: Option<u64>, most: u64) -> RequestForm {
        let field = (FormField::Other, 0, false);
        RequestForm {
            passthrough,
            reader: Multipart::new(boundary),
            at: 0,
            begun: FieldsBegun::new(passthrough),
            field,
            is_plain: false,
            may_be_sent: false,
            is_complete: false,
            bytes: declared.unwrap_or(most),
            most,
            is_fetched: false,
        }
    }

    /// Notes that the whole form has arrived, `received` bytes. Returns the counted prompt tokens that its audio lacks.
    pub fn completed(&mut self, received: u64) -> u64 {
        self.is_complete = true;
        let counted = self.audio_tokens();
        self.bytes = if self.is_fetched { self.most } else { received };
        counted.saturating_sub(self.audio_tokens())
    }

    /// Upper bound of the prompt tokens of its audio; 0 for images.
    fn audio_tokens(&self) -> u64 {
        if self.passthrough.is_transcript() { self.bytes / AUDIO_BYTES_PER_TOKEN } else { 0 }
    }

    /// Upper bound of the length of its audio.
    pub fn audio_millis(&self) -> u32 {
        u32::try_from(self.bytes / AUDIO_BYTES_PER_MILLI).unwrap_or(u32::MAX)
    }

    /// Reads more of `body`, all bytes so far.
    pub(crate) fn feed(
        &mut self,
        body: &[u8],
        complete: bool,
        fields: &mut Fields,
        tokens: &mut CountLater,
    ) -> Result<(), Invalid> {
        if complete {
            self.completed(body.len() as u64);
        }
        while let Some((piece, length)) = self.reader.next(&body[self.at..], complete).map_err(invalid)? {
            let begin = self.at;
            self.at += length;
            match piece {
                FormPiece::Part { name, is_file } => {
                    self.end_field(body, begin, fields, tokens)?;
                    let name = name.of(&body[begin..]);
                    self.begun.begin(name)?;
                    self.is_fetched |= name == b"url";
                    self.field = (FormField::of(self.passthrough, name), self.at, is_file);
                }
                FormPiece::End => {
                    self.end_field(body, begin, fields, tokens)?;
                    self.begun.end()?;
                    self.field = (FormField::Other, self.at, false);
                }
                FormPiece::Data | FormPiece::Rest => {}
            }
        }
        let is_held = body.len() >= UPLOAD_HOLD;
        if is_held && fields.model.is_none() {
            return Err(late());
        }
        // The content of a file is not waited for.
        let has_count = !self.passthrough.makes_images() || (fields.answers_per_text > 0 && self.begun.has_prompt());
        let was_read = self.may_be_sent;
        self.may_be_sent = complete || is_held || (self.field.2 && fields.model.is_some() && has_count);
        if self.may_be_sent && !was_read {
            self.bytes = if self.is_fetched { self.most } else { self.bytes };
            tokens.add(self.audio_tokens());
        }
        Ok(())
    }

    /// Ends the current field, whose content ends at `end`.
    fn end_field(
        &mut self,
        body: &[u8],
        end: usize,
        fields: &mut Fields,
        tokens: &mut CountLater,
    ) -> Result<(), Invalid> {
        let (field, begin, is_file) = self.field;
        let value = Span::new(begin, end);
        let text = value.of(body);
        let expected = |name: &str, what: &str| Err(Invalid(format!("{name}: expected {what}")));
        match field {
            FormField::Model if is_file => return expected("model", "a text"),
            FormField::Model if end > MODEL_WITHIN => return Err(late()),
            FormField::Model if std::str::from_utf8(text).is_err() => return expected("model", "UTF-8"),
            // An empty name is no name, as if the field were missing.
            FormField::Model => fields.model = Some(value).filter(|value| !value.is_empty()),
            FormField::Stream => match text {
                b"true" | b"True" | b"1" => fields.stream = true,
                b"false" | b"False" | b"0" | b"" => {}
                _ => return expected("stream", "true or false"),
            },
            FormField::Format if text.len() <= VALUE_MAX => {
                self.is_plain = [&b"text"[..], b"srt", b"vtt"].contains(&text)
            }
            FormField::N if end > MODEL_WITHIN => return Err(late_count()),
            FormField::N => match std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()) {
                Some(count @ 1..) => fields.answers_per_text = count,
                _ => return expected("n", "an integer of at least 1"),
            },
            FormField::Prompt => {
                let mut prompt = Estimator::new();
                prompt.feed_plain(text);
                tokens.add(prompt.tokens());
            }
            FormField::Format | FormField::Other => {}
        }
        Ok(())
    }
}

fn late() -> Invalid {
    Invalid(format!("model: expected it before the file, or within the first {} KiB", MODEL_WITHIN / 1024))
}

fn late_count() -> Invalid {
    Invalid(format!("n: expected it within the first {} KiB", MODEL_WITHIN / 1024))
}

fn invalid(why: &'static str) -> Invalid {
    Invalid(why.to_owned())
}

/// Treatment of a part of the form.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum PartFate {
    Keep,
    Drop,
    /// Its content is replaced by the model's name at the provider.
    Model,
}

/// Writes a form for a target while it arrives: the model has its name there, fields that the target must not get are
/// left out, and the head of each part is written by [`write_head`]. All other bytes are unchanged.
#[derive(Clone, Debug)]
pub struct FormWriter {
    passthrough: Passthrough,
    reader: Multipart,
    model: String,
    drop_params: Vec<String>,
    unknown: UnknownMembers,
    stored_objects: bool,
    fate: PartFate,
    begun: FieldsBegun,
    /// The current field is a prompt.
    in_prompt: bool,
    /// Counts the prompt that is sent.
    pub prompt: Estimator,
    /// Beginnings of the names of fields that were left out.
    pub dropped: Vec<Box<[u8]>>,
    /// True if the number of images was known at admission.
    has_count: bool,
    /// True if the provider fetches the audio by its address.
    is_fetched: bool,
    /// The client has sent no model.
    adds_model: bool,
    /// Bytes written so far.
    written: u64,
    /// Length of the form that was announced, if any.
    length: Option<u64>,
}

impl FormWriter {
    /// A writer for `with` of the form with the fields `fields`.
    pub fn new(form: &RequestForm, fields: &Fields, with: &RequestTarget<'_>) -> FormWriter {
        let Capabilities { drop_params, unknown, stored_objects, .. } = with.capabilities;
        FormWriter {
            passthrough: form.passthrough,
            reader: form.reader.restarted(),
            model: with.model.to_owned(),
            drop_params: drop_params.clone(),
            unknown: *unknown,
            stored_objects: *stored_objects,
            fate: PartFate::Keep,
            begun: FieldsBegun::new(form.passthrough),
            in_prompt: false,
            prompt: Estimator::new(),
            dropped: Vec::new(),
            has_count: fields.answers_per_text > 0,
            is_fetched: form.is_fetched,
            adds_model: !form.begun.has_model(),
            written: 0,
            length: None,
        }
    }

    /// Announces the length of the form: the client's body has `declared` bytes, of which `body` has arrived. Fields
    /// that are left out later are replaced by blanks behind the form.
    pub fn announce(&mut self, body: &[u8], complete: bool, declared: u64) -> Result<u64, Invalid> {
        let (mut trial, mut out) = (self.clone(), Vec::new());
        let used = trial.write(body, complete, 0, &mut out)?;
        let length = declared.saturating_sub(used as u64).saturating_add(trial.written);
        self.length = Some(length);
        Ok(length)
    }

    /// The boundary of the form.
    pub fn boundary(&self) -> &[u8] {
        self.reader.boundary()
    }

    /// True if a byte has been written.
    pub fn has_begun(&self) -> bool {
        self.written > 0
    }

    /// True if the closing boundary has been written: a provider may take the form for complete.
    pub fn is_over(&self) -> bool {
        self.reader.is_over()
    }

    /// Blanks that are still to be written behind the form.
    pub fn missing(&self) -> u64 {
        self.length.map_or(0, |length| length.saturating_sub(self.written))
    }

    /// Writes what can be decided of `input`, the bytes that have not been used yet; returns the number of those used
    /// now. `complete`: `input` is the complete remainder. At most `room` blanks are written behind the form at a time.
    pub fn write(&mut self, input: &[u8], complete: bool, room: usize, out: &mut Vec<u8>) -> Result<usize, Invalid> {
        let (mut used, before) = (0, out.len());
        if std::mem::take(&mut self.adds_model) {
            self.write_model(out);
        }
        while let Some((piece, length)) = self.reader.next(&input[used..], complete).map_err(invalid)? {
            let bytes = &input[used..used + length];
            used += length;
            if let FormPiece::Part { name, .. } = piece {
                self.begin_part(name.of(bytes))?;
            } else if piece == FormPiece::End {
                self.begun.end()?;
                (self.fate, self.in_prompt) = (PartFate::Keep, false);
            }
            let is_delimiter = matches!(piece, FormPiece::Part { .. } | FormPiece::End);
            let goes = self.fate == PartFate::Keep || (self.fate == PartFate::Model && is_delimiter);
            if is_delimiter && goes {
                // The line end before the delimiter, unless it is the first.
                let first = self.written == 0 && out.len() == before;
                out.extend_from_slice(if first { b"" } else { b"\r\n" });
                match (self.fate, piece) {
                    (PartFate::Model, _) => self.write_model(out),
                    (_, FormPiece::End) => out.extend_from_slice(bytes.strip_prefix(b"\r\n").unwrap_or(bytes)),
                    _ => {
                        out.extend_from_slice(self.reader.delimiter());
                        write_head(bytes, out);
                    }
                }
            } else if goes {
                if self.in_prompt {
                    self.prompt.feed_plain(bytes);
                }
                out.extend_from_slice(bytes);
            }
        }
        self.written += (out.len() - before) as u64;
        if complete && used == input.len() && !self.reader.is_over() {
            return Err(Invalid("the body: ended before its closing boundary".to_owned()));
        }
        if complete {
            let blanks = usize::try_from(self.missing()).unwrap_or(room).min(room);
            out.resize(out.len() + blanks, b' ');
            self.written += blanks as u64;
        }
        Ok(used)
    }

    /// Appends the part with the model's name at the provider. Its head is our own: the client's may have the length.
    fn write_model(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.reader.delimiter());
        out.extend_from_slice(b"\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n");
        out.extend_from_slice(self.model.as_bytes());
    }

    fn begin_part(&mut self, name: &[u8]) -> Result<(), Invalid> {
        self.begun.begin(name)?;
        let base = name.strip_suffix(b"[]").unwrap_or(name);
        let is_unwanted = self.drop_params.iter().any(|param| param.as_bytes() == base);
        // Without the object, the answer would not be what the client expects.
        if stored::names_object_in_form(name) && !is_unwanted && !self.stored_objects {
            return Err(stored::refusal(format_args!("{}", stored::name_of(name)), name));
        }
        self.fate = match Name::of_field(base) {
            // Its images were not reserved.
            Name::N if self.passthrough.makes_images() && !self.has_count => {
                return Err(late_count());
            }
            Name::Model if name == base => PartFate::Model,
            Name::Model
            | Name::Models
            | Name::Fallbacks
            | Name::ApiBase
            | Name::Container
            | Name::McpServers
            | Name::Store => PartFate::Drop,
            _ if is_unwanted => PartFate::Drop,
            // Its length was not reserved.
            _ if base == b"url" && !self.is_fetched && self.is_forwarded(base) => {
                return Err(Invalid("url: expected it before the file".to_owned()));
            }
            _ if PassthroughFormat::of(self.passthrough).documents(base) || self.is_forwarded(base) => PartFate::Keep,
            _ => PartFate::Drop,
        };
        self.in_prompt = base == b"prompt";
        self.prompt.cut();
        if self.fate == PartFate::Drop && self.dropped.len() < DROPPED_MAX {
            let told = &name[..name.len().min(TOLD_LOOKED_AT_MAX)];
            if !self.dropped.iter().any(|known| **known == *told) {
                self.dropped.push(told.into());
            }
        }
        Ok(())
    }

    /// True if a field that no table documents is passed on.
    fn is_forwarded(&self, name: &[u8]) -> bool {
        // Some servers read `model[0]` as a value of `model`.
        let head = name.split(|byte| b"[.".contains(byte)).next().unwrap_or_default();
        let is_short = name.len() <= NAME_BYTES_MAX && Name::of_field(head) == Name::of_field(name);
        match self.unknown {
            UnknownMembers::Drop => false,
            UnknownMembers::Local => Name::is_local(name),
            UnknownMembers::New | UnknownMembers::Forward => {
                is_short && ![name, head].into_iter().any(Name::leads_elsewhere)
            }
        }
    }
}

#[cfg(test)]
mod tests;
