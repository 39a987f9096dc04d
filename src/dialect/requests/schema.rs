//! Translates JSON schemas between the shapes.
//!
//! Owns the requirements of the other side. Must never reorder or drop a member of a schema. The scanner's bound on
//! nesting also bounds the recursion.

use crate::wire::json::{Kind, Raw, compact, item, key};
use std::collections::BTreeSet;

/// Bytes of a schema that is walked to its depths: each level looks at all that lies below it.
pub(super) const SCHEMA_MAX: usize = 256 * 1024;

/// The schema of a function without arguments.
const NO_ARGUMENTS: &[u8] = b"{\"type\":\"object\",\"properties\":{}}";

/// The schema of a tool that takes free text.
const FREE: &[u8] = b"{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\"}},\"required\":[\"input\"],\
      \"additionalProperties\":false}";

/// Appends the schema of a tool that takes free text, as its one argument `input`.
pub(super) fn write_free(out: &mut Vec<u8>) {
    out.extend_from_slice(FREE);
}

fn is_empty(schema: Raw<'_>) -> bool {
    schema.kind() != Kind::Object || schema.members().next().is_none()
}

/// Appends a tool's `input_schema`: always an object with a type.
pub(super) fn write_input_schema(parameters: Raw<'_>, out: &mut Vec<u8>) {
    write_with(parameters, parameters.get("type").is_none(), false, out);
}

/// Appends a function's `parameters`: always an object with a type and properties.
pub(super) fn write_parameters(input_schema: Raw<'_>, out: &mut Vec<u8>) {
    let has_type = input_schema.get("type").is_some();
    let is_object = !has_type || input_schema.get("type").is_some_and(|kind| kind.is("object"));
    write_with(input_schema, !has_type, is_object && input_schema.get("properties").is_none(), out);
}

fn write_with(schema: Raw<'_>, add_type: bool, add_properties: bool, out: &mut Vec<u8>) {
    if is_empty(schema) {
        return out.extend_from_slice(NO_ARGUMENTS);
    }
    out.push(b'{');
    if add_type {
        out.extend_from_slice(b"\"type\":\"object\"");
    }
    for (name, value) in schema.members().filter(|(_, value)| !value.is_null()) {
        write_key(name, out);
        compact(value.bytes(), out);
    }
    if add_properties {
        out.extend_from_slice(b",\"properties\":{}");
    }
    out.push(b'}');
}

fn write_key(raw: &[u8], out: &mut Vec<u8>) {
    item(out);
    out.push(b'"');
    out.extend_from_slice(raw);
    out.extend_from_slice(b"\":");
}

/// Position in a schema, by the kind of schemas that it contains.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Place {
    Schema,
    MapOfSchemas,
    ListOfSchemas,
    Plain,
}

fn place_of(name: &[u8], value: Raw<'_>) -> Place {
    match (name, value.kind()) {
        (b"properties" | b"$defs" | b"definitions" | b"patternProperties", Kind::Object) => Place::MapOfSchemas,
        (b"items" | b"not" | b"if" | b"then" | b"else" | b"additionalProperties", Kind::Object) => Place::Schema,
        (b"anyOf" | b"oneOf" | b"allOf" | b"prefixItems" | b"items", Kind::Array) => Place::ListOfSchemas,
        _ => Place::Plain,
    }
}

fn describes_object(schema: Raw<'_>) -> bool {
    schema.get("properties").is_some() || schema.get("type").is_some_and(|kind| kind.is("object"))
}

/// Appends a schema for structured output: every object in it closed, as the messages shape wants.
pub(super) fn write_closed(schema: Raw<'_>, out: &mut Vec<u8>) {
    write_place(schema, Place::Schema, out);
}

fn write_place(value: Raw<'_>, place: Place, out: &mut Vec<u8>) {
    match (place, value.kind()) {
        (Place::Schema | Place::MapOfSchemas, Kind::Object) => {
            out.push(b'{');
            for (name, inner) in value.members() {
                write_key(name, out);
                let below = if place == Place::Schema { place_of(name, inner) } else { Place::Schema };
                write_place(inner, below, out);
            }
            let open = value.get("additionalProperties").is_none();
            if place == Place::Schema && open && describes_object(value) {
                key(out, "additionalProperties");
                out.extend_from_slice(b"false");
            }
            out.push(b'}');
        }
        (Place::ListOfSchemas, Kind::Array) => {
            out.push(b'[');
            for inner in value.items() {
                item(out);
                write_place(inner, Place::Schema, out);
            }
            out.push(b']');
        }
        _ => compact(value.bytes(), out),
    }
}

/// True if a schema keeps the chat shape's strict rules: every object closed, every property required.
pub(super) fn is_strict(schema: Raw<'_>) -> bool {
    schema.bytes().len() <= SCHEMA_MAX && strict_place(schema, Place::Schema)
}

fn strict_place(value: Raw<'_>, place: Place) -> bool {
    match place {
        Place::Plain => true,
        Place::ListOfSchemas => value.items().all(|inner| strict_place(inner, Place::Schema)),
        Place::MapOfSchemas => value.members().all(|(_, inner)| strict_place(inner, Place::Schema)),
        Place::Schema => {
            let closed = value.get("additionalProperties").and_then(Raw::bool) == Some(false);
            let mut required = BTreeSet::new();
            required.extend(value.get("required").unwrap_or(Raw::NULL).items().filter_map(Raw::string));
            let mut properties = value.get("properties").unwrap_or(Raw::NULL).members();
            let all = properties.all(|(name, _)| required.contains(name));
            (!describes_object(value) || closed && all)
                && value.members().all(|(name, inner)| strict_place(inner, place_of(name, inner)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(write: fn(Raw<'_>, &mut Vec<u8>), text: &str) -> String {
        let mut out = Vec::new();
        write(Raw::new(text.as_bytes()), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_schema_without_type_or_properties_gets_them() {
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
    fn every_object_is_closed_and_what_is_no_schema_stays() {
        let open = r#"{"type":"object","properties":{"type":{"type":"object","properties":{}},"list":{"type":"array",
            "items":{"properties":{}}},"default":{"default":{"type":"object"}}},"anyOf":[{"type":"object"}],
            "$defs":{"d":{"type":"object","additionalProperties":true}}}"#;
        let closed = concat!(
            r#"{"type":"object","properties":{"type":{"type":"object","properties":{},"additionalProperties":false},"#,
            r#""list":{"type":"array","items":{"properties":{},"additionalProperties":false}},"#,
            r#""default":{"default":{"type":"object"}}},"anyOf":[{"type":"object","additionalProperties":false}],"#,
            r#""$defs":{"d":{"type":"object","additionalProperties":true}},"additionalProperties":false}"#
        );
        assert_eq!(done(write_closed, open), closed);
    }

    #[test]
    fn strictness_is_seen_at_every_depth() {
        let strict = |text: &str| is_strict(Raw::new(text.as_bytes()));
        let good =
            r#"{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}"#;
        assert!(strict(good));
        assert!(!strict(&good.replace("false", "true")));
        assert!(!strict(&good.replace("[\"a\"]", "[]")));
        assert!(!strict(&good.replace(r#"{"type":"string"}"#, r#"{"type":"object"}"#)));
        assert!(strict(&good.replace(r#"{"type":"string"}"#, good)));
    }
}
