//! Reads answers of a server that may have an unexpected form.

use redis::Value;

/// A text, in either of its forms.
pub(super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Returns the elements of a list; none for any other value.
pub(super) fn list(value: &Value) -> &[Value] {
    if let Value::Array(parts) = value { parts } else { &[] }
}

/// Returns a number that is at least 0.
pub(super) fn integer(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}
