//! Bounds the number of structures that a translation builds, and their memory.
//!
//! A body of thirty megabytes can contain a million tools of thirty bytes, and each becomes a structure of some hundred
//! bytes. So the scan of the body counts them, and their memory is reserved before the first one is built. Only a
//! translation builds them: a route within one format passes them on as bytes.

use super::facts::RequestFacts;
use crate::base::buf::BLOCK;
use crate::base::limits::{MESSAGES_MAX, PARTS_MAX, STOPS_MAX, TOOLS_MAX};
use crate::dialect::request::refuse;
use crate::dialect::request::{Fields, Invalid};
use crate::wire::json::Raw;

/// Bytes of the name or the namespace of a translated tool. Providers accept at most 128.
const TOOL_NAME_MAX: usize = 1024;

/// Bytes that a translation builds in addition to the text of the new request. [`Invalid`]: there are too many items.
pub(crate) fn structure(format: &RequestFacts, fields: &Fields) -> Result<usize, Invalid> {
    let (list, each) = (format.list(), &format.bytes_each);
    let (messages, tools, parts) = (fields.messages, fields.tools, fields.parts);
    for (count, most, path) in [(messages, MESSAGES_MAX, list), (tools, TOOLS_MAX, "tools")] {
        if count as usize > most {
            return too_many(path, most, "");
        }
    }
    if parts as usize > PARTS_MAX {
        return too_many(list, PARTS_MAX, " parts, calls and results in all of them");
    }
    let all = [(messages, each.message), (tools, each.tool), (parts, each.part)];
    Ok(all.iter().map(|(count, bytes)| *count as usize * bytes).sum())
}

/// The stop sequences.
pub(crate) fn stops<'a>(mut words: impl Iterator<Item = Raw<'a>>) -> Result<Vec<&'a [u8]>, Invalid> {
    let stops = words.by_ref().take(STOPS_MAX).filter_map(Raw::string).collect();
    match words.next() {
        None => Ok(stops),
        Some(_) => too_many("stop", STOPS_MAX, ""),
    }
}

/// Refuses a list that is too long.
pub(crate) fn too_many<T>(path: &str, most: usize, what: &str) -> Result<T, Invalid> {
    refuse(path, &format!("at most {most}{what} for this model"))
}

/// Checks that the length of a tool's name, or of its namespace's, is one that providers could accept. A namespace is
/// checked again for each of its tools.
pub(crate) fn tool_name_fits(name: &[u8], path: impl FnOnce() -> String) -> Result<(), Invalid> {
    match name.len() <= TOOL_NAME_MAX {
        true => Ok(()),
        false => refuse(path(), &format!("at most {TOOL_NAME_MAX} bytes")),
    }
}

/// Upper bound of the text of a translated request: quoting a text again doubles its quotes and backslashes, and each
/// item has some text around it.
pub fn most_text(body: &[u8], fields: &Fields) -> usize {
    const AROUND: usize = 160;
    // Including the schema of a tool that takes free text.
    const AROUND_TOOL: usize = 320;
    let items = fields.messages as usize + fields.parts as usize;
    let doubled = body.iter().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    body.len() + doubled + items * AROUND + fields.tools as usize * AROUND_TOOL + BLOCK
}
