//! The table of all keys that a running gateway knows. Values that many keys share are stored once, so that a million
//! keys need little memory. The cost to find, add or change a key does not depend on the number of keys.

use super::{Former, KeyId, KeyRecord, Scope, ShownKey, claimed, well_formed};
use crate::base::digest::sha256;
use crate::base::hash::mix_bytes;
use crate::base::index_table::IndexTable;
use crate::base::limits;
use crate::base::paged::Paged;
use crate::base::rng::Rng;
use crate::base::time::Unix;
use crate::policy::plan::caps::Caps;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

/// Bytes of one key: its place in the table, and its counters once it is used.
pub const KEY_BYTES: u64 = 448;

/// Index of a key in a [`Keys`]. It is stable for the life of the process, even if keys are added or removed.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyIx(pub u32);

/// Fast hash of a key's text, used after its digest was found once, since SHA-256 is the slowest part of
/// identification. It has 128 bits under two secret seeds of this process, so that a guess cannot match an unknown
/// text.
type Tag = [u64; 2];

/// Values that several keys share.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KeyKind {
    /// Name of the plan.
    pub plan: String,
    /// Scope of the keys.
    pub scope: Scope,
    /// Limits that replace those of the plan.
    pub limits: Caps,
    /// Name of the group.
    pub group: Option<String>,
}

impl KeyKind {
    /// Kind of a record.
    fn from_record(record: &KeyRecord) -> KeyKind {
        let KeyRecord { plan, scope, limits, group, .. } = record;
        KeyKind { plan: plan.clone(), scope: scope.clone(), limits: limits.clone(), group: group.clone() }
    }

    /// Bytes of its two copies in the table.
    fn bytes(&self) -> usize {
        let models = self.scope.models_allowed.iter().flatten().map(|id| id.len() + 2 * size_of::<String>());
        let caps = self.limits.iter().map(|cap| 2 * (size_of_val(cap) + cap.name().len()));
        let extras = 2 * size_of_val(self.limits.extras());
        2 * (size_of::<KeyKind>() + models.sum::<usize>() + caps.sum::<usize>() + extras)
    }

    fn is_of(&self, record: &KeyRecord) -> bool {
        let KeyRecord { plan, scope, limits, group, .. } = record;
        (&self.plan, &self.scope, &self.limits, &self.group) == (plan, scope, limits, group)
    }
}

/// Number of a [`KeyKind`]. It is reused after the last key of this kind is gone.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct KindIx(pub u32);

/// Secret of a key that a text has shown.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum ShownSecret {
    /// None yet.
    Nothing,
    /// The present one.
    Present,
    /// A former one.
    Former(u8),
}

/// Owner of a text that is no valid key.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RefusedKey {
    /// The text is no key at all.
    Nothing,
    /// The text is a key by its form and checksum. The ledger may know its id or its secret.
    Unknown(ShownKey),
    /// The text has a valid secret of this key.
    Known(KeyIx),
}

/// A key in the table, which can have a million of them.
#[derive(Debug)]
struct Kept {
    digest: [u8; 32],
    /// Tag of the last valid text; meaningless while `shown` is [`ShownSecret::Nothing`].
    tag: Tag,
    /// Moment of expiry; `u64::MAX` for never.
    expires: Unix,
    name: Box<str>,
    /// Former secrets. Most keys have none.
    #[allow(clippy::box_collection, reason = "half as large as a boxed slice")]
    former: Option<Box<Vec<Former>>>,
    id: KeyId,
    kind: KindIx,
    /// A hash of the whole record.
    print: u32,
    /// Number of the last reading of all keys that contained it.
    seen: u32,
    /// Second since 1970 from which its traffic is not captured; 0 if it is not captured at all.
    captured: u32,
    shown: ShownSecret,
    revoked: bool,
    disabled: bool,
}

impl Kept {
    fn former(&self) -> &[Former] {
        self.former.as_deref().map_or(&[], Vec::as_slice)
    }

    fn secret_of(&self, digest: &[u8; 32]) -> ShownSecret {
        let former = || self.former().iter().position(|former| former.digest == *digest);
        match self.digest == *digest {
            true => ShownSecret::Present,
            false => former().map_or(ShownSecret::Nothing, |at| ShownSecret::Former(at as u8)),
        }
    }

    fn is_valid(&self, shown: ShownSecret, now: Unix) -> bool {
        match shown {
            ShownSecret::Nothing => false,
            ShownSecret::Present => true,
            ShownSecret::Former(at) => self.former().get(usize::from(at)).is_some_and(|former| now < former.until),
        }
    }

    fn is_live(&self, now: Unix) -> bool {
        !self.revoked && !self.disabled && now < self.expires
    }
}

/// View of one key.
#[derive(Copy, Clone, Debug)]
pub struct Key<'a> {
    kept: &'a Kept,
    /// Values that it shares with other keys.
    pub kind: &'a KeyKind,
}

impl<'a> Key<'a> {
    /// Public id.
    pub fn id(self) -> KeyId {
        self.kept.id
    }

    /// SHA-256 of the whole key.
    pub fn digest(self) -> &'a [u8; 32] {
        &self.kept.digest
    }

    /// Name of its holder.
    pub fn name(self) -> &'a str {
        &self.kept.name
    }

    /// True if the key is valid, see [`KeyRecord::is_live`].
    pub fn is_live(self, now: Unix) -> bool {
        self.kept.is_live(now)
    }

    /// True if its traffic is captured at `now`.
    #[inline]
    pub fn is_captured(self, now: Unix) -> bool {
        self.kept.captured > 0 && now.secs() < self.kept.captured.into()
    }

    /// End of its capture, if one is set; it may be over.
    pub fn captured_until(self) -> Option<Unix> {
        (self.kept.captured > 0).then(|| Unix(u64::from(self.kept.captured) * 1000))
    }
}

/// The end of a capture in whole seconds, rounded up; 0 for none.
fn captured_until(capture: Option<Unix>) -> u32 {
    capture.map_or(0, |until| u32::try_from(until.0.div_ceil(1000)).unwrap_or(u32::MAX))
}

/// Keys that can send requests. The keys of a group have one owner; a key without a group has its own.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LiveKeys {
    /// At most one key.
    One,
    /// Several keys of one owner.
    OneOwner,
    /// Keys of several owners.
    SeveralOwners,
}

/// News about keys from a ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyNews {
    /// Keys that have changed, and keys that have been removed by hand.
    Changed(Vec<KeyRecord>, Vec<KeyId>),
    /// A piece of all keys. A key that is in no piece does not exist any more.
    Piece {
        /// Keys in the piece.
        records: Vec<KeyRecord>,
        /// True for the first piece.
        begins: bool,
        /// True for the last piece.
        ends: bool,
    },
}

impl KeyNews {
    /// All keys in one piece.
    pub fn all(records: Vec<KeyRecord>) -> KeyNews {
        KeyNews::Piece { records, begins: true, ends: true }
    }
}

/// All kinds.
#[derive(Debug)]
struct Kinds {
    /// Kinds, each with its number of keys.
    kinds: Vec<(KeyKind, u32)>,
    /// Numbers by kind, except kinds with limits of a key's own, which few keys share.
    known: HashMap<KeyKind, KindIx, ahash::RandomState>,
    /// Unused numbers.
    free: Vec<KindIx>,
}

impl Kinds {
    /// Counts one more key of a record's kind. Returns its number, and true if the kind is new.
    fn take(&mut self, record: &KeyRecord) -> (KindIx, bool) {
        let kind = KeyKind::from_record(record);
        if let Some(known) = self.known.get(&kind) {
            self.kinds[known.0 as usize].1 += 1;
            return (*known, false);
        }
        let shares = kind.limits.is_empty();
        let ix = match self.free.pop() {
            Some(free) => {
                self.kinds[free.0 as usize] = (kind.clone(), 1);
                free
            }
            None => {
                self.kinds.push((kind.clone(), 1));
                KindIx(self.kinds.len() as u32 - 1)
            }
        };
        if shares {
            self.known.insert(kind, ix);
        }
        (ix, true)
    }

    fn give_back(&mut self, ix: KindIx) {
        let (kind, keys) = &mut self.kinds[ix.0 as usize];
        *keys -= 1;
        if *keys == 0 {
            self.known.remove(kind);
            self.free.push(ix);
        }
    }
}

/// All keys known, by digest and by id.
#[derive(Debug)]
pub struct Keys {
    keys: Paged<Kept>,
    by_id: IndexTable,
    kinds: Kinds,
    hashing: ahash::RandomState,
    tagging: [ahash::RandomState; 2],
    /// Readings of all keys that have begun.
    readings: u32,
    /// Number of the last complete reading. A key last seen in an earlier one does not exist any more.
    valid_from: u32,
}

impl Default for Keys {
    /// Empty table. Before the first identification the caller must call [`Keys::seed`].
    fn default() -> Keys {
        let fixed = || ahash::RandomState::with_seeds(1, 2, 3, 4);
        Keys {
            keys: Paged::default(),
            by_id: IndexTable::default(),
            kinds: Kinds { kinds: Vec::new(), known: HashMap::with_hasher(fixed()), free: Vec::new() },
            // Ids are random, and the table has only those of issued keys.
            hashing: fixed(),
            tagging: [fixed(), fixed()],
            readings: 0,
            valid_from: 0,
        }
    }
}

impl From<Vec<KeyRecord>> for Keys {
    fn from(records: Vec<KeyRecord>) -> Keys {
        let mut keys = Keys::default();
        keys.load(records);
        keys
    }
}

impl Keys {
    /// Empty table with this seed, see [`Keys::seed`].
    pub fn new(seed: u64) -> Keys {
        let mut keys = Keys::default();
        keys.seed(seed);
        keys
    }

    /// Seeds the tags of texts, which are unpredictable without `seed`. Must be called before the first tag is made.
    pub fn seed(&mut self, seed: u64) {
        let mut rng = Rng::from_u64(seed);
        let mut seeded = || {
            let [a, b, c, d] = std::array::from_fn(|_| rng.next_u64());
            ahash::RandomState::with_seeds(a, b, c, d)
        };
        self.tagging = [seeded(), seeded()];
    }

    /// Replaces the set. A known key keeps its index. A key that is gone is invalid, but its record stays readable for
    /// its running requests.
    pub fn load(&mut self, records: Vec<KeyRecord>) {
        self.begin();
        for record in records {
            self.learn(record);
        }
        self.end();
    }

    /// Begins a reading of all keys, which [`Keys::end`] ends.
    pub fn begin(&mut self) {
        self.readings += 1;
    }

    /// Ends a reading of all keys. Keys that were not learned since [`Keys::begin`] are gone.
    pub fn end(&mut self) {
        self.valid_from = self.readings;
    }

    /// Bytes of all keys at most, with the counters of used ones.
    pub fn bytes(&self) -> u64 {
        let kinds = self.kinds.kinds.iter().filter(|(_, keys)| *keys > 0);
        self.len() as u64 * KEY_BYTES + kinds.map(|(kind, _)| kind.bytes() as u64).sum::<u64>()
    }

    /// Adds one key, or replaces its record. Returns its index, and its kind if that is new.
    pub fn learn(&mut self, record: KeyRecord) -> (KeyIx, Option<KindIx>) {
        let print = self.print(&record);
        let known = self.index_of(&record.id);
        let kind = match known.map(|ix| self.keys[ix.0 as usize].kind) {
            Some(kind) if self.kinds.kinds[kind.0 as usize].0.is_of(&record) => (kind, false),
            other => {
                // The new kind is taken first, so that it does not reuse the number of the old one.
                let taken = self.kinds.take(&record);
                other.into_iter().for_each(|kind| self.kinds.give_back(kind));
                taken
            }
        };
        let former = (!record.former.is_empty()).then(|| Box::new(record.former));
        let kept = Kept {
            digest: record.digest,
            tag: Tag::default(),
            expires: record.expires.unwrap_or(Unix(u64::MAX)),
            name: record.name.into_boxed_str(),
            former,
            id: record.id,
            kind: kind.0,
            print,
            seen: self.readings,
            captured: captured_until(record.capture),
            shown: ShownSecret::Nothing,
            revoked: record.revoked.is_some(),
            disabled: record.disabled,
        };
        let ix = match known {
            Some(ix) => {
                let place = &mut self.keys[ix.0 as usize];
                let same = place.digest == kept.digest && place.former == kept.former;
                let (tag, shown) = (place.tag, place.shown);
                *place = kept;
                if same {
                    (place.tag, place.shown) = (tag, shown);
                }
                ix
            }
            None => {
                let index = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
                self.keys.push(kept);
                let Keys { keys, by_id, hashing, .. } = self;
                by_id.insert(hashing.hash_one(record.id), index, |index| hashing.hash_one(keys[index as usize].id));
                KeyIx(index)
            }
        };
        (ix, kind.1.then_some(kind.0))
    }

    /// Removes a key that the ledger does not have any more.
    pub fn forget(&mut self, id: &KeyId) {
        if let Some(ix) = self.index_of(id) {
            let kept = &mut self.keys[ix.0 as usize];
            (kept.revoked, kept.print) = (true, !kept.print);
        }
    }

    fn print(&self, record: &KeyRecord) -> u32 {
        self.hashing.hash_one(record) as u32
    }

    fn is_there(&self, kept: &Kept) -> bool {
        kept.seen >= self.valid_from
    }

    /// True if the ledger had this key when it was read last.
    pub fn knows(&self, id: &KeyId) -> bool {
        self.index_of(id).is_some_and(|ix| self.is_there(&self.keys[ix.0 as usize]))
    }

    /// Returns how many keys and owners of keys can send requests now. Only the newest keys are searched; if there are
    /// more, they count as several owners.
    #[inline]
    pub fn live(&self, now: Unix) -> LiveKeys {
        let newest = (0..self.keys.len()).rev().take(limits::LIVE_KEYS_SEARCHED).map(|at| &self.keys[at]);
        let mut live = newest.filter(|kept| self.is_there(kept) && kept.is_live(now));
        let group = |kept: &Kept| &self.kinds.kinds[kept.kind.0 as usize].0.group;
        let first = live.next();
        let mut found = LiveKeys::One;
        for other in live {
            found = LiveKeys::OneOwner;
            if first.is_some_and(|first| group(first).is_none() || group(first) != group(other)) {
                return LiveKeys::SeveralOwners;
            }
        }
        if self.keys.len() > limits::LIVE_KEYS_SEARCHED { LiveKeys::SeveralOwners } else { found }
    }

    /// Index of the key `presented`, if it is known and valid. A mistyped key is refused by its checksum, before any
    /// hashing. Only digests are compared, so the time of the comparison reveals nothing about a secret.
    #[inline]
    pub fn identify(&mut self, presented: &[u8], prefix: &str, now: Unix) -> Option<KeyIx> {
        let claimed = self.index_of(&claimed(presented, prefix)?)?;
        let tag = self.tagging.each_ref().map(|half| {
            let mut hasher = half.build_hasher();
            hasher.write(presented);
            hasher.finish()
        });
        let kept = &self.keys[claimed.0 as usize];
        let shown = if kept.shown != ShownSecret::Nothing && kept.tag == tag {
            kept.shown
        } else {
            well_formed(presented, prefix)?;
            kept.secret_of(&sha256(presented))
        };
        let opens = self.is_there(kept) && kept.is_live(now) && kept.is_valid(shown, now);
        if !opens {
            return None;
        }
        let kept = &mut self.keys[claimed.0 as usize];
        (kept.tag, kept.shown) = (tag, shown);
        Some(claimed)
    }

    /// Change of a key in the ledger, as one word for the operator; `None` if there is none.
    pub fn news(&self, record: &KeyRecord) -> Option<&'static str> {
        let Some(known) = self.index_of(&record.id) else { return Some("issued") };
        let known = &self.keys[known.0 as usize];
        match record {
            _ if self.print(record) == known.print => None,
            _ if record.revoked.is_some() && !known.revoked => Some("revoked"),
            _ if record.digest != known.digest => Some("rotated"),
            _ => Some("edited"),
        }
    }

    /// Reason for which [`Keys::identify`] refuses `presented`, for the operator, and whose key it is.
    #[inline]
    pub fn why_not(&self, presented: &[u8], prefix: &str, now: Unix) -> (&'static str, RefusedKey) {
        let Some(id) = claimed(presented, prefix) else { return ("malformed", RefusedKey::Nothing) };
        if well_formed(presented, prefix).is_none() {
            return ("mistyped", RefusedKey::Nothing);
        }
        let to_look_up = || RefusedKey::Unknown(ShownKey { id, text: mix_bytes(0, presented) });
        let Some(known) = self.index_of(&id) else { return ("unknown", to_look_up()) };
        let kept = &self.keys[known.0 as usize];
        let why = match kept {
            _ if !self.is_there(kept) => return ("unknown", to_look_up()),
            _ if kept.secret_of(&sha256(presented)) == ShownSecret::Nothing => return ("wrong secret", to_look_up()),
            Kept { revoked: true, .. } => "revoked",
            Kept { disabled: true, .. } => "disabled",
            _ if !kept.is_live(now) => "expired",
            _ => "replaced by a rotation",
        };
        (why, RefusedKey::Known(known))
    }

    /// The key at `ix`, which must come from this table.
    #[inline]
    pub fn get(&self, ix: KeyIx) -> Key<'_> {
        let kept = &self.keys[ix.0 as usize];
        Key { kept, kind: &self.kinds.kinds[kept.kind.0 as usize].0 }
    }

    /// The kind of the key at `ix`, if there is one.
    #[inline]
    pub fn kind_of(&self, ix: KeyIx) -> Option<KindIx> {
        self.keys.get(ix.0 as usize).map(|kept| kept.kind)
    }

    /// All kinds, including those without keys.
    pub fn kinds(&self) -> impl Iterator<Item = &KeyKind> {
        self.kinds.kinds.iter().map(|(kind, _)| kind)
    }

    /// The kind of this number.
    pub fn kind(&self, ix: KindIx) -> &KeyKind {
        &self.kinds.kinds[ix.0 as usize].0
    }

    /// Index of the key with this id, even if it is no longer valid.
    #[inline]
    pub fn index_of(&self, id: &KeyId) -> Option<KeyIx> {
        self.by_id.find(self.hashing.hash_one(id), |index| self.keys[index as usize].id == *id).map(KeyIx)
    }

    /// Tag of the last valid text of a key.
    #[cfg(test)]
    pub(super) fn tag(&self, ix: KeyIx) -> [u64; 2] {
        self.keys[ix.0 as usize].tag
    }

    /// The keys whose traffic is captured.
    pub fn captured(&self, now: Unix) -> impl Iterator<Item = Key<'_>> {
        let all = (0..self.keys.len()).map(|at| self.get(KeyIx(at as u32)));
        all.filter(move |key| key.is_captured(now) && !key.kept.revoked && self.is_there(key.kept))
    }

    /// Number of keys that were ever loaded.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True if no key was ever loaded.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::plan::Shorthand;
    use crate::policy::plan::caps::Cap;

    #[test]
    fn a_key_in_the_table_is_small() {
        // With a name of 24 bytes and its entry in the map of ids: 160 at most.
        assert!(size_of::<Kept>() <= 112, "{}", size_of::<Kept>());
    }

    fn record(id: u64, plan: &str, own: Option<u64>) -> KeyRecord {
        KeyRecord {
            id: KeyId::parse(&format!("{id:012}")).unwrap(),
            digest: [0; 32],
            name: format!("key {id}"),
            plan: plan.to_string(),
            scope: Scope::default(),
            created: Unix(0),
            expires: None,
            revoked: None,
            disabled: false,
            limits: own.map(|total| Cap { total, ..Shorthand::Requests.cap() }).into_iter().collect(),
            group: None,
            labels: Vec::new(),
            former: Vec::new(),
            capture: None,
        }
    }

    #[test]
    fn equal_keys_share_a_kind_and_edits_leave_no_unused_kinds() {
        let mut keys = Keys::new(1);
        keys.load((0..1000).map(|id| record(id, "team", None)).collect());
        assert_eq!(keys.kinds().count(), 1);
        let (first, kind) = keys.learn(record(7, "gold", None));
        assert_eq!((keys.get(first).kind.plan.as_str(), kind), ("gold", Some(KindIx(1))));
        for own in 0..100 {
            let (_, kind) = keys.learn(record(7, "gold", Some(own)));
            assert!(kind.is_some(), "a different limit needs a new kind");
        }
        assert!(keys.kinds().count() <= 4, "{} kinds are stored, two are in use", keys.kinds().count());
        assert_eq!(keys.learn(record(7, "team", None)), (first, None), "the original kind is found again");
        assert_eq!(keys.len(), 1000);
    }

    #[test]
    fn a_key_missing_from_every_part_of_a_list_is_gone_after_the_last() {
        let mut keys = Keys::new(1);
        keys.load(vec![record(1, "team", None), record(2, "team", None)]);
        let there = |keys: &Keys, id: u64| {
            let ix = keys.index_of(&KeyId::parse(&format!("{id:012}")).unwrap()).unwrap();
            keys.is_there(&keys.keys[ix.0 as usize])
        };
        keys.begin();
        keys.learn(record(1, "team", None));
        assert!(there(&keys, 1) && there(&keys, 2), "key 2 may still follow in a later part");
        // Key 3 is looked up while the list is being read.
        keys.learn(record(3, "team", None));
        keys.end();
        assert_eq!([1, 2, 3].map(|id| there(&keys, id)), [true, false, true]);
    }
}
