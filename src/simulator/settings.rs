//! What a simulated provider is told at its start. Data alone.

/// How a provider behaves where a request does not say.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Tokens per second of every answer; 0 for at once.
    pub pace: u64,
    /// The key that requests must carry, by bearer or `x-api-key`; any or none if absent.
    pub key: Option<String>,
}
