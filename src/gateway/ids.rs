//! Names of the three kinds of machine. A name can be kept and compared by whoever must not know the machine itself.

use crate::base::seam::{Conn, Side};
use crate::base::slots::Id;

/// Stands for a client connection.
#[derive(Debug)]
pub(crate) enum ClientName {}
/// Stands for an exchange.
#[derive(Debug)]
pub(crate) enum ExchangeName {}
/// Stands for a connection to a provider.
#[derive(Debug)]
pub(crate) enum ProviderName {}

/// The name of a client connection.
pub(crate) type ClientId = Id<ClientName>;
/// The name of an exchange.
pub(crate) type ExchangeId = Id<ExchangeName>;
/// The name of a connection to a provider.
pub(crate) type ProviderId = Id<ProviderName>;

/// A client connection as the world knows it.
pub(crate) fn client_conn(id: ClientId) -> Conn {
    Conn { side: Side::Client, slot: id.slot, generation: id.generation }
}

/// A connection to a provider as the world knows it.
pub(crate) fn provider_conn(id: ProviderId) -> Conn {
    Conn { side: Side::Upstream, slot: id.slot, generation: id.generation }
}
