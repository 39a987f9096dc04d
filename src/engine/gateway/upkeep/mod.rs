//! Work of the gateway outside of requests: changed keys, thresholds of budgets, alerts, problems, grants of a shared
//! ledger, lists of models, a reload, the requests of a predecessor. Each file acts on the shared data in `cx` when
//! `Gateway` or the driver calls it.

pub(crate) mod alert_rules;
pub(crate) mod budget_news;
pub(crate) mod event_log;
pub(crate) mod granted;
pub(crate) mod helpers;
pub(crate) mod inheritance;
pub(crate) mod key_changes;
pub(crate) mod listing;
pub(crate) mod reload;
pub(crate) mod trouble;
