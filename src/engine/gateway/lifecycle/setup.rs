//! The configuration in use, as requests and helper threads share it.

use crate::gateway::provider::request::RequestTemplates;
use crate::policy::config::Config;
use std::sync::Arc;

/// A configuration and the data derived from it. An exchange keeps the setup that it began with.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) config: Arc<Config>,
    pub(crate) requests: RequestTemplates,
    /// Number of the configuration, which a renewed secret does not change. Connections to providers carry the number
    /// of the configuration under which they were dialed.
    pub(crate) epoch: u32,
    /// True if spans are exported.
    pub(crate) traces: bool,
}

impl Setup {
    /// Setup for `config`, whose number is `epoch`.
    pub(crate) fn new(config: Arc<Config>, epoch: u32) -> Arc<Setup> {
        Arc::new(Setup { traces: config.telemetry.exports(), requests: RequestTemplates::new(&config), config, epoch })
    }
}
