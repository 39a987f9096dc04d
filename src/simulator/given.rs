//! Parts of a relayed answer that are not text: vectors, and documents in order. Also parses the requests for them.
//! Pure; called by `simulator::ask`.
//!
//! A vector depends only on its text (for tokens, on their numbers), and its length is 1. Documents are scored by the
//! share of the query's words that they contain.

use crate::base::base64;
use crate::base::hash::{mix, mix_bytes};
use crate::base::order;
use crate::wire::Passthrough;
use serde_json::Value;

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
    /// Number of texts in the answer, and number generated to choose them from.
    pub(super) texts: u64,
    pub(super) made: u64,
}

/// Parses the parts of the request that the endpoint needs.
pub(super) fn read(relay: Passthrough, root: &Value) -> Result<Read, String> {
    match relay {
        Passthrough::Embeddings => embeddings(root),
        Passthrough::Rerank => rerank(root),
        Passthrough::Completions => completions(root),
    }
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
    Ok(Read { prompt, asked, given: String::new(), texts: count * each, made: count * best })
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
    order::by_key(&mut scored, |(found, index, _)| ((wanted.len() - found) as u64, *index as u128));
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
            let told: Vec<f32> = floats[index]["embedding"]
                .as_array()
                .unwrap()
                .iter()
                .map(|part| part.as_f64().unwrap() as f32)
                .collect();
            assert_eq!(parts.collect::<Vec<f32>>(), told);
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
