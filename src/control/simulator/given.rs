//! Parts of a pass-through answer that are not text: vectors, and documents in order. Also parses the requests for
//! them. Pure; called by `simulator::ask`.
//!
//! A vector depends only on its text (for tokens, on their numbers), and its length is 1. Documents are scored by the
//! share of the query's words that they contain.

use crate::base::base64;
use crate::base::hash::{mix, mix_bytes};
use crate::wire::Passthrough;
use crate::wire::multipart::{self, FormPiece, Multipart};
use serde_json::{Map, Value};
use std::cmp::Reverse;

/// Default length of a vector in numbers, and maximum that may be requested.
const DIMENSIONS: u64 = 8;
const DIMENSIONS_MAX: u64 = 1 << 20;
/// Maximum number of texts of one request.
const TEXTS_MAX: usize = 2048;
/// Maximum number of answers to each text.
const EACH_MAX: u64 = 128;

/// A parsed request.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    /// Tokens of the prompt.
    pub(super) prompt: u64,
    /// Text that contains the directives.
    pub(super) asked: String,
    /// Member of a whole answer that is not text; empty if the answer is a text.
    pub(super) given: String,
    /// Number of texts or images in the answer, and number generated to choose them from.
    pub(super) texts: u64,
    pub(super) made: u64,
    /// Content type of an answer in bytes.
    pub(super) audio: Option<&'static str>,
}

/// Parses the parts of the request that the endpoint needs.
pub(super) fn read(passthrough: Passthrough, root: &Value) -> Result<Read, String> {
    match passthrough {
        Passthrough::Embeddings => embeddings(root),
        Passthrough::Rerank => rerank(root),
        Passthrough::Completions => completions(root),
        Passthrough::Speech => speech(root),
        Passthrough::Images => images(root),
        Passthrough::ImageEdits if root["image"].is_null() => Err(String::from("image: a file is required")),
        Passthrough::ImageEdits => images(root),
        Passthrough::Transcriptions | Passthrough::Translations => transcript(root),
        Passthrough::Moderations => moderations(root),
    }
}

/// Speech: a format of audio for each name that clients may request; the first is the default.
const AUDIO: [(&str, &str); 6] = [
    ("mp3", "audio/mpeg"),
    ("opus", "audio/opus"),
    ("aac", "audio/aac"),
    ("flac", "audio/flac"),
    ("wav", "audio/wav"),
    ("pcm", "audio/pcm"),
];
/// Maximum number of images of one request.
const IMAGES_MAX: u64 = 10;
/// An image of one pixel.
pub(super) const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

fn speech(root: &Value) -> Result<Read, String> {
    let input = root["input"].as_str().ok_or_else(|| String::from("input: a text is required"))?;
    if root["voice"].is_null() {
        return Err(String::from("voice: a voice is required"));
    }
    let wanted = root["response_format"].as_str().unwrap_or(AUDIO[0].0);
    let format = AUDIO.iter().find(|(name, _)| *name == wanted);
    let (_, kind) = format.ok_or_else(|| format!("response_format: `{wanted}` is not a format"))?;
    let audio = (root["stream_format"] != "sse").then_some(*kind);
    Ok(Read { prompt: words(input), asked: input.to_owned(), audio, ..Read::default() })
}

fn images(root: &Value) -> Result<Read, String> {
    let prompt = root["prompt"].as_str().ok_or_else(|| String::from("prompt: a text is required"))?;
    let count = root["n"].as_u64().unwrap_or(1);
    if !(1..=IMAGES_MAX).contains(&count) {
        return Err(format!("n: expected a whole number from 1 to {IMAGES_MAX}"));
    }
    let image = match root["response_format"] == "url" {
        true => r#"{"url":"https://images.example/sim.png"}"#.to_owned(),
        false => format!(r#"{{"b64_json":"{PIXEL}"}}"#),
    };
    let data = vec![image; count as usize].join(",");
    let given = if root["stream"] == true { String::new() } else { format!(r#""data":[{data}]"#) };
    Ok(Read { prompt: words(prompt), asked: prompt.to_owned(), given, texts: count, ..Read::default() })
}

/// Returns a form as JSON: a file as its number of bytes, and a name that ends with `[]` as a list.
pub(super) fn form(content_type: &[u8], body: &[u8]) -> Result<Value, String> {
    let boundary = multipart::boundary(content_type).ok_or("a form with a boundary is required")?;
    let (mut reader, mut root, mut at) = (Multipart::new(boundary), Map::new(), 0);
    let (mut name, mut file, mut from) = (String::new(), false, 0);
    while let Some((piece, length)) = reader.next(&body[at..], true)? {
        if !name.is_empty() && piece != FormPiece::Data {
            let content = &body[from..at];
            let value = if file { content.len().into() } else { String::from_utf8_lossy(content).into_owned().into() };
            match name.strip_suffix("[]") {
                Some(list) => match root.entry(list).or_insert_with(|| Value::Array(Vec::new())) {
                    Value::Array(items) => items.push(value),
                    other => *other = value,
                },
                None => drop(root.insert(name.clone(), value)),
            }
            name.clear();
        }
        if let FormPiece::Part { name: place, is_file } = piece {
            name = String::from_utf8_lossy(place.of(&body[at..])).into_owned();
            (file, from) = (is_file, at + length);
        }
        at += length;
    }
    if let Some(count) = root.get("n").and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok()) {
        root.insert(String::from("n"), count);
    }
    // The spellings of pydantic and of Go's `ParseBool`, which servers with this API use.
    if let Some(stream) = root.get("stream").and_then(Value::as_str) {
        let is_true = ["true", "1", "yes", "on", "t", "y"].contains(&&*stream.to_ascii_lowercase());
        root.insert(String::from("stream"), is_true.into());
    }
    Ok(Value::Object(root))
}

/// Bytes of audio for each second, and for each token of the prompt.
const AUDIO_SECOND: u64 = 16_000;
const AUDIO_TOKEN: u64 = 1_600;

/// The directives are those of the field `prompt`.
fn transcript(root: &Value) -> Result<Read, String> {
    let bytes = root["file"].as_u64().ok_or_else(|| String::from("file: a file is required"))?;
    let asked = root["prompt"].as_str().unwrap_or_default().to_owned();
    let audio = match root["response_format"].as_str().unwrap_or("json") {
        "json" => None,
        "verbose_json" => Some("application/json"),
        "text" => Some("text/plain; charset=utf-8"),
        "srt" => Some("application/x-subrip"),
        "vtt" => Some("text/vtt"),
        other => return Err(format!("response_format: `{other}` is not a format")),
    };
    let seconds = bytes.div_ceil(AUDIO_SECOND);
    Ok(Read { prompt: words(&asked) + bytes / AUDIO_TOKEN, asked, texts: seconds, made: 1, audio, ..Read::default() })
}

/// Categories of OpenAI's moderation API; its SDKs require all of them.
const CATEGORIES: [&str; 13] = [
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
];

/// A text is flagged if it contains the word `violence`.
fn moderations(root: &Value) -> Result<Read, String> {
    let texts = texts(&root["input"]).ok_or_else(|| String::from("input: a text or parts are required"))?;
    let result = |text: &Value| {
        let flagged = text.as_str().or(text["text"].as_str()).is_some_and(|text| text.contains("violence"));
        let member = |value: &dyn Fn(&str) -> String| {
            CATEGORIES.map(|category| format!(r#""{category}":{}"#, value(category))).join(",")
        };
        let is_met = |category: &str| flagged && category == "violence";
        let categories = member(&|category| is_met(category).to_string());
        let scores = member(&|category| String::from(if is_met(category) { "0.97" } else { "0.01" }));
        let applied = format!(r#""category_applied_input_types":{{{}}}"#, member(&|_| String::from(r#"["text"]"#)));
        format!(r#"{{"flagged":{flagged},"categories":{{{categories}}},"category_scores":{{{scores}}},{applied}}}"#)
    };
    let results: Vec<String> = texts.iter().map(result).collect();
    let asked = texts.last().and_then(|text| text.as_str()).unwrap_or_default().to_owned();
    let given = format!(r#""results":[{}]"#, results.join(","));
    Ok(Read { prompt: texts.iter().map(tokens).sum(), asked, given, ..Read::default() })
}

fn completions(root: &Value) -> Result<Read, String> {
    let texts = texts(&root["prompt"]).ok_or_else(|| String::from("prompt: a text, texts or tokens are required"))?;
    let count = |name: &str| match &root[name] {
        Value::Null => Ok(None),
        given => match given.as_u64().filter(|count| (1..=EACH_MAX).contains(count)) {
            None => Err(format!("{name}: expected a whole number from 1 to {EACH_MAX}")),
            count => Ok(count),
        },
    };
    let each = count("n")?.unwrap_or(1);
    let best = count("best_of")?.unwrap_or(each);
    if best < each {
        return Err(String::from("best_of: expected at least as many as n"));
    }
    if best > each && root["stream"] == true {
        return Err(String::from("best_of: results cannot be streamed"));
    }
    let asked = texts.last().and_then(|text| text.as_str()).unwrap_or_default().to_owned();
    let suffix = words(root["suffix"].as_str().unwrap_or_default());
    let (prompt, count) = (texts.iter().map(tokens).sum::<u64>() + suffix, texts.len() as u64);
    Ok(Read { prompt, asked, texts: count * each, made: count * best, ..Read::default() })
}

/// Returns the texts of a member, or the lists of their tokens: one, or several.
fn texts(value: &Value) -> Option<Vec<Value>> {
    match value {
        Value::String(_) => Some(vec![value.clone()]),
        Value::Array(items) if items.first().is_some_and(Value::is_number) => Some(vec![value.clone()]),
        Value::Array(items) if (1..=TEXTS_MAX).contains(&items.len()) => Some(items.clone()),
        _ => None,
    }
}

fn tokens(text: &Value) -> u64 {
    match text {
        Value::String(text) => words(text),
        Value::Array(tokens) => tokens.len() as u64,
        other => words(other["text"].as_str().unwrap_or_default()),
    }
}

fn embeddings(root: &Value) -> Result<Read, String> {
    let texts = texts(&root["input"]).ok_or_else(|| String::from("input: a text, texts or tokens are required"))?;
    let dimensions = root["dimensions"].as_u64().unwrap_or(DIMENSIONS).clamp(1, DIMENSIONS_MAX);
    let encoded = match root["encoding_format"].as_str() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(String::from("encoding_format: float or base64")),
    };
    let entry = |(index, text): (usize, &Value)| {
        let vector = vector(text, dimensions);
        let embedding = match encoded {
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|part| part.to_le_bytes()).collect();
                format!("\"{}\"", base64::encode(&bytes))
            }
            false => format!("[{}]", vector.iter().map(f32::to_string).collect::<Vec<_>>().join(",")),
        };
        format!(r#"{{"object":"embedding","index":{index},"embedding":{embedding}}}"#)
    };
    let entries: Vec<String> = texts.iter().enumerate().map(entry).collect();
    let asked = texts.iter().filter_map(Value::as_str).find(|text| text.contains("#sim")).unwrap_or_default();
    let given = format!(r#""data":[{}]"#, entries.join(","));
    Ok(Read { prompt: texts.iter().map(tokens).sum(), asked: asked.to_owned(), given, ..Read::default() })
}

fn vector(text: &Value, dimensions: u64) -> Vec<f32> {
    let seed = mix_bytes(7, text.to_string().as_bytes());
    let parts: Vec<f64> = (0..dimensions).map(|at| f64::from(mix(seed, at) as i32) / f64::from(i32::MAX)).collect();
    let length = parts.iter().map(|part| part * part).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
    parts.iter().map(|part| (part / length) as f32).collect()
}

fn rerank(root: &Value) -> Result<Read, String> {
    let query = root["query"].as_str().ok_or_else(|| String::from("query: a text is required"))?;
    let documents = root["documents"].as_array().filter(|documents| !documents.is_empty());
    let documents = documents.ok_or_else(|| String::from("documents: at least one is required"))?;
    let small = |text: &str| text.to_ascii_lowercase().split_whitespace().map(str::to_owned).collect::<Vec<String>>();
    let wanted = small(query);
    let text = |document: &Value| document.as_str().or(document["text"].as_str()).unwrap_or_default().to_owned();
    let mut scored: Vec<(usize, usize, &Value)> = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        let own = small(&text(document));
        scored.push((wanted.iter().filter(|word| own.contains(word)).count(), index, document));
    }
    scored.sort_by_key(|(found, ..)| Reverse(*found));
    scored.truncate(root["top_n"].as_u64().map_or(documents.len(), |most| most as usize));
    let wants = root["return_documents"] == true;
    let result = |(found, index, document): &(usize, usize, &Value)| {
        let score = *found as f64 / wanted.len().max(1) as f64;
        let shown =
            if wants { format!(",\"document\":{{\"text\":{}}}", Value::from(text(document))) } else { String::new() };
        format!("{{\"index\":{index},\"relevance_score\":{score:?}{shown}}}")
    };
    let results: Vec<String> = scored.iter().map(result).collect();
    // The query is counted again for each document.
    let prompt = documents.iter().map(|document| words(query) + tokens(document)).sum();
    let given = format!(r#""results":[{}]"#, results.join(","));
    Ok(Read { prompt, asked: query.to_owned(), given, ..Read::default() })
}

/// Returns the tokens of a text: its words.
fn words(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn vectors_depend_on_their_texts_and_have_length_one() {
        for dimensions in [1, 2, 8, 1536] {
            let (a, again, b) =
                (vector(&json!("a"), dimensions), vector(&json!("a"), dimensions), vector(&json!("b"), dimensions));
            let length: f64 = a.iter().map(|part| f64::from(*part) * f64::from(*part)).sum();
            assert!((length - 1.0).abs() < 1e-5, "{length}");
            assert_eq!(a, again);
            assert!(dimensions < 8 || a != b);
        }
    }

    #[test]
    fn floats_and_base64_are_the_same_vectors() {
        let of = |format: &str| {
            let read = embeddings(&json!({ "input": ["a", "b c"], "encoding_format": format })).unwrap();
            assert_eq!(read.prompt, 3);
            serde_json::from_str::<Value>(&format!("{{{}}}", read.given)).unwrap()["data"].clone()
        };
        let (floats, encoded) = (of("float"), of("base64"));
        for index in 0..2 {
            let bytes = base64::decode(encoded[index]["embedding"].as_str().unwrap().as_bytes()).unwrap();
            let parts = bytes.chunks(4).map(|part| f32::from_le_bytes(part.try_into().unwrap()));
            let values: Vec<f32> = floats[index]["embedding"]
                .as_array()
                .unwrap()
                .iter()
                .map(|part| part.as_f64().unwrap() as f32)
                .collect();
            assert_eq!(parts.collect::<Vec<f32>>(), values);
        }
    }

    #[test]
    fn documents_are_ordered_by_their_share_of_the_query() {
        let root =
            json!({ "query": "red fox", "documents": ["a dog", { "text": "The Red fox" }, "one red hen"], "top_n": 2 });
        let read = rerank(&root).unwrap();
        let results = serde_json::from_str::<Value>(&format!("{{{}}}", read.given)).unwrap()["results"].clone();
        assert_eq!(results, json!([{ "index": 1, "relevance_score": 1.0 }, { "index": 2, "relevance_score": 0.5 }]));
        assert_eq!(read.prompt, 14);
    }
}
