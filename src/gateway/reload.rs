//! Reading the configuration again while requests run. A helper thread reads and checks; what it brings is swapped
//! whole or, if anything is wrong with it, not at all. Exchanges keep the configuration they began with, and with it
//! their providers, targets and bounds; counters and keys are the gateway's own and outlive both.
//!
//! Provider numbers mean something only within one configuration: connections carry the number of the configuration
//! (`epoch`) they were dialed under, and only those of the present one are kept for later requests.

use super::Gateway;
use super::orders::{Order, Reloaded};
use super::outgoing::Outgoing;
use crate::base::time::Now;
use crate::wire::json::write_string;
use std::sync::Arc;

/// Whether a helper thread is reading.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Reading {
    /// No.
    #[default]
    No,
    /// Yes.
    Running,
    /// Yes, and it has been asked for again since: what is being read may be old already.
    Again,
}

impl Gateway {
    /// HUP: have the configuration read again.
    pub(crate) fn begin_reload(&mut self) {
        self.reading = match self.reading {
            Reading::No => {
                self.orders.push(Order::Reload(self.config.clone()));
                Reading::Running
            }
            Reading::Running | Reading::Again => Reading::Again,
        };
    }

    /// The configuration has been read.
    pub(crate) fn reloaded(&mut self, news: Reloaded, now: Now) {
        let again = std::mem::take(&mut self.reading) == Reading::Again;
        match &news {
            Reloaded::Refused(errors) => self.log_event(now, |out| {
                out.extend_from_slice(b",\"event\":\"reload\",\"outcome\":\"refused\",\"errors\":");
                write_list(errors, out);
            }),
            Reloaded::Fresh { config, unchanged } => {
                self.swap(config.clone(), now);
                self.stats.reloads += 1;
                self.log_event(now, |out| {
                    out.extend_from_slice(b",\"event\":\"reload\",\"outcome\":\"done\",\"needs_restart\":");
                    write_list(unchanged, out);
                });
                for warning in &config.warnings {
                    self.log_event(now, |out| {
                        out.extend_from_slice(b",\"event\":\"warning\",\"message\":");
                        write_string(out, &warning.to_string());
                    });
                }
            }
        }
        if again {
            self.begin_reload();
        }
    }

    fn swap(&mut self, config: Arc<crate::policy::config::Config>, now: Now) {
        self.outgoing = Arc::new(Outgoing::new(&config));
        self.pool.set_budget(config.server.max_buffered);
        self.config = config;
        self.epoch = self.epoch.wrapping_add(1);
        for upstream in self.idle.drain() {
            self.close_upstream(upstream);
        }
        self.resolve_all(now);
    }
}

fn write_list(items: &[String], out: &mut Vec<u8>) {
    out.push(b'[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_string(out, item);
    }
    out.push(b']');
}
