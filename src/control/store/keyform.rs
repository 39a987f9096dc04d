//! Text form of a key's record: the secrets that rotations have replaced, and in the shared store the whole record.
//! Called by both kinds of ledger.

use crate::base::digest::{hex, unhex};
use crate::base::time::Unix;
use crate::policy::keys::{Former, KeyId, KeyRecord, Scope};
use crate::policy::plan::Shorthand;
use crate::policy::plan::caps::{Cap, Caps};
use serde::{Deserialize, Serialize};

/// Former secrets as a JSON array of `["<hex of digest>", <end in ms>]`.
pub fn former_text(former: &[Former]) -> String {
    let pairs: Vec<(String, u64)> = former.iter().map(|former| (hex(&former.digest), former.until.0)).collect();
    serde_json::to_string(&pairs).unwrap_or_else(|_| "[]".to_string())
}

/// Reads [`former_text`]. Unreadable text gives no access.
pub fn former_from(text: &str) -> Vec<Former> {
    let pairs: Vec<(String, u64)> = serde_json::from_str(text).unwrap_or_default();
    let former = |(digest, until): (String, u64)| Some(Former { digest: unhex(&digest)?, until: Unix(until) });
    pairs.into_iter().filter_map(former).collect()
}

/// Record of a key as stored in the shared store. Times in milliseconds.
#[derive(Serialize, Deserialize)]
struct StoredKey {
    id: String,
    digest: String,
    name: String,
    plan: String,
    endpoints: String,
    models: Option<Vec<String>>,
    created: u64,
    expires: Option<u64>,
    revoked: Option<u64>,
    former: Vec<(String, u64)>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    disabled: bool,
    #[serde(default, skip_serializing_if = "no_limits")]
    limits: Caps,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    labels: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capture: Option<u64>,
}

/// A key's labels as a JSON array of pairs.
pub fn labels_text(labels: &[(String, String)]) -> String {
    serde_json::to_string(labels).unwrap_or_else(|_| "[]".to_string())
}

/// Reads [`labels_text`]. Unreadable text gives no labels.
pub fn labels_from(text: &str) -> Vec<(String, String)> {
    serde_json::from_str(text).unwrap_or_default()
}

fn no_limits(limits: &Caps) -> bool {
    limits.is_empty()
}

/// A key's own limits as a JSON array of texts.
pub fn limits_text(limits: &Caps) -> String {
    serde_json::to_string(limits).unwrap_or_else(|_| "[]".to_string())
}

/// Reads [`limits_text`]. Unreadable text permits one request, rather than unlimited use.
pub fn limits_from(text: &str) -> Caps {
    let one = |setting: Shorthand| Cap { total: 1, ..setting.cap() };
    let few = || [Shorthand::Tokens, Shorthand::Requests].map(one).into_iter().collect();
    serde_json::from_str(text).unwrap_or_else(|_| few())
}

/// A whole record as a JSON object.
pub fn record_text(key: &KeyRecord) -> String {
    let stored = StoredKey {
        id: key.id.to_string(),
        digest: hex(&key.digest),
        name: key.name.clone(),
        plan: key.plan.clone(),
        endpoints: key.scope.stored_endpoints(),
        models: key.scope.models_allowed.clone(),
        created: key.created.0,
        expires: key.expires.map(|at| at.0),
        revoked: key.revoked.map(|at| at.0),
        former: key.former.iter().map(|former| (hex(&former.digest), former.until.0)).collect(),
        disabled: key.disabled,
        limits: key.limits.clone(),
        group: key.group.clone(),
        labels: key.labels.clone(),
        capture: key.capture.map(|until| until.0),
    };
    serde_json::to_string(&stored).unwrap_or_default()
}

/// Reads [`record_text`]; `None` for anything else.
pub fn record_from(text: &str) -> Option<KeyRecord> {
    let stored: StoredKey = serde_json::from_str(text).ok()?;
    let scope = Scope::from_stored(&stored.endpoints, stored.models);
    let former = |(digest, until): (String, u64)| Some(Former { digest: unhex(&digest)?, until: Unix(until) });
    Some(KeyRecord {
        id: KeyId::parse(&stored.id)?,
        digest: unhex(&stored.digest)?,
        name: stored.name,
        plan: stored.plan,
        scope,
        created: Unix(stored.created),
        expires: stored.expires.map(Unix),
        revoked: stored.revoked.map(Unix),
        former: stored.former.into_iter().filter_map(former).collect(),
        disabled: stored.disabled,
        limits: stored.limits,
        group: stored.group,
        labels: stored.labels,
        capture: stored.capture.map(Unix),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Shape;

    #[test]
    fn former_secrets_round_trip_and_invalid_ones_open_nothing() {
        let former = [Former { digest: [7; 32], until: Unix(5) }, Former { digest: [255; 32], until: Unix(9) }];
        assert_eq!(former_from(&former_text(&former)), former);
        let mut key = KeyRecord {
            id: KeyId::parse("0123456789ab").unwrap(),
            digest: [3; 32],
            name: "a \"name\"\u{fc}".to_string(),
            plan: "p".to_string(),
            scope: Scope {
                shapes: Shape::ALL.map(|shape| shape != Shape::Messages),
                models_allowed: Some(vec!["m".to_string()]),
                ..Scope::default()
            },
            created: Unix(1),
            expires: Some(Unix(2)),
            revoked: None,
            disabled: true,
            limits: ["requests=7/window", "tokens/period=none"].iter().flat_map(|text| Cap::parse(text)).collect(),
            group: Some("labs".to_string()),
            labels: vec![("team".to_string(), "a \"b\"".to_string())],
            former: former.to_vec(),
            capture: Some(Unix(9)),
        };
        assert_eq!(record_from(&record_text(&key)), Some(key.clone()));
        key.scope.models_allowed = None;
        key.limits.strict = true;
        assert_eq!(record_from(&record_text(&key)), Some(key.clone()));
        let strict = limits_from("[\"strict\"]");
        assert!(strict.strict && limits_from(&limits_text(&strict)) == strict && strict != Caps::default());
        assert_eq!(limits_from(&limits_text(&key.limits)), key.limits);
        assert_eq!(limits_from("[]"), Caps::default());
        for text in ["nonsense", "{}", "[\"request=1\"]", "null", ""] {
            assert_eq!(limits_from(text).get(&Shorthand::Requests.cap()), Some(1), "{text}");
        }
        assert_eq!(labels_from(&labels_text(&key.labels)), key.labels);
        assert_eq!((labels_from("[]"), labels_from("nonsense")), (Vec::new(), Vec::new()));
        (key.disabled, key.limits) = (false, Caps::default());
        (key.group, key.labels, key.capture) = (None, Vec::new(), None);
        let text = record_text(&key);
        for word in ["disabled", "limits", "group", "labels", "capture"] {
            assert!(!text.contains(word), "older records do not have this member: {text}");
        }
        assert_eq!(record_from(&text), Some(key));
        assert_eq!(record_from("{}"), None);
        for nonsense in ["", "[]", "[[\"zz\",1]]", "{}", "[[\"07\",1]]"] {
            assert_eq!(former_from(nonsense), [], "{nonsense}");
        }
    }
}
