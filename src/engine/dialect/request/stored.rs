//! Members of a request that name an object of the provider's account: a file, a container, a recording, a voice. All
//! clients share that account, so such an id could be another tenant's.
//!
//! Owns the refusal; [`PartName`] has the names of those members. Must never look into text written by a model or a
//! tool: there, the same names mean nothing to the provider. Called by the reading of a body and by `form`. The
//! configuration decides whether requests may use them (`stored_objects`).

use super::fields::{Fields, Invalid, Member};
use super::members::{Class, Name};
use super::part_names::PartName;
use super::reading::Reading;
use crate::dialect::capabilities::{Capabilities, UnknownMembers};
use crate::dialect::passthrough::PassthroughFormat;
use crate::wire::json::eq_unescaped;
use std::borrow::Cow;
use std::fmt::Arguments;

/// Expected value instead of a file's id.
const NO_FILE: &str = "the file itself: Tollgate stores no files";
/// Expected value instead of another object's id.
const NO_OBJECT: &str = "no object that is stored at the provider";

/// Letters in names of form fields with an object's id.
const FORM_IDS: [&str; 5] = ["fileid", "containerid", "skillid", "vectorstoreid", "voiceid"];
/// Maximum bytes of a member's name in a refusal.
const NAME_MAX: usize = 64;

/// True if a form field names an object. Servers spell and nest names of fields in many ways, so the letters decide.
pub(crate) fn names_object_in_form(name: &[u8]) -> bool {
    let letters: Vec<u8> = name.iter().filter(|byte| byte.is_ascii_alphabetic()).map(u8::to_ascii_lowercase).collect();
    FORM_IDS.iter().any(|id| letters.windows(id.len()).any(|part| part == id.as_bytes()))
}

/// True if a key of a member that is passed on as it is names objects. `member`: the key of that member itself.
pub(crate) fn names_object(key: &[u8], member: &[u8]) -> bool {
    match PartName::of(key) {
        PartName::StoredId | PartName::StoredIds => true,
        name => name == PartName::Id && eq_unescaped(member, "voice"),
    }
}

/// The refusal of the object at `path`, whose name is `name`.
pub(crate) fn refusal(path: Arguments<'_>, name: &[u8]) -> Invalid {
    let expected = if name == b"file_id" { NO_FILE } else { NO_OBJECT };
    Invalid(format!("{path}: expected {expected}"))
}

/// A member's name in a refusal.
pub(crate) fn name_of(key: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(&key[..key.len().min(NAME_MAX)])
}

impl Reading<'_, '_> {
    /// Notes that a string called `name` in a member that is passed on as it is names an object.
    #[cold]
    pub(super) fn names_object(&mut self, member: &Member, name: &[u8]) {
        let key = member.key.of(self.body);
        let (of, path) = (name_of(key), name_of(name));
        let why = match std::ptr::eq(key, name) {
            true => refusal(format_args!("{of}"), name),
            false => refusal(format_args!("{of}.{path}"), name),
        };
        let passthrough = self.endpoint.as_passthrough().map(PassthroughFormat::of);
        let is_specified = member.name.class(self.endpoint) == Class::Specified;
        let noted = match passthrough.is_some_and(|format| is_specified || format.documents(key)) {
            true => &mut self.fields.stored,
            false if Name::leads_elsewhere(key) => return,
            false => &mut self.fields.stored_beside,
        };
        noted.get_or_insert_with(|| Box::new(why));
    }
}

impl Fields {
    /// Notes that the member at `path` names an object. Only the first one is kept.
    #[cold]
    pub(crate) fn names_stored(&mut self, path: Arguments<'_>, name: &str) {
        self.stored.get_or_insert_with(|| Box::new(refusal(path, name.as_bytes())));
    }

    /// [`Invalid`] if the request names an object of the provider's account and the configuration does not allow it.
    #[inline]
    pub(crate) fn may_name_stored(&self, takes: &Capabilities) -> Result<(), Invalid> {
        match &self.stored {
            Some(why) if !takes.stored_objects => Err(Invalid::clone(why)),
            _ => Ok(()),
        }
    }

    /// [`Invalid`] if an unknown member names such an object, the target gets unknown members, and the configuration
    /// does not allow it.
    #[inline]
    pub(crate) fn may_forward_stored(&self, takes: &Capabilities) -> Result<(), Invalid> {
        let is_sent = matches!(takes.unknown, UnknownMembers::New | UnknownMembers::Forward);
        match &self.stored_beside {
            Some(why) if is_sent && !takes.stored_objects => Err(Invalid::clone(why)),
            _ => Ok(()),
        }
    }
}
