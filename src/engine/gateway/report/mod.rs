//! The reports of the gateway: log lines, metrics, traces, the recorder, captures, and the state that alerts compare
//! with. Data and their forms as text. Must never contain content or a secret, except captures.

pub(crate) mod access_log;
pub(crate) mod alert_watch;
pub(crate) mod captures;
pub(crate) mod diagnosis;
pub(crate) mod log_limit;
pub(crate) mod metrics;
pub(crate) mod recorder;
pub(crate) mod trace;
