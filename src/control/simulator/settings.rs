//! Settings of a simulated provider. Data only.

use crate::policy::plan::caps::Cap;

/// Defaults for requests without directives.
#[derive(Clone, Debug, Default)]
pub struct SimulatorSettings {
    /// Tokens per second of every answer; 0 for no limit.
    pub pace: u64,
    /// Key that requests must carry, as bearer token or `x-api-key`. Absent: any key or none.
    pub key: Option<String>,
    /// Names of the models that it serves; none for any name.
    pub models: Vec<String>,
    /// Limits of requests and tokens for each credential.
    pub limits: Vec<Cap>,
}
