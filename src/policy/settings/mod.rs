//! Settings as tables. Each row has the field, its meaning, its type, its default, its format and range, and whether it
//! can change at run time: see `section!`. Reading, printing, following and the manual are loops over the rows. The
//! settings themselves are defined in `config` and other modules.
//!
//! Only commands read and print a configuration.

pub mod json;
pub mod kinds;
pub mod reader;
pub mod secret;
pub mod units;

use kinds::Shown;
use reader::{Field, Reader, Section};

/// True if SIGHUP changes a setting in a running process.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Reload {
    /// Yes.
    Live,
    /// No: it does not change, and the log names it.
    Restart,
}

/// A setting of the section type `T`.
pub struct Setting<T: 'static> {
    /// Key in the configuration.
    pub key: &'static str,
    /// True if it can change at run time.
    pub reload: Reload,
    /// Applies a valid value, and reports an invalid one.
    pub set: fn(&mut Reader<'_>, Field<'_>, &mut T),
    /// The value as the effective configuration shows it.
    pub get: fn(&T) -> Shown,
    /// True if two sections have the same value.
    pub is_same: fn(&T, &T) -> bool,
    /// Gives the first section the value of the second.
    pub copy: fn(&mut T, &T),
}

impl<T> Setting<T> {
    /// Reads the setting if `section` has it. Returns true if it has.
    pub fn read(&self, reader: &mut Reader<'_>, section: &mut Section<'_>, value: &mut T) -> bool {
        let Some(field) = section.take(self.key) else { return false };
        (self.set)(reader, field, value);
        true
    }
}

/// A type whose fields are the settings of one section.
pub trait Settings: Sized + 'static {
    /// Rows of all settings, in the order in which they are printed.
    const ROWS: &'static [Setting<Self>];

    /// Replaces what `section` sets.
    fn read_rows(&mut self, reader: &mut Reader<'_>, section: &mut Section<'_>) {
        for row in Self::ROWS {
            row.read(reader, section, self);
        }
    }

    /// Restores from `before` the settings that cannot change at run time, and returns the names of those that differ.
    fn keep(&mut self, before: &Self) -> Vec<&'static str> {
        let mut kept = Vec::new();
        for row in Self::ROWS.iter().filter(|row| row.reload == Reload::Restart) {
            if !(row.is_same)(self, before) {
                (row.copy)(self, before);
                kept.push(row.key);
            }
        }
        kept
    }
}

/// Declares the type of one section: its fields, `Default`, and [`Settings`]. A row is
///
/// ```text
/// /// The meaning, as in the manual.
/// pub key: Type = default, kind, Live;
/// ```
///
/// where the kind is a [`kinds::Kind`] of that type, and `Live` or `Restart` is a [`Reload`]. A row that ends after its
/// default declares only a field, which separate code fills.
macro_rules! section {
    (
        $(#[$about:meta])*
        pub struct $name:ident {
            $(
                $(#[$meaning:meta])*
                pub $key:ident: $type:ty = $default:expr $(, $kind:expr, $reload:ident)?;
            )*
        }
    ) => {
        $(#[$about])*
        pub struct $name {
            $( $(#[$meaning])* pub $key: $type, )*
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $( $key: $default, )* }
            }
        }

        impl $crate::settings::Settings for $name {
            const ROWS: &'static [$crate::settings::Setting<$name>] = &[$($(
                $crate::settings::Setting {
                    key: stringify!($key),
                    reload: $crate::settings::Reload::$reload,
                    set: |reader, field, section| {
                        let read = $crate::settings::kinds::Kind::<$type>::read(&$kind, reader, field);
                        if let Some(value) = read {
                            section.$key = value;
                        }
                    },
                    get: |section| $crate::settings::kinds::Kind::<$type>::shown(&$kind, &section.$key),
                    is_same: |one, other| one.$key == other.$key,
                    copy: |section, from| section.$key.clone_from(&from.$key),
                },
            )?)*];
        }
    };
}
pub(crate) use section;

#[cfg(test)]
mod tests {
    use super::kinds::{Flag, Or, Time, Whole};
    use super::reader::Source;
    use super::*;
    use std::time::Duration;

    const SECONDS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(9);

    section! {
        /// Three settings.
        #[derive(PartialEq, Debug)]
        pub struct Lamp {
            /// Read by hand.
            pub place: &'static str = "desk";
            /// True if it shines.
            pub on: bool = false, Flag, Live;
            /// Brightness.
            pub level: u32 = 5, Whole(1..=10), Restart;
            /// Pause.
            pub rest: Option<Duration> = None, Or(Time(SECONDS), "forever"), Restart;
        }
    }

    /// Reads a lamp from `text`. Returns it with errors and warnings.
    fn read(text: &str) -> (Lamp, Vec<String>, Vec<String>) {
        let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let source = Source { file: "t", text, env: &|_| None, read: &read, run: &Source::no_program };
        let (mut reader, mut lamp) = (Reader::new(&source), Lamp::default());
        let mut section = reader.document().unwrap();
        lamp.read_rows(&mut reader, &mut section);
        section.finish(&mut reader);
        let (errors, warnings) = reader.finish();
        let text = |list: Vec<reader::ConfigError>| list.iter().map(ToString::to_string).collect();
        (lamp, text(errors), text(warnings))
    }

    #[test]
    fn a_section_holds_its_defaults_and_the_written_values() {
        let default = Lamp { place: "desk", on: false, level: 5, rest: None };
        assert_eq!(read(""), (default, vec![], vec![]));
        let (lamp, errors, _) = read("on = true\nlevel = 7\nrest = \"2s\"");
        let written = Lamp { place: "desk", on: true, level: 7, rest: Some(Duration::from_secs(2)) };
        assert_eq!((lamp, errors), (written, vec![]));
    }

    #[test]
    fn all_mistakes_are_reported_together() {
        let (_, errors, _) = read("on = 1\nlevel = 11\nrest = \"1h\"\nplace = \"floor\"");
        let lines: Vec<&str> = errors.iter().filter_map(|error| error.split(": ").next()).collect();
        assert_eq!(lines, ["t:1", "t:2", "t:3", "t:4"], "{errors:?}");
        assert!(errors[3].ends_with("known are on, level, rest"), "{errors:?}");
    }

    #[test]
    fn settings_that_need_a_restart_are_kept_and_named() {
        let (mut lamp, ..) = read("on = true\nlevel = 7");
        assert_eq!(lamp.keep(&Lamp { rest: Some(Duration::from_secs(3)), ..Lamp::default() }), ["level", "rest"]);
        assert_eq!((lamp.on, lamp.level, lamp.rest), (true, 5, Some(Duration::from_secs(3))));
        assert_eq!(lamp.keep(&Lamp { on: false, rest: lamp.rest, ..Lamp::default() }), [""; 0]);
    }
}
