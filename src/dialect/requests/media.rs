//! Images and documents of either shape (`wire-formats` 3.3).
//!
//! Owns the mapping. Must never fetch anything: a URL is passed on, never opened.

use super::super::request::Invalid;
use super::ask::refuse;
use crate::wire::json::{Raw, item, key, write_escaped, write_inside, write_string};
use std::borrow::Cow;
use std::fmt::Display;

/// Something to look at, in neither shape yet.
pub(super) enum Media<'a> {
    /// An image: media type, base64.
    Image(&'static str, Cow<'a, str>),
    /// An image for the upstream to fetch.
    Url(Cow<'a, str>),
    /// A PDF in base64, with its name.
    Pdf(Cow<'a, str>, Option<&'a [u8]>),
}

const KINDS: &str = "an image of type jpeg, png, gif or webp, or a PDF";

fn image_kind(kind: &str) -> Option<&'static str> {
    match kind {
        "image/jpeg" | "image/jpg" => Some("image/jpeg"),
        "image/png" => Some("image/png"),
        "image/gif" => Some("image/gif"),
        "image/webp" => Some("image/webp"),
        _ => None,
    }
}

/// Base64 without the line breaks that some encoders put in.
fn unbroken(data: Cow<'_, str>) -> Cow<'_, str> {
    // In blocks and without an early way out, so that megabytes are looked at many bytes at a time.
    let broken = |block: &[u8]| block.iter().fold(false, |found, byte| found | byte.is_ascii_whitespace());
    if !data.as_bytes().chunks(256).any(broken) {
        return data;
    }
    Cow::Owned(data.chars().filter(|c| !c.is_ascii_whitespace()).collect())
}

/// A `data:` URL's media type, in lower case and without parameters, and its base64.
fn data_url(url: Cow<'_, str>) -> Option<(String, Cow<'_, str>)> {
    let comma = url.find(',')?;
    let mut meta = url.get(5..comma)?.split(';').map(str::trim);
    let kind = meta.next()?.to_ascii_lowercase();
    meta.any(|word| word.eq_ignore_ascii_case("base64")).then_some(())?;
    let data = match url {
        Cow::Borrowed(url) => Cow::Borrowed(&url[comma + 1..]),
        Cow::Owned(url) => Cow::Owned(url[comma + 1..].to_owned()),
    };
    Some((kind, unbroken(data)))
}

fn from_url<'a>(url: Cow<'a, str>, title: Option<&'a [u8]>, path: impl Display) -> Result<Media<'a>, Invalid> {
    let scheme = url.get(..8).unwrap_or(&url).to_ascii_lowercase();
    if scheme.starts_with("http://") || scheme.starts_with("https://") {
        return Ok(Media::Url(url));
    }
    if !scheme.starts_with("data:") {
        return refuse(path, "an http, https or data URL");
    }
    match data_url(url) {
        Some((kind, data)) if kind == "application/pdf" => Ok(Media::Pdf(data, title)),
        Some((kind, data)) => match image_kind(&kind) {
            Some(kind) => Ok(Media::Image(kind, data)),
            None => refuse(path, KINDS),
        },
        None => refuse(path, "a data URL in base64"),
    }
}

/// Reads a chat part of type `image_url`: an object with `url`, or the URL itself.
pub(super) fn chat_image<'a>(part: Raw<'a>, path: &str) -> Result<Media<'a>, Invalid> {
    let image = part.get("image_url").unwrap_or(Raw::NULL);
    match image.text().or_else(|| image.get("url").and_then(Raw::text)) {
        Some(url) => from_url(url, None, format_args!("{path}.image_url.url")),
        None => refuse(format_args!("{path}.image_url.url"), "a string"),
    }
}

/// Reads a chat part of type `file`: a PDF in `file_data`. A `file_id` means something to one provider alone.
pub(super) fn chat_file<'a>(part: Raw<'a>, path: &str) -> Result<Media<'a>, Invalid> {
    let file = part.get("file").unwrap_or(Raw::NULL);
    let title = file.get("filename").and_then(Raw::string);
    let media = match file.get("file_data").and_then(Raw::text) {
        Some(data) => from_url(data, title, format_args!("{path}.file.file_data"))?,
        None => return refuse(format_args!("{path}.file.file_data"), "a PDF as data URL"),
    };
    match media {
        Media::Url(_) => refuse(format_args!("{path}.file.file_data"), "a PDF as data URL"),
        media => Ok(media),
    }
}

impl Media<'_> {
    /// Appends it as a messages block.
    pub(super) fn write_block(&self, out: &mut Vec<u8>) {
        item(out);
        let open: &[u8] = match self {
            Media::Pdf(..) => b"{\"type\":\"document\",\"source\":{",
            _ => b"{\"type\":\"image\",\"source\":{",
        };
        out.extend_from_slice(open);
        match self {
            Media::Url(url) => {
                out.extend_from_slice(b"\"type\":\"url\"");
                key(out, "url");
                write_string(out, url);
            }
            Media::Image(kind, data) => write_base64(kind, data, out),
            Media::Pdf(data, _) => write_base64("application/pdf", data, out),
        }
        out.push(b'}');
        if let Media::Pdf(_, Some(title)) = self {
            key(out, "title");
            write_inside(out, title);
        }
        out.push(b'}');
    }
}

fn write_base64(kind: &str, data: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\"type\":\"base64\"");
    key(out, "media_type");
    write_string(out, kind);
    key(out, "data");
    write_string(out, data);
}

/// Appends a messages block `image` as a chat part.
pub(super) fn write_image_part(block: Raw<'_>, path: &str, out: &mut Vec<u8>) -> Result<(), Invalid> {
    let source = block.get("source").unwrap_or(Raw::NULL);
    let kind = source.get("type").unwrap_or(Raw::NULL);
    let text = |name| source.get(name).and_then(Raw::string);
    item(out);
    out.extend_from_slice(b"{\"type\":\"image_url\",\"image_url\":{\"url\":\"");
    match (text("media_type"), text("data"), text("url")) {
        (Some(media_type), Some(data), _) if kind.is("base64") => {
            out.extend_from_slice(b"data:");
            out.extend_from_slice(media_type);
            out.extend_from_slice(b";base64,");
            out.extend_from_slice(data);
        }
        (_, _, Some(url)) if kind.is("url") => out.extend_from_slice(url),
        _ => return refuse(format_args!("{path}.source"), "base64 or url for this model"),
    }
    out.extend_from_slice(b"\"}}");
    Ok(())
}

/// Appends a messages block `document` as chat parts: a PDF as file, text as text.
pub(super) fn write_document_parts(block: Raw<'_>, path: &str, out: &mut Vec<u8>) -> Result<(), Invalid> {
    let source = block.get("source").unwrap_or(Raw::NULL);
    let kind = source.get("type").unwrap_or(Raw::NULL);
    let title = block.get("title").and_then(Raw::string);
    if kind.is("base64") && source.get("media_type").is_some_and(|media_type| media_type.is("application/pdf")) {
        item(out);
        out.extend_from_slice(b"{\"type\":\"file\",\"file\":{");
        key(out, "filename");
        write_inside(out, title.unwrap_or(b"document.pdf"));
        key(out, "file_data");
        out.extend_from_slice(b"\"data:application/pdf;base64,");
        out.extend_from_slice(source.get("data").and_then(Raw::string).unwrap_or_default());
        out.extend_from_slice(b"\"}}");
        return Ok(());
    }
    if !kind.is("text") && !kind.is("content") {
        return refuse(format_args!("{path}.source"), "a PDF in base64, text or content for this model");
    }
    if let Some(title) = title {
        write_text_part(title, out);
    }
    if let Some(text) = source.get("data").or_else(|| source.get("content")).and_then(Raw::string) {
        write_text_part(text, out);
    }
    for (at, block) in source.get("content").unwrap_or(Raw::NULL).items().enumerate() {
        let path = format!("{path}.source.content[{at}]");
        match block.get("text").and_then(Raw::string) {
            Some(text) => write_text_part(text, out),
            None => write_image_part(block, &path, out)?,
        }
    }
    Ok(())
}

/// Appends a chat part of type `text`.
pub(super) fn write_text_part(inside: &[u8], out: &mut Vec<u8>) {
    item(out);
    out.extend_from_slice(b"{\"type\":\"text\",\"text\":");
    write_inside(out, inside);
    out.push(b'}');
}

/// Appends the text of a messages block `search_result` as the inside of a string: title, source and body.
pub(super) fn write_search_result(block: Raw<'_>, out: &mut Vec<u8>) {
    let head = ["title", "source"].into_iter().filter_map(|name| block.get(name));
    let body = block.get("content").unwrap_or(Raw::NULL).items().filter_map(|item| item.get("text"));
    for (at, text) in head.chain(body).filter_map(Raw::string).enumerate() {
        write_escaped(out, if at > 0 { b"\n" } else { b"" });
        out.extend_from_slice(text);
    }
}
