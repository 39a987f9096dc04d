//! What is left behind of an exchange: one row in the ledger if it was admitted, one JSON line in the log in any case.
//! Never content, never a secret: a line holds ids, names of our own configuration, numbers, and the client's own
//! request id in printable form.

use super::Gateway;
use super::exchange::Exchange;
use super::orders::Order;
use crate::base::text::push_number;
use crate::base::time::{Mono, Now};
use crate::policy::row::Row;
use crate::policy::usage::Usage;
use crate::policy::window;
use crate::wire::json::write_string;
use std::num::NonZeroU64;

impl Gateway {
    /// One row for an admitted request, unless it has been given already.
    pub(crate) fn record(&mut self, ex: &mut Exchange, status: u16, now: Now) {
        if ex.row.is_some() {
            return;
        }
        let (Some(usage), Some(model), Some(shape)) = (ex.usage, ex.model(), ex.shape()) else { return };
        let (Some(key), Some(target)) = (ex.finding.key, ex.target()) else { return };
        let row = Row {
            request: ex.id.raw(),
            key: self.keys.record(key).id,
            admitted: ex.admitted,
            model: model.id.clone(),
            target: target.label.clone(),
            endpoint: shape,
            stream: ex.stream,
            status,
            usage,
            cost_nano: usage.cost_nano(&model.prices),
            attempts: ex.attempts,
            micros: now.mono.micros_since(ex.times.head),
            lease: ex.lease.take(),
        };
        ex.row = NonZeroU64::new(self.give_row(row, now));
    }

    /// Hands a row to the ledger; its number.
    pub(crate) fn give_row(&mut self, row: Row, now: Now) -> u64 {
        let number = self.ledger.gave(now.mono);
        self.not_running(&row);
        for order in &mut self.orders {
            if let Order::Rows(rows) = order {
                rows.push(row);
                return number;
            }
        }
        self.orders.push(Order::Rows(vec![row]));
        number
    }

    /// The batch of log lines, with a new line begun in it.
    fn open_line(&mut self, now: Now) -> Option<&mut Vec<u8>> {
        let index = match self.orders.iter().position(|order| matches!(order, Order::Log(_))) {
            Some(index) => index,
            None => {
                self.orders.push(Order::Log(Vec::new()));
                self.orders.len() - 1
            }
        };
        let Some(Order::Log(out)) = self.orders.get_mut(index) else { return None };
        out.extend_from_slice(b"{\"time\":\"");
        window::write_iso(now.unix, out);
        out.push(b'"');
        Some(out)
    }

    /// One line about the gateway itself. `write` appends members, each with a comma before it.
    pub(crate) fn log_event(&mut self, now: Now, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(out) = self.open_line(now) else { return };
        write(out);
        out.extend_from_slice(b"}\n");
    }

    /// One line per request.
    pub(crate) fn log(&mut self, ex: &Exchange, status: u16, now: Now) {
        let key = ex.finding.key.map(|key| self.keys.record(key).id);
        let Some(out) = self.open_line(now) else { return };
        word(out, ",\"id\":\"", ex.id.as_str());
        word(out, "\",\"endpoint\":\"", ex.endpoint_name());
        out.push(b'"');
        if let Some(key) = key {
            word(out, ",\"key\":\"", key.as_str());
            out.push(b'"');
        }
        if let Some(model) = ex.model() {
            out.extend_from_slice(b",\"model\":");
            write_string(out, &model.id);
        }
        if let (Some(target), true) = (ex.target(), ex.attempts > 0) {
            out.extend_from_slice(b",\"target\":");
            write_string(out, &target.label);
            number(out, ",\"attempts\":", u64::from(ex.attempts));
            word(out, ",\"stream\":", if ex.stream { "true" } else { "false" });
        }
        number(out, ",\"status\":", u64::from(status));
        if let Some(error) = ex.error {
            word(out, ",\"error\":\"", error.as_str());
            out.push(b'"');
        }
        if let Some(usage) = &ex.usage {
            write_usage(usage, out);
        }
        write_times(ex, now.mono, out);
        if !ex.foreign_id.is_empty() {
            out.extend_from_slice(b",\"client_request_id\":\"");
            out.extend_from_slice(&ex.foreign_id);
            out.push(b'"');
        }
        out.extend_from_slice(b"}\n");
    }
}

/// Appends `name` and a text of ours that needs no escapes.
fn word(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(value.as_bytes());
}

/// Appends `name` and a number.
fn number(out: &mut Vec<u8>, name: &str, value: u64) {
    out.extend_from_slice(name.as_bytes());
    push_number(out, value);
}

fn write_usage(usage: &Usage, out: &mut Vec<u8>) {
    number(out, ",\"input\":", usage.uncached_in);
    number(out, ",\"cache_read\":", usage.cache_read);
    number(out, ",\"cache_write\":", usage.cache_write);
    number(out, ",\"output\":", usage.out);
    word(out, ",\"source\":\"", usage.source.as_str());
    out.push(b'"');
}

/// Microseconds per phase; a phase that was not reached is left out.
fn write_times(ex: &Exchange, end: Mono, out: &mut Vec<u8>) {
    let times = &ex.times;
    number(out, ",\"us\":{\"total\":", end.micros_since(times.head));
    let stops = [
        (",\"body\":", times.head, times.body),
        (",\"send\":", times.body, times.sent),
        (",\"wait\":", times.sent, times.first),
    ];
    for (name, from, to) in stops {
        if from != Mono::NEVER && to != Mono::NEVER {
            number(out, name, to.micros_since(from));
        }
    }
    if times.first != Mono::NEVER {
        number(out, ",\"relay\":", end.micros_since(times.first));
    }
    out.push(b'}');
}
