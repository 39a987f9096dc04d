//! Which part of a list is asked for (contract section 14: "paged by `limit` and `after`"), and what else a query says.

use crate::base::text::push_number;
use crate::policy::keys::KeyId;
use crate::wire::percent;

/// Items of a list that are told at once, at most.
pub(crate) const LIMIT_MAX: u64 = 1000;
/// Items of a list that are told at once, if nothing is said of it.
const LIMIT: u64 = 100;

/// Said of what no list had.
pub const UNKNOWN_AFTER: &str = "after: expected what a list before had in `next`";

/// A part of a list.
#[derive(Clone, Debug)]
pub struct Part {
    /// Items at most.
    pub limit: u64,
    /// What the part before had in `next`.
    pub after: Option<u64>,
    /// The same of a list of keys.
    pub after_key: Option<KeyId>,
    /// Whatever else was asked, decoded, in its order.
    pub more: Vec<(String, String)>,
    /// Items that were looked at.
    seen: u64,
}

impl Part {
    /// Reads a query that may say what is `known`, each once; else what is wrong.
    pub(crate) fn of(query: &str, known: &str) -> Result<Part, String> {
        let mut part = Part { limit: LIMIT, after: None, after_key: None, more: Vec::new(), seen: 0 };
        let of_keys = known.ends_with("after-key");
        let mut names: Vec<&str> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !known.split(' ').any(|known| known == name || (known == "after-key" && name == "after")) {
                return Err([&*percent::decoded(name.as_bytes()), ": is not known here"].concat());
            }
            if names.contains(&name) {
                return Err([name, ": is there twice"].concat());
            }
            names.push(name);
            match (name, value.parse::<u64>()) {
                ("limit", Ok(limit @ 1..=LIMIT_MAX)) => part.limit = limit,
                ("limit", _) => return Err("limit: expected a number from 1 to 1000".to_string()),
                ("after", _) if of_keys => {
                    part.after_key = Some(KeyId::parse(value).ok_or_else(|| UNKNOWN_AFTER.to_string())?);
                }
                ("after", Ok(after)) => part.after = Some(after),
                ("after", _) => return Err(UNKNOWN_AFTER.to_string()),
                _ => part.more.push((name.to_string(), percent::decoded(value.replace('+', " ").as_bytes()))),
            }
        }
        Ok(part)
    }

    /// Where the part begins and ends, of a list that is told from its first item on.
    pub fn bounds(&self) -> (u64, u64) {
        let from = self.after.unwrap_or(0);
        (from, from.saturating_add(self.limit))
    }

    /// True if the next item of such a list belongs to the part.
    pub(super) fn takes(&mut self) -> bool {
        let (from, to) = self.bounds();
        self.seen += 1;
        (from..to).contains(&(self.seen - 1))
    }

    /// Ends such a list, all of whose items were looked at.
    pub(super) fn end(&self, out: &mut Vec<u8>) {
        let (_, to) = self.bounds();
        end(Some(to).filter(|to| *to < self.seen), out);
    }
}

/// Ends a list, with where the rest of it begins.
pub(super) fn end(next: Option<u64>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"],\"next\":");
    match next {
        Some(next) => {
            out.push(b'"');
            push_number(out, next);
            out.push(b'"');
        }
        None => out.extend_from_slice(b"null"),
    }
    out.push(b'}');
}
