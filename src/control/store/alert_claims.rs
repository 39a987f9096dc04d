//! The memory of alerts in a ledger, so that each is delivered once: the last report about each subject, and the
//! process that is delivering one.

/// Last report about a subject.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlertReport {
    /// Id of the alert.
    pub id: String,
    /// Start of its event, in milliseconds.
    pub since: u64,
    /// True if the alert was delivered, or given up.
    pub is_done: bool,
}

/// Result of claiming a subject.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AlertClaim {
    /// Another process has claimed it.
    Others,
    /// The caller has it. Contains the last report.
    Ours(Option<AlertReport>),
}
