//! Images and documents of every format.
//!
//! Owns the mapping. Must never fetch anything: a URL is passed on, never opened.

use crate::base::base64;
use crate::dialect::neutral::JsonText;
use crate::dialect::neutral::conversation::{Block, Media};
use crate::dialect::request::Invalid;
use crate::dialect::request::refuse;
use crate::wire::json::{Inside, Raw, item, put, unescape, write_escaped};
use std::borrow::Cow;
use std::fmt::Display;

const KINDS: &str = "an image of type jpeg, png, gif or webp, or a PDF";
const PDF: &[u8] = b"application/pdf";

fn image_kind(kind: &str) -> Option<&'static [u8]> {
    match kind {
        "image/jpeg" | "image/jpg" => Some(b"image/jpeg"),
        "image/png" => Some(b"image/png"),
        "image/gif" => Some(b"image/gif"),
        "image/webp" => Some(b"image/webp"),
        _ => None,
    }
}

/// Base64 without the line breaks that some encoders insert.
fn unbroken(data: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    // In blocks and without an early exit, so that megabytes are compared many bytes at a time.
    let broken = |block: &[u8]| block.iter().fold(false, |found, byte| found | byte.is_ascii_whitespace());
    if !data.chunks(256).any(broken) {
        return data;
    }
    Cow::Owned(data.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect())
}

/// A `data:` URL's media type, in lower case and without parameters, and its base64.
fn data_url(url: Cow<'_, [u8]>) -> Option<(String, JsonText<'_>)> {
    let comma = url.iter().position(|byte| *byte == b',')?;
    let meta = std::str::from_utf8(url.get(5..comma)?).ok()?;
    let mut meta = meta.split(';').map(str::trim);
    let kind = meta.next()?.to_ascii_lowercase();
    meta.any(|word| word.eq_ignore_ascii_case("base64")).then_some(())?;
    let data = match url {
        Cow::Borrowed(url) => Cow::Borrowed(&url[comma + 1..]),
        Cow::Owned(url) => Cow::Owned(url[comma + 1..].to_vec()),
    };
    Some((kind, escaped(unbroken(data))))
}

/// Text as the inside of a JSON string, unchanged if nothing needs an escape.
fn escaped(text: Cow<'_, [u8]>) -> JsonText<'_> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text),
        Cow::Owned(text) => {
            let mut out = Vec::with_capacity(text.len());
            write_escaped(&mut out, &text);
            Cow::Owned(out)
        }
    }
}

/// The bytes that the inside of a string encodes; copied only if it has escapes.
fn plain(raw: &[u8]) -> Cow<'_, [u8]> {
    if !raw.contains(&b'\\') {
        return Cow::Borrowed(raw);
    }
    let mut text = Vec::with_capacity(raw.len());
    unescape(raw, &mut text);
    Cow::Owned(text)
}

/// Content of a URL: an address or data.
enum UrlContent<'a> {
    Web(JsonText<'a>),
    Data(String, JsonText<'a>),
}

fn target_of<'a>(url: &'a [u8], path: impl Display) -> Result<UrlContent<'a>, Invalid> {
    let url = plain(url);
    let scheme = url[..url.len().min(8)].to_ascii_lowercase();
    if scheme.starts_with(b"http://") || scheme.starts_with(b"https://") {
        return Ok(UrlContent::Web(escaped(url)));
    }
    if !scheme.starts_with(b"data:") {
        return refuse(path, "an http, https or data URL");
    }
    match data_url(url) {
        Some((kind, data)) => Ok(UrlContent::Data(kind, data)),
        None => refuse(path, "a data URL in base64"),
    }
}

fn from_url<'a>(url: &'a [u8], detail: Option<&'a [u8]>, path: impl Display + Copy) -> Result<Media<'a>, Invalid> {
    match target_of(url, path)? {
        UrlContent::Web(url) => Ok(Media::Url { url, detail }),
        UrlContent::Data(kind, data) if kind.as_bytes() == PDF => Ok(Media::Pdf { data, title: None }),
        UrlContent::Data(kind, data) => match image_kind(&kind) {
            Some(kind) => Ok(Media::Image { kind: Cow::Borrowed(kind), data, detail }),
            None => refuse(path, KINDS),
        },
    }
}

/// Reads a chat part of type `image_url`: an object with `url`, or the URL itself.
pub(crate) fn chat_image<'a>(part: Raw<'a>, path: &str) -> Result<Media<'a>, Invalid> {
    let image = part.get("image_url").unwrap_or(Raw::NULL);
    let detail = image.get("detail").and_then(Raw::string);
    match image.string().or_else(|| image.get("url").and_then(Raw::string)) {
        Some(url) => from_url(url, detail, format_args!("{path}.image_url.url")),
        None => refuse(format_args!("{path}.image_url.url"), "a string"),
    }
}

/// Reads a chat part of type `file`: a PDF, a text or an image in `file_data`. A `file_id` is valid only at one
/// provider.
pub(crate) fn chat_file<'a>(part: Raw<'a>, path: &str) -> Result<Block<'a>, Invalid> {
    let file = part.get("file").unwrap_or(Raw::NULL);
    let title = file.get("filename").and_then(Raw::string);
    let at = format!("{path}.file.file_data");
    match file.get("file_data").and_then(Raw::string) {
        Some(url) => file_data(url, title, &at),
        None => refuse(at, "a file as data URL"),
    }
}

/// A file in a `data:` URL, in either of OpenAI's formats. Base64 without a URL is a PDF.
fn file_data<'a>(url: &'a [u8], title: Option<&'a [u8]>, at: &str) -> Result<Block<'a>, Invalid> {
    // Longer than the beginning of any URL.
    if !url[..url.len().min(16)].contains(&b':') {
        return Ok(Block::Media(Media::Pdf { data: escaped(unbroken(plain(url))), title }));
    }
    match target_of(url, at)? {
        UrlContent::Data(kind, data) if kind.as_bytes() == PDF => Ok(Block::Media(Media::Pdf { data, title })),
        UrlContent::Data(kind, data) if is_text(&kind) => text_file(&data, at),
        UrlContent::Data(kind, data) => match image_kind(&kind) {
            Some(kind) => Ok(Block::Media(Media::Image { kind: Cow::Borrowed(kind), data, detail: None })),
            None => refuse(at, "a PDF, a text or an image"),
        },
        UrlContent::Web(_) => refuse(at, "a data URL in base64"),
    }
}

fn is_text(kind: &str) -> bool {
    kind.starts_with("text/") || kind == "application/json"
}

/// A text in base64.
fn text_file<'a>(data: &[u8], at: &str) -> Result<Block<'a>, Invalid> {
    match base64::decode(data).filter(|text| std::str::from_utf8(text).is_ok()) {
        Some(text) => Ok(Block::Text(escaped(Cow::Owned(text)))),
        None => refuse(at, "text in base64"),
    }
}

/// Reads a responses part of type `input_image`.
pub(crate) fn responses_image<'a>(part: Raw<'a>, path: &str) -> Result<Media<'a>, Invalid> {
    let detail = part.get("detail").and_then(Raw::string);
    match part.get("image_url").and_then(Raw::string) {
        Some(url) => from_url(url, detail, format_args!("{path}.image_url")),
        None => refuse(format_args!("{path}.image_url"), "an http, https or data URL"),
    }
}

/// Reads a responses part of type `input_file`: a PDF, a text, or the URL of one.
pub(crate) fn responses_file<'a>(part: Raw<'a>, path: &str) -> Result<Block<'a>, Invalid> {
    let title = part.get("filename").and_then(Raw::string);
    if let Some(url) = part.get("file_url").and_then(Raw::string) {
        return Ok(Block::Media(Media::Document { url: Cow::Borrowed(url), title, path: format!("{path}.file_url") }));
    }
    let at = format!("{path}.file_data");
    let Some(data) = part.get("file_data").and_then(Raw::string) else { return refuse(at, "a file as data URL") };
    file_data(data, title, &at)
}

/// Reads a messages block `image`.
pub(crate) fn messages_image<'a>(block: Raw<'a>, path: &str) -> Result<Media<'a>, Invalid> {
    let source = block.get("source").unwrap_or(Raw::NULL);
    let kind = source.get("type").unwrap_or(Raw::NULL);
    let text = |name| source.get(name).and_then(Raw::string).map(Cow::Borrowed);
    match (text("media_type"), text("data"), text("url")) {
        (Some(media_type), Some(data), _) if kind.is("base64") => {
            Ok(Media::Image { kind: media_type, data, detail: None })
        }
        (_, _, Some(url)) if kind.is("url") => Ok(Media::Url { url, detail: None }),
        _ => refuse(format_args!("{path}.source"), "base64 or url for this model"),
    }
}

/// Reads a messages block `document`: a PDF, or its texts, after its title and its context.
pub(crate) fn messages_document<'a>(block: Raw<'a>, path: &str, out: &mut Vec<Block<'a>>) -> Result<(), Invalid> {
    let source = block.get("source").unwrap_or(Raw::NULL);
    let kind = source.get("type").unwrap_or(Raw::NULL);
    let [title, context] = block.pick(["title", "context"]).map(|text| text.and_then(Raw::string));
    let context = context.filter(|text| !text.is_empty()).map(|text| Block::Text(Cow::Borrowed(text)));
    let text = |name| source.get(name).and_then(Raw::string).map(Cow::Borrowed);
    if kind.is("base64") && source.get("media_type").is_some_and(|kind| kind.is("application/pdf")) {
        out.extend(context);
        out.push(Block::Media(Media::Pdf { data: text("data").unwrap_or_default(), title }));
        return Ok(());
    }
    let is_text = source.get("media_type").and_then(Raw::text).is_some_and(|kind| is_text(&kind));
    if kind.is("base64") && is_text {
        let data = unbroken(Cow::Borrowed(source.get("data").and_then(Raw::string).unwrap_or_default()));
        out.extend(title.map(|title| Block::Text(Cow::Borrowed(title))).into_iter().chain(context));
        out.push(text_file(&data, &format!("{path}.source.data"))?);
        return Ok(());
    }
    if let Some(url) = text("url").filter(|_| kind.is("url")) {
        out.extend(context);
        out.push(Block::Media(Media::Document { url, title, path: format!("{path}.source") }));
        return Ok(());
    }
    if !kind.is("text") && !kind.is("content") {
        return refuse(format_args!("{path}.source"), DOCUMENTS);
    }
    out.extend(title.map(|title| Block::Text(Cow::Borrowed(title))).into_iter().chain(context));
    out.extend(text("data").or_else(|| text("content")).map(Block::Text));
    for (at, block) in source.get("content").unwrap_or(Raw::NULL).items().enumerate() {
        let path = format!("{path}.source.content[{at}]");
        out.push(match block.get("text").and_then(Raw::string) {
            Some(text) => Block::Text(Cow::Borrowed(text)),
            None => Block::Media(messages_image(block, &path)?),
        });
    }
    Ok(())
}

const DOCUMENTS: &str = "a PDF in base64, text or content for this model";

/// The text of a messages block `search_result`: title, source and body.
pub(crate) fn search_result(block: Raw<'_>) -> JsonText<'static> {
    let head = ["title", "source"].into_iter().filter_map(|name| block.get(name));
    let body = block.get("content").unwrap_or(Raw::NULL).items().filter_map(|item| item.get("text"));
    let mut out = Vec::new();
    for (at, text) in head.chain(body).filter_map(Raw::string).enumerate() {
        write_escaped(&mut out, if at > 0 { b"\n" } else { b"" });
        out.extend_from_slice(text);
    }
    Cow::Owned(out)
}

impl Media<'_> {
    /// Appends it as a messages block.
    pub(crate) fn write_block(&self, out: &mut Vec<u8>) {
        item(out);
        let block = match self {
            Media::Pdf { .. } | Media::Document { .. } => "document",
            Media::Image { .. } | Media::Url { .. } => "image",
        };
        put!(out, r#"{"type":""#, block, r#"","source":{"type":"#);
        match self {
            Media::Url { url, .. } | Media::Document { url, .. } => put!(out, r#""url","url":"#, Inside(url)),
            Media::Image { kind, data, .. } => write_base64(kind, data, out),
            Media::Pdf { data, .. } => write_base64(PDF, data, out),
        }
        put!(out, "}");
        if let Media::Pdf { title: Some(title), .. } | Media::Document { title: Some(title), .. } = self {
            put!(out, r#","title":"#, Inside(title));
        }
        put!(out, "}");
    }

    /// Appends it as a chat part. The chat format has no documents by URL.
    pub(crate) fn write_chat_part(&self, out: &mut Vec<u8>) -> Result<(), Invalid> {
        item(out);
        match self {
            Media::Pdf { data, title } => {
                put!(out, r#"{"type":"file","file":{"#);
                write_file(data, *title, out);
                put!(out, "}}");
            }
            Media::Document { path, .. } => return refuse(path, DOCUMENTS),
            Media::Image { detail, .. } | Media::Url { detail, .. } => {
                put!(out, r#"{"type":"image_url","image_url":{"url":""#);
                self.write_url(out);
                put!(out, "\"");
                if let Some(detail) = detail {
                    put!(out, r#","detail":"#, Inside(detail));
                }
                put!(out, "}}");
            }
        }
        Ok(())
    }

    /// Appends it as a responses part.
    pub(crate) fn write_input(&self, out: &mut Vec<u8>) {
        item(out);
        match self {
            Media::Pdf { data, title } => {
                put!(out, r#"{"type":"input_file","#);
                write_file(data, *title, out);
            }
            Media::Document { url, .. } => put!(out, r#"{"type":"input_file","file_url":"#, Inside(url)),
            Media::Image { detail, .. } | Media::Url { detail, .. } => {
                put!(out, r#"{"type":"input_image","image_url":""#);
                self.write_url(out);
                put!(out, r#"","detail":"#, Inside(detail.unwrap_or(b"auto")));
            }
        }
        put!(out, "}");
    }

    /// Appends an image's URL: a `data:` URL if the request contains the image.
    fn write_url(&self, out: &mut Vec<u8>) {
        match self {
            Media::Image { kind, data, .. } => put!(out, "data:", &kind[..], ";base64,", &data[..]),
            Media::Url { url, .. } | Media::Document { url, .. } => put!(out, &url[..]),
            Media::Pdf { .. } => {}
        }
    }
}

fn write_file(data: &[u8], title: Option<&[u8]>, out: &mut Vec<u8>) {
    put!(out, r#""filename":"#, Inside(title.unwrap_or(b"document.pdf")));
    put!(out, r#","file_data":"data:application/pdf;base64,"#, data, "\"");
}

fn write_base64(kind: &[u8], data: &[u8], out: &mut Vec<u8>) {
    put!(out, r#""base64","media_type":"#, Inside(kind), r#","data":"#, Inside(data));
}
