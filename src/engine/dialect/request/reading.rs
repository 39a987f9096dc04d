//! State of the reading of one body, and the place of an item in it.

use super::fields::{Fields, Invalid, refuse};
use super::members::Name;
use crate::dialect::tokens::CountLater;
use crate::wire::ModelEndpoint;
use crate::wire::json::{Raw, ValueKind};
use std::fmt::{self, Display};

/// One body, and the notes on it.
pub(crate) struct Reading<'a, 'f> {
    pub(super) endpoint: ModelEndpoint,
    pub(crate) body: &'a [u8],
    pub(crate) fields: &'f mut Fields,
    pub(crate) tokens: &'f mut CountLater,
    /// Bytes of unknown members, their names included.
    pub(super) unknown: u32,
    pub(super) plain_max: Option<u64>,
    /// Items of the conversation, and those of them that are plain messages.
    pub(super) items: [u32; 2],
    /// Items of the conversation once it has been checked; a text is one.
    pub(super) conversation: Option<u32>,
    /// Required members of a pass-through request that were found, as bits.
    pub(super) found: u8,
    /// Tokens of a query that is read with each document, or of a suffix that is read with each prompt.
    pub(super) query: u32,
}

/// An item of a list, for the path in a refusal.
#[derive(Copy, Clone)]
pub(crate) struct Place {
    pub(crate) list: Name,
    pub(crate) index: u32,
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.list.text(), self.index)
    }
}

impl Place {
    /// The refusal of the item.
    #[cold]
    pub(crate) fn refuse<T>(self, expected: &str) -> Result<T, Invalid> {
        self.refuse_at(format_args!(""), expected)
    }

    /// The refusal of what is at `path` in the item.
    #[cold]
    pub(crate) fn refuse_at<T>(self, path: fmt::Arguments<'_>, expected: &str) -> Result<T, Invalid> {
        refuse(format_args!("{self}{path}"), expected)
    }

    /// Checks that a content in pieces consists of objects.
    pub(crate) fn check_parts(self, content: Option<Raw<'_>>) -> Result<(), Invalid> {
        match content.unwrap_or(Raw::NULL).items().position(|part| part.kind() != ValueKind::Object) {
            Some(part) => self.refuse_at(format_args!(".content[{part}]"), "an object"),
            None => Ok(()),
        }
    }
}

impl<'a, 'f> Reading<'a, 'f> {
    pub(super) fn new(
        endpoint: ModelEndpoint,
        body: &'a [u8],
        fields: &'f mut Fields,
        tokens: &'f mut CountLater,
    ) -> Reading<'a, 'f> {
        let (items, conversation) = ([0; 2], None);
        let (unknown, plain_max, found, query) = (0, None, 0, 0);
        Reading { endpoint, body, fields, tokens, unknown, plain_max, items, conversation, found, query }
    }
}
