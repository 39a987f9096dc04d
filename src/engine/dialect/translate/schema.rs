//! Translates JSON schemas between the formats.
//!
//! Owns the requirements of the target. Must never reorder the members of a schema, nor drop one that the target
//! accepts: keywords that it refuses move to the description. The scanner's bound on nesting also bounds the recursion,
//! which walks each value once, however deep it is.

use super::params::cut;
use crate::wire::Span;
use crate::wire::json::{Raw, ValueKind, compact, item, key, key_inside, member_inside, write_escaped};
use std::collections::BTreeMap;

/// Maximum bytes of a schema whose inner schemas are read: the names in it are collected.
pub(crate) const SCHEMA_MAX: usize = 256 * 1024;

/// The schema of a function without arguments.
const NO_ARGUMENTS: &[u8] = b"{\"type\":\"object\",\"properties\":{}}";

/// The schema of a tool that takes free text.
const FREE: &[u8] = b"{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\"}},\"required\":[\"input\"],\
      \"additionalProperties\":false}";

/// Appends the schema of a tool that takes free text, as its one argument `input`.
pub(crate) fn write_free(out: &mut Vec<u8>) {
    out.extend_from_slice(FREE);
}

fn is_empty(schema: Raw<'_>) -> bool {
    schema.kind() != ValueKind::Object || schema.members().next().is_none()
}

/// Keywords that neither OpenAI's nor Anthropic's strict output accepts.
const NEVER_STRICT: &str = "not if then else contains minContains maxContains prefixItems uniqueItems unevaluatedItems \
    minProperties maxProperties patternProperties propertyNames unevaluatedProperties \
    dependentRequired dependentSchemas";
/// Further keywords that OpenAI's refuses, and bounds that Anthropic's refuses.
const COMBINED: &str = "allOf oneOf";
const BOUNDS: &str = "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength maxItems";
/// String formats that Anthropic's accepts.
const FORMATS: &str = "date-time time date duration email hostname uri ipv4 ipv6 uuid";

/// True if `name` is one of the words in `list`.
fn is_one_of(list: &str, name: &[u8]) -> bool {
    // Nearly all keywords of a schema.
    let is_usual =
        matches!(name, b"type" | b"properties" | b"required" | b"description" | b"items" | b"enum" | b"title");
    !is_usual && list.as_bytes().split(|byte| *byte == b' ').any(|word| word == name)
}

/// True if Anthropic's structured output refuses a keyword with this value.
fn is_refused(name: &[u8], value: Raw<'_>) -> bool {
    match name {
        b"minItems" => value.count().is_none_or(|least| least > 1),
        b"format" => !is_one_of(FORMATS, value.string().unwrap_or_default()),
        b"additionalProperties" => value.bool() != Some(false),
        // Look-around groups, back-references, and word boundaries.
        b"pattern" => value.string().is_some_and(|pattern| {
            let pattern = Raw::text_of(pattern);
            let escaped = pattern.split('\\').skip(1).filter_map(|rest| rest.chars().next());
            pattern.contains("(?") || escaped.into_iter().any(|next| matches!(next, 'b' | 'B' | '1'..='9'))
        }),
        _ => is_one_of(NEVER_STRICT, name) || is_one_of(BOUNDS, name),
    }
}

/// True for keywords that combine schemas: Anthropic refuses them at the top of a tool's schema.
fn combines(name: &[u8], _: Raw<'_>) -> bool {
    matches!(name, b"anyOf" | b"oneOf" | b"allOf")
}

/// The inside of a description that states the keywords matched by `refused` in words; `None` if there are none.
fn described(schema: Raw<'_>, refused: fn(&[u8], Raw<'_>) -> bool) -> Option<Vec<u8>> {
    let mut words = schema.get("description").and_then(Raw::string).unwrap_or_default().to_vec();
    let before = words.len();
    for (name, value) in schema.members().filter(|(name, value)| refused(name, *value)) {
        describe(name, value, before, &mut words);
    }
    (words.len() > before).then(|| [&words, &b"}"[..]].concat())
}

/// Adds a keyword to the inside of a description, whose first `before` bytes are the client's.
fn describe(name: &[u8], value: Raw<'_>, before: usize, words: &mut Vec<u8>) {
    words.extend_from_slice(match words.len() {
        len if len > before => b", ",
        0 => b"{",
        _ => b"\\n\\n{",
    });
    words.extend_from_slice(name);
    words.extend_from_slice(b": ");
    let mut json = Vec::new();
    compact(value.bytes(), &mut json);
    write_escaped(words, &json);
}

/// Appends the description of a schema, if any.
fn write_described(words: Option<Vec<u8>>, out: &mut Vec<u8>) {
    if let Some(words) = words {
        member_inside(out, "description", &words);
    }
}

/// Appends a tool's `input_schema`: always an object with a type.
pub(crate) fn write_input_schema(parameters: Raw<'_>, out: &mut Vec<u8>) {
    write_with(parameters, parameters.get("type").is_none(), false, combines, out);
}

/// Appends a function's `parameters`: always an object with a type and properties.
pub(crate) fn write_parameters(input_schema: Raw<'_>, out: &mut Vec<u8>) {
    let has_type = input_schema.get("type").is_some();
    let is_object = !has_type || input_schema.get("type").is_some_and(names_object);
    write_with(input_schema, !has_type, is_object && input_schema.get("properties").is_none(), |_, _| false, out);
}

fn write_with(
    schema: Raw<'_>,
    add_type: bool,
    add_properties: bool,
    refused: fn(&[u8], Raw<'_>) -> bool,
    out: &mut Vec<u8>,
) {
    if is_empty(schema) {
        return out.extend_from_slice(NO_ARGUMENTS);
    }
    let words = described(schema, refused);
    out.push(b'{');
    if add_type {
        out.extend_from_slice(b"\"type\":\"object\"");
    }
    for (name, value) in schema.members().filter(|(_, value)| !value.is_null()) {
        if refused(name, value) || (words.is_some() && name == b"description") {
            continue;
        }
        key_inside(out, name);
        compact(value.bytes(), out);
    }
    write_described(words, out);
    if add_properties {
        out.extend_from_slice(b",\"properties\":{}");
    }
    out.push(b'}');
}

/// Position in a schema, by the kind of schemas that it contains.
#[derive(Copy, Clone, PartialEq, Eq)]
enum SchemaPosition {
    Schema,
    MapOfSchemas,
    ListOfSchemas,
    Plain,
}

fn position_of(name: &[u8], value: Raw<'_>) -> SchemaPosition {
    match (name, value.kind()) {
        (b"properties" | b"$defs" | b"definitions" | b"patternProperties", ValueKind::Object) => {
            SchemaPosition::MapOfSchemas
        }
        (b"items" | b"not" | b"if" | b"then" | b"else" | b"additionalProperties", ValueKind::Object) => {
            SchemaPosition::Schema
        }
        (b"anyOf" | b"oneOf" | b"allOf" | b"prefixItems" | b"items", ValueKind::Array) => SchemaPosition::ListOfSchemas,
        _ => SchemaPosition::Plain,
    }
}

/// True if a `type`, one word or a list of words, allows an object.
fn names_object(kind: Raw<'_>) -> bool {
    kind.is("object") || kind.items().any(|one| one.is("object"))
}

/// True if [`write_closed`] makes a strict schema of a tool's: an object without the keywords that Anthropic refuses at
/// its top.
pub(crate) fn may_close(schema: Raw<'_>) -> bool {
    let is_object = schema.get("type").is_some_and(|kind| kind.is("object"));
    is_object && schema.bytes().len() <= SCHEMA_MAX && !schema.members().any(|(name, value)| combines(name, value))
}

/// Appends a schema for structured output: every object in it closed, as the messages format requires, and refused
/// keywords stated in the description.
pub(crate) fn write_closed(schema: Raw<'_>, out: &mut Vec<u8>) {
    write_place(schema.bytes(), SchemaPosition::Schema, out);
}

/// Appends the value at the front of `text`, which also has what follows it, and returns its length.
fn write_place(text: &[u8], place: SchemaPosition, out: &mut Vec<u8>) -> Option<usize> {
    match (place, Raw::front(text).kind()) {
        (SchemaPosition::MapOfSchemas, ValueKind::Object) => {
            out.push(b'{');
            let length = Raw::walk(text, &mut |name, inner| {
                key_inside(out, name);
                write_place(inner, SchemaPosition::Schema, out)
            });
            out.push(b'}');
            length
        }
        (SchemaPosition::Schema, ValueKind::Object) => write_schema(text, out),
        (SchemaPosition::ListOfSchemas, ValueKind::Array) => {
            out.push(b'[');
            let length = Raw::walk(text, &mut |_, inner| {
                item(out);
                write_place(inner, SchemaPosition::Schema, out)
            });
            out.push(b']');
            length
        }
        _ => {
            let value = Raw::first(text);
            compact(value.bytes(), out);
            Some(value.bytes().len())
        }
    }
}

fn write_schema(text: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let start = out.len() + 1;
    let (mut own, mut words, mut described) = (&b""[..], Vec::new(), Vec::new());
    let (mut is_object, mut is_closed, mut has_choice) = (false, false, false);
    out.push(b'{');
    let length = Raw::walk(text, &mut |name, inner| {
        let value = Raw::front(inner);
        // The format has no `oneOf`, and one choice of schemas.
        let chooses = matches!(name, b"oneOf" | b"anyOf");
        if is_refused(name, value) || (chooses && has_choice) {
            let value = Raw::first(inner);
            describe(name, value, 0, &mut words);
            return Some(value.bytes().len());
        }
        has_choice |= chooses;
        is_closed |= name == b"additionalProperties";
        is_object |= name == b"properties" && !value.is_null();
        is_object |= name == b"type" && names_object(Raw::first(inner));
        let before = out.len();
        key_inside(out, if chooses { b"anyOf" } else { name });
        let length = write_place(inner, position_of(name, value), out);
        if name == b"description" {
            own = value.string().unwrap_or_default();
            described.push(Span::new(before, out.len()));
        }
        length
    });
    if !words.is_empty() {
        // The description moves behind the other members.
        cut(out, &described);
        if out.get(start) == Some(&b',') {
            out.remove(start);
        }
        let between: &[u8] = if own.is_empty() { b"" } else { b"\\n\\n" };
        write_described(Some([own, between, &words, b"}"].concat()), out);
    }
    if is_object && !is_closed {
        key(out, "additionalProperties");
        out.extend_from_slice(b"false");
    }
    out.push(b'}');
    length
}

/// True if a schema conforms to the chat format's strict mode: an object, every object in it closed, every property
/// required, and no excluded keyword.
pub(crate) fn is_strict(schema: Raw<'_>) -> bool {
    schema.bytes().len() <= SCHEMA_MAX
        && schema.get("type").is_some_and(|kind| kind.is("object"))
        && strict_place(schema.bytes(), SchemaPosition::Schema, &mut Vec::new()).is_some()
}

/// Returns the length of the value at the front of `text` if it conforms, and adds the names in a map to `names`.
fn strict_place<'a>(text: &'a [u8], place: SchemaPosition, names: &mut Vec<&'a [u8]>) -> Option<usize> {
    match place {
        SchemaPosition::Plain => Some(Raw::first(text).bytes().len()),
        SchemaPosition::Schema => strict_schema(text),
        SchemaPosition::ListOfSchemas | SchemaPosition::MapOfSchemas => Raw::walk(text, &mut |name, inner| {
            names.push(name);
            strict_place(inner, SchemaPosition::Schema, &mut Vec::new())
        }),
    }
}

fn strict_schema(text: &[u8]) -> Option<usize> {
    if Raw::front(text).kind() != ValueKind::Object {
        return strict_place(text, SchemaPosition::Plain, &mut Vec::new());
    }
    let (mut is_object, mut is_closed) = (false, false);
    let (mut properties, mut required) = (Vec::new(), BTreeMap::<&[u8], usize>::new());
    let length = Raw::walk(text, &mut |name, inner| {
        let value = Raw::front(inner);
        match name {
            b"additionalProperties" => is_closed = value.bool() == Some(false),
            b"properties" => is_object |= !value.is_null(),
            b"type" => is_object |= names_object(Raw::first(inner)),
            b"required" => {
                let names = Raw::first(inner).items().filter_map(Raw::string).enumerate();
                required = names.map(|(at, name)| (name, at)).collect();
            }
            _ if is_one_of(NEVER_STRICT, name) || is_one_of(COMBINED, name) => return None,
            _ => {}
        }
        let mut names = Vec::new();
        let length = strict_place(inner, position_of(name, value), &mut names);
        if name == b"properties" {
            properties = names;
        }
        length
    });
    let is_whole = is_closed && properties.iter().all(|name| required.contains_key(name));
    length.filter(|_| !is_object || is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::write_closed as closed;

    fn done(write: fn(Raw<'_>, &mut Vec<u8>), text: &str) -> String {
        let mut out = Vec::new();
        write(Raw::new(text.as_bytes()), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn schema_without_type_or_properties_gets_them() {
        let none = r#"{"type":"object","properties":{}}"#;
        for text in ["null", "{}", "[]", "7"] {
            assert_eq!(done(write_input_schema, text), none, "{text}");
            assert_eq!(done(write_parameters, text), none, "{text}");
        }
        let untyped = r#"{ "properties" : {"b":{},"a":{}} , "x" : 1.0 }"#;
        let typed = r#"{"type":"object","properties":{"b":{},"a":{}},"x":1.0}"#;
        assert_eq!(done(write_input_schema, untyped), typed);
        assert_eq!(done(write_parameters, untyped), typed);
        assert_eq!(done(write_parameters, r#"{"type":"object"}"#), none);
        assert_eq!(done(write_input_schema, r#"{"type":"object"}"#), r#"{"type":"object"}"#);
    }

    #[test]
    fn every_object_is_closed_and_other_values_are_unchanged() {
        let open = r#"{"type":"object","properties":{"type":{"type":"object","properties":{}},"list":{"type":"array",
            "items":{"properties":{}}},"default":{"default":{"type":"object"}}},"anyOf":[{"type":"object"}],
            "$defs":{"d":{"type":"object","additionalProperties":{"type":"string"}}}}"#;
        let closed = concat!(
            r#"{"type":"object","properties":{"type":{"type":"object","properties":{},"additionalProperties":false},"#,
            r#""list":{"type":"array","items":{"properties":{},"additionalProperties":false}},"#,
            r#""default":{"default":{"type":"object"}}},"anyOf":[{"type":"object","additionalProperties":false}],"#,
            r#""$defs":{"d":{"type":"object","description":"{additionalProperties: {\"type\":\"string\"}}","#,
            r#""additionalProperties":false}},"additionalProperties":false}"#
        );
        assert_eq!(done(write_closed, open), closed);
    }

    #[test]
    fn refused_keywords_move_to_the_description() {
        let closed = |text: &str| done(write_closed, text);
        let kept = r#"{"type":"array","minItems":1,"items":{"type":"string","format":"date","pattern":"^a+$"}}"#;
        assert_eq!(closed(kept), kept);
        assert_eq!(
            closed(r#"{"description":"Five \"stars\".","type":"integer","minimum":1,"maximum":5}"#),
            r#"{"type":"integer","description":"Five \"stars\".\n\n{minimum: 1, maximum: 5}"}"#
        );
        let refused = r#"{"type":"array","minItems":2,"maxItems":4,"items":{"type":"string","format":"color"}}"#;
        let inner = r#"{"type":"string","description":"{format: \"color\"}"}"#;
        let words = format!(r#"{{"type":"array","items":{inner},"description":"{{minItems: 2, maxItems: 4}}"}}"#);
        assert_eq!(closed(refused), words);
        for pattern in ["(?=a)", r"\\ba", r"(a)\\1"] {
            let written = closed(&format!(r#"{{"type":"string","pattern":"{pattern}"}}"#));
            assert!(
                written.contains(r#""description":"{pattern: "#) && !written.contains(r#""pattern":"#),
                "{written}"
            );
        }
        assert_eq!(closed(r#"{"oneOf":[{"type":"null"}]}"#), r#"{"anyOf":[{"type":"null"}]}"#);
        // Properties may have the names of keywords.
        let named = r#"{"type":"object","properties":{"minimum":{"type":"string"}},"additionalProperties":false}"#;
        assert_eq!(closed(named), named);
        let tool = done(write_input_schema, r#"{"type":"object","anyOf":[{"required":["a"]}],"properties":{}}"#);
        assert_eq!(tool, r#"{"type":"object","properties":{},"description":"{anyOf: [{\"required\":[\"a\"]}]}"}"#);
    }

    #[test]
    fn strictness_is_checked_at_every_depth() {
        let strict = |text: &str| is_strict(Raw::new(text.as_bytes()));
        let good =
            r#"{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}"#;
        assert!(strict(good));
        assert!(!strict(&good.replace("false", "true")));
        assert!(!strict(&good.replace("[\"a\"]", "[]")));
        assert!(!strict(&good.replace(r#"{"type":"string"}"#, r#"{"type":"object"}"#)));
        assert!(strict(&good.replace(r#"{"type":"string"}"#, good)));
        for keyword in ["not", "allOf", "oneOf", "uniqueItems", "patternProperties"] {
            assert!(!strict(&good.replace(r#"{"type":"string"}"#, &format!(r#"{{"{keyword}":{{}}}}"#))), "{keyword}");
        }
    }

    #[test]
    fn list_of_types_that_contains_object_is_an_object() {
        let either = r#"{"type":["object","null"]}"#;
        assert_eq!(done(closed, either), r#"{"type":["object","null"],"additionalProperties":false}"#);
        assert_eq!(done(write_parameters, either), r#"{"type":["object","null"],"properties":{}}"#);
        let strict = |text: &str| is_strict(Raw::new(text.as_bytes()));
        let around = |inner: &str| {
            format!(
                "{{\"type\":\"object\",\"properties\":{{\"a\":{inner}}},\"required\":[\"a\"],\"additionalProperties\":false}}"
            )
        };
        assert!(!strict(&around(either)));
        assert!(strict(&around(r#"{"type":["object","null"],"additionalProperties":false}"#)));
        for root in [r#"{"type":"array","items":{}}"#, r#"{"anyOf":[]}"#, "{}", r#"{"type":"string"}"#] {
            assert!(!strict(root), "{root}");
        }
    }

    #[test]
    fn second_choice_of_schemas_moves_to_the_description() {
        let both = r#"{"oneOf":[{"type":"object"}],"anyOf":[{ "a":1 }]}"#;
        let want = r#"{"anyOf":[{"type":"object","additionalProperties":false}],"description":"{anyOf: [{\"a\":1}]}"}"#;
        assert_eq!(done(closed, both), want);
        let both = r#"{"description":"d","anyOf":[],"oneOf":[1]}"#;
        assert_eq!(done(closed, both), r#"{"anyOf":[],"description":"d\n\n{oneOf: [1]}"}"#);
    }
}
