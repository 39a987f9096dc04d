//! Writes the configured members of a translated request. Their names are those of the target's format, so they are
//! written after the translation.
//!
//! Owns their position in the body. Must never look into a value. Called only for models with such members.

use crate::dialect::capabilities::Param;
use crate::wire::Span;
use crate::wire::json::{Raw, eq_unescaped, key};

/// Writes `params` into `out`, a complete request: those with `always` replace an existing member, the others are added
/// if missing. The first member is the model and remains.
pub(crate) fn write(params: &[Param], out: &mut Vec<u8>) {
    let mut gone = Vec::new();
    let mut found = vec![false; params.len()];
    for (name, value) in Raw::new(out).members() {
        let Some(at) = params.iter().position(|param| eq_unescaped(name, &param.name)) else { continue };
        if params[at].always {
            // Including its quote and the comma before it.
            let start = Span::of_part(out, name).start - 2;
            gone.push(Span { start, end: Span::of_part(out, value.bytes()).end });
        } else {
            found[at] = true;
        }
    }
    cut(out, &gone);
    let end = out.pop();
    for (param, _) in params.iter().zip(found).filter(|(_, found)| !found) {
        key(out, &param.name);
        out.extend_from_slice(param.json.as_bytes());
    }
    out.extend(end);
}

/// Removes parts, in order, in one pass.
pub(crate) fn cut(out: &mut Vec<u8>, gone: &[Span]) {
    let Some(mut to) = gone.first().map(|first| first.start as usize) else { return };
    for (at, part) in gone.iter().enumerate() {
        let from = part.end as usize;
        let next = gone.get(at + 1).map_or(out.len(), |next| next.start as usize);
        out.copy_within(from..next, to);
        to += next - from;
    }
    out.truncate(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(body: &str, params: &[(&str, &str, bool)]) -> String {
        let param = |&(name, json, always): &(&str, &str, bool)| Param { name: name.into(), json: json.into(), always };
        let mut out = body.as_bytes().to_vec();
        write(&params.iter().map(param).collect::<Vec<_>>(), &mut out);
        serde_json::from_slice::<serde_json::Value>(&out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn set_parameters_replace_translated_ones() {
        let set = [("a", "[1]", true), ("b", "{}", true), ("c", "0.20", true)];
        let all = "\"a\":[1],\"b\":{},\"c\":0.20}";
        for members in [
            "",
            ",\"a\":1",
            ",\"c\":{\"a\":\"},\"},\"a\":[\"\\\"b\"]",
            ",\"a\":1,\"b\":2,\"c\":3",
            ",\"b\":\"\\\\\",\"a\":null",
        ] {
            assert_eq!(written(&format!("{{\"model\":\"m\"{members}}}"), &set), format!("{{\"model\":\"m\",{all}"));
            let around = format!("{{\"model\":\"m\",\"x\":[\"a\"]{members},\"y\":{{\"b\":1}}}}");
            assert_eq!(written(&around, &set), format!("{{\"model\":\"m\",\"x\":[\"a\"],\"y\":{{\"b\":1}},{all}"));
        }
        let apart = "{\"model\":\"m\",\"a\":1,\"x\":2,\"b\":3,\"y\":4,\"c\":5}";
        assert_eq!(written(apart, &set), format!("{{\"model\":\"m\",\"x\":2,\"y\":4,{all}"));
    }

    #[test]
    fn default_is_written_if_missing() {
        let both = [("a", "1", false), ("b", "2", true), ("c", "3", false)];
        assert_eq!(written("{\"model\":\"m\"}", &both), "{\"model\":\"m\",\"a\":1,\"b\":2,\"c\":3}");
        let given = "{\"model\":\"m\",\"a\":\"x\",\"b\":\"y\",\"d\":{\"c\":9}}";
        assert_eq!(written(given, &both), "{\"model\":\"m\",\"a\":\"x\",\"d\":{\"c\":9},\"b\":2,\"c\":3}");
    }
}
