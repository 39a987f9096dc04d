//! Invariants of the gateway's vitals, for every driver.

use tollgate::gateway::Vitals;

/// Checks the invariants that always hold.
pub fn vitals_hold(vitals: &Vitals, budget: usize) -> Result<(), String> {
    if vitals.holds > vitals.exchanges {
        return Err(format!("a reservation without its request: {vitals:?}"));
    }
    if vitals.flying > vitals.exchanges {
        return Err(format!("an attempt without its request: {vitals:?}"));
    }
    if vitals.target_holds > vitals.holds {
        return Err(format!("a reservation at a target without that of its request: {vitals:?}"));
    }
    if vitals.queued > vitals.holds {
        return Err(format!("a request waits for a slot without a reservation: {vitals:?}"));
    }
    if vitals.idle > vitals.upstreams {
        return Err(format!("an idle connection that does not exist: {vitals:?}"));
    }
    if vitals.buffered > budget {
        return Err(format!("more than {budget} bytes are buffered: {vitals:?}"));
    }
    let connections = vitals.clients + vitals.upstreams;
    if vitals.timers > connections {
        return Err(format!("more timers than connections: {vitals:?}"));
    }
    Ok(())
}

/// Checks the invariants after all clients have left and all deadlines have passed.
pub fn nothing_is_held(vitals: &Vitals) -> Result<(), String> {
    let held = [vitals.clients, vitals.exchanges, vitals.upstreams, vitals.idle, vitals.holds, vitals.buffered];
    if held == [0; 6] && vitals.flying == 0 && vitals.queued == 0 && vitals.timers == 0 {
        Ok(())
    } else {
        Err(format!("resources are in use after all clients have left: {vitals:?}"))
    }
}
