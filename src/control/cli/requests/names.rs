//! Names of keys for the list of requests.

use crate::cli::http::admin_client::Listener;
use crate::cli::http::blocking_http::NoAnswer;
use crate::cli::http::provider_client::encoded;
use crate::wire::json::{self, Raw};
use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

/// Maximum time to wait for an answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of keys whose names are asked for.
pub(super) const NAMES_MAX: usize = 100;

/// Names of keys. The line of a request that was refused before its key was known, such as that of a revoked key, has
/// only the id.
pub(super) struct KeyNames<'a> {
    /// Asks for the name of the key with this id; an error if asking again is pointless.
    ask: &'a dyn Fn(&str) -> Result<Option<String>, NoAnswer>,
    known: HashMap<String, Option<String>>,
    is_lost: bool,
}

impl<'a> KeyNames<'a> {
    pub(super) fn new(ask: &'a dyn Fn(&str) -> Result<Option<String>, NoAnswer>) -> KeyNames<'a> {
        KeyNames { ask, known: HashMap::new(), is_lost: false }
    }

    /// The name of a request's key, if it is known.
    pub(super) fn of(&mut self, request: Raw<'_>) -> Option<String> {
        let member = |name: &str| request.get(name).and_then(Raw::text).filter(|text| !text.is_empty());
        if let Some(name) = member("name") {
            return Some(name.into_owned());
        }
        let id = member("key")?;
        if let Some(known) = self.known.get(&*id) {
            return known.clone();
        }
        if self.is_lost || self.known.len() >= NAMES_MAX {
            return None;
        }
        let name = (self.ask)(&id).unwrap_or_else(|_| {
            self.is_lost = true;
            None
        });
        self.known.insert(id.into_owned(), name.clone());
        name
    }
}

/// Asks a gateway for the name of the key with this id.
pub(super) fn name_of(listener: &Listener, id: &str) -> Result<Option<String>, NoAnswer> {
    let answer = listener.get(&["/admin/v1/keys/", &encoded(id)].concat(), TIMEOUT)?;
    let is_whole = answer.status == 200 && json::check(&answer.body).is_ok();
    let key = Some(Raw::new(&answer.body)).filter(|_| is_whole);
    Ok(key.and_then(|key| key.get("name")?.text()).map(Cow::into_owned))
}
