//! Requested part of a list, paged by `limit` and `after`, and other parameters of a query.

use crate::base::text::push_number;
use crate::policy::keys::KeyId;
use crate::wire::percent;

/// Maximum number of items in one part of a list.
pub(crate) const LIMIT_MAX: u64 = 1000;
/// Default number of items in one part of a list.
const LIMIT: u64 = 100;

/// Parameter `after` of a list of keys, in the table of routes.
pub(crate) const AFTER_KEY: &str = "after-key";

/// Error text for an `after` that no list has returned.
pub const UNKNOWN_AFTER: &str = "after: expected what a list before had in `next`";

/// Part of a list.
#[derive(Clone, Debug)]
pub struct ListPart {
    /// Maximum number of items.
    pub limit: u64,
    /// Number of bytes after which the part ends, with one item at least.
    pub bytes: usize,
    /// Value of `next` of the previous part.
    pub after: Option<u64>,
    /// Value of `next` of the previous part, in a list of keys.
    pub after_key: Option<KeyId>,
    /// Other parameters, decoded, in their order.
    pub more: Vec<(String, String)>,
    /// Beginning of the answer, before the list, if the event loop knows it.
    pub begun: String,
    /// Number of items examined.
    seen: u64,
}

impl ListPart {
    /// Parses a query with the parameters in `known`, each at most once; otherwise returns the error.
    pub(crate) fn parse(query: &str, known: &str) -> Result<ListPart, String> {
        let mut part = ListPart {
            limit: LIMIT,
            bytes: usize::MAX,
            after: None,
            after_key: None,
            more: Vec::new(),
            begun: String::new(),
            seen: 0,
        };
        let of_keys = known.ends_with(AFTER_KEY);
        let mut names: Vec<&str> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !known.split(' ').any(|known| name == if known == AFTER_KEY { "after" } else { known }) {
                return Err(["unknown parameter `", &*percent::decoded(name.as_bytes()), "`"].concat());
            }
            if names.contains(&name) {
                return Err([name, ": given twice"].concat());
            }
            names.push(name);
            // A number has digits only: `parse` also takes a sign.
            let number = if value.starts_with('+') { None } else { value.parse::<u64>().ok() };
            match (name, number) {
                ("limit", Some(limit @ 1..=LIMIT_MAX)) => part.limit = limit,
                ("limit", _) => return Err("limit: expected a number from 1 to 1000".to_string()),
                ("after", _) if of_keys => {
                    part.after_key = Some(KeyId::parse(value).ok_or_else(|| UNKNOWN_AFTER.to_string())?);
                }
                ("after", Some(after)) => part.after = Some(after),
                ("after", _) => return Err(UNKNOWN_AFTER.to_string()),
                _ => part.more.push((name.to_string(), percent::decoded(value.replace('+', " ").as_bytes()))),
            }
        }
        Ok(part)
    }

    /// Value of the parameter `name`, one of [`ListPart::more`].
    pub fn wanted(&self, name: &str) -> Option<&str> {
        self.more.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the beginning and end of the part, in a list that starts with its first item.
    pub fn bounds(&self) -> (u64, u64) {
        let from = self.after.unwrap_or(0);
        (from, from.saturating_add(self.limit))
    }

    /// True if the next item of such a list belongs to the part, of which `length` bytes are written.
    pub(crate) fn takes(&mut self, length: usize) -> bool {
        let (from, _) = self.bounds();
        if length >= self.bytes && self.seen > from {
            self.limit = self.limit.min(self.seen - from);
        }
        let (_, to) = self.bounds();
        self.seen += 1;
        (from..to).contains(&(self.seen - 1))
    }

    /// Ends such a list, after all its items were examined.
    pub(crate) fn end(&self, out: &mut Vec<u8>) {
        let (_, to) = self.bounds();
        end(Some(to).filter(|to| *to < self.seen), out);
    }
}

/// Ends a list, with the position of the next part.
pub(crate) fn end(next: Option<u64>, out: &mut Vec<u8>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_names_are_those_of_the_document() {
        let part = |query: &str, known: &str| ListPart::parse(query, known).map(|part| part.limit);
        assert_eq!(part("limit=5", "limit after"), Ok(5));
        for query in ["limit=+5", "limit=0", "limit=1001", "limit=", "after=+1"] {
            assert!(part(query, "limit after").is_err(), "{query}");
        }
        // The table's word for the parameter is no parameter.
        assert_eq!(part("after-key=x", "limit after-key"), Err("unknown parameter `after-key`".to_string()));
        assert_eq!(part("after=x", "limit after-key"), Err(UNKNOWN_AFTER.to_string()));
    }
}
