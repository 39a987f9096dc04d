//! Reading the configuration again while requests run. A helper thread reads and checks; what it brings is swapped
//! whole or, if anything is wrong with it, not at all. Exchanges keep the configuration they began with, and with it
//! their providers, targets and bounds; counters and keys are the gateway's own and outlive both.
//!
//! Provider numbers mean something only within one configuration: connections carry the number of the configuration
//! (`epoch`) they were dialed under, and only those of the present one are kept for later requests.

use super::Reading;
use crate::gateway::cx::Cx;
use crate::gateway::orders::{Order, Reloaded};
use crate::wire::json::write_string;

/// HUP: have the configuration read again.
pub(crate) fn begin(cx: &mut Cx) {
    cx.lifecycle.reading = match cx.lifecycle.reading {
        Reading::No => {
            cx.orders.0.push(Order::Reload(cx.setup.config.clone()));
            Reading::Running
        }
        Reading::Running | Reading::Again => Reading::Again,
    };
}

/// The configuration has been read. True if it is taken over: connections kept for later requests are of no use then.
pub(crate) fn finish(news: Reloaded, cx: &mut Cx) -> bool {
    let again = std::mem::take(&mut cx.lifecycle.reading) == Reading::Again;
    let fresh = match news {
        Reloaded::Refused(errors) => {
            cx.log_event(|out| {
                out.extend_from_slice(b",\"event\":\"reload\",\"outcome\":\"refused\",\"errors\":");
                write_list(&errors, out);
            });
            false
        }
        Reloaded::Fresh { config, unchanged } => {
            cx.load_config(config);
            cx.stats.reloads += 1;
            cx.log_event(|out| {
                out.extend_from_slice(b",\"event\":\"reload\",\"outcome\":\"done\",\"needs_restart\":");
                write_list(&unchanged, out);
            });
            for warning in &cx.setup.clone().config.warnings {
                cx.log_event(|out| {
                    out.extend_from_slice(b",\"event\":\"warning\",\"message\":");
                    write_string(out, &warning.to_string());
                });
            }
            cx.warn_of_missing_plans();
            true
        }
    };
    if again {
        begin(cx);
    }
    fresh
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
