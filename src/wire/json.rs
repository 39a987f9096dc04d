//! JSON in place: strict, without a tree and without recursion. A scanner reads a complete document, and views read the
//! values of a valid one.

mod check;
mod scan;
mod scanned;
mod unescape;
mod view;
mod write;

pub use check::{Valid, check, check_and_pick};
pub use scan::{ScanError, Stop, Syntax, Token, Visitor, scan, string_end};
pub use scanned::{LinearGuard, ScanCount, linear, linear_apart};
pub use unescape::{Run, Runs, eq_unescaped, has_escape, runs, unescape};
pub use view::{Items, Members, Raw, ValueKind};
pub use write::put;
pub use write::{
    Inside, Number, OrElse, Put, Quoted, compact, item, key, key_inside, member_count, member_inside, member_string,
    members, object_with, write_count, write_escaped, write_inside, write_string,
};

#[cfg(test)]
mod tests;
