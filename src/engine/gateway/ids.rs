//! Handles of the three kinds of state machine. A handle can be kept and compared without access to the machine itself.

use crate::base::seam::{Conn, Side};
use crate::base::slots::Id;

/// Marks handles of client connections.
#[derive(Debug)]
pub(crate) enum ClientName {}
/// Marks handles of exchanges.
#[derive(Debug)]
pub(crate) enum ExchangeName {}
/// Marks handles of connections to providers.
#[derive(Debug)]
pub(crate) enum ProviderName {}

/// Handle of a client connection.
pub(crate) type ClientId = Id<ClientName>;
/// Handle of an exchange.
pub(crate) type ExchangeId = Id<ExchangeName>;
/// Handle of a connection to a provider.
pub(crate) type ProviderId = Id<ProviderName>;

/// Handle of a client connection for the driver.
pub(crate) fn client_conn(id: ClientId) -> Conn {
    Conn { side: Side::Client, slot: id.slot, generation: id.generation }
}

/// Handle of a connection to a provider for the driver.
pub(crate) fn provider_conn(id: ProviderId) -> Conn {
    Conn { side: Side::Upstream, slot: id.slot, generation: id.generation }
}
