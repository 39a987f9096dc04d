//! Values that are passed on unchanged: TOML in the configuration, JSON on the wire.

use super::reader::{Field, Reader};
use super::units::quoted;
use std::fmt::Write;
use toml::de::{DeTable, DeValue};

/// Largest nesting depth of arrays and tables.
const DEPTH_MAX: usize = 32;

/// Format of a value.
#[derive(Copy, Clone)]
enum Form {
    Json,
    /// On one line.
    Toml,
}

/// Byte offset in the document, and the error there.
type Wrong = (usize, String);

impl Reader<'_> {
    /// Value of `field` as JSON, and as TOML on one line. Numbers keep their digits, and tables keep their order. JSON
    /// has no dates, infinities or NaN; TOML has no `null`.
    pub fn json(&mut self, field: &Field<'_>) -> Option<(String, String)> {
        let (mut json, mut toml) = (String::new(), String::new());
        let place = field.start();
        let written = write(field.value(), place, 0, Form::Json, &mut json)
            .and_then(|()| write(field.value(), place, 0, Form::Toml, &mut toml));
        match written {
            Ok(()) => Some((json, toml)),
            Err((at, why)) => {
                self.report(at, field.path.clone(), why);
                None
            }
        }
    }
}

fn write(value: &DeValue<'_>, at: usize, depth: usize, form: Form, out: &mut String) -> Result<(), Wrong> {
    if depth > DEPTH_MAX {
        return Err((at, format!("more than {DEPTH_MAX} arrays and tables within each other")));
    }
    match value {
        DeValue::String(text) => out.push_str(&quoted(text)),
        DeValue::Boolean(truth) => out.push_str(if *truth { "true" } else { "false" }),
        DeValue::Integer(number) => {
            let number = i64::from_str_radix(number.as_str(), number.radix());
            let number = number.map_err(|_| (at, "expected an integer of at most 64 bits".to_string()))?;
            // Writing to a String cannot fail.
            let _ = write!(out, "{number}");
        }
        DeValue::Float(number) => {
            let digits = number.as_str().replace('_', "");
            if !digits.parse::<f64>().is_ok_and(f64::is_finite) {
                return Err((at, "expected a finite number: JSON has no other".to_string()));
            }
            out.push_str(digits.strip_prefix('+').unwrap_or(&digits));
        }
        DeValue::Datetime(_) => return Err((at, "JSON has no dates: write a string".to_string())),
        DeValue::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                separate(index, form, out);
                write(item.get_ref(), item.span().start, depth + 1, form, out)?;
            }
            out.push(']');
        }
        DeValue::Table(table) => write_table(table, depth, form, out)?,
    }
    Ok(())
}

fn write_table(table: &DeTable<'_>, depth: usize, form: Form, out: &mut String) -> Result<(), Wrong> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| key.span().start);
    out.push('{');
    for (index, (key, value)) in entries.into_iter().enumerate() {
        separate(index, form, out);
        out.push_str(&quoted(key.get_ref()));
        out.push_str(match form {
            Form::Json => ":",
            Form::Toml => " = ",
        });
        write(value.get_ref(), value.span().start, depth + 1, form, out)?;
    }
    out.push('}');
    Ok(())
}

fn separate(index: usize, form: Form, out: &mut String) {
    out.push_str(match form {
        _ if index == 0 => "",
        Form::Json => ",",
        Form::Toml => ", ",
    });
}
