//! Reads the configuration and its certificates again, on a separate thread, since files can be slow. Called by the
//! outbox of the event loop; answers through the mailbox. Decides only whether everything is valid.

use super::listeners::AdminDoor;
use crate::cli::discover;
use crate::cli::load::{self, Secrets};
use crate::gateway::Gateway;
use crate::gateway::orders::{Listing, ListingAsked, NoList, Notice, Reloaded};
use crate::io::mailbox::Mailbox;
use crate::io::reactor::{ReactorMessage, Security};
use crate::io::secrets::SecretWatch;
use crate::io::worker::{start_thread, unless_panicked};
use crate::policy::config::Config;
use crate::policy::settings::secret::Secret;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Inputs for reading the configuration again.
#[derive(Clone)]
pub(super) struct Reloader {
    /// The file; `None` for the demo, which has none.
    path: Option<PathBuf>,
    /// Actual address of the admin listener.
    admin: Option<AdminDoor>,
    /// The event loop's current certificates.
    security: Arc<Mutex<Security>>,
    secrets: Arc<SecretWatch>,
    mailbox: Mailbox<ReactorMessage<Gateway>>,
}

/// All secrets of providers.
pub(super) fn secrets(config: &Config) -> impl Iterator<Item = &Secret> {
    config.providers.iter().flat_map(|provider| &provider.credentials).map(|credential| &credential.secret)
}

impl Reloader {
    pub(super) fn new(
        path: Option<PathBuf>,
        admin: Option<AdminDoor>,
        security: Security,
        secrets: Arc<SecretWatch>,
        mailbox: Mailbox<ReactorMessage<Gateway>>,
    ) -> Reloader {
        Reloader { path, admin, security: Arc::new(Mutex::new(security)), secrets, mailbox }
    }

    /// The event loop's current certificates.
    pub(super) fn security(&self) -> Arc<Mutex<Security>> {
        self.security.clone()
    }

    /// Starts reading. The gateway requests one reload at a time.
    pub(super) fn start(&self, before: Arc<Config>) {
        let theirs = self.clone();
        if let Err(error) = start_thread("reload", Box::new(move || theirs.serve(&before))) {
            self.tell(Reloaded::Refused(vec![format!("no thread can be started: {error}")]));
        }
    }

    fn serve(&self, before: &Config) {
        let news = match unless_panicked(|| self.read(before)).unwrap_or_else(|why| Err(vec![why])) {
            Ok((config, unchanged, security)) => {
                // The event loop gets the certificates before the core gets the configuration that refers to them; both
                // come through one mailbox, in order.
                *self.security.lock().unwrap_or_else(PoisonError::into_inner) = security.clone();
                let _ = self.mailbox.send(ReactorMessage::Security(Box::new(security)));
                self.secrets.watch(secrets(&config), config.secret_variables.clone());
                Reloaded::Fresh { config: Arc::new(config), unchanged }
            }
            Err(errors) => Reloaded::Refused(errors),
        };
        self.tell(news);
    }

    /// Requests a provider's models, on a thread that ends with the answer: the gateway makes one request per provider
    /// at a time.
    pub(super) fn list(&self, asked: &ListingAsked) {
        let (epoch, index) = (asked.epoch, asked.provider);
        let Some(provider) = asked.config.provider(index).cloned() else { return };
        let (security, mailbox) = (self.security.clone(), self.mailbox.clone());
        let most = asked.config.server.bounds.list_bytes;
        let tell = move |list| {
            let listing = Listing { epoch, provider: index, list };
            // A full mailbox means that the event loop has ended.
            let _ = mailbox.send(ReactorMessage::Notice(Notice::Listed(listing)));
        };
        let failed = tell.clone();
        let ask = move || {
            let security = security.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let list = unless_panicked(|| discover::ask(&provider, &security, most));
            tell(list.unwrap_or_else(|why| Err(NoList { why, refused: false })));
        };
        if let Err(error) = start_thread("models", Box::new(ask)) {
            failed(Err(NoList { why: format!("no thread can be started: {error}"), refused: false }));
        }
    }

    fn tell(&self, news: Reloaded) {
        // A full mailbox means that the event loop has ended.
        let _ = self.mailbox.send(ReactorMessage::Notice(Notice::Reloaded(news)));
    }

    fn read(&self, before: &Config) -> Result<(Config, Vec<String>, Security), Vec<String>> {
        let path = self.path.as_ref().ok_or_else(|| vec!["there is no configuration file to read".to_string()])?;
        let read = load::read(path, Secrets::Needed);
        let mut config = read.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        self.admin.as_ref().map_or(Ok(()), |admin| admin.check(&config)).map_err(|error| vec![error])?;
        let unchanged = config.follow(before).map_err(|error| vec![error])?;
        let present = self.security.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let security = load::security(&config, Some(&present)).map_err(|error| vec![error])?;
        Ok((config, unchanged, security))
    }
}
