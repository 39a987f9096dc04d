//! API keys: their form, their scope, and the table that identifies the key of a request. It stores digests, and must
//! never store a key. `gateway` identifies with it, `cli` issues with it, `store` keeps its records.

use super::plan::caps::Caps;
use crate::base::digest::sha256;
use crate::base::text::{begun_by, holds_secret, key_length};
use crate::base::time::Unix;
use crate::wire::{Passthrough, Shape};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};
use std::fmt;

mod table;

pub use table::{KEY_BYTES, Key, KeyIx, KeyKind, KeyNews, Keys, KindIx, LiveKeys, RefusedKey};

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Text after the service's prefix in every key.
const LIVE: &[u8] = b"live_";
const ID_LEN: usize = 12;
const SECRET_LEN: usize = 32;
const CHECK_LEN: usize = 6;
/// Characters of a key after its prefix.
const TAIL_LEN: usize = LIVE.len() + ID_LEN + SECRET_LEN + CHECK_LEN;

/// True if a text contains a key with this prefix, also within a longer word. A truncated key counts if it has its id
/// and the first characters of its secret.
pub fn stands_in(text: &str, prefix: &str) -> bool {
    let begins = |at: usize| text.as_bytes()[at + prefix.len()..].strip_prefix(LIVE);
    let length = |tail: &[u8]| tail.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    text.match_indices(prefix).filter_map(|(at, _)| begins(at)).any(|tail| length(tail) >= ID_LEN + TOLD_MIN)
}

/// See [`stands_in`].
const TOLD_MIN: usize = 4;

/// Characters behind the prefix of our keys from which on a word looks like one.
const KEY_MIN: usize = 16;

/// True if a text contains a key in the wrong place: one of ours anywhere, or a word that begins like a key of ours or
/// of another service.
pub fn holds_key(text: &str, prefix: &str) -> bool {
    let begins = || begun_by(text, prefix).any(|rest| key_length(rest) >= KEY_MIN);
    stands_in(text, prefix) || holds_secret(text) || begins()
}

/// The first key with this prefix in a text, even a cut one: the end of its public part, and its own end.
#[inline]
pub fn find_key(text: &str, prefix: &str) -> Option<(usize, usize)> {
    let found = text.match_indices(prefix).find_map(|(at, _)| {
        let begin = at + prefix.len() + LIVE.len();
        let tail = text.as_bytes()[at + prefix.len()..].strip_prefix(LIVE)?;
        let whole = tail.iter().take(ID_LEN + SECRET_LEN + CHECK_LEN);
        let length = whole.take_while(|byte| byte.is_ascii_alphanumeric()).count();
        (length > ID_LEN).then_some((begin + ID_LEN, begin + length))
    });
    found.filter(|_| !prefix.is_empty())
}

/// The public part of a key: twelve base62 characters, safe to log, naming the key in every command.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct KeyId([u8; ID_LEN]);

impl Ord for KeyId {
    // Like that of the bytes, but without a call: the ledger's thread compares about ten keys for every row.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.number().cmp(&other.number())
    }
}

impl PartialOrd for KeyId {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl KeyId {
    /// The characters as digits of a number.
    #[inline]
    fn number(&self) -> (u64, u32) {
        let [a, b, c, d, e, f, g, h, rest @ ..] = self.0;
        (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u32::from_be_bytes(rest))
    }

    /// Reads twelve base62 characters; `None` for anything else.
    pub fn parse(text: &str) -> Option<KeyId> {
        KeyId::from_bytes(text.as_bytes())
    }

    /// Like [`KeyId::parse`], from bytes.
    #[inline]
    pub fn from_bytes(text: &[u8]) -> Option<KeyId> {
        // A table look-up per character takes a third of the steps of comparisons.
        const FITS: [bool; 256] = {
            let (mut fits, mut byte) = ([false; 256], 0u8);
            while byte < 128 {
                fits[byte as usize] = byte.is_ascii_alphanumeric();
                byte += 1;
            }
            fits
        };
        let id: [u8; ID_LEN] = text.try_into().ok()?;
        id.iter().fold(true, |fit, byte| fit & FITS[usize::from(*byte)]).then_some(KeyId(id))
    }

    /// The twelve characters, in bytes.
    pub fn text(&self) -> &[u8; 12] {
        &self.0
    }

    /// The twelve characters.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for KeyId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for KeyId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<KeyId, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        KeyId::parse(&text).ok_or_else(|| D::Error::custom("not the id of a key"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Endpoint that a scope can permit.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ScopeEndpoint {
    /// The endpoints of an API format: for answers, and for the number of tokens.
    Shape(Shape),
    /// A pass-through endpoint.
    Passthrough(Passthrough),
    /// `GET /v1/models` and one of them.
    Models,
    /// `GET /v1/quota`.
    Quota,
}

impl ScopeEndpoint {
    /// Returns all values, in the order in which they are written.
    pub fn all() -> impl Iterator<Item = ScopeEndpoint> {
        let families = Passthrough::ALL.into_iter().filter(|one| one.family() == *one);
        let shapes = Shape::ALL.into_iter().map(ScopeEndpoint::Shape);
        shapes.chain(families.map(ScopeEndpoint::Passthrough)).chain([ScopeEndpoint::Models, ScopeEndpoint::Quota])
    }

    /// Name on the command line, in stores and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            ScopeEndpoint::Shape(shape) => shape.name(),
            ScopeEndpoint::Passthrough(passthrough) => passthrough.as_str(),
            ScopeEndpoint::Models => "models",
            ScopeEndpoint::Quota => "quota",
        }
    }
}

/// Endpoints and models that a key may use.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scope {
    /// The endpoints of each API format, in the order of [`Shape::ALL`].
    pub shapes: [bool; Shape::ALL.len()],
    /// The pass-through endpoints, in the order of [`Passthrough::ALL`].
    pub passthroughs: [bool; Passthrough::ALL.len()],
    /// The model list.
    pub models: bool,
    /// The quota.
    pub quota: bool,
    /// Catalog ids; `None` permits all, also those added later.
    pub models_allowed: Option<Vec<String>>,
}

impl Default for Scope {
    fn default() -> Scope {
        Scope::of(&|_| true)
    }
}

impl Scope {
    /// Scope with the endpoints for which `has` is true, and all models.
    fn of(has: &dyn Fn(ScopeEndpoint) -> bool) -> Scope {
        Scope {
            shapes: Shape::ALL.map(|shape| has(ScopeEndpoint::Shape(shape))),
            passthroughs: Passthrough::ALL.map(|passthrough| has(ScopeEndpoint::Passthrough(passthrough.family()))),
            models: has(ScopeEndpoint::Models),
            quota: has(ScopeEndpoint::Quota),
            models_allowed: None,
        }
    }

    /// Builds a scope from words. No endpoint, or no model, permits all of them; so does the model `*`. An endpoint
    /// of a model also permits `models` and `quota`. The error is the name of an unknown endpoint.
    pub fn from_words<'a>(
        endpoints: impl IntoIterator<Item = &'a str>,
        models: impl IntoIterator<Item = &'a str>,
    ) -> Result<Scope, String> {
        let mut named = Vec::new();
        for word in endpoints {
            let known = ScopeEndpoint::all().find(|endpoint| endpoint.as_str() == word);
            named.push(known.ok_or_else(|| word.to_string())?);
        }
        let mut scope = Scope::of(&|endpoint| named.is_empty() || named.contains(&endpoint));
        if scope.shapes.contains(&true) || scope.passthroughs.contains(&true) {
            (scope.models, scope.quota) = (true, true);
        }
        let allowed: Vec<String> = models.into_iter().map(str::to_string).collect();
        scope.models_allowed = (!allowed.is_empty() && !allowed.iter().any(|id| id == "*")).then_some(allowed);
        Ok(scope)
    }

    /// True if `endpoint` is permitted.
    pub fn allows(&self, endpoint: ScopeEndpoint) -> bool {
        match endpoint {
            ScopeEndpoint::Shape(shape) => self.allows_shape(shape),
            ScopeEndpoint::Passthrough(passthrough) => self.passthroughs[passthrough as usize],
            ScopeEndpoint::Models => self.models,
            ScopeEndpoint::Quota => self.quota,
        }
    }

    /// True if answers in this API format are permitted.
    #[inline]
    pub fn allows_shape(&self, shape: Shape) -> bool {
        self.shapes[shape as usize]
    }

    /// True if the model with this catalog id is permitted.
    pub fn allows_model(&self, id: &str) -> bool {
        self.models_allowed.as_ref().is_none_or(|allowed| allowed.iter().any(|allowed| allowed == id))
    }

    /// The permitted endpoints, comma-separated: `chat,models,quota`. [`Scope::from_words`] reads it back.
    pub fn endpoints_text(&self) -> String {
        let words: Vec<&str> = ScopeEndpoint::all().filter(|e| self.allows(*e)).map(ScopeEndpoint::as_str).collect();
        words.join(",")
    }

    /// Stored form of the endpoints: [`Scope::endpoints_text`], or `*` for all, also those of later versions.
    pub fn stored_endpoints(&self) -> String {
        if ScopeEndpoint::all().all(|endpoint| self.allows(endpoint)) { "*".into() } else { self.endpoints_text() }
    }

    /// Reads [`Scope::stored_endpoints`].
    pub fn from_stored(endpoints: &str, models_allowed: Option<Vec<String>>) -> Scope {
        let has = |endpoint: ScopeEndpoint| endpoints.split(',').any(|word| word == endpoint.as_str());
        let scope = if endpoints == "*" { Scope::default() } else { Scope::of(&has) };
        Scope { models_allowed, ..scope }
    }
}

/// Stored record of a key. Must never contain the key itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KeyRecord {
    /// Public id.
    pub id: KeyId,
    /// SHA-256 of the whole key.
    pub digest: [u8; 32],
    /// Name of the holder.
    pub name: String,
    /// Name of its plan.
    pub plan: String,
    /// Scope of the key.
    pub scope: Scope,
    /// Moment of issue.
    pub created: Unix,
    /// Moment from which it is refused.
    pub expires: Option<Unix>,
    /// Moment of revocation.
    pub revoked: Option<Unix>,
    /// True if it is refused until it is enabled again.
    pub disabled: bool,
    /// Limits that replace those of its plan.
    pub limits: Caps,
    /// Name of the group that it belongs to.
    pub group: Option<String>,
    /// Names and values for reports, by name; see [`label_from`].
    pub labels: Vec<(String, String)>,
    /// Former secrets that stay valid for some time after a rotation, at most [`FORMER_MAX`].
    pub former: Vec<Former>,
    /// Moment until which its traffic is captured; `None` if it is not.
    pub capture: Option<Unix>,
}

impl KeyRecord {
    /// Bytes of its texts, with their quotes and commas in a list.
    pub fn text_bytes(&self) -> usize {
        let models = self.scope.models_allowed.iter().flatten().map(|id| id.len() + 4);
        let labels = self.labels.iter().map(|(name, value)| name.len() + value.len() + 8);
        let group = self.group.as_ref().map_or(0, String::len);
        self.name.len() + self.plan.len() + group + models.sum::<usize>() + labels.sum::<usize>()
    }
}

/// Labels that one key may have.
pub const LABELS_MAX: usize = 8;

/// Characters of a label's name.
const LABEL_NAME_MAX: usize = 32;
/// Characters of a label's value, and of the name of a group.
const VALUE_MAX: usize = 64;

/// Reads `name=value` as a label: a name of lower-case letters, digits, `_`, `.` and `-`, and a value of visible
/// characters, or none. `None` for anything else.
pub fn label_from(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte);
    let named = (1..=LABEL_NAME_MAX).contains(&name.len()) && name.bytes().all(fits);
    (named && (value.is_empty() || is_seen(value))).then_some((name, value))
}

/// True if the text can be the name of a group. `/` is excluded, since a row joins the names of groups with it.
pub fn is_group_name(name: &str) -> bool {
    is_seen(name) && !name.contains('/') && name != "none"
}

/// True for 1 to 64 visible characters.
#[inline]
fn is_seen(text: &str) -> bool {
    (1..=VALUE_MAX).contains(&text.chars().count()) && !text.chars().any(is_unseen)
}

/// Characters without a glyph: Unicode's Default_Ignorable_Code_Point, its categories Cf, Zl and Zp, the empty Braille
/// pattern, and private use. First and last of each range, ascending.
const UNSEEN: [u32; 58] = [
    0xad, 0xad, 0x34f, 0x34f, 0x600, 0x605, 0x61c, 0x61c, 0x6dd, 0x6dd, 0x70f, 0x70f, 0x890, 0x891, 0x8e2, 0x8e2,
    0x115f, 0x1160, 0x17b4, 0x17b5, 0x180b, 0x180f, 0x200b, 0x200f, 0x2028, 0x202e, 0x2060, 0x206f, 0x2800, 0x2800,
    0x3164, 0x3164, 0xe000, 0xf8ff, 0xfe00, 0xfe0f, 0xfeff, 0xfeff, 0xffa0, 0xffa0, 0xfff0, 0xfffb, 0x110bd, 0x110bd,
    0x110cd, 0x110cd, 0x13430, 0x1343f, 0x1bca0, 0x1bca3, 0x1d173, 0x1d17a, 0xe0000, 0xe0fff, 0xf0000, 0xffffd,
    0x100000, 0x10fffd,
];

/// True for a character that nobody sees: a control character, or one that changes the direction of text or has no
/// glyph.
pub fn is_unseen(c: char) -> bool {
    c.is_control() || UNSEEN.as_chunks().0.iter().any(|[first, last]| (*first..=*last).contains(&c.into()))
}

/// A key as a client shows it, which this process does not know: it may have been issued or rotated a moment ago.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ShownKey {
    /// Its id.
    pub id: KeyId,
    /// Hash of its text, whose secret may be unknown.
    pub text: u64,
}

/// Answer of a ledger to a look-up of a key by its id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyAnswer {
    /// Key with this record.
    Known(Box<KeyRecord>),
    /// There is no such key.
    Absent,
    /// The ledger cannot be reached.
    Unavailable,
}

/// A secret that a rotation has replaced.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Former {
    /// SHA-256 of the whole former key.
    pub digest: [u8; 32],
    /// Moment from which it is refused.
    pub until: Unix,
}

/// Former secrets of one key that can be valid at once.
pub const FORMER_MAX: usize = 8;

impl KeyRecord {
    /// True if the key is valid at `now`. A revoked key is invalid at any time, since a wrong clock must not make it
    /// valid again.
    pub fn is_live(&self, now: Unix) -> bool {
        self.revoked.is_none() && !self.disabled && self.expires.is_none_or(|expires| now < expires)
    }

    /// Gives the key a new secret. The present one stays valid until `until`, those of earlier rotations for their own
    /// time, but no longer than that. So a repeated rotation disconnects no client, and a rotation without grace leaves
    /// only the new secret. Returns false and changes nothing if more than [`FORMER_MAX`] former secrets would be
    /// valid.
    pub fn rotate(&mut self, digest: [u8; 32], until: Unix, now: Unix) -> bool {
        let present = Former { digest: self.digest, until };
        let former = self.former.iter().map(|former| Former { until: former.until.min(until), ..*former });
        let mut former: Vec<Former> = former.chain([present]).filter(|former| now < former.until).collect();
        if former.len() > FORMER_MAX {
            return false;
        }
        former.sort_unstable_by_key(|former| Reverse(former.until));
        (self.former, self.digest) = (former, digest);
        true
    }
}

/// A new key. It is shown once, then only `id` and `digest` are stored.
pub struct Issued {
    /// The key itself.
    pub text: String,
    /// Public id.
    pub id: KeyId,
    /// SHA-256 of `text`.
    pub digest: [u8; 32],
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Issued({})", self.id)
    }
}

/// Makes a key: `prefix`, `live_`, 12 characters of id, 32 of secret, and 6 of CRC32 over everything before them.
/// `fill` must write unpredictable bytes: 44 characters use at least 261 bits of them.
pub fn issue(prefix: &str, mut fill: impl FnMut(&mut [u8])) -> Issued {
    let mut id = [0u8; ID_LEN];
    random_characters(&mut id, &mut fill);
    reissue(prefix, KeyId(id), fill)
}

/// Like [`issue`], for a key that keeps its `id` and gets a new secret.
pub fn reissue(prefix: &str, id: KeyId, mut fill: impl FnMut(&mut [u8])) -> Issued {
    let mut text = Vec::with_capacity(prefix.len() + TAIL_LEN);
    text.extend_from_slice(prefix.as_bytes());
    text.extend_from_slice(LIVE);
    let mut secret = [0u8; SECRET_LEN];
    random_characters(&mut secret, &mut fill);
    text.extend_from_slice(&id.0);
    text.extend_from_slice(&secret);
    let check = checksum(&text);
    text.extend_from_slice(&check);
    let digest = sha256(&text);
    Issued { text: String::from_utf8(text).unwrap_or_default(), id, digest }
}

/// Fills `out` with base62 characters, each equally likely: bytes of 248 and above are drawn again.
fn random_characters(out: &mut [u8], fill: &mut impl FnMut(&mut [u8])) {
    let mut drawn = [0u8; 64];
    let mut next = drawn.len();
    for place in out {
        loop {
            if next == drawn.len() {
                fill(&mut drawn);
                next = 0;
            }
            let byte = drawn[next];
            next += 1;
            if byte < 248 {
                *place = ALPHABET[usize::from(byte % 62)];
                break;
            }
        }
    }
}

/// CRC32 of each byte.
static CRC32: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ ((crc & 1) * 0xedb8_8320);
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// CRC32 (IEEE) of `bytes` as six base62 digits, most significant first: 62^6 exceeds 2^32.
fn checksum(bytes: &[u8]) -> [u8; CHECK_LEN] {
    let mut rest = !bytes.iter().fold(!0u32, |crc, byte| (crc >> 8) ^ CRC32[usize::from(crc.to_le_bytes()[0] ^ byte)]);
    let mut out = [b'0'; CHECK_LEN];
    for digit in out.iter_mut().rev() {
        *digit = ALPHABET[(rest % 62) as usize];
        rest /= 62;
    }
    out
}

/// The id inside `presented` if it has the form of a key with `prefix`, checksum included. The table is not used.
pub fn well_formed(presented: &[u8], prefix: &str) -> Option<KeyId> {
    let id = claimed(presented, prefix)?;
    let (covered, check) = presented.split_at(presented.len() - CHECK_LEN);
    let is_plain = presented[prefix.len() + LIVE.len()..].iter().all(u8::is_ascii_alphanumeric);
    (is_plain && checksum(covered) == check).then_some(id)
}

/// Id in a text of this form. Secret and checksum are not checked.
#[inline]
fn claimed(presented: &[u8], prefix: &str) -> Option<KeyId> {
    let tail = presented.strip_prefix(prefix.as_bytes()).filter(|tail| tail.len() == TAIL_LEN)?;
    KeyId::from_bytes(&tail.strip_prefix(LIVE)?[..ID_LEN])
}

#[cfg(test)]
mod tests;
