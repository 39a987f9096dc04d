//! Connections to providers: kept for later requests, and closed.

use crate::base::seam::{Action, Shut};
use crate::base::slots::Slots;
use crate::base::time::Mono;
use crate::gateway::cx::Cx;
use crate::gateway::ids::{ProviderId, ProviderName, provider_conn};
use crate::gateway::provider::connection::TAIL_WAIT;
use crate::gateway::provider::{Parting, ProviderConnection};

/// The connections to providers. Knows no exchange.
#[derive(Debug)]
pub(crate) struct Providers {
    pub(crate) table: Slots<ProviderConnection, ProviderName>,
}

impl Providers {
    /// Handles a connection that its exchange has released.
    pub(crate) fn part(&mut self, id: ProviderId, complete: bool, cx: &mut Cx) {
        let Some(provider) = self.table.get_mut(id) else { return };
        match provider.let_go(complete) {
            Parting::Keep => self.keep(id, cx),
            Parting::Close => self.close(id, cx),
            Parting::AwaitTail => {
                let mut received = provider.take_received();
                self.arm(id, cx.now.mono.after(TAIL_WAIT), cx);
                if !received.is_empty() {
                    self.tail(id, received.bytes(), cx);
                }
                received.release(&mut cx.memory.pool);
            }
        }
    }

    pub(crate) fn tail(&mut self, id: ProviderId, data: &[u8], cx: &mut Cx) {
        let Some(provider) = self.table.get_mut(id) else { return };
        if provider.is_idle() && data.is_empty() {
            return;
        }
        match provider.read_tail(data) {
            Parting::Keep => self.keep(id, cx),
            Parting::AwaitTail => {}
            Parting::Close => self.close(id, cx),
        }
    }

    /// Keeps the connection after a complete answer, if it may be kept.
    fn keep(&mut self, id: ProviderId, cx: &mut Cx) {
        let Some(provider) = self.table.get(id) else { return };
        let index = provider.provider as usize;
        let fits = provider.epoch == cx.setup.epoch && !cx.lifecycle.is_stopping();
        let limits = cx.setup.config.providers.get(index).map(|provider| &provider.limits);
        let Some(limits) = limits.filter(|_| fits) else { return self.close(id, cx) };
        let due = cx.now.mono.after(limits.pool_idle_timeout);
        let oldest = cx.upstreams.idle.put(index, id, limits.pool_max_idle);
        self.arm(id, due, cx);
        if let Some(oldest) = oldest {
            self.close(oldest, cx);
        }
    }

    /// Closes a connection to a provider, whatever its state.
    pub(crate) fn close(&mut self, id: ProviderId, cx: &mut Cx) {
        let Some(mut provider) = self.table.remove(id) else { return };
        cx.connections.limits.providers -= 1;
        cx.commands.timers.forget(provider_conn(id));
        let idle = provider.is_idle();
        if idle {
            cx.upstreams.idle.forget(provider.provider as usize, id);
        }
        provider.release(&mut cx.memory.pool);
        let shut = if idle { Shut::Clean } else { Shut::Abort };
        cx.commands.actions.push(Action::Close { conn: provider_conn(id), shut });
    }

    /// Sets the one deadline of a connection to a provider.
    #[inline]
    pub(crate) fn arm(&mut self, id: ProviderId, due: Mono, cx: &mut Cx) {
        if let Some(provider) = self.table.get_mut(id) {
            provider.wait = due;
            cx.commands.timers.arm(provider_conn(id), due);
        }
    }

    /// Closes connections to providers that were kept for later requests.
    pub(crate) fn close_idle(&mut self, cx: &mut Cx) {
        for id in cx.upstreams.idle.drain() {
            self.close(id, cx);
        }
    }
}
