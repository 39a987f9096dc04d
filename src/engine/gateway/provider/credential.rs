//! The credential that a client sends for its provider, see [`crate::policy::config::Auth::Client`]. Kept with its
//! request, so that no other object contains it. Must never be printed or sent to another provider.

use crate::policy::keys::stands_in;
use crate::policy::refusal::CredentialError;
use crate::wire::head::{HeaderField, RequestHead, is_hop_by_hop};
use std::fmt;

/// Headers that a credential may be in.
const HEADERS: [(&str, HeaderField); 2] =
    [("authorization", HeaderField::Authorization), ("x-api-key", HeaderField::XApiKey)];

/// Values of [`HEADERS`]; empty for none.
pub(crate) struct ClientCredential([Box<str>; 2]);

impl fmt::Debug for ClientCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCredential")
    }
}

impl ClientCredential {
    /// The credential in a head. A key of the gateway in one of its headers is refused, since the provider would see
    /// it; `prefix` is the beginning of such keys.
    #[cold]
    pub(crate) fn read(head: &RequestHead, bytes: &[u8], prefix: &str) -> Result<ClientCredential, CredentialError> {
        let values = HEADERS.map(|(name, field)| match is_hop_by_hop(bytes, name.as_bytes()) {
            true => "",
            false => std::str::from_utf8(head.field(field).of(bytes)).unwrap_or_default(),
        });
        if let Some(at) = values.iter().position(|value| stands_in(value, prefix)) {
            return Err(CredentialError::GatewayKey(HEADERS[at].0));
        }
        // A scheme alone is no credential.
        if values.iter().all(|value| value.is_empty() || value.eq_ignore_ascii_case("bearer")) {
            return Err(CredentialError::Missing);
        }
        Ok(ClientCredential(values.map(Box::from)))
    }

    /// Appends its headers to the complete head of a request.
    #[cold]
    pub(crate) fn write(&self, head: &mut Vec<u8>) {
        // The empty line must stay the last one.
        head.truncate(head.len() - 2);
        for ((name, _), value) in HEADERS.iter().zip(&self.0).filter(|(_, value)| !value.is_empty()) {
            for part in [name, ": ", value, "\r\n"] {
                head.extend_from_slice(part.as_bytes());
            }
        }
        head.extend_from_slice(b"\r\n");
    }

    /// Parts of the credential, which no message may contain.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|value| &**value)
    }
}
