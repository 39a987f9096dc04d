//! Knowledge of a shared ledger about the clocks of its writers: see [`WriterClocks`]. It is stored in the hash
//! `clock`, with the last entry of `rows` at the time when the operator accepted the clock.

use super::resp::{RedisCommand, Value, list, text};
use super::{Remote, code::DECIDE};
use crate::base::time::Unix;
use crate::policy::row::Row;
use crate::policy::window::DAY_MS;
use crate::store::api::StoreError;
use crate::store::note::{AUDIT_MAX, AuditLine};
use crate::store::writer_clocks::WriterClocks;

/// Number of entries of rows searched for the newest record: the last commits of hosts with the same clock.
const ENTRIES: u64 = 4;

/// Position of an entry in a stream.
fn place(id: &str) -> (u64, u64) {
    let (moment, number) = id.split_once('-').unwrap_or((id, "0"));
    (moment.parse().unwrap_or(0), number.parse().unwrap_or(0))
}

/// Returns the rows of an entry.
pub(super) fn rows_of(fields: &[Value]) -> Option<Vec<Row>> {
    let [name, rows] = fields else { return None };
    if text(name)? == "rows" { serde_json::from_str(text(rows)?).ok() } else { None }
}

impl Remote {
    /// Returns the [`WriterClocks`]. If all rows have been folded, the newest record is the day of the last sums.
    pub fn writer_clocks(&mut self) -> Result<WriterClocks, StoreError> {
        let mut cmd = RedisCommand::new("HMGET");
        cmd.arg(self.server.named("clock")).arg("accepted").arg("held").arg("confirmed").arg("accepted_upto");
        let known = self.server.read(&cmd)?;
        let field = |at: usize| list(&known).get(at).and_then(text);
        let moment = |at: usize| Some(Unix(field(at)?.parse().ok()?));
        let (accepted, held, confirmed) = (moment(0), moment(1), moment(2));
        let upto = field(3).map(place);
        let mut cmd = RedisCommand::new("XREVRANGE");
        cmd.arg(self.server.named("rows")).arg("+").arg("-").arg("COUNT").number(ENTRIES);
        let entries = self.server.read(&cmd)?;
        let newest = list(&entries).iter().filter_map(|entry| match list(entry) {
            [id, fields] if upto.is_none_or(|upto| text(id).is_some_and(|id| place(id) > upto)) => {
                rows_of(list(fields))?.iter().map(|row| row.admitted).max()
            }
            _ => None,
        });
        let newest = newest.max().max(accepted);
        let newest = if newest.is_some() { newest } else { self.last_day()? };
        Ok(WriterClocks { newest: newest.unwrap_or_default(), accepted, held, confirmed })
    }

    /// Returns the last day that has sums.
    fn last_day(&mut self) -> Result<Option<Unix>, StoreError> {
        let days = self.server.read(RedisCommand::new("ZRANGE").arg(self.server.named("days")).arg("-1").arg("-1"))?;
        let day = list(&days).first().and_then(text).and_then(|day| day.parse::<u64>().ok());
        Ok(day.map(|day| Unix(day.saturating_mul(DAY_MS))))
    }

    /// Stores [`WriterClocks::held`] in the ledger.
    pub fn hold_fold(&mut self, held: Option<Unix>) -> Result<(), StoreError> {
        let name = self.server.named("clock");
        let mut cmd = RedisCommand::new(if held.is_some() { "HSET" } else { "HDEL" });
        cmd.arg(name).arg("held");
        held.iter().for_each(|at| _ = cmd.number(at.0));
        self.server.read(&cmd).map(drop)
    }

    /// Accepts the present time, and writes a line of the audit: existing records no longer count as newer.
    pub fn accept_clock(&mut self, now: Unix, line: &AuditLine) -> Result<(), StoreError> {
        let mut cmd = RedisCommand::new("XREVRANGE");
        cmd.arg(self.server.named("rows")).arg("+").arg("-").arg("COUNT").number(1);
        let last = self.server.read(&cmd)?;
        let last = list(&last).first().and_then(|entry| text(list(entry).first()?)).unwrap_or("0-0");
        self.decide(line, [("accepted", &now.0.to_string()), ("accepted_upto", last)])
    }

    /// Continues folding after this usage record, with a line of the audit.
    pub fn confirm_fold(&mut self, newest: Unix, line: &AuditLine) -> Result<(), StoreError> {
        self.decide(line, [("confirmed", &newest.0.to_string()), ("held", "")])
    }

    /// Writes a decision of the operator in one step: fields of the clock, each with its value, or "" for none.
    fn decide(&mut self, line: &AuditLine, fields: [(&str, &str); 2]) -> Result<(), StoreError> {
        self.server.connect()?;
        let mut cmd =
            self.server.script(DECIDE, &["clock", "keys:audit", "keys:version"].map(|name| self.server.named(name)));
        cmd.arg(super::notes::line_text(line)).number(AUDIT_MAX);
        fields.iter().for_each(|(field, value)| _ = cmd.arg(field).arg(value));
        self.server.query(&cmd)?;
        self.server.replicated()
    }
}
