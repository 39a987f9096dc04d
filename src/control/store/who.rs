//! Kinds of names that a row counts under, besides its day, key, model and the like.

use crate::policy::row::Row;
use std::sync::Arc;

/// Kind of name.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Who {
    /// See [`crate::policy::row::RareNames::user`].
    User = 1,
    /// See [`crate::policy::row::RareNames::session`].
    Session = 2,
    /// See [`crate::policy::row::RareNames::agent`].
    Agent = 3,
}

impl Who {
    /// All kinds.
    pub const ALL: [Who; 3] = [Who::User, Who::Session, Who::Agent];

    /// Reads the number of a kind.
    pub fn from_number(number: u64) -> Option<Who> {
        Who::ALL.into_iter().find(|who| *who as u64 == number)
    }

    /// The name of this kind that a row has.
    pub fn of(self, row: &Row) -> Option<&Arc<str>> {
        match self {
            Who::User => row.names.user.as_ref(),
            Who::Session => row.names.session.as_ref(),
            Who::Agent => row.names.agent.as_ref(),
        }
    }

    /// Name of its column in the view `rows`.
    pub fn column(self) -> &'static str {
        match self {
            Who::User => "user",
            Who::Session => "session",
            Who::Agent => "agent",
        }
    }

    /// Word for several names of this kind. Its first letter is unique.
    pub fn plural(self) -> &'static str {
        match self {
            Who::User => "users",
            Who::Session => "sessions",
            Who::Agent => "agents",
        }
    }
}
