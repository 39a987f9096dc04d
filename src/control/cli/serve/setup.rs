//! Inputs of the event loop: listeners, and the certificates of both sides. Reads certificate files; decides nothing.
//! Called at the start, for a reload, and by `check`.

use super::listeners::ServeListeners;
use crate::io::reactor::{Authority, ReactorSetup, Security};
use crate::policy::config::{AuthoritySpec, Config};
use crate::policy::settings::secret::Secret;

/// Reads every certificate in `config`; an error names the setting with the file. `before`: the current certificates of
/// a running process.
pub(crate) fn security(config: &Config, before: Option<&Security>) -> Result<Security, String> {
    let authority = |spec: &AuthoritySpec| Authority {
        server_name: spec.server_name.clone(),
        ca_file: spec.ca_file.clone(),
        retired: spec.retired,
    };
    let authorities: Vec<Authority> = config.authorities.iter().map(authority).collect();
    let own = config.server.tls.as_ref().map(|files| (files.cert.as_path(), files.key.as_path()));
    let loaded = Security::load(&authorities, own, before).map_err(|error| error.to_string());
    loaded.map_err(|why| config.pem_error(&why).map_or(why, |error| error.to_string()))
}

/// All secrets of providers.
pub(super) fn secrets(config: &Config) -> impl Iterator<Item = &Secret> {
    config.providers.iter().flat_map(|provider| &provider.credentials).map(|credential| &credential.secret)
}

/// The listeners for clients come first, then the one for health and metrics, which uses plain HTTP.
pub(super) fn setup(listeners: ServeListeners, security: Security) -> ReactorSetup {
    let secured = listeners.clients.len();
    ReactorSetup { listeners: listeners.clients.into_iter().chain(listeners.admin).collect(), secured, security }
}
