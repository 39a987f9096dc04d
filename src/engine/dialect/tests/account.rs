//! Errors of providers about their account, or about a request that exceeds a rate limit alone, with the public source
//! of each, and errors that only quote such words.

use crate::dialect::{is_of_account, is_too_large, read_error};

/// Vendor and source, body.
const ACCOUNT: [(&str, &str); 17] = [
    (
        "Anthropic, theopenco/llmgateway#3297",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."},"request_id":"req_7"}"#,
    ),
    (
        "Anthropic, anthropics/claude-code#2127",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"You have reached your specified API usage limits. You will regain access on 2025-07-01 at 00:00 UTC."}}"#,
    ),
    (
        "Anthropic, anthropics/claude-code#8327",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"This organization has been disabled."}}"#,
    ),
    (
        "Gemini, continuedev/continue#10290",
        r#"[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID","domain":"googleapis.com"}]}}]"#,
    ),
    (
        "Gemini, continuedev/continue#11336",
        r#"{"error":{"code":400,"message":"API key expired. Please renew the API key.","status":"INVALID_ARGUMENT"}}"#,
    ),
    (
        "Gemini, google-gemini/gemini-cli#24641",
        r#"{"error":{"code":400,"message":"User location is not supported for the API use.","status":"FAILED_PRECONDITION"}}"#,
    ),
    (
        "OpenAI, bajrangCoder/acode-plugin-chatgpt#19",
        r#"{"error":{"code":"billing_hard_limit_reached","message":"Billing hard limit has been reached","param":null,"type":"invalid_request_error"}}"#,
    ),
    (
        "OpenAI, developers.openai.com/api/docs/guides/error-codes",
        r#"{"error":{"message":"Country, region, or territory not supported","type":"request_forbidden","param":null,"code":"unsupported_country_region_territory"}}"#,
    ),
    (
        "OpenAI, the same page",
        r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#,
    ),
    (
        "Groq, console.groq.com/docs/spend-limits",
        r#"{"error":{"message":"API access is blocked.","type":"invalid_request_error","code":"blocked_api_access"}}"#,
    ),
    (
        "Groq, huggingface.co/spaces/suhail1399/Load_Balancing_App/discussions/1",
        r#"{"error":{"message":"Organization has been restricted. Please reach out to support if you believe this was in error.","type":"invalid_request_error","code":"organization_restricted"}}"#,
    ),
    (
        "xAI, i-am-bee/beeai-framework#447",
        r#"{"code":"Client specified an invalid argument","error":"Incorrect API key provided: ba***na. You can obtain an API key from https://console.x.ai."}"#,
    ),
    (
        "Fireworks, pollinations/pollinations#12136",
        r#"{"error":{"message":"Account pollinations is suspended, possibly due to reaching the monthly spending limit or failure to pay past invoices.","param":null,"code":"PRECONDITION_FAILED","type":"error"}}"#,
    ),
    (
        "DeepSeek, continuedev/continue#11787",
        r#"{"error":{"message":"Insufficient Balance","type":"unknown_error","param":null,"code":"invalid_request_error"}}"#,
    ),
    (
        "Bedrock, anthropics/claude-code#2656",
        r#"{"message":"Access to Anthropic models is not allowed from unsupported countries, regions, or territories. Please refer to https://www.anthropic.com/supported-countries for more information."}"#,
    ),
    ("Bedrock, anthropics/claude-code#2260", r#"{"message":"The security token included in the request is invalid."}"#),
    (
        "OpenRouter with a provider's error",
        r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"Your credit balance is too low to access the Anthropic API.\"}}"}}}"#,
    ),
];

/// Errors about a request, which quote it.
const REQUEST: [&str; 8] = [
    r#"{"error":{"message":"Invalid value: 'Your credit balance is too low'","type":"invalid_request_error","param":"messages","code":"invalid_value"}}"#,
    r#"{"error":{"message":"Your credit balance is too low","type":"invalid_request_error","param":"messages[0].content","code":null}}"#,
    r#"{"error":{"message":"'insufficient_quota' is not one of ['auto', 'none']","type":"invalid_request_error","code":"invalid_value"}}"#,
    r#"{"error":{"message":"Unknown tool API_KEY_INVALID","type":"invalid_request_error"}}"#,
    r#"{"error":{"code":400,"message":"Invalid text: API key not valid","status":"INVALID_ARGUMENT","details":[{"@type":"x.BadRequest","fieldViolations":[{"reason":"API_KEY_INVALID"}]}]}}"#,
    r#"{"error":{"message":"Account of the weather in a long text is suspended","type":"invalid_request_error"}}"#,
    r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: text content blocks must be non-empty"}}"#,
    r#"{"error":{"message":"Your account has 3 tools","type":"invalid_request_error"}}"#,
];

#[test]
fn failures_of_the_account_are_found_in_the_words_of_every_vendor() {
    for (vendor, body) in ACCOUNT {
        let error = read_error(body.as_bytes()).unwrap();
        assert!(is_of_account(&error), "{vendor}: {error:?}");
        assert!(!is_too_large(&error), "{vendor}");
    }
}

#[test]
fn quoted_words_of_a_client_are_no_failure_of_the_account() {
    for body in REQUEST {
        let error = read_error(body.as_bytes()).unwrap();
        assert!(!is_of_account(&error), "{error:?}");
    }
}

#[test]
fn request_larger_than_a_rate_limit_is_told_from_an_exhausted_limit() {
    let is_large = |message: &str| {
        let body = format!(r#"{{"error":{{"message":"{message}","type":"tokens","code":"rate_limit_exceeded"}}}}"#);
        is_too_large(&read_error(body.as_bytes()).unwrap())
    };
    for message in [
        // DrShushen/climb#13
        "Request too large for gpt-4o in organization o on tokens per min (TPM): Limit 30000, Requested 30601. The input or output tokens must be reduced in order to run successfully.",
        // brianpetro/obsidian-smart-connections#867
        "Limit 20000, Requested 119668. The input or output tokens must be reduced in order to run successfully.",
        // anthropics/claude-code#29584, #64982
        "Extra usage is required for long context requests.",
        "Usage credits are required for long context requests.",
    ] {
        assert!(is_large(message), "{message}");
    }
    for message in [
        "Rate limit reached for gpt-4 on tokens per min. Limit: 10000, Used 9500, Requested 1000. Please try again in 3s.",
        // OpenHands/OpenHands#9259
        "This request would exceed the rate limit for your organization of 20,000 input tokens per minute. Please reduce the prompt length or the maximum tokens requested, or try again later.",
        "Too many tokens, please wait before trying again.",
    ] {
        assert!(!is_large(message), "{message}");
    }
}
