//! Endpoints whose requests and answers are relayed unchanged, and the members of each that are read.
//!
//! Owns the table. Must never read a body itself: `request` checks the members, `rewrite` replaces the model, `relay`
//! reads the usage. Another such endpoint begins with an entry here and a variant of [`Passthrough`].

pub mod form;

use super::keys::K;
use super::request::Name;
use super::usage::{Reported, tokens};
use crate::wire::Passthrough;
use crate::wire::json::{Raw, eq_unescaped};

/// Expected type of a member.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Expected {
    /// A string.
    Text,
    /// A text, several texts, or their tokens.
    Texts,
    /// A text, or several texts or parts.
    Parts,
    /// An array that is not empty.
    List,
}

impl Expected {
    /// Returns the phrase for a refusal.
    pub(super) fn words(self) -> &'static str {
        match self {
            Expected::Text => "a string",
            Expected::Texts => "a string or a non-empty array of strings, of integers or of arrays of integers",
            Expected::Parts => "a string or a non-empty array",
            Expected::List => "a non-empty array",
        }
    }
}

/// The members of a pass-through endpoint.
pub(super) struct PassthroughFormat {
    /// Required members of a JSON request and their types. The prompt is estimated from them.
    pub(super) needed: &'static [(Name, Expected)],
    /// Other documented members apart from those and `model`. They are passed on unchanged.
    documented: &'static [&'static str],
    /// The list in its answer, under either of two names. Under the second it may be an object with a list for each
    /// type. [`K::Other`]: its answer has none, which only media may declare ([`Passthrough::is_media`]). Every other
    /// answer must have its list, and `K::Other` would accept any unknown array.
    pub(super) list: K,
    pub(super) other: Option<K>,
}

const EMBEDDINGS: PassthroughFormat = PassthroughFormat {
    needed: &[(Name::Input, Expected::Texts)],
    documented: &["dimensions", "embedding_types", "encoding_format", "input_type", "truncate", "user"],
    list: K::Data,
    other: Some(K::Embeddings),
};

const RERANK: PassthroughFormat = PassthroughFormat {
    needed: &[(Name::Query, Expected::Text), (Name::Documents, Expected::List)],
    documented: &["max_chunks_per_doc", "max_tokens_per_doc", "rank_fields", "return_documents", "top_n"],
    list: K::Results,
    other: None,
};

const COMPLETIONS: PassthroughFormat = PassthroughFormat {
    needed: &[(Name::Prompt, Expected::Texts)],
    documented: &[
        "best_of",
        "echo",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "n",
        "presence_penalty",
        "seed",
        "stop",
        "stream_options",
        "suffix",
        "temperature",
        "top_p",
        "user",
    ],
    list: K::Choices,
    other: None,
};

const SPEECH: PassthroughFormat = PassthroughFormat {
    needed: &[(Name::Input, Expected::Text)],
    documented: &["instructions", "response_format", "speed", "stream_format", "voice"],
    list: K::Other,
    other: None,
};

const IMAGES: PassthroughFormat = PassthroughFormat {
    needed: &[(Name::Prompt, Expected::Text)],
    documented: &[
        "background",
        "moderation",
        "n",
        "output_compression",
        "output_format",
        "partial_images",
        "quality",
        "response_format",
        "size",
        "style",
        "user",
    ],
    list: K::Data,
    other: None,
};

const TRANSCRIPTIONS: PassthroughFormat = PassthroughFormat {
    needed: &[],
    documented: &[
        "chunking_strategy",
        "file",
        "include",
        "known_speaker_names",
        "known_speaker_references",
        "language",
        "prompt",
        "response_format",
        "stream",
        "temperature",
        "timestamp_granularities",
    ],
    list: K::Other,
    other: None,
};

const TRANSLATIONS: PassthroughFormat = PassthroughFormat {
    needed: &[],
    documented: &["file", "prompt", "response_format", "temperature"],
    list: K::Other,
    other: None,
};

const IMAGE_EDITS: PassthroughFormat = PassthroughFormat {
    needed: &[],
    documented: &[
        "background",
        "image",
        "input_fidelity",
        "mask",
        "moderation",
        "n",
        "output_compression",
        "output_format",
        "partial_images",
        "prompt",
        "quality",
        "response_format",
        "size",
        "stream",
        "user",
    ],
    list: K::Data,
    other: None,
};

const MODERATIONS: PassthroughFormat =
    PassthroughFormat { needed: &[(Name::Input, Expected::Parts)], documented: &[], list: K::Results, other: None };

impl PassthroughFormat {
    /// Table entry of an endpoint.
    pub(super) fn of(passthrough: Passthrough) -> &'static PassthroughFormat {
        match passthrough {
            Passthrough::Embeddings => &EMBEDDINGS,
            Passthrough::Rerank => &RERANK,
            Passthrough::Completions => &COMPLETIONS,
            Passthrough::Speech => &SPEECH,
            Passthrough::Images => &IMAGES,
            Passthrough::Moderations => &MODERATIONS,
            Passthrough::Transcriptions => &TRANSCRIPTIONS,
            Passthrough::Translations => &TRANSLATIONS,
            Passthrough::ImageEdits => &IMAGE_EDITS,
        }
    }

    /// True if a member is documented; `raw`: the inside of its key.
    pub(super) fn documents(&self, raw: &[u8]) -> bool {
        self.documented.iter().any(|name| eq_unescaped(raw, name))
    }

    /// Usage that an answer reports: in its `usage`, read as a chat completion's (`usual`), otherwise in its `meta`. An
    /// endpoint that generates neither text nor media has no completion tokens.
    #[inline]
    pub(super) fn reported(of: Passthrough, mut usual: Reported, usage: Raw<'_>, meta: Raw<'_>) -> Reported {
        if of.generates() {
            return usual;
        }
        if of.is_media() {
            return usual.or_renamed(usage);
        }
        let count = |from: Raw<'_>, name| from.get(name).and_then(tokens);
        // Some servers report only the total.
        if usual.prompt().is_none_or(|prompt| prompt == 0) {
            let input = count(usage, "total_tokens").or(usual.input);
            usual = Reported { input, cost: usual.cost, ..Reported::default() };
        }
        for counts in ["tokens", "billed_units"] {
            if usual.input.is_none() {
                let counts = meta.get(counts).unwrap_or(Raw::NULL);
                usual.input = count(counts, "input_tokens");
                usual.output = count(counts, "output_tokens");
            }
        }
        usual.output = usual.input.map(|_| usual.output.unwrap_or(0));
        usual
    }
}
