//! Formats and ranges of setting values. A kind reads a value from a field of the document, and shows it as TOML that
//! reads as the same value. The kinds here are for plain values; sections define their own kinds.

use super::reader::{ENTRIES_MAX, Field, Reader};
use super::secret::Secret;
use super::units::{dollars_text, duration_text, quoted, quoted_list, size_text};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// A value as the effective configuration shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shown {
    /// TOML.
    Value(String),
    /// No value; the text says what that means.
    Words(&'static str),
}

/// A way to write values of type `V`.
pub trait Kind<V> {
    /// The value that `field` has; `None` if it is wrong, which is reported.
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<V>;
    /// The value as TOML.
    fn shown(&self, value: &V) -> Shown;
}

/// `true` or `false`.
pub struct Flag;

impl Kind<bool> for Flag {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<bool> {
        reader.boolean(&field)
    }

    fn shown(&self, value: &bool) -> Shown {
        Shown::Value(value.to_string())
    }
}

/// An integer within a range.
pub struct Whole(pub RangeInclusive<u64>);

impl<V: Copy + ToString + TryFrom<u64>> Kind<V> for Whole {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<V> {
        let number = reader.integer(&field, &self.0)?;
        fitting(reader, &field, number)
    }

    fn shown(&self, value: &V) -> Shown {
        Shown::Value(value.to_string())
    }
}

/// A count within a range: an integer, or text such as `"10M"`.
pub struct Count(pub RangeInclusive<u64>);

impl Kind<u64> for Count {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<u64> {
        if !field.is_text() {
            return reader.integer(&field, &self.0);
        }
        let text = reader.string(&field)?;
        let count = super::units::context(&text).filter(|count| self.0.contains(count));
        if count.is_none() {
            reader.wrong(&field, "expected a number such as 600, \"10M\" or \"250K\"; 0 is no limit");
        }
        count
    }

    fn shown(&self, value: &u64) -> Shown {
        Shown::Value(value.to_string())
    }
}

/// Dollars within a range, as nano-dollars: `50`, or `12.5`.
pub struct Dollars(pub RangeInclusive<u64>);

impl Kind<u64> for Dollars {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<u64> {
        let nano = field.decimal().and_then(super::units::dollars).filter(|nano| self.0.contains(nano));
        if nano.is_none() {
            reader.wrong(
                &field,
                "expected US dollars such as 50.0, at most 1000000000 and with at most nine decimals; 0 is no limit",
            );
        }
        nano
    }

    fn shown(&self, value: &u64) -> Shown {
        Shown::Value(dollars_text(*value))
    }
}

/// A number of bytes within a range: `"32MiB"`, or an integer.
pub struct Bytes(pub RangeInclusive<u64>);

impl<V: Copy + TryFrom<u64> + TryInto<u64>> Kind<V> for Bytes {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<V> {
        let number = reader.size(&field, &self.0)?;
        fitting(reader, &field, number)
    }

    fn shown(&self, value: &V) -> Shown {
        let bytes = (*value).try_into().unwrap_or(u64::MAX);
        Shown::Value(quoted(&size_text(bytes)))
    }
}

/// Converts `number` to the type of the setting. On a small machine it can be too large for that type.
fn fitting<V: TryFrom<u64>>(reader: &mut Reader<'_>, field: &Field<'_>, number: u64) -> Option<V> {
    let value = V::try_from(number).ok();
    if value.is_none() {
        reader.wrong(field, "expected a number that fits this machine's address space");
    }
    value
}

/// A duration within a range: `"1h30m"`.
pub struct Time(pub RangeInclusive<Duration>);

impl Kind<Duration> for Time {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Duration> {
        reader.duration(&field, &self.0)
    }

    fn shown(&self, value: &Duration) -> Shown {
        Shown::Value(quoted(&duration_text(*value)))
    }
}

/// A choice of named values.
pub struct OneOf<V: 'static>(pub &'static [V], pub fn(V) -> &'static str);

impl<V: Copy> Kind<V> for OneOf<V> {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<V> {
        let names: Vec<&str> = self.0.iter().map(|value| (self.1)(*value)).collect();
        reader.choice(&field, &names).and_then(|index| self.0.get(index).copied())
    }

    fn shown(&self, value: &V) -> Shown {
        Shown::Value(quoted((self.1)(*value)))
    }
}

/// A readable file whose text contains a mark of PEM.
pub struct Pem(pub &'static str);

impl Kind<PathBuf> for Pem {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<PathBuf> {
        reader.pem_file(&field, self.0)
    }

    fn shown(&self, value: &PathBuf) -> Shown {
        Shown::Value(quoted(&value.to_string_lossy()))
    }
}

/// A folder. It is not checked here.
pub struct Folder;

impl Kind<PathBuf> for Folder {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<PathBuf> {
        let text = reader.string(&field)?;
        if text.is_empty() {
            reader.wrong(&field, "expected a path that is not empty");
            return None;
        }
        Some(reader.resolve(text))
    }

    fn shown(&self, value: &PathBuf) -> Shown {
        Shown::Value(quoted(&value.to_string_lossy()))
    }
}

/// A reference to a secret, which must never be written itself: `{ env = "NAME" }` or `{ file = "path" }`.
pub struct Reference;

impl Kind<Secret> for Reference {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Secret> {
        reader.secret(field)
    }

    fn shown(&self, value: &Secret) -> Shown {
        Shown::Value(value.origin().to_string())
    }
}

/// A text with at most so many characters.
pub struct OneLine(pub usize);

impl Kind<String> for OneLine {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<String> {
        reader.word(&field, self.0)
    }

    fn shown(&self, value: &String) -> Shown {
        Shown::Value(quoted(value))
    }
}

/// A list of texts.
pub struct Words;

impl Kind<Vec<String>> for Words {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Vec<String>> {
        Some(reader.strings(field).into_iter().map(|(_, word)| word).collect())
    }

    fn shown(&self, value: &Vec<String>) -> Shown {
        Shown::Value(quoted_list(value))
    }
}

/// A list of pairs of texts.
pub struct Pairs;

impl Kind<Vec<[String; 2]>> for Pairs {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Vec<[String; 2]>> {
        let mut pairs = Vec::new();
        for item in reader.items(field, ENTRIES_MAX) {
            let (at, path) = (item.start(), item.path.clone());
            let words: Vec<String> = reader.strings(item).into_iter().map(|(_, word)| word).collect();
            match words.try_into() {
                Ok(pair) => pairs.push(pair),
                Err(_) => reader.report(at, path, "expected two names"),
            }
        }
        Some(pairs)
    }

    fn shown(&self, value: &Vec<[String; 2]>) -> Shown {
        let pairs: Vec<String> = value.iter().map(|pair| quoted_list(pair.as_slice())).collect();
        Shown::Value(format!("[{}]", pairs.join(", ")))
    }
}

/// Another kind, or no value, whose meaning the text gives.
pub struct Or<K>(pub K, pub &'static str);

impl<V, K: Kind<V>> Kind<Option<V>> for Or<K> {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Option<V>> {
        self.0.read(reader, field).map(Some)
    }

    fn shown(&self, value: &Option<V>) -> Shown {
        value.as_ref().map_or(Shown::Words(self.1), |value| self.0.shown(value))
    }
}
