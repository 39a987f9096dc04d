//! A row of the ledger: plain data that `gateway` writes and `store` keeps. Must never contain content of a
//! request or an answer.
//!
//! A row is one serde type. Its short names are those that the scripts of a shared ledger read. A handover passes rows
//! on in the same form. [`COLUMNS`] are the columns that exports and the view of a ledger in a file show.

use super::agent::Client;
use super::keys::KeyId;
use super::meter::{Amount, Lease};
use super::usage::{CostSource, Usage};
use super::window;
use crate::base::digest::{self, hex_id};
use crate::base::limits;
use crate::base::text::{push_number, push_values};
use crate::base::time::Unix;
use crate::wire::ModelEndpoint;
use crate::wire::json::write_string;
use ColumnPlace::{Own, Rare, Shared};
use ColumnValue::{Flag, Missing, Number, Text};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
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
    /// Catalog id of the requested model, if another one has replaced it.
    #[serde(rename = "j", default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Arc<str>>,
}

impl RareNames {
    const NONE: RareNames =
        RareNames { user: None, session: None, trace: None, agent: None, parent_agent: None, asked: None };
}

impl From<RareNames> for RowNames {
    fn from(names: RareNames) -> RowNames {
        RowNames((names != RareNames::NONE).then(|| Box::new(names)))
    }
}

impl RowNames {
    /// The names, to change them.
    fn edit(&mut self) -> &mut RareNames {
        self.0.get_or_insert_default()
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
        if self.queued_ms > 0 || self.names.0.is_some() || !usage.cost_source.is_prices() {
            self.push_rare(out);
        }
        out.push(b']');
    }

    /// Appends the values that most rows lack, up to the last one.
    fn push_rare(&self, out: &mut Vec<u8>) {
        let mut missing = 0;
        for (column, _) in rare_columns() {
            let value = (column.value)(self);
            if matches!(value, ColumnValue::Missing | ColumnValue::Number(0)) || value == USUAL_SOURCE {
                missing += 1;
                continue;
            }
            (0..std::mem::take(&mut missing)).for_each(|_| out.extend_from_slice(b",null"));
            out.push(b',');
            value.push(out);
        }
    }
}

/// Source of the cost that is not stored.
const USUAL_SOURCE: ColumnValue<'static> = Text(Cow::Borrowed("prices"));

/// A column of the ledger: of the view `rows` and of exports.
pub struct Column {
    /// Its name in an export; empty if it is not there.
    pub export: &'static str,
    /// Its name in the view; empty if it is not there.
    pub view: &'static str,
    /// Its value in the view, in SQL; `{}` is the stored value.
    pub sql: &'static str,
    /// Place of the stored value.
    pub place: ColumnPlace,
    /// Its value in an export; of a column that most rows lack, also the stored value.
    pub value: for<'a> fn(&'a Row) -> ColumnValue<'a>,
}

/// Place of a value in a ledger in a file, see `store::sqlite::groups`. In a shared ledger, the serde name of the field
/// is the place.
#[derive(Copy, Clone)]
pub enum ColumnPlace {
    /// At this index of every row, see [`Row::push_stored`].
    Own(usize),
    /// At this index of the names that rows share.
    Shared(usize),
    /// After the values that every row has, in the order of the table. The function reads it.
    Rare(ColumnReader),
}

/// Reads a stored value into a row.
pub type ColumnReader = fn(&mut Row, ColumnValue<'_>);

/// Value of a column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ColumnValue<'a> {
    /// A number.
    Number(u64),
    /// True or false.
    Flag(bool),
    /// A text.
    Text(Cow<'a, str>),
    /// The row has none.
    Missing,
}

impl ColumnValue<'_> {
    /// Appends it as JSON.
    pub fn push(&self, out: &mut Vec<u8>) {
        match self {
            ColumnValue::Number(number) => push_number(out, (*number).min(limits::STORED_MAX)),
            ColumnValue::Flag(flag) => out.extend_from_slice(if *flag { b"true" } else { b"false" }),
            ColumnValue::Text(text) => write_string(out, text),
            ColumnValue::Missing => out.extend_from_slice(b"null"),
        }
    }

    fn number(self) -> u64 {
        if let ColumnValue::Number(number) = self { number } else { 0 }
    }

    fn text(self) -> Option<Arc<str>> {
        if let ColumnValue::Text(text) = self { Some(text.into()) } else { None }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ColumnValue<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ColumnValue<'a>, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = ColumnValue<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, a text or null")
            }

            fn visit_u64<E>(self, number: u64) -> Result<ColumnValue<'de>, E> {
                Ok(ColumnValue::Number(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<ColumnValue<'de>, E> {
                Ok(ColumnValue::Text(Cow::Owned(text.to_string())))
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<ColumnValue<'de>, E> {
                Ok(ColumnValue::Text(Cow::Borrowed(text)))
            }

            fn visit_unit<E>(self) -> Result<ColumnValue<'de>, E> {
                Ok(ColumnValue::Missing)
            }
        }
        from.deserialize_any(Reading)
    }
}

const fn column(
    export: &'static str,
    view: &'static str,
    sql: &'static str,
    place: ColumnPlace,
    value: for<'a> fn(&'a Row) -> ColumnValue<'a>,
) -> Column {
    Column { export, view, sql, place, value }
}

/// The time of admission in the view.
const ADMITTED: &str = "strftime('%Y-%m-%dT%H:%M:%S', (oldest + {}) / 1000, 'unixepoch')
    || printf('.%03dZ', (oldest + {}) % 1000)";

/// All columns of the ledger, in the order in which the view and exports show them. A new one is rare, and is stored
/// after the others that are rare.
pub const COLUMNS: [Column; 30] = [
    column("request_id", "id", "'req_' || {}", Own(0), |row| Text(format!("req_{}", digest::hex(&row.request)).into())),
    column("key", "key", "{}", Own(1), |row| Text(row.key.as_str().into())),
    column("", "name", "keys.name", Own(1), |_| Missing),
    column("admitted", "admitted", ADMITTED, Own(2), |row| Text(window::iso(row.admitted).into())),
    column("admitted_unix_ms", "", "", Own(2), |row| Number(row.admitted.0)),
    column("model", "model", "{}", Shared(0), |row| Text((*row.model).into())),
    column("target", "target", "{}", Shared(1), |row| Text((*row.target).into())),
    column("endpoint", "endpoint", "{}", Shared(2), |row| Text(row.endpoint.name().into())),
    column("stream", "stream", "{}", Own(4), |row| Flag(row.stream)),
    column("status", "status", "{}", Own(5), |row| Number(row.status.into())),
    column("uncached_input_tokens", "input", "{}", Own(6), |row| Number(row.usage.uncached_in)),
    column("cache_read_tokens", "cache_read", "{}", Own(7), |row| Number(row.usage.cache_read)),
    column("cache_write_tokens", "cache_write", "{}", Own(8), |row| Number(row.usage.cache_write)),
    column("output_tokens", "output", "{}", Own(9), |row| Number(row.usage.out)),
    column("source", "source", "{}", Shared(3), |row| Text(row.usage.source.as_str().into())),
    column("cost_nano_usd", "cost_nano", "{}", Own(10), |row| Number(row.cost_nano)),
    column("", "cost", "{} / 1e9", Own(10), |_| Missing),
    column("attempts", "attempts", "{}", Own(11), |row| Number(row.attempts.into())),
    column("micros", "micros", "{}", Own(12), |row| Number(row.micros)),
    column("queued_ms", "queued_ms", "IFNULL({}, 0)", Rare(|row, value| row.queued_ms = value.number()), |row| {
        Number(row.queued_ms)
    }),
    column("group", "group_path", "IFNULL({}, '')", Shared(4), |row| Text((*row.group).into())),
    column("user", "user", "{}", Rare(|row, value| row.names.edit().user = value.text()), |row| named(&row.names.user)),
    column("session", "session", "{}", Rare(|row, value| row.names.edit().session = value.text()), |row| {
        named(&row.names.session)
    }),
    column("client", "client", "IFNULL({}, '')", Shared(5), |row| Text(row.client.name().into())),
    column("agent", "agent", "{}", Rare(|row, value| row.names.edit().agent = value.text()), |row| {
        named(&row.names.agent)
    }),
    column(
        "parent_agent",
        "parent_agent",
        "{}",
        Rare(|row, value| row.names.edit().parent_agent = value.text()),
        |row| named(&row.names.parent_agent),
    ),
    column("trace_id", "trace_id", "{}", Rare(|row, value| row.names.edit().trace = value.text()), |row| {
        part(row.names.trace.as_deref().and_then(|trace| trace.split_once('-')).map(|(trace, _)| trace))
    }),
    column("span_id", "span_id", "{}", Rare(read_span), |row| {
        part(row.names.trace.as_deref().and_then(|trace| trace.split_once('-')).map(|(_, span)| span))
    }),
    column("cost_source", "cost_source", "IFNULL({}, 'prices')", Rare(read_cost_source), |row| {
        Text(row.usage.cost_source.as_str().into())
    }),
    column("asked", "asked", "{}", Rare(|row, value| row.names.edit().asked = value.text()), |row| {
        named(&row.names.asked)
    }),
];

fn named(name: &Option<Arc<str>>) -> ColumnValue<'_> {
    part(name.as_deref())
}

fn part(text: Option<&str>) -> ColumnValue<'_> {
    text.map_or(Missing, |text| Text(text.into()))
}

/// The trace of the row has been read before.
fn read_span(row: &mut Row, value: ColumnValue<'_>) {
    let names = row.names.edit();
    if let (Some(trace), Text(span)) = (&names.trace, value) {
        names.trace = Some(format!("{trace}-{span}").into());
    }
}

fn read_cost_source(row: &mut Row, value: ColumnValue<'_>) {
    if let Text(word) = value {
        row.usage.cost_source = if word == "provider" { CostSource::Provider } else { CostSource::Prices };
    }
}

/// Columns that most rows lack, each with its reader.
pub fn rare_columns() -> impl Iterator<Item = (&'static Column, ColumnReader)> {
    const ALL: &[Column] = &COLUMNS;
    ALL.iter().filter_map(|column| if let Rare(read) = column.place { Some((column, read)) } else { None })
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
    /// Id of its model.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub model: Arc<str>,
    /// True if its limits are strict: what is reserved counts as used if its process ends before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Label of the target that serves it, if that has limits; empty for none.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub target: Arc<str>,
    /// Tokens and nano-dollars reserved in the limits of the target.
    #[serde(default)]
    pub target_reserved: (u64, u64),
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
pub mod millis {
    use crate::base::time::Unix;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes a moment.
    pub fn serialize<S: Serializer>(at: &Unix, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(at.0)
    }

    /// Reads a moment.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Unix, D::Error> {
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

/// Tokens as the list `u` (uncached, read from a cache, written to a cache, out), their source as `f`, and the source
/// of the cost as `y`.
mod counts {
    use crate::policy::usage::{CostSource, Usage, UsageSource};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Counts {
        u: [u64; 4],
        f: UsageSource,
        #[serde(default, skip_serializing_if = "CostSource::is_prices")]
        y: CostSource,
    }

    pub(super) fn serialize<S: Serializer>(usage: &Usage, to: S) -> Result<S::Ok, S::Error> {
        let Usage { uncached_in, cache_read, cache_write, out, source, cost_source, .. } = usage.bounded();
        Counts { u: [uncached_in, cache_read, cache_write, out], f: source, y: cost_source }.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Usage, D::Error> {
        let Counts { u, f: source, y: cost_source } = Counts::deserialize(from)?;
        let [uncached_in, cache_read, cache_write, out] = u;
        Ok(Usage { uncached_in, cache_read, cache_write, out, source, cost_source, ..Usage::default() })
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
    fn a_row_records_that_its_provider_stated_the_cost() {
        let usage = Usage { cost_source: CostSource::Provider, ..row().usage };
        let stated = Row { usage, ..row() };
        let text = serde_json::to_string(&stated).unwrap();
        assert_eq!(text, STORED.replace("\"f\":\"partial\"", "\"f\":\"partial\",\"y\":\"provider\""));
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), stated);
        let mut own = Vec::new();
        stated.push_stored(0, stated.admitted, &mut own);
        assert!(own.ends_with(b",\"provider\"]"), "{}", String::from_utf8_lossy(&own));
    }

    #[test]
    fn a_row_records_its_wait_in_the_queue() {
        let waited = Row { queued_ms: 8, ..row() };
        let text = serde_json::to_string(&waited).unwrap();
        assert_eq!(text, STORED.replace("\"d\":7", "\"d\":7,\"q\":8"));
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), waited);
    }

    #[test]
    fn a_row_records_the_names_that_are_known() {
        let known = Row {
            group: "labs/\u{fc}".into(),
            client: Client::of_agent(b"curl/8"),
            names: RowNames::from(RareNames {
                user: Some("0123456789abcdef".into()),
                session: Some("s \"1\"".into()),
                trace: None,
                agent: Some("0a".into()),
                parent_agent: Some("0b".into()),
                asked: Some("large".into()),
            }),
            ..row()
        };
        let text = serde_json::to_string(&known).unwrap();
        let more = "\"d\":7,\"g\":\"labs/\u{fc}\",\"l\":\"curl\",\"w\":\"0123456789abcdef\",\"z\":\"s \\\"1\\\"\"";
        let more = format!("{more},\"b\":\"0a\",\"p\":\"0b\",\"j\":\"large\"");
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
        let running = Running {
            request: row.request,
            key: row.key,
            admitted: row.admitted,
            reserved: 8,
            money,
            group,
            model: "m".into(),
            strict: true,
            target: "p/m".into(),
            target_reserved: (3, 4),
        };
        let text = serde_json::to_string(&running).unwrap();
        assert_eq!(serde_json::from_str::<Running>(&text).unwrap(), running);
        assert!(serde_json::from_str::<Running>(&text.replace("0b0c", "0b0x")).is_err());
        assert!(serde_json::from_str::<Running>(&text.replace("abcdef", "abc-ef")).is_err());
    }
}
