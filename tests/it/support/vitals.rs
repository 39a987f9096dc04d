//! What must hold of the gateway's vitals, whoever drives it.

use tollgate::base::limits::{TIMERS_EACH, TIMERS_SPARE};
use tollgate::gateway::Vitals;

/// Connections at a time in every world that is driven here.
const CONNECTIONS_MAX: usize = 24;

/// What must hold of the gateway at every moment.
pub fn vitals_hold(vitals: &Vitals, budget: usize) -> Result<(), String> {
    if vitals.holds > vitals.exchanges {
        return Err(format!("a reservation without its request: {vitals:?}"));
    }
    if vitals.flying > vitals.exchanges {
        return Err(format!("an attempt without its request: {vitals:?}"));
    }
    if vitals.queued > vitals.holds {
        return Err(format!("one waits for a place that has not been admitted: {vitals:?}"));
    }
    if vitals.idle > vitals.upstreams {
        return Err(format!("an idle connection that does not exist: {vitals:?}"));
    }
    if vitals.buffered > budget {
        return Err(format!("more than {budget} bytes are buffered: {vitals:?}"));
    }
    // Stale ones are taken out when a connection begins, so those of as many as there were then may be left.
    let connections = vitals.clients + vitals.upstreams;
    if vitals.timers > TIMERS_SPARE + TIMERS_EACH * CONNECTIONS_MAX + 16 * connections {
        return Err(format!("timers pile up: {vitals:?}"));
    }
    Ok(())
}

/// What must hold once everybody has left and every deadline has passed.
pub fn nothing_is_held(vitals: &Vitals) -> Result<(), String> {
    let held = [vitals.clients, vitals.exchanges, vitals.upstreams, vitals.idle, vitals.holds, vitals.buffered];
    if held == [0; 6] && vitals.flying == 0 && vitals.queued == 0 && vitals.timers == 0 {
        Ok(())
    } else {
        Err(format!("after everybody has left: {vitals:?}"))
    }
}
