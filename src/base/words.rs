//! Enums whose values have a word each.

/// Defines an enum of which each value has a word: its name in the configuration, in the API or in a log.
#[macro_export]
macro_rules! words {
    (
        $(#[$about:meta])*
        $vis:vis enum $name:ident {
            $( $(#[$meaning:meta])* $value:ident = $word:literal, )*
        }
    ) => {
        $(#[$about])*
        $vis enum $name {
            $( $(#[$meaning])* $value, )*
        }

        #[allow(dead_code, reason = "not every enum is listed")]
        impl $name {
            /// All values.
            $vis const ALL: [$name; [$( $word, )*].len()] = [$( $name::$value, )*];

            /// The word of the value.
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $( $name::$value => $word, )*
                }
            }
        }
    };
}
