//! A small configuration with one provider and one model of each API format, which tests change line by line, and keys
//! for it.

use std::collections::BTreeMap;
use tollgate::base::rng::Rng;
use tollgate::base::time::{Mono, Now, Unix};
use tollgate::policy::config::{Config, Source};
use tollgate::policy::keys::{KeyRecord, Scope, issue};
use tollgate::policy::plan::caps::{Cap, Caps, Extra};
use tollgate::policy::window::parse_moment;
use tollgate::wire::{Passthrough, Shape};

/// Start time of every test.
pub const BEGIN: &str = "2026-11-20T09:00:10Z";

/// Secrets for the providers. They must never reach a client or a log.
pub const SECRETS: [&str; 3] = ["sk-upstream-chat", "sk-upstream-messages", "sk-upstream-second"];

const BASE: &[(&str, &[&str])] = &[
    ("", &[]),
    ("server", &[]),
    ("store", &[]),
    ("upstream", &[]),
    (
        "provider up",
        &["name = \"up\"", "shape = \"chat\"", "base_url = \"http://10.0.0.1/v1\"", "api_key = { env = \"CHAT_KEY\" }"],
    ),
    (
        "provider ant",
        &[
            "name = \"ant\"",
            "shape = \"messages\"",
            "base_url = \"http://10.0.0.2\"",
            "auth = \"x-api-key\"",
            "api_key = { env = \"MESSAGES_KEY\" }",
        ],
    ),
    (
        "model small",
        &[
            "id = \"small\"",
            "name = \"Small\"",
            "owned_by = \"up\"",
            "context = \"256K\"",
            "input_price = 1.0",
            "output_price = 4.0",
            "targets = [{ provider = \"up\", model = \"up-small\" }]",
        ],
    ),
    (
        "model large",
        &[
            "id = \"large\"",
            "name = \"Large\"",
            "owned_by = \"ant\"",
            "context = \"1M\"",
            "input_price = 3.0",
            "output_price = 15.0",
            "created = 2026-05-01",
            "targets = [{ provider = \"ant\", model = \"up-large\" }]",
        ],
    ),
    ("plan team", &["name = \"team\"", "tokens = 1_000_000", "requests = 100"]),
];

/// The text of a configuration, as sections of lines.
#[derive(Clone)]
pub struct Setting {
    sections: Vec<(String, Vec<String>)>,
}

impl Default for Setting {
    fn default() -> Setting {
        let owned = |lines: &[&str]| lines.iter().map(|line| line.to_string()).collect();
        Setting { sections: BASE.iter().map(|(name, lines)| (name.to_string(), owned(lines))).collect() }
    }
}

impl Setting {
    /// Sets one `key = value` of a section. An unknown section is added, with its name or id.
    pub fn set(&mut self, section: &str, line: &str) {
        let key = line.split('=').next().unwrap_or_default().trim();
        if !self.sections.iter().any(|(name, _)| name == section) {
            let mut lines = Vec::new();
            if let Some((kind, name)) = section.split_once(' ') {
                lines.push(format!("{} = \"{name}\"", if kind == "model" { "id" } else { "name" }));
            }
            self.sections.push((section.to_string(), lines));
        }
        let Some((_, lines)) = self.sections.iter_mut().find(|(name, _)| name == section) else { return };
        lines.retain(|old| old.split('=').next().unwrap_or_default().trim() != key);
        lines.push(line.to_string());
    }

    /// Returns the configuration as TOML.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (name, lines) in &self.sections {
            match name.split_once(' ') {
                Some((kind, _)) => out.push_str(&format!("[[{kind}s]]\n")),
                None if name.is_empty() => {}
                None => out.push_str(&format!("[{name}]\n")),
            }
            for line in lines {
                out.push_str(line);
                out.push('\n');
            }
        }
        out
    }

    /// Returns the parsed configuration; panics with all errors if it is invalid.
    pub fn high(&self) -> Config {
        let text = self.text();
        let env = |name: &str| match name {
            "CHAT_KEY" => Some(SECRETS[0].to_string()),
            "MESSAGES_KEY" => Some(SECRETS[1].to_string()),
            "CHAT_KEY_2" => Some(SECRETS[2].to_string()),
            "ADMIN_TOKEN" => Some("admin-token-of-the-test".to_string()),
            "ADMIN_WRITE_TOKEN" => Some("write-token-of-the-test".to_string()),
            _ => None,
        };
        let read = |_: &str| Ok("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n".to_string());
        // Each program prints its own command line.
        let run = |program: &[String], _: &[String]| Ok(program.join("-"));
        let source = Source { file: "test.toml", text: &text, env: &env, read: &read, run: &run };
        match Config::parse(&source) {
            Ok(high) => high,
            Err(errors) => {
                let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                panic!("the configuration of the test is invalid:\n{}\n{text}", errors.join("\n"));
            }
        }
    }
}

/// Keys by their name in a test: the text that a client sends, and the gateway's record.
#[derive(Clone, Default)]
pub struct KeyRing {
    pub texts: BTreeMap<String, String>,
    pub records: Vec<KeyRecord>,
    /// Keys in the ledger that the gateway does not know yet.
    pub unannounced: Vec<KeyRecord>,
}

impl KeyRing {
    /// Issues a key. `words` are `plan=P`, `group=G`, `budget=DOLLARS`, `extra=LIMIT@DATE`, `on_exhausted=MODEL`, `endpoints=a,b`, `models=a,b`,
    /// `expires=DATE`, `revoked=DATE`, `disabled`; `unannounced`: the ledger knows the key, but the gateway does not yet; `missing`:
    /// the ledger does not know it either.
    pub fn issue(&mut self, name: &str, words: &[&str]) {
        let mut rng = Rng::from_u64(7000 + self.texts.len() as u64);
        let issued = issue("tg_", |out| out.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8));
        let mut record = KeyRecord {
            id: issued.id,
            digest: issued.digest,
            name: name.to_string(),
            plan: "team".to_string(),
            scope: Scope::default(),
            created: Unix(0),
            expires: None,
            revoked: None,
            disabled: false,
            limits: Caps::default(),
            group: None,
            labels: Vec::new(),
            former: Vec::new(),
            capture: None,
        };
        for word in words {
            let (what, value) = word.split_once('=').unwrap_or((word, ""));
            match what {
                "plan" => record.plan = value.to_string(),
                "group" => record.group = Some(value.to_string()),
                "budget" => record.limits = Cap::parse(&format!("budget={value}/period")).into_iter().collect(),
                "extra" => record.limits = extras(value),
                "on_exhausted" => record.limits.on_exhausted = Some(value.into()),
                "models" => record.scope.models_allowed = Some(value.split(',').map(String::from).collect()),
                "endpoints" => {
                    let has = |endpoint: &str| value.split(',').any(|word| word == endpoint);
                    record.scope.shapes = Shape::ALL.map(|shape| has(shape.name()));
                    record.scope.passthroughs = Passthrough::ALL.map(|passthrough| has(passthrough.as_str()));
                    record.scope.models = has("models");
                    record.scope.quota = has("quota");
                }
                "expires" => record.expires = parse_moment(value),
                "revoked" => record.revoked = parse_moment(value),
                "unannounced" | "missing" => {}
                "disabled" => record.disabled = true,
                "strict" => record.limits.strict = true,
                other => panic!("a key has no `{other}`"),
            }
        }
        self.texts.insert(name.to_string(), issued.text);
        match words {
            words if words.contains(&"missing") => {}
            words if words.contains(&"unannounced") => self.unannounced.push(record),
            _ => self.records.push(record),
        }
    }
}

/// Reads a temporary allowance: `budget=5/period@2026-11-20T10:00:00Z`.
pub fn extras(text: &str) -> Caps {
    let (limit, until) = text.split_once('@').expect("an end");
    let cap = Cap::parse(limit).unwrap_or_else(|why| panic!("not a limit: {limit}: {why}"));
    Caps::default().with_extras(vec![Extra { cap, until: parse_moment(until).expect("a moment") }])
}

/// Returns the start time of every test.
pub fn begin() -> Now {
    Now { mono: Mono(1_000_000), unix: parse_moment(BEGIN).unwrap_or_default() }
}

/// Returns the time `micros` after `now`, on both clocks. `BEGIN` is a whole second and `mono` starts at one second, so
/// both clocks agree to the millisecond.
pub fn later(now: Now, micros: u64) -> Now {
    let start = begin();
    let mono = Mono(now.mono.0 + micros);
    Now { mono, unix: Unix(start.unix.0 + (mono.0 - start.mono.0) / 1000) }
}
