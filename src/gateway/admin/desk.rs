//! Requests to the admin listener that are not answered at once: those whose bodies are arriving, those that a helper
//! thread is asked for, and those that are told of requests as they end. At most one for each connection, of which
//! there are at most `limits::ADMIN_CONNECTIONS`.

use super::part::Part;
use crate::base::limits::ADMIN_CONNECTIONS;
use crate::base::time::Mono;
use crate::gateway::client::places::PeerKey;
use crate::gateway::client::response::RequestMeta;
use crate::gateway::ids::ClientId;
use crate::policy::config::Config;
use crate::policy::keys::KeyRecord;
use crate::wire::head::RequestHead;
use std::sync::Arc;

/// Reports that may be under way: the one that is written, and those that wait for it.
const REPORTS_MAX: usize = 9;
/// Lists and reports of one caller that may be under way.
const READS_PER_CALLER: usize = 9;
/// Lists and reports of all callers that may be under way.
const READS_MAX: usize = ADMIN_CONNECTIONS;
/// Changes that may be under way.
const CHANGES_MAX: usize = ADMIN_CONNECTIONS;

/// Who asks: a host, with a token or without one.
pub(crate) type Caller = (PeerKey, bool);

/// What a question to a helper thread counts as until it is answered, also where its caller has left.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Load {
    /// Something is to be changed. It waits for other changes alone.
    Change,
    /// Something is looked at.
    List(Caller),
    /// The same, and it may take long.
    Report(Caller),
}

impl Load {
    fn caller(self) -> Option<Caller> {
        match self {
            Load::Change => None,
            Load::List(caller) | Load::Report(caller) => Some(caller),
        }
    }
}

/// Who changes something, as the audit calls it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Writer {
    /// Shows the `admin_write_token`.
    Token,
    /// Comes by a socket in the file system.
    Socket,
}

impl Writer {
    /// As the audit calls it.
    pub fn name(self) -> &'static str {
        match self {
            Writer::Token => "admin_write_token",
            Writer::Socket => "admin socket",
        }
    }
}

/// A request, and what it waits for.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) client: ClientId,
    pub(crate) meta: RequestMeta,
    pub(crate) waits: Waits,
}

/// What a request waits for.
#[derive(Debug)]
pub(crate) enum Waits {
    /// The rest of its body, which has begun then.
    Body(Box<Begun>, Mono),
    /// The helper thread.
    Answer,
    /// Requests that end, from this number on.
    Live(u64),
}

/// A request whose body is arriving.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) head: RequestHead,
    pub(crate) part: Part,
    /// Who changes something by it.
    pub(crate) writer: Option<Writer>,
    pub(crate) caller: Caller,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    waiting: Vec<Waiting>,
    /// What the helper threads have not answered.
    under_way: Vec<Load>,
}

/// What a helper thread is asked.
#[derive(Debug)]
pub struct DeskAsk {
    pub(crate) client: ClientId,
    pub(crate) config: Arc<Config>,
    pub(crate) method: String,
    /// What follows `/admin/v1/`, without the query.
    pub(crate) path: String,
    pub(crate) part: Part,
    pub(crate) body: Vec<u8>,
    /// The request's `Idempotency-Key`.
    pub(crate) once: Option<String>,
    /// Who changes something, where anything is to be changed.
    pub(crate) writer: Option<Writer>,
    pub(crate) load: Load,
}

/// What a helper thread says.
#[derive(Debug)]
pub struct DeskAnswer {
    pub(crate) client: ClientId,
    pub(crate) load: Load,
    pub(crate) status: u16,
    /// The body, or what is wrong.
    pub(crate) body: Result<Vec<u8>, String>,
    /// The key that was issued: its first request needs no look-up here.
    pub(crate) issued: Option<Box<KeyRecord>>,
}

impl DeskAsk {
    /// True if it changes something: nobody who only looks may hold it up.
    pub fn is_change(&self) -> bool {
        self.load == Load::Change
    }

    /// Its answer: a status, and the body or what is wrong.
    pub fn answer(&self, status: u16, body: Result<Vec<u8>, String>) -> Box<DeskAnswer> {
        Box::new(DeskAnswer { client: self.client, load: self.load, status, body, issued: None })
    }
}

impl DeskAnswer {
    /// The same, of a request that has issued a key.
    pub fn with_issued(mut self: Box<Self>, issued: Option<Box<KeyRecord>>) -> Box<DeskAnswer> {
        self.issued = issued;
        self
    }
}

impl Desk {
    /// A request waits.
    pub(crate) fn wait(&mut self, waiting: Waiting) {
        self.gone(waiting.client);
        self.waiting.push(waiting);
    }

    /// What a client waits for.
    pub(crate) fn of(&mut self, client: ClientId) -> Option<&mut Waiting> {
        self.waiting.iter_mut().find(|waiting| waiting.client == client)
    }

    /// The client is answered, or has left.
    pub(crate) fn gone(&mut self, client: ClientId) -> Option<Waiting> {
        let at = self.waiting.iter().position(|waiting| waiting.client == client)?;
        Some(self.waiting.swap_remove(at))
    }

    /// One more is asked for; false where too many are under way.
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

    /// One is answered, or cannot be.
    pub(crate) fn done(&mut self, load: Load) {
        if let Some(at) = self.under_way.iter().position(|one| *one == load) {
            self.under_way.swap_remove(at);
        }
    }
}
