//! Classes of the programs that send requests, read from `user-agent`. Reports show only these few names, for every
//! version of a program and whatever a client sends.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

/// A class of programs. The default is none: the request has no `user-agent`, or its attribution is not kept.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Client(u8);

/// Names of the classes in rows and reports. Ledgers store the names, not the indices.
const CLASSES: [&str; 28] = [
    "",
    "other",
    "claude-code",
    "codex",
    "openai-python",
    "openai-node",
    "openai-go",
    "openai-java",
    "anthropic-python",
    "anthropic-node",
    "anthropic-go",
    "anthropic-java",
    "opencode",
    "cline",
    "roo-code",
    "kilo-code",
    "qwen-code",
    "zed",
    "ai-sdk",
    "litellm",
    "curl",
    "python",
    "node",
    "go",
    "java",
    "rust",
    "browser",
    "postman",
];

/// Prefixes of `user-agent`, in lower case and alphabetical order, each with the index of its class.
const BEGINNINGS: [(&str, u8); 53] = [
    ("ai-sdk/", 18),
    ("ai/", 18),
    ("anthropic/go", 10),
    ("anthropic/java", 11),
    ("anthropic/js", 9),
    ("anthropic/python", 8),
    ("anthropicclient", 11),
    ("apache-httpclient/", 24),
    ("asyncanthropic/python", 8),
    ("asyncazureopenai/python", 4),
    ("asyncopenai/python", 4),
    ("axios/", 22),
    ("azureopenai/js", 5),
    ("azureopenai/python", 4),
    ("bun/", 22),
    ("claude-cli/", 2),
    ("claude-code/", 2),
    ("cline/", 13),
    ("codex ", 3),
    ("codex-", 3),
    ("codex/", 3),
    ("codex_", 3),
    ("curl/", 20),
    ("deno/", 22),
    ("go-http-client/", 23),
    ("hyper/", 25),
    ("insomnia/", 27),
    ("java-http-client/", 24),
    ("java/", 24),
    ("kilo-code/", 15),
    ("kilocode/", 15),
    ("litellm/", 19),
    ("mozilla/", 26),
    ("node", 22),
    ("okhttp/", 24),
    ("openai/go", 6),
    ("openai/java", 7),
    ("openai/js", 5),
    ("openai/python", 4),
    ("openaiclient", 7),
    ("opencode/", 12),
    ("postmanruntime/", 27),
    ("python-httpx/", 21),
    ("python-requests/", 21),
    ("python-urllib/", 21),
    ("python/", 21),
    ("qwencode/", 16),
    ("reqwest/", 25),
    ("roo-code/", 14),
    ("roocode/", 14),
    ("undici", 22),
    ("wget/", 20),
    ("zed/", 17),
];

/// Index of the first prefix of each letter, and the number of prefixes.
const STARTS: [u8; 27] = {
    let (mut starts, mut at) = ([BEGINNINGS.len() as u8; 27], BEGINNINGS.len());
    while at > 0 {
        at -= 1;
        let mut letter = 0;
        while letter <= (BEGINNINGS[at].0.as_bytes()[0] - b'a') as usize {
            starts[letter] = at as u8;
            letter += 1;
        }
    }
    starts
};

impl Client {
    /// A program that is not known.
    pub const OTHER: Client = Client(1);
    /// Codex.
    pub const CODEX: Client = Client(3);

    /// Class of the program that sends this `user-agent`.
    #[inline]
    pub fn of_agent(agent: &[u8]) -> Client {
        let Some(first) = agent.first() else { return Client::default() };
        let letter = usize::from((first | 0x20).wrapping_sub(b'a'));
        let Some([from, to]) = STARTS.get(letter..letter + 2) else { return Client::OTHER };
        let known = &BEGINNINGS[usize::from(*from)..usize::from(*to)];
        let fits = |begin: &str| agent.get(..begin.len()).is_some_and(|own| own.eq_ignore_ascii_case(begin.as_bytes()));
        known.iter().find(|(begin, _)| fits(begin)).map_or(Client::OTHER, |(_, class)| Client(*class))
    }

    /// Name in rows and reports; empty for none.
    #[inline]
    pub fn name(self) -> &'static str {
        CLASSES[usize::from(self.0)]
    }

    /// Reads [`Client::name`]. A class that only another version knows counts as [`Client::OTHER`].
    #[inline]
    pub fn from_name(name: &str) -> Client {
        let place = CLASSES.iter().position(|known| *known == name);
        place.map_or(Client::OTHER, |place| Client(place as u8))
    }

    /// True if there is no class.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.0 == 0
    }
}

impl Serialize for Client {
    #[inline]
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Client {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Client, D::Error> {
        Cow::<str>::deserialize(from).map(|name| Client::from_name(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_classified_by_their_user_agent() {
        for (agent, class) in [
            ("claude-cli/2.1.3 (external, cli)", "claude-code"),
            ("codex_cli_rs/0.104.0 (Debian 13.0.0; x86_64) xterm", "codex"),
            // Its own programs begin like this, too: `is_first_party_originator` in login/src/auth/default_client.rs.
            ("Codex Desktop/1.2026.300 (Mac OS 26.0.0; arm64)", "codex"),
            ("OpenAI/Python 2.8.1", "openai-python"),
            ("AsyncOpenAI/Python 2.8.1", "openai-python"),
            ("OpenAI/JS 6.9.0", "openai-node"),
            ("Anthropic/Python 0.74.0", "anthropic-python"),
            ("AsyncAnthropic/Python 0.74.0", "anthropic-python"),
            ("Anthropic/JS 0.70.0", "anthropic-node"),
            ("CURL/8.14.1", "curl"),
            ("ai-sdk/openai-compatible/1.0.27", "ai-sdk"),
            ("curl", "other"),
            ("", ""),
            ("\u{fc}\n", "other"),
            ("z", "other"),
            ("~", "other"),
        ] {
            assert_eq!(Client::of_agent(agent.as_bytes()).name(), class, "{agent}");
        }
    }

    #[test]
    fn classes_survive_a_round_trip_and_an_unknown_class_reads_as_other() {
        for (place, name) in CLASSES.iter().enumerate() {
            let class = Client(place as u8);
            let json = serde_json::to_string(&class).unwrap();
            assert_eq!((Client::from_name(name), json.as_str()), (class, &*format!("\"{name}\"")));
            assert_eq!(serde_json::from_str::<Client>(&json).unwrap(), class);
            assert!(place < 2 || BEGINNINGS.iter().any(|(_, known)| *known == class.0), "no prefix leads to {name}");
        }
        for (begin, class) in BEGINNINGS {
            assert_eq!(Client::of_agent(begin.as_bytes()), Client(class), "another prefix matches {begin} first");
            assert_eq!(*begin, begin.to_ascii_lowercase());
        }
        assert_eq!(Client::from_name("from-the-future"), Client::OTHER);
        assert!(Client::default().is_none() && !Client::OTHER.is_none());
    }
}
