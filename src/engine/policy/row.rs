//! A row of the ledger: plain data that `gateway` writes and `store` keeps. Must never contain content of a
//! request or an answer.
//!
//! A row is one serde type. Its short names are those that the scripts of a shared ledger read. A handover passes rows
//! on in the same form. `tollgate ledger export` uses long names.

use super::agent::Client;
use super::keys::KeyId;
use super::meter::{Amount, Lease};
use super::usage::Usage;
use crate::base::digest::hex_id;
use crate::base::limits;
use crate::base::text::push_values;
use crate::base::time::Unix;
use crate::wire::ModelEndpoint;
use crate::wire::json::write_string;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ops::Deref;
use std::sync::Arc;

/// Record of one admitted request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Id of the request as 16 bytes.
    #[serde(rename = "r", with = "hex")]
    pub request: [u8; 16],
    /// Id of the key.
    #[serde(rename = "k")]
    pub key: KeyId,
    /// Moment of admission. Window and period follow from it.
    #[serde(rename = "a", with = "millis")]
    pub admitted: Unix,
    /// Catalog id of the model.
    #[serde(rename = "m")]
    pub model: Arc<str>,
    /// `provider/model` of the target that served, empty if none was reached.
    #[serde(rename = "t")]
    pub target: Arc<str>,
    /// The endpoint's shape.
    #[serde(rename = "e")]
    pub endpoint: ModelEndpoint,
    /// True if the answer was streamed.
    #[serde(rename = "s")]
    pub stream: bool,
    /// Status sent to the client; 499 if the client left before.
    #[serde(rename = "c")]
    pub status: u16,
    /// Tokens and the source of their counts. Written with upper bounds, see [`Row::bounded`].
    #[serde(flatten, with = "counts")]
    pub usage: Usage,
    /// Cost in nano-dollars, also written with an upper bound.
    #[serde(rename = "n", serialize_with = "cut_cost")]
    pub cost_nano: u64,
    /// Targets tried.
    #[serde(rename = "x")]
    pub attempts: u32,
    /// Microseconds from the first byte of the request to the end of the answer.
    #[serde(rename = "d")]
    pub micros: u64,
    /// Milliseconds of this time that it waited in the queue.
    #[serde(rename = "q", default, skip_serializing_if = "is_none")]
    pub queued_ms: u64,
    /// Names of the groups that it was admitted under, from the root of their tree to the key's own, joined by `/`;
    /// empty for none. A later move of a group does not change it.
    #[serde(rename = "g", default, skip_serializing_if = "is_empty")]
    pub group: Arc<str>,
    /// Class of the program that sent it.
    #[serde(rename = "l", default, skip_serializing_if = "Client::is_none")]
    pub client: Client,
    /// Names that most rows lack.
    #[serde(flatten)]
    pub names: RowNames,
    /// Lease in a shared ledger, which this row returns; `None` without a shared ledger. Not stored.
    #[serde(skip)]
    pub lease: Option<Box<Lease>>,
}

/// Names in a row that most rows lack, so that those are smaller.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RowNames(Option<Box<RareNames>>);

/// See [`RowNames`].
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RareNames {
    /// User that the client names, as a keyed hash or in plain text, with a maximum length.
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Arc<str>>,
    /// Conversation that the client names, in the same form.
    #[serde(rename = "z", default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Arc<str>>,
    /// Ids of the request's trace and its span, in hexadecimal with `-` between them.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Arc<str>>,
    /// Agent of the client program that the request is of, if the client names one, in the form of `session`.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Arc<str>>,
    /// Agent, or session, that started it, in the same form.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub parent_agent: Option<Arc<str>>,
}

impl RareNames {
    const NONE: RareNames = RareNames { user: None, session: None, trace: None, agent: None, parent_agent: None };

    /// All names, in the order in which a ledger in a file stores them.
    fn all(&self) -> [&Option<Arc<str>>; 5] {
        [&self.user, &self.session, &self.trace, &self.agent, &self.parent_agent]
    }
}

impl From<RareNames> for RowNames {
    fn from(names: RareNames) -> RowNames {
        RowNames(names.all().iter().any(|name| name.is_some()).then(|| Box::new(names)))
    }
}

impl Deref for RowNames {
    type Target = RareNames;

    fn deref(&self) -> &RareNames {
        self.0.as_deref().unwrap_or(&RareNames::NONE)
    }
}

impl Serialize for RowNames {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(to)
    }
}

impl<'de> Deserialize<'de> for RowNames {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RowNames, D::Error> {
        RareNames::deserialize(from).map(RowNames::from)
    }
}

impl Row {
    /// Numbers of the row with upper bounds, since a provider can report absurd ones.
    pub fn bounded(&self) -> (Usage, u64) {
        (self.usage.bounded(), self.cost_nano.min(limits::ROW_COST_MAX))
    }
}

impl Row {
    /// Amount that counts against allowances and budgets, with upper bounds.
    pub fn amount(&self) -> Amount {
        let (usage, nano) = self.bounded();
        Amount { tokens: usage.total(), nano }
    }
}

impl Row {
    /// Appends the row as a ledger in a file stores it: see `store::sqlite::groups`. `shared`: index of the names that
    /// it shares; `oldest`: start of the group's time.
    // The ledger's thread runs this for every row, and its own crate is optimised for size.
    #[inline(never)]
    pub fn push_stored(&self, shared: usize, oldest: Unix, out: &mut Vec<u8>) {
        let (usage, cost) = self.bounded();
        let mut ids = *b"[\"00000000000000000000000000000000\",\"000000000000\"";
        ids[2..34].copy_from_slice(&hex_id(self.request));
        ids[37..49].copy_from_slice(self.key.text());
        out.extend_from_slice(&ids);
        let numbers = [
            self.admitted.0 - oldest.0,
            shared as u64,
            u64::from(self.stream),
            u64::from(self.status),
            usage.uncached_in,
            usage.cache_read,
            usage.cache_write,
            usage.out,
            cost,
            u64::from(self.attempts),
            self.micros.min(limits::STORED_MAX),
        ];
        push_values(out, numbers);
        let names = self.names.all();
        let known = names.iter().rposition(|name| name.is_some()).map_or(0, |place| place + 1);
        if self.queued_ms > 0 || known > 0 {
            push_values(out, [self.queued_ms.min(limits::STORED_MAX)]);
        }
        for name in &names[..known] {
            out.push(b',');
            write_string_or_null(name.as_deref(), out);
        }
        out.push(b']');
    }
}

#[inline(never)]
fn write_string_or_null(name: Option<&str>, out: &mut Vec<u8>) {
    match name {
        Some(name) => write_string(out, name),
        None => out.extend_from_slice(b"null"),
    }
}

/// Appends names that rows of a ledger in a file share, as an array.
pub fn push_names(names: &[&str], out: &mut Vec<u8>) {
    let mut next = b'[';
    for name in names {
        out.push(next);
        write_string(out, name);
        next = b',';
    }
    out.push(b']');
}

/// Reads the endpoint from the [`ModelEndpoint::name`] that ledgers store.
pub fn endpoint_from(text: &str) -> ModelEndpoint {
    ModelEndpoint::from_name(text).unwrap_or(ModelEndpoint::CHAT)
}

/// A running request, as one process hands it over to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Running {
    /// Id of the request, as in [`Row::request`].
    #[serde(with = "hex")]
    pub request: [u8; 16],
    /// Id of the key.
    pub key: KeyId,
    /// Moment of admission.
    #[serde(with = "millis")]
    pub admitted: Unix,
    /// Tokens reserved for it.
    pub reserved: u64,
    /// Nano-dollars reserved for it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub money: u64,
    /// Path of groups that it was admitted under; empty for none.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub group: Arc<str>,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

fn is_empty(text: &Arc<str>) -> bool {
    text.is_empty()
}

fn cut_cost<S: Serializer>(cost_nano: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64((*cost_nano).min(limits::ROW_COST_MAX))
}

/// Moments as milliseconds.
mod millis {
    use crate::base::time::Unix;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(at: &Unix, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(at.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Unix, D::Error> {
        u64::deserialize(from).map(Unix)
    }
}

/// The id of a request as 32 hexadecimal digits.
mod hex {
    use crate::base::digest::{hex, unhex};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::borrow::Cow;

    pub(super) fn serialize<S: Serializer>(id: &[u8; 16], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex(id))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 16], D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        unhex(&text).ok_or_else(|| D::Error::custom("not the id of a request"))
    }
}

/// Tokens as the list `u` (uncached, read from a cache, written to a cache, out), and their source as `f`.
mod counts {
    use crate::policy::usage::{Usage, UsageSource};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Counts {
        u: [u64; 4],
        f: UsageSource,
    }

    pub(super) fn serialize<S: Serializer>(usage: &Usage, to: S) -> Result<S::Ok, S::Error> {
        let Usage { uncached_in, cache_read, cache_write, out, source, .. } = usage.bounded();
        Counts { u: [uncached_in, cache_read, cache_write, out], f: source }.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Usage, D::Error> {
        let Counts { u: [uncached_in, cache_read, cache_write, out], f: source } = Counts::deserialize(from)?;
        Ok(Usage { uncached_in, cache_read, cache_write, out, source, ..Usage::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::memory::ROW_BYTES;
    use crate::policy::usage::UsageSource;

    fn row() -> Row {
        let source = UsageSource::Partial;
        let usage = Usage { uncached_in: 1, cache_read: 2, cache_write: 3, out: 4, source, ..Usage::default() };
        Row {
            lease: None,
            request: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255],
            key: KeyId::parse("abcdefABCDEF").unwrap(),
            admitted: Unix(1_800_000_000_123),
            model: "a \"quoted\"\nname".into(),
            target: "\u{fc}/x y".into(),
            endpoint: ModelEndpoint::MESSAGES,
            stream: true,
            status: 499,
            usage,
            cost_nano: 5,
            attempts: 6,
            micros: 7,
            queued_ms: 0,
            group: Arc::default(),
            client: Client::default(),
            names: RowNames::default(),
        }
    }

    /// A row as existing ledgers store it.
    const STORED: &str = concat!(
        r#"{"r":"000102030405060708090a0b0c0d0eff","k":"abcdefABCDEF","a":1800000000123,"m":"a \"quoted\"\nname","#,
        r#""t":"ü/x y","e":"messages","s":true,"c":499,"u":[1,2,3,4],"f":"partial","n":5,"x":6,"d":7}"#
    );

    #[test]
    fn a_row_has_the_stored_form_of_shared_ledgers_and_survives_a_round_trip() {
        assert_eq!(serde_json::to_string(&row()).unwrap(), STORED);
        assert_eq!(serde_json::from_str::<Row>(STORED).unwrap(), row());
        for cut in (0..STORED.len()).filter(|cut| STORED.is_char_boundary(*cut)) {
            assert!(serde_json::from_str::<Row>(&STORED[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn a_row_records_its_wait_in_the_queue() {
        let waited = Row { queued_ms: 8, ..row() };
        let text = serde_json::to_string(&waited).unwrap();
        assert_eq!(text, STORED.replace("\"d\":7", "\"d\":7,\"q\":8"));
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), waited);
    }

    #[test]
    fn a_row_records_group_user_session_and_client_if_known() {
        let known = Row {
            group: "labs/\u{fc}".into(),
            client: Client::of_agent(b"curl/8"),
            names: RowNames::from(RareNames {
                user: Some("0123456789abcdef".into()),
                session: Some("s \"1\"".into()),
                trace: None,
                agent: Some("0a".into()),
                parent_agent: Some("0b".into()),
            }),
            ..row()
        };
        let text = serde_json::to_string(&known).unwrap();
        let more = "\"d\":7,\"g\":\"labs/\u{fc}\",\"l\":\"curl\",\"w\":\"0123456789abcdef\",\"z\":\"s \\\"1\\\"\"";
        let more = format!("{more},\"b\":\"0a\",\"p\":\"0b\"");
        assert_eq!(text, STORED.replace("\"d\":7", &more));
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), known);
    }

    #[test]
    fn a_waiting_row_is_small() {
        assert!(size_of::<Row>() <= 184, "{}", size_of::<Row>());
        assert_eq!(row().names.0, None, "a row without names allocates nothing for them");
        // A user in plain text, three hashes and the ids of a trace, each in a block with its counters.
        let block = |length: usize| (length + 16 + 8).next_multiple_of(16);
        let texts = block(4 * limits::USER_CHARS_MAX) + 3 * block(16) + block(49);
        let most = 2 * size_of::<Row>() + size_of::<RareNames>() + 16 + texts;
        assert!(most <= ROW_BYTES as usize, "{most} bytes, of {ROW_BYTES} that are announced");
    }

    #[test]
    fn absurd_numbers_are_capped_when_written() {
        let mut absurd = row();
        absurd.usage.out = u64::MAX;
        absurd.cost_nano = u64::MAX;
        let text = serde_json::to_string(&absurd).unwrap();
        let read: Row = serde_json::from_str(&text).unwrap();
        assert_eq!((read.usage, read.cost_nano), absurd.bounded());
        assert_eq!((read.usage.out, read.cost_nano), (limits::ROW_TOKENS_MAX, limits::ROW_COST_MAX));
    }

    #[test]
    fn a_running_request_survives_a_round_trip() {
        let row = row();
        let (money, group) = (9, Arc::from("eng/research"));
        let running = Running { request: row.request, key: row.key, admitted: row.admitted, reserved: 8, money, group };
        let text = serde_json::to_string(&running).unwrap();
        assert_eq!(serde_json::from_str::<Running>(&text).unwrap(), running);
        assert!(serde_json::from_str::<Running>(&text.replace("0b0c", "0b0x")).is_err());
        assert!(serde_json::from_str::<Running>(&text.replace("abcdef", "abc-ef")).is_err());
    }
}
