//! The configuration of `tollgate demo`: six invented models on a simulated provider. Text, parsed like any other.

use std::fmt::Write;
use std::net::SocketAddr;

/// Id, name, API format, context, input, output, cache read and cache write price (USD per 1M tokens).
type DemoModel = (&'static str, &'static str, &'static str, &'static str, [&'static str; 4]);

/// Context sizes and prices typical of the market; invented names.
const CATALOG: [DemoModel; 6] = [
    ("heron-large", "Heron Large", "chat", "1M", ["2.50", "10.00", "0.25", "2.50"]),
    ("heron-small", "Heron Small", "chat", "256K", ["0.25", "2.00", "0.025", "0.25"]),
    ("heron-nano", "Heron Nano", "chat", "256K", ["0.05", "0.40", "0.005", "0.05"]),
    ("ibis-large", "Ibis Large", "messages", "1M", ["5.00", "25.00", "0.50", "6.25"]),
    ("ibis-medium", "Ibis Medium", "messages", "1M", ["3.00", "15.00", "0.30", "3.75"]),
    ("ibis-small", "Ibis Small", "messages", "256K", ["1.00", "5.00", "0.10", "1.25"]),
];

/// Model names that agents request, and the demo models that serve them.
const ALIASES: [(&str, &str); 3] =
    [("ibis-large", "claude-opus-*"), ("ibis-medium", "claude-*"), ("ibis-small", "claude-haiku-*")];

/// A model that serves more than chat.
const SERVES: (&str, &str) = (
    "heron-nano",
    "serves = [\"chat\", \"embeddings\", \"rerank\", \"completions\", \"speech\", \"images\", \"moderations\", \
     \"transcriptions\", \"translations\"]\n",
);

/// The plan of the demo's key.
pub const PLAN: &str = "demo";

/// A configuration in TOML: listeners, the ledger file `db`, two providers that are both the simulated one at
/// `provider` (one per API format), six models, one plan. `db` and `token` (the file with the admin token that may
/// change keys) may be any paths; they are quoted as TOML requires.
pub fn demo_text(provider: SocketAddr, listen: SocketAddr, admin: SocketAddr, db: &str, token: &str) -> String {
    let (url, token) = (toml_string(&format!("sqlite:{db}")), toml_string(token));
    let mut text = format!(
        "default_model = \"heron-small\"\n\n\
         [server]\nlisten = \"{listen}\"\nadmin_listen = \"{admin}\"\n\
         admin_write_token = {{ file = {token} }}\nrecord_requests = true\n\
         # So that the playground of the page may ask.\ncors_origins = [\"http://{admin}\"]\n\n\
         [store]\nurl = {url}\n\n\
         [[providers]]\nname = \"heronry\"\nshape = \"chat\"\nbase_url = \"http://{provider}/v1\"\n\n\
         [[providers]]\nname = \"ibisery\"\nshape = \"messages\"\nbase_url = \"http://{provider}\"\n\n"
    );
    for (id, name, shape, context, [input, output, read, write]) in CATALOG {
        let provider = if shape == "chat" { "heronry" } else { "ibisery" };
        let alias =
            ALIASES.iter().find(|(model, _)| *model == id).map(|(_, alias)| format!("aliases = [\"{alias}\"]\n"));
        let alias = alias.unwrap_or_default();
        let serves = if id == SERVES.0 { SERVES.1 } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "[[models]]\nid = \"{id}\"\n{alias}{serves}name = \"{name}\"\nowned_by = \"{provider}\"\n\
             context = \"{context}\"\ninput_price = {input}\noutput_price = {output}\ncache_read_price = {read}\n\
             cache_write_price = {write}\ntargets = [{{ provider = \"{provider}\", model = \"sim-{id}\" }}]\n\n"
        );
    }
    let _ = write!(text, "[[plans]]\nname = \"{PLAN}\"\ntokens = 10_000_000\nrequests = 600\nconcurrency = 100\n");
    text
}

/// A TOML basic string.
fn toml_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::policy::config::{Config, Source, StoreUrl};
    use crate::wire::Shape;

    /// The demo's configuration, with addresses on which nothing listens.
    pub(in crate::cli) fn parsed() -> Config {
        parse(&text("/tmp/demo.db"))
    }

    fn text(db: &str) -> String {
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        demo_text(address(4001), address(8080), address(9090), db, "/tmp/token")
    }

    fn parse(text: &str) -> Config {
        let none = |_: &str| None;
        let read = |_: &str| Ok("the-token-of-the-demo".to_string());
        let source = Source { file: "demo.toml", text, env: &none, read: &read, run: &Source::no_program };
        Config::parse(&source).unwrap_or_else(|errors| panic!("{errors:?}"))
    }

    #[test]
    fn demo_has_six_models_of_two_sizes_three_per_format() {
        // Six entries, context sizes 1M and 256K.
        let high = parsed();
        let models = high.catalog.models();
        assert_eq!(models.len(), 6);
        assert!(models.iter().all(|model| [1_000_000, 256_000].contains(&model.context)));
        assert!(models.iter().any(|model| model.context == 256_000));
        let chat = models.iter().filter(|model| high.providers[model.targets[0].provider].shape == Shape::Chat);
        assert_eq!(chat.count(), 3);
        assert!(
            models
                .iter()
                .all(|model| model.prices.base.input > 0 && model.prices.base.output > model.prices.base.input)
        );
        assert!(high.plan(PLAN).is_some());
        for (asked, served) in
            [("claude-opus-4-1", "ibis-large"), ("claude-x", "ibis-medium"), ("claude-haiku-9", "ibis-small")]
        {
            let found = high.catalog.asked(asked).and_then(|index| high.catalog.get(index));
            assert_eq!(found.map(|model| &*model.id), Some(served));
        }
    }

    #[test]
    fn both_providers_are_the_simulated_one_and_need_no_look_up() {
        let high = parsed();
        let paths: Vec<&str> = high.providers.iter().map(|provider| provider.path.as_str()).collect();
        assert_eq!(paths, ["/v1/chat/completions", "/v1/messages"]);
        assert!(high.providers.iter().all(|provider| provider.addresses == ["127.0.0.1:4001".parse().unwrap()]));
        assert_eq!(high.server.listen, ["127.0.0.1:8080".parse().unwrap()]);
    }

    #[test]
    fn any_path_of_a_ledger_can_be_quoted() {
        for path in ["/tmp/a b/\"quoted\".db", "/tmp/back\\slash.db"] {
            assert_eq!(parse(&text(path)).store.url, StoreUrl::Sqlite(path.into()));
        }
    }
}
