//! An answer on its way from the provider to the client.

pub(crate) mod answering;
pub(crate) mod end;
mod head;
pub(crate) mod intake;
mod linger;
pub(crate) mod reply;
pub(crate) mod stream;
