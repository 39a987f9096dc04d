//! Context overflow: the errors that providers return for a prompt longer than the model's context, and the messages by
//! which clients recognise it and compact the conversation.
//!
//! Owns the patterns and the texts. Must never mistake a refusal for a token rate for an overflow. Called by the
//! gateway only for errors. The providers' errors with their sources are in `tests/overflow.rs`.

use crate::dialect::errors::{ErrorText, OVERFLOW};
use crate::wire::Shape;

/// Codes and types of overflow errors.
const CODES: [&str; 2] = [OVERFLOW, "exceed_context_size_error"];
/// Type of the error for a body with too many bytes.
const TOO_LARGE: &str = "request_too_large";
/// Codes and types of rate-limit errors.
const RATES: [&str; 4] = ["rate_limit_exceeded", "rate_limit_error", "tokens", "requests"];
/// Phrases in errors about a rate, about one string, or about a policy.
const OTHERS: [&str; 6] =
    ["per minute", "rate limit", "too many requests", "string too long", "policy_blocked", "dlp_request_denied"];
/// Parts of the codes and types of errors about one value, a tool or a policy. Their messages may quote the request.
const SPECIFIC: [&str; 9] = [
    "invalid_value",
    "invalid_type",
    "invalid_function",
    "above_max",
    "below_min",
    "unsupported_",
    "missing_",
    "policy",
    "filter",
];
/// Occurrences of a phrase that are tried.
const TRIES: usize = 16;

/// Messages in lower case. `%n` matches the tokens of the prompt, `%m` the context, `%x` the completion tokens
/// requested, `%t` the sum of both, `%e` the tokens above the context, `%_` another number and `%*` any words. More
/// specific patterns come first.
const PATTERNS: [&str; 47] = [
    "maximum context length is %m tokens. however, you requested %_ tokens (%n in the messages, %x in the completion)",
    "maximum context length is %m tokens. however, you requested %t tokens (%_ in the messages, %_ in the functions, \
     and %x in the completion)",
    "maximum context length is %m tokens, however you requested %_ tokens (%n in your prompt; %x for the completion)",
    "maximum context length is %m tokens. however, you requested about %t tokens (%_ of text input, %x in the output)",
    "maximum context length is %m tokens. however, you requested about %t tokens (%_ of text input, %_ of tool input, \
     %x in the output)",
    "maximum context length is %m tokens. however, you requested about %n tokens",
    "maximum context length is %m tokens. however, your messages resulted in %n tokens",
    "maximum context length is %m tokens. however, your request has %n input tokens",
    "maximum context length is %m tokens. however, you requested %x output tokens and your prompt contains at least %n \
     input tokens",
    "maximum context length is %m tokens. however, you requested %n tokens",
    "is too large: %x. this model's maximum context length is %m tokens and your request has %n input tokens",
    "you passed %n input tokens and requested %x output tokens. however, the model's context length is only %m tokens",
    "you passed %_ input characters and requested %_ output tokens. however, the model's context length is only %m \
     tokens",
    "prompt (length %n) is longer than the maximum model length of %m",
    "maximum context length of %m tokens. you requested a total of %_ tokens: %n tokens from the input messages and %x \
     tokens for the completion",
    "the input (%n tokens) is longer than the model's context length (%m tokens)",
    "exceed the configured limit of %m tokens. your messages resulted in %n tokens",
    "prompt is too long: %n tokens > %m maximum",
    "max input tokens: %m, request input token count: %n",
    "tokens (prompt and prediction) cannot exceed %m - received %n",
    "must have less than %m tokens. given: %n",
    "exceed context limit: %n + %x > %m",
    "input token count (%n) exceeds the maximum number of tokens allowed (%m)",
    "input token count exceeds the maximum number of tokens allowed (%m)",
    "input token count exceeds the maximum number of tokens allowed %m",
    "input token count is %n but model only supports up to %m",
    "prompt contains %n tokens%*too large for model with %m maximum context length",
    "must be <= %m. given: %n `inputs` tokens and %x `max_new_tokens`",
    "request (%n tokens) exceeds the available context size (%m tokens)",
    "exceeded max context length by %e tokens",
    "(n_keep: %n>= n_ctx: %m)",
    "trying to keep the first %n tokens%*context length of only %m tokens",
    "maximum prompt length is %m but the request contains %n tokens",
    "prompt token count of %n exceeds the limit of %m",
    "exceeded model token limit: %m (requested: %n)",
    "range of input length should be [1, %m]",
    "maximum context length is %m tokens",
    "prompt is too long",
    "input is too long for requested model",
    "input exceeds the context window",
    "context window exceeds limit",
    "context length exceeded",
    "maximum context length",
    "exceeds the available context size",
    "prompt exceeds max length",
    "please reduce the length of the messages or completion",
    "the number of tokens to keep from the initial prompt is greater than the context length",
];

/// Numbers that a provider reports for a prompt longer than its model's context.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Overflow {
    prompt: Option<u64>,
    context: Option<u64>,
    /// Completion tokens requested.
    answer: Option<u64>,
    /// Tokens above the context.
    excess: Option<u64>,
    /// The provider counts bytes, not tokens.
    bytes: bool,
}

/// True if an error is a rate-limit error, whatever else it says.
pub fn is_rate(error: &ErrorText) -> bool {
    let names = || error.code.iter().chain(&error.kind);
    names().any(|name| RATES.contains(&name.as_str())) || has_any(&error.message.to_ascii_lowercase(), &OTHERS[..3])
}

fn has_any(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

impl Overflow {
    /// The overflow that a provider's error reports, if it is one.
    pub fn of(error: &ErrorText) -> Option<Overflow> {
        let names = || error.code.iter().chain(&error.kind).map(String::as_str);
        let message = error.message.to_ascii_lowercase();
        if is_rate(error) || has_any(&message, &OTHERS) || names().any(|name| has_any(name, &SPECIFIC)) {
            return None;
        }
        let own = own_words(&message);
        let found = PATTERNS.iter().find_map(|pattern| fit(pattern, &message, &own));
        let bytes = names().any(|name| name == TOO_LARGE);
        found.or_else(|| {
            (bytes || names().any(|name| CODES.contains(&name))).then_some(Overflow { bytes, ..Overflow::default() })
        })
    }

    /// The message by which clients of a format recognise the overflow. `estimate` and `context` replace numbers that
    /// the provider does not report; `own`: the provider's message.
    pub fn message(&self, to: Shape, estimate: u64, context: u64, own: Option<&str>) -> String {
        if let Some(own) = own.filter(|_| self.bytes) {
            return format!("{own} (prompt is too long: context length exceeded)");
        }
        let limit = self.context.unwrap_or(context);
        let prompt = self.prompt.or(self.excess.map(|excess| limit + excess)).unwrap_or(estimate);
        match (to, self.answer.filter(|_| prompt < limit)) {
            (Shape::Messages, Some(answer)) => format!(
                "input length and `max_tokens` exceed context limit: {prompt} + {answer} > {limit}, decrease input \
                 length or `max_tokens` and try again (context length exceeded)"
            ),
            (_, Some(answer)) => format!(
                "This model's maximum context length is {limit} tokens. However, you requested {} tokens ({prompt} in \
                 the messages, {answer} in the completion). Please reduce the length of the messages or completion.",
                prompt.saturating_add(answer)
            ),
            // An estimate may be too low, and clients shorten the conversation by the difference.
            (Shape::Messages, None) => {
                format!("prompt is too long: {} tokens > {limit} maximum", prompt.max(limit.saturating_add(1)))
            }
            (_, None) => format!(
                "This model's maximum context length is {limit} tokens. However, your messages resulted in {} tokens. \
                 Please reduce the length of the messages.",
                prompt.max(limit.saturating_add(1))
            ),
        }
    }
}

/// For each byte of a lower-case message: false if it is in quotation marks, since that is quoted from the request. The
/// `message` of an error that a gateway passes on is not.
fn own_words(text: &str) -> Vec<bool> {
    let wrapped = ["exception", "error\"", "error'", "error\\"].iter().filter_map(|word| text.find(word)).min();
    let is_passed_on = |before: &str| {
        let key = before.trim_end().strip_suffix(':').and_then(|key| key.trim_end().strip_suffix(['"', '\'']));
        let is_message = key.is_some_and(|key| key.trim_end_matches('\\').ends_with("message"));
        is_message && wrapped.is_some_and(|start| start < before.len())
    };
    let (bytes, mut quote, mut passed_on) = (text.as_bytes(), None, false);
    let is_word = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphanumeric);
    let own = bytes.iter().enumerate().map(|(at, byte)| {
        if quote == Some(*byte) && !is_word(at + 1) {
            quote = None;
        } else if quote.is_none() && matches!(byte, b'"' | b'\'' | b'`') && !is_word(at.wrapping_sub(1)) {
            quote = Some(*byte);
            passed_on = is_passed_on(text[..at].trim_end_matches('\\'));
        }
        quote.is_none() || passed_on
    });
    own.collect()
}

/// The numbers in a lower-case message that matches the pattern. `own`: the bytes at which the match may begin.
fn fit(pattern: &str, text: &str, own: &[bool]) -> Option<Overflow> {
    let (head, tail) = pattern.split_at(pattern.find('%').unwrap_or(pattern.len()));
    let mut starts = text.match_indices(head).filter(|(at, _)| own[*at]).take(TRIES);
    starts.find_map(|(at, _)| fit_numbers(tail, &text[at + head.len()..]))
}

/// The numbers in a text that begins like `pattern`.
fn fit_numbers(pattern: &str, mut rest: &str) -> Option<Overflow> {
    let (mut found, mut total) = (Overflow::default(), None::<u64>);
    for part in pattern.split('%').skip(1) {
        let (kind, literal) = part.split_at(1);
        if kind == "*" {
            rest = &rest[rest.find(literal)?..];
        } else {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let number: u64 = rest[..digits].parse().ok()?;
            rest = &rest[digits..];
            match kind {
                "n" => found.prompt = Some(number),
                "m" => found.context = Some(number),
                "x" => found.answer = Some(number),
                "e" => found.excess = Some(number),
                "t" => total = Some(number),
                _ => {}
            }
        }
        rest = rest.strip_prefix(literal)?;
    }
    found.prompt = found.prompt.or(total.map(|total| total.saturating_sub(found.answer.unwrap_or(0))));
    Some(found)
}
