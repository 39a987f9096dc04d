//! Reads what a server answers, by hand where an answer may be something else than was expected.

use redis::Value;

/// A text, in either of its forms.
pub(super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// What stands in a list; nothing in what is none.
pub(super) fn list(value: &Value) -> &[Value] {
    if let Value::Array(parts) = value { parts } else { &[] }
}

/// A number from 0 on.
pub(super) fn integer(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}
