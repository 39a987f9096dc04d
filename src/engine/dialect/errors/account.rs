//! Errors about the provider's account, and rate-limit errors about one request: by their codes and by the first words
//! of their messages.
//!
//! Owns the words. A client cannot cause a code, which is compared as a whole. A message must begin with the words,
//! since most providers quote a request only later in a message. Some begin with a quotation, so a client can cause
//! words: two owners must meet them before a credential cools down for all. Called by the gateway only for errors. The
//! providers' errors with their sources are in `tests/account.rs`.

use super::ErrorText;

/// Codes, types and reasons of errors about the account: no credit, a hard limit, an invalid or expired key, an
/// unsupported region, a suspension.
const CODES: [&str; 31] = [
    "insufficient_quota",
    "credit_balance_exhausted",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "enforced_spend_limit_reached",
    "billing_hard_limit_reached",
    "billing_not_active",
    "billing_error",
    "account_deactivated",
    "invalid_api_key",
    "unsupported_country_region_territory",
    "organization_restricted",
    "blocked_api_access",
    "exceeded_current_quota_error",
    "Arrearage",
    "AccountOverdueError",
    "API_KEY_INVALID",
    "API_KEY_SERVICE_BLOCKED",
    "API_KEY_HTTP_REFERRER_BLOCKED",
    "API_KEY_IP_ADDRESS_BLOCKED",
    "ACCESS_TOKEN_EXPIRED",
    "CONSUMER_SUSPENDED",
    "CONSUMER_INVALID",
    "BILLING_DISABLED",
    "SERVICE_DISABLED",
    "ExpiredTokenException",
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "IncompleteSignatureException",
    "OptInRequired",
    "authentication_error",
];

/// First words of messages about the account. `*` is one word.
const BEGINNINGS: [&str; 18] = [
    "Your credit balance is too low",
    "You have reached your specified API usage limits",
    "This organization has been disabled",
    "Your organization has been disabled",
    "This account has been disabled",
    "API key not valid",
    "API key not found",
    "API key expired",
    "User location is not supported for the API use",
    "Incorrect API key provided",
    "Billing hard limit has been reached",
    "Insufficient balance",
    "Insufficient account balance",
    "Sorry, your account balance is insufficient",
    "Account * is suspended",
    "Your account * is suspended",
    "The security token included in the request is",
    "Access to Anthropic models is not allowed from unsupported countries",
];

/// First words of rate-limit errors about a request that would exceed the limit even alone.
const TOO_LARGE: [&str; 3] = [
    "Request too large for",
    "Extra usage is required for long context requests",
    "Usage credits are required for long context requests",
];
/// Later words of such a message.
const REDUCE: &str = "input or output tokens must be reduced";

/// True if the code of an error says that the provider's account is at fault, not the request.
pub fn has_account_code(error: &ErrorText) -> bool {
    error.code.iter().chain(&error.kind).any(|name| CODES.contains(&name.as_str()))
}

/// True if the code or the words of an error say that the provider's account is at fault.
pub fn is_of_account(error: &ErrorText) -> bool {
    has_account_code(error) || (error.param.is_none() && BEGINNINGS.iter().any(|words| begins(&error.message, words)))
}

/// True if a rate-limit error says that this request is too large for the limit.
pub fn is_too_large(error: &ErrorText) -> bool {
    TOO_LARGE.iter().any(|words| begins(&error.message, words)) || error.message.contains(REDUCE)
}

/// True if a message begins with these words, in upper or lower case.
fn begins(message: &str, words: &str) -> bool {
    let starts = |text: &str, words: &str| {
        text.get(..words.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(words)).then_some(words.len())
    };
    let Some((before, after)) = words.split_once('*') else { return starts(message, words).is_some() };
    let rest = starts(message, before).map_or("", |len| &message[len..]);
    rest.find(' ').is_some_and(|at| starts(&rest[at..], after).is_some())
}
