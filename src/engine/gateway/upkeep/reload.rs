//! Reads the configuration again while requests run. A helper thread reads and checks it. It is applied completely or,
//! if it has an error, not at all. Exchanges keep the configuration they began with, and with it their providers,
//! targets and bounds. Counters and keys belong to the gateway and outlive both.
//!
//! Provider numbers are valid only within one configuration. A connection carries the number of the configuration
//! (`epoch`) under which it was dialed, and only connections of the current one are kept for later requests.

use crate::gateway::cx::{Cx, Setup};
use crate::gateway::lifecycle::ConfigReading;
use crate::gateway::orders::{Order, Reloaded};
use crate::gateway::upkeep::event_log::warn;
use crate::gateway::upkeep::key_changes::announce_memory;
use crate::policy::config::{Config, Origin, fit_secret};
use crate::wire::json::write_string;
use std::sync::Arc;

/// HUP: requests that the configuration be read again.
pub(crate) fn begin(cx: &mut Cx) {
    cx.lifecycle.reading = match cx.lifecycle.reading {
        ConfigReading::No => {
            cx.commands.orders.push(Order::Reload(cx.setup.config.clone()));
            ConfigReading::Running
        }
        ConfigReading::Running | ConfigReading::Again => ConfigReading::Again,
    };
}

/// Handles the configuration that has been read. True if it was applied: connections kept for later requests are then
/// useless.
pub(crate) fn finish(news: Reloaded, cx: &mut Cx) -> bool {
    let again = std::mem::take(&mut cx.lifecycle.reading) == ConfigReading::Again;
    let told = std::mem::take(&mut cx.lifecycle.told);
    let fresh = match news {
        Reloaded::Refused(errors) => {
            tell_refused(&errors, cx);
            false
        }
        Reloaded::Fresh { config, .. } if !cx.load_config(config.clone()) => {
            let why = "too many groups since the start: a restart forgets the old ones".to_string();
            tell_refused(&[why], cx);
            false
        }
        Reloaded::Fresh { unchanged, .. } => {
            cx.report.stats.reloads += 1;
            cx.log_event(|out| {
                out.extend_from_slice(b",\"event\":\"reload\",\"outcome\":\"done\",\"needs_restart\":");
                write_list(&unchanged, out);
            });
            for warning in &cx.setup.clone().config.warnings {
                warn(&warning.to_string(), cx);
            }
            announce_memory(cx);
            cx.warn_of_missing();
            // The configuration may have been read before these changes.
            for (origin, value) in &told {
                secret_told(origin, Ok(value), cx);
            }
            true
        }
    };
    if again {
        begin(cx);
    }
    fresh
}

fn tell_refused(errors: &[String], cx: &mut Cx) {
    cx.log_event(|out| {
        out.extend_from_slice(b",\"event\":\"reload\",\"outcome\":\"refused\",\"errors\":");
        write_list(errors, out);
    });
}

/// Applies the new value of a secret, or reports why there is none; then the previous value remains in use.
pub(crate) fn secret_told(origin: &Origin, value: Result<&str, &str>, cx: &mut Cx) {
    let mut config = Config::clone(&cx.setup.config);
    let (mut places, mut renewed) = (Vec::new(), false);
    for provider in &mut config.providers {
        for place in 0..provider.credentials.len() {
            if provider.credentials[place].secret.origin() == origin {
                renewed |= value.is_ok_and(|value| provider.credentials[place].secret.renew(value));
                places.push(provider.credential_name(place));
            }
        }
    }
    let unfit = value.ok().and_then(|value| fit_secret(value).err()).map(|why| ["the secret ", why].concat());
    let wrong = value.err().or(unfit.as_deref());
    if let (Ok(value), true) = (value, renewed && cx.lifecycle.reading != ConfigReading::No) {
        cx.lifecycle.told.retain(|(known, _)| known != origin);
        cx.lifecycle.told.push((origin.clone(), value.to_string()));
    }
    if renewed {
        cx.setup = Setup::new(Arc::new(config), cx.setup.epoch);
    }
    for place in places.iter().filter(|_| renewed || wrong.is_some()) {
        cx.log_event(|out| {
            out.extend_from_slice(b",\"event\":\"credential\",\"outcome\":");
            write_string(out, if renewed { "renewed" } else { "failed" });
            out.extend_from_slice(b",\"credential\":");
            write_string(out, place);
            if let Some(wrong) = wrong {
                out.extend_from_slice(b",\"error\":");
                write_string(out, wrong);
            }
        });
        if renewed && cx.upstreams.breakers.credential_renewed(place) {
            cx.log_target(place, None);
        }
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
