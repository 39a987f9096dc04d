//! The two API shapes: what a request says, what an answer says, and one written as the other. Pure: bytes in, bytes
//! out; no policy, no sockets, no clock. Called by `gateway` alone.

pub mod errors;
mod keys;
pub mod request;
pub mod rewrite;
pub mod tap;
pub mod tokens;
pub mod usage;

pub use errors::{ErrorText, error_body, error_event, read_error};
pub use request::{Fields, Invalid, RequestScan};
pub use rewrite::{Piece, Rewrite, rewrite};
pub use tap::{Broken, Heard, Me, Progress, StreamFault, StreamTap, whole};
pub use tokens::Estimator;
pub use usage::Reported;
