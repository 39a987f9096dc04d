//! Classes of the programs that send requests, read from `user-agent` (contract section 10): a handful of words that
//! may stand in reports, however many versions of a program there are and whatever a client calls itself.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

/// A class of programs; the default is none, of requests that say nothing or whose attribution is not kept.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Client(u8);

/// What the classes are called in rows and reports, and what their `user-agent` begins with, in lower case; the first
/// that fits counts. Ledgers hold the names, not the places.
const CLASSES: [(&str, &[&str]); 28] = [
    ("", &[]),
    ("other", &[]),
    ("claude-code", &["claude-cli/", "claude-code/"]),
    ("codex", &["codex_", "codex-", "codex/"]),
    ("openai-python", &["openai/python", "asyncopenai/python", "azureopenai/python", "asyncazureopenai/python"]),
    ("openai-node", &["openai/js", "azureopenai/js"]),
    ("openai-go", &["openai/go"]),
    ("openai-java", &["openai/java", "openaiclient"]),
    ("anthropic-python", &["anthropic/python", "asyncanthropic/python"]),
    ("anthropic-node", &["anthropic/js"]),
    ("anthropic-go", &["anthropic/go"]),
    ("anthropic-java", &["anthropic/java", "anthropicclient"]),
    ("opencode", &["opencode/"]),
    ("cline", &["cline/"]),
    ("roo-code", &["roocode/", "roo-code/"]),
    ("kilo-code", &["kilo-code/", "kilocode/"]),
    ("qwen-code", &["qwencode/"]),
    ("zed", &["zed/"]),
    ("ai-sdk", &["ai/", "ai-sdk/"]),
    ("litellm", &["litellm/"]),
    ("curl", &["curl/", "wget/"]),
    ("python", &["python-requests/", "python-httpx/", "python/", "python-urllib/"]),
    ("node", &["node", "undici", "axios/", "bun/", "deno/"]),
    ("go", &["go-http-client/"]),
    ("java", &["java/", "java-http-client/", "okhttp/", "apache-httpclient/"]),
    ("rust", &["reqwest/", "hyper/"]),
    ("browser", &["mozilla/"]),
    ("postman", &["postmanruntime/", "insomnia/"]),
];

impl Client {
    /// A program that is none of those known.
    pub const OTHER: Client = Client(1);

    /// The class of a program that calls itself so.
    pub fn of_agent(agent: &[u8]) -> Client {
        let fits =
            |begin: &&str| agent.get(..begin.len()).is_some_and(|own| own.eq_ignore_ascii_case(begin.as_bytes()));
        let place = CLASSES.iter().position(|(_, begins)| begins.iter().any(fits));
        place.map_or(Client::OTHER, |place| Client(place as u8))
    }

    /// As written in rows and reports; empty for none.
    pub fn name(self) -> &'static str {
        CLASSES[usize::from(self.0)].0
    }

    /// Reads [`Client::name`]. A class of another version is one of those not known.
    pub fn from_name(name: &str) -> Client {
        let place = CLASSES.iter().position(|(known, _)| *known == name);
        place.map_or(Client::OTHER, |place| Client(place as u8))
    }

    /// True for no class at all.
    pub fn is_none(&self) -> bool {
        self.0 == 0
    }
}

impl Serialize for Client {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Client {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Client, D::Error> {
        Cow::<str>::deserialize(from).map(|name| Client::from_name(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_what_they_call_themselves() {
        for (agent, class) in [
            ("claude-cli/2.1.3 (external, cli)", "claude-code"),
            ("codex_cli_rs/0.104.0 (Debian 13.0.0; x86_64) xterm", "codex"),
            ("OpenAI/Python 2.8.1", "openai-python"),
            ("AsyncOpenAI/Python 2.8.1", "openai-python"),
            ("OpenAI/JS 6.9.0", "openai-node"),
            ("Anthropic/Python 0.74.0", "anthropic-python"),
            ("AsyncAnthropic/Python 0.74.0", "anthropic-python"),
            ("Anthropic/JS 0.70.0", "anthropic-node"),
            ("CURL/8.14.1", "curl"),
            ("ai-sdk/openai-compatible/1.0.27", "ai-sdk"),
            ("curl", "other"),
            ("", "other"),
            ("\u{fc}\n", "other"),
        ] {
            assert_eq!(Client::of_agent(agent.as_bytes()).name(), class, "{agent}");
        }
    }

    #[test]
    fn a_class_is_read_back_and_one_of_another_version_is_one_that_is_not_known() {
        for (place, (name, begins)) in CLASSES.iter().enumerate() {
            assert_eq!(Client::from_name(name), Client(place as u8));
            let json = serde_json::to_string(&Client(place as u8)).unwrap();
            assert_eq!(
                (json.as_str(), serde_json::from_str::<Client>(&json).unwrap()),
                (&*format!("\"{name}\""), Client(place as u8))
            );
            for begin in *begins {
                assert_eq!(Client::of_agent(begin.as_bytes()), Client(place as u8), "{begin} is met before");
                assert_eq!(*begin, begin.to_ascii_lowercase());
            }
        }
        assert_eq!(Client::from_name("from-the-future"), Client::OTHER);
        assert!(Client::default().is_none() && !Client::OTHER.is_none());
    }
}
