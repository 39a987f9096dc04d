//! Pending requests to the admin listener: those whose bodies are arriving, those that a helper thread works on, and
//! those that receive requests as they end. At most one for each connection, of which there are at most
//! `limits::ADMIN_CONNECTIONS`.

use super::paging::ListPart;
use crate::base::limits::{ADMIN_CONNECTIONS, HIGH_WATER};
use crate::base::time::Mono;
use crate::base::words;
use crate::gateway::client::response::RequestMeta;
use crate::gateway::client::seats::PeerKey;
use crate::gateway::ids::ClientId;
use crate::gateway::report::metrics::Scrape;
use crate::policy::config::Config;
use crate::policy::keys::KeyRecord;
use crate::wire::head::RequestHead;
use std::sync::Arc;

/// Maximum number of pending reports: the one being written, and those that wait for it.
const REPORTS_MAX: usize = 9;
/// Maximum number of pending lists and reports of one caller.
const READS_PER_CALLER: usize = 9;
/// Maximum number of pending lists and reports of all callers.
const READS_MAX: usize = ADMIN_CONNECTIONS;
/// Bytes of a response that is never refused because others wait to be read: health, and most changes.
const SMALL: usize = 4096;
/// Bytes of storage of a response that is sent in pieces: each begins when less than the high-water mark is unsent, and
/// bytes that were sent before are removed when they are half of all.
const PIECES: usize = 2 * HIGH_WATER;
/// Maximum number of pending changes.
const CHANGES_MAX: usize = ADMIN_CONNECTIONS;

/// Caller: a host, with a token or without one.
pub(crate) type AdminCaller = (PeerKey, bool);

/// Kind of load of a job for a helper thread, until it is done, even if its caller has left.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Load {
    /// Change. It waits only for other changes.
    Change,
    /// Read.
    List(AdminCaller),
    /// Read that may take long.
    Report(AdminCaller),
}

impl Load {
    /// Caller of a read.
    pub(crate) fn caller(self) -> Option<AdminCaller> {
        match self {
            Load::Change => None,
            Load::List(caller) | Load::Report(caller) => Some(caller),
        }
    }
}

words! {
    /// Author of a change, for the audit.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
    pub enum ChangeAuthor {
        /// Caller with the `admin_write_token`.
        Token = "admin_write_token",
        /// Caller through a Unix socket.
        Socket = "admin socket",
    }
}

/// Request, and the event that it waits for.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) client: ClientId,
    pub(crate) meta: RequestMeta,
    pub(crate) waits: Waits,
}

/// Event that a request waits for.
#[derive(Debug)]
pub(crate) enum Waits {
    /// The remaining body, which has begun, and its deadline.
    Body(Box<IncomingRequest>, Mono),
    /// Answer of the helper thread.
    Answer,
    /// Room for more of the metrics.
    Scrape(Box<Scrape>),
    /// Requests that end, from this number on.
    Live(u64),
}

/// Request whose body is arriving.
#[derive(Debug)]
pub(crate) struct IncomingRequest {
    pub(crate) head: RequestHead,
    pub(crate) part: ListPart,
    /// Author of the change.
    pub(crate) writer: Option<ChangeAuthor>,
    pub(crate) caller: AdminCaller,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    waiting: Vec<Waiting>,
    /// Jobs that the helper threads have not finished.
    under_way: Vec<Load>,
    /// Clients that have not read their responses, each with true if its caller has shown a token.
    readers: Vec<(ClientId, bool)>,
}

/// Job for a helper thread.
#[derive(Debug)]
pub struct DeskAsk {
    pub(crate) client: ClientId,
    /// Configuration at the time of the request.
    pub config: Arc<Config>,
    /// Method of the request.
    pub method: String,
    /// Path after `/admin/v1/`, without the query.
    pub path: String,
    /// Requested part of a list.
    pub part: ListPart,
    /// Body of the request.
    pub body: Vec<u8>,
    /// `Idempotency-Key` of the request.
    pub once: Option<String>,
    /// Author of the change, if it is one.
    pub writer: Option<ChangeAuthor>,
    pub(crate) load: Load,
}

/// Answer of a helper thread.
#[derive(Debug)]
pub struct DeskAnswer {
    pub(crate) client: ClientId,
    pub(crate) load: Load,
    pub(crate) status: u16,
    /// Body, or the error.
    pub(crate) body: Result<Vec<u8>, String>,
    /// Issued key, so that its first request needs no look-up.
    pub(crate) issued: Option<Box<KeyRecord>>,
}

impl DeskAsk {
    /// True if it is a change: reads must not delay it.
    pub fn is_change(&self) -> bool {
        self.load == Load::Change
    }

    /// Creates its answer: a status, and the body or the error.
    pub fn answer(&self, status: u16, body: Result<Vec<u8>, String>) -> Box<DeskAnswer> {
        Box::new(DeskAnswer { client: self.client, load: self.load, status, body, issued: None })
    }
}

impl DeskAnswer {
    /// Adds the issued key to the answer.
    pub fn with_issued(mut self: Box<Self>, issued: Option<Box<KeyRecord>>) -> Box<DeskAnswer> {
        self.issued = issued;
        self
    }
}

impl Desk {
    /// Adds a waiting request.
    pub(crate) fn wait(&mut self, waiting: Waiting) {
        self.gone(waiting.client);
        self.waiting.push(waiting);
    }

    /// Returns the waiting request of a client.
    pub(crate) fn of(&mut self, client: ClientId) -> Option<&mut Waiting> {
        self.waiting.iter_mut().find(|waiting| waiting.client == client)
    }

    /// True if a client has not been sent all of the metrics.
    pub(crate) fn scrapes(&self, client: ClientId) -> bool {
        self.waiting.iter().any(|one| one.client == client && matches!(one.waits, Waits::Scrape(_)))
    }

    /// Clients of the live feed that have not been sent all requests before the number `next`.
    pub(crate) fn followers(&self, next: u64) -> Vec<ClientId> {
        let is_behind = |one: &&Waiting| matches!(one.waits, Waits::Live(from) if from < next);
        self.waiting.iter().filter(is_behind).map(|one| one.client).collect()
    }

    /// Removes the request of a client that is answered or has left.
    pub(crate) fn gone(&mut self, client: ClientId) -> Option<Waiting> {
        let at = self.waiting.iter().position(|waiting| waiting.client == client)?;
        Some(self.waiting.swap_remove(at))
    }

    /// True if a response of `length` bytes may wait to be read: of callers with a token, or of those without one
    /// (`known`), at most `most` bytes wait. If none do, one of any length may. `unsent`: unsent bytes of a client.
    pub(crate) fn has_room(
        &mut self,
        known: bool,
        length: usize,
        most: usize,
        unsent: impl Fn(ClientId) -> usize,
    ) -> bool {
        self.readers.retain(|(client, _)| unsent(*client) > 0);
        let of_kind = self.readers.iter().filter(|(_, one)| *one == known);
        let held = |client| match self.scrapes(client) {
            true => PIECES,
            false => unsent(client),
        };
        let waiting: usize = of_kind.map(|(client, _)| held(*client)).sum();
        length <= SMALL || waiting == 0 || waiting + length <= most
    }

    /// Records that a client is to read a response.
    pub(crate) fn reads(&mut self, client: ClientId, known: bool) {
        if self.readers.iter().all(|(one, _)| *one != client) {
            self.readers.push((client, known));
        }
    }

    /// Counts one more job; false if too many are pending.
    pub(crate) fn takes(&mut self, load: Load) -> bool {
        let count = |fits: &dyn Fn(&Load) -> bool| self.under_way.iter().filter(|one| fits(one)).count();
        let takes = match load {
            Load::Change => count(&|one| *one == Load::Change) < CHANGES_MAX,
            Load::Report(_) if count(&|one| matches!(one, Load::Report(_))) >= REPORTS_MAX => false,
            Load::List(caller) | Load::Report(caller) => {
                count(&|one| one.caller() == Some(caller)) < READS_PER_CALLER
                    && count(&|one| one.caller().is_some()) < READS_MAX
            }
        };
        if takes {
            self.under_way.push(load);
        }
        takes
    }

    /// Removes a job that is done or was dropped.
    pub(crate) fn done(&mut self, load: Load) {
        if let Some(at) = self.under_way.iter().position(|one| *one == load) {
            self.under_way.swap_remove(at);
        }
    }
}
