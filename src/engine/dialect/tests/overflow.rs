//! Answers of providers to a prompt that is too long, with the public source of each, and the error that clients of
//! each format receive: it must match the patterns by which agents recognise that they have to compact.

use super::endings::run_stream;
use super::{ME, request_for};
use crate::dialect::answer::{Broken, StreamFault};
use crate::dialect::neutral::naming::TranslationState;
use crate::dialect::{Capabilities, ErrorWords, Overflow, error_body, is_rate, read_error, reply, whole};
use crate::wire::{ModelEndpoint, Shape};
use serde_json::Value;

/// The gateway's own estimate, and the configured context.
const ESTIMATE: u64 = 5000;
const CONTEXT: u64 = 4096;

/// Provider, source, body, and the numbers that a client receives: tokens of the prompt, of the context, and of the
/// completion if that does not fit.
type Row = (&'static str, &'static str, &'static str, (u64, u64, Option<u64>));

const ROWS: [Row; 48] = [
    (
        "OpenAI",
        "crewAIInc/crewAI-examples#121",
        r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 8227 tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        (8227, 8192, None),
    ),
    (
        "OpenAI, bound",
        "mckaywrigley/chatbot-ui#102",
        r#"{"error":{"message":"This model's maximum context length is 4097 tokens. However, you requested 4120 tokens (3120 in the messages, 1000 in the completion). Please reduce the length of the messages or completion.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        (3120, 4097, Some(1000)),
    ),
    (
        "OpenAI, GPT-5",
        "cline/cline#5474",
        r#"{"error":{"message":"Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 289650 tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        (289_650, 272_000, None),
    ),
    (
        "OpenAI, responses",
        "openai/codex#20866, dyad-sh/dyad#1672",
        r#"{"error":{"message":"Your input exceeds the context window of this model. Please adjust your input and try again.","type":"invalid_request_error","param":"input","code":"context_length_exceeded"}}"#,
        (5000, 4096, None),
    ),
    (
        "OpenAI, bound with tools",
        "portkey.ai/error-library/context-length-error-10502",
        r#"{"error":{"message":"This model's maximum context length is 4097 tokens. However, you requested 4927 tokens (3899 in the messages, 28 in the functions, and 1000 in the completion). Please reduce the length of the messages, functions, or completion.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        (3927, 4097, Some(1000)),
    ),
    (
        "OpenAI, bound of a prompt",
        "tatsu-lab/stanford_alpaca#47, OpenRouterTeam/openrouter-examples#10",
        r#"{"error":{"message":"This model's maximum context length is 8192 tokens, however you requested 8977 tokens (7977 in your prompt; 1000 for the completion). Please reduce your prompt; or completion length.","type":"invalid_request_error","param":null,"code":null}}"#,
        (7977, 8192, Some(1000)),
    ),
    (
        "Azure",
        "Azure/azure-sdk-for-net#41892",
        r#"{"error":{"message":"This model's maximum context length is 32768 tokens. However, you requested 35969 tokens (9969 in the messages, 26000 in the completion). Please reduce the length of the messages or completion.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        (9969, 32_768, Some(26_000)),
    ),
    (
        "Anthropic",
        "boldsoftware/exe.dev#62",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 200251 tokens > 200000 maximum"}}"#,
        (200_251, 200_000, None),
    ),
    (
        "Anthropic, bound",
        "anthropics/claude-code#408",
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 189136 + 20000 > 204648, decrease input length or `max_tokens` and try again"}}"#,
        (189_136, 204_648, Some(20_000)),
    ),
    (
        "Gemini",
        "google-gemini/gemini-cli#6678",
        r#"{"error":{"code":400,"message":"The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}"#,
        (1_200_293, 1_048_576, None),
    ),
    (
        "Gemini, array",
        "Gitlawb/openclaude#583 for the array",
        r#"[{"error":{"code":400,"message":"The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]"#,
        (1_200_293, 1_048_576, None),
    ),
    (
        "Gemini, no number of the prompt",
        "google-gemini/gemini-cli#22609",
        r#"[{"error":{"code":400,"message":"The input token count exceeds the maximum number of tokens allowed 1048576.","status":"INVALID_ARGUMENT"}}]"#,
        (1_048_577, 1_048_576, None),
    ),
    (
        "Gemini, limit in brackets",
        "arkavo-org/arkavo-edge#371",
        r#"{"error":{"code":400,"message":"The input token count exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}"#,
        (1_048_577, 1_048_576, None),
    ),
    (
        "Vertex",
        "google-gemini/gemini-cli#19727",
        r#"{"error":{"code":400,"message":"Unable to submit request because the input token count is 1251952 but model only supports up to 1048576. Reduce the input token count and try again. You can also use the CountTokens API to calculate prompt token count and billable characters.","status":"INVALID_ARGUMENT"}}"#,
        (1_251_952, 1_048_576, None),
    ),
    (
        "Mistral",
        "discuss.google.dev 165446",
        r#"{"object":"error","message":"Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum context length","type":"invalid_request_error","param":null,"code":"3051"}"#,
        (65_673, 32_768, None),
    ),
    (
        "Mistral, numeric code",
        "unconfirmed",
        r#"{"object":"error","message":"Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum context length","type":"invalid_request_error","code":3051}"#,
        (65_673, 32_768, None),
    ),
    (
        "Mistral, no code",
        "unconfirmed",
        r#"{"object":"error","message":"Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum context length","type":"invalid_request_error","code":null}"#,
        (65_673, 32_768, None),
    ),
    (
        "DeepSeek",
        "evalstate/fast-agent#621",
        r#"{"error":{"message":"This model's maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in the messages, 8192 in the completion). Please reduce the length of the messages or completion.","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}"#,
        (122_942, 131_072, Some(8192)),
    ),
    (
        "OpenRouter",
        "refly-ai/refly#1177",
        r#"{"error":{"message":"This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 tokens (42832 of text input). Please reduce the length of either one, or use the \"middle-out\" transform to compress your prompt automatically.","code":400,"metadata":{"provider_name":null}}}"#,
        (42_832, 32_768, None),
    ),
    (
        "OpenRouter, bound",
        "doctorcmptrmita2/AliteLLMFreeTest LOG_ANALYSIS_CLAUDE_SONNET.md",
        r#"{"error":{"message":"This endpoint's maximum context length is 1000000 tokens. However, you requested about 1007978 tokens (4502 of text input, 3476 of tool input, 1000000 in the output). Please reduce the length of either one.","code":400}}"#,
        (7978, 1_000_000, Some(1_000_000)),
    ),
    (
        "OpenRouter, error of its provider",
        "openrouter.ai/docs/api/reference/errors-and-debugging (metadata.raw)",
        r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 200251 tokens > 200000 maximum\"}}","provider_name":"Anthropic"}}}"#,
        (200_251, 200_000, None),
    ),
    (
        "OpenRouter, text of its provider",
        "open-webui/computer#293 (429), NousResearch/hermes-agent#94199",
        r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"prompt is too long: 200251 tokens > 200000 maximum","provider_name":"Anthropic"}}}"#,
        (200_251, 200_000, None),
    ),
    (
        "OpenRouter, error of its provider as an object",
        "unconfirmed",
        r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":{"error":{"message":"prompt is too long: 200251 tokens > 200000 maximum"}}}}}"#,
        (200_251, 200_000, None),
    ),
    (
        "Bedrock",
        "aws-samples/bedrock-chat#95",
        r#"{"message":"Input is too long for requested model."}"#,
        (5000, 4096, None),
    ),
    (
        "Bedrock, Claude",
        "moca#254",
        r#"{"message":"The model returned the following errors: prompt is too long: 200049 tokens > 200000 maximum"}"#,
        (200_049, 200_000, None),
    ),
    (
        "vLLM, older",
        "vllm-project/vllm#20409",
        r#"{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5120 tokens (4100 in the messages, 1020 in the completion). Please reduce the length of the messages or completion.","type":"BadRequestError","param":null,"code":400}"#,
        (4100, 4096, None),
    ),
    (
        "vLLM",
        "vllm-project/vllm renderers/params.py 017638d",
        r#"{"error":{"message":"'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum context length is 4096 tokens and your request has 2778 input tokens (8000 > 4096 - 2778).","type":"BadRequestError","param":"max_tokens","code":400}}"#,
        (2778, 4096, Some(8000)),
    ),
    (
        "vLLM, newer",
        "vllm-project/vllm renderers/params.py 017638d",
        r#"{"error":{"message":"You passed 3097 input tokens and requested 1000 output tokens. However, the model's context length is only 4096 tokens, resulting in a maximum input length of 3096 tokens. Please reduce the length of the input messages.","type":"BadRequestError","code":400}}"#,
        (3097, 4096, Some(1000)),
    ),
    (
        "vLLM, characters",
        "higress-group/hiclaw#346",
        r#"{"error":{"message":"You passed 74655 input characters and requested 1000 output tokens. However, the model's context length is only 4096 tokens, resulting in a maximum input length of 3096 tokens (at most 12384 characters). Please reduce the length of the input prompt. (parameter=input_text, value=74655)","type":"BadRequestError","param":"input_text","code":400}}"#,
        (5000, 4096, None),
    ),
    (
        "vLLM, prompt of the decoder",
        "unslothai/unsloth#2666, langchain-ai/deepagents#468",
        r#"{"detail":"[address=0.0.0.0:43769, pid=1065] The decoder prompt (length 66501) is longer than the maximum model length of 65536. Make sure that `max_model_len` is no smaller than the number of text tokens."}"#,
        (66_501, 65_536, None),
    ),
    (
        "vLLM, prompt without a bound",
        "whois-api-llc/web-categorization-v2 docs/FIX_1536_TOKEN_LIMIT.md",
        r#"{"object":"error","message":"This model's maximum context length is 64000 tokens. However, your request has 70400 input tokens. Please reduce the length of the input messages.","type":"BadRequestError","param":null,"code":400}"#,
        (70_400, 64_000, None),
    ),
    (
        "vLLM, output and input",
        "AIDotNet/OpenCowork#82",
        r#"{"error":{"message":"This model's maximum context length is 131072 tokens. However, you requested 102400 output tokens and your prompt contains at least 28673 input tokens, for a total of at least 131073 tokens. Please reduce the length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=28673)","type":"BadRequestError","param":"input_tokens","code":400}}"#,
        (28_673, 131_072, Some(102_400)),
    ),
    (
        "TGI, prompt alone",
        "huggingface/text-generation-inference#695",
        r#"{"error":"Input validation error: `inputs` must have less than 1024 tokens. Given: 1168","error_type":"validation"}"#,
        (1168, 1024, None),
    ),
    (
        "Cohere",
        "cohere-ai/sandbox-topically#4",
        r#"{"message":"too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048 - received 6354. Try using a shorter prompt or a smaller max_tokens value."}"#,
        (6354, 2048, None),
    ),
    (
        "Bedrock, Titan",
        "pkdone/paul-genai-test-tools-ts bedrock-error-patterns.ts",
        r#"{"message":"400 Bad Request: Too many input tokens. Max input tokens: 8192, request input token count: 9279 "}"#,
        (9279, 8192, None),
    ),
    (
        "SGLang, bound",
        "sgl-project/sglang tokenizer_manager.py",
        r#"{"object":"error","message":"Requested token count exceeds the model's maximum context length of 131072 tokens. You requested a total of 133526 tokens: 2454 tokens from the input messages and 131072 tokens for the completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit.","type":"BadRequestError","code":400}"#,
        (2454, 131_072, Some(131_072)),
    ),
    (
        "SGLang",
        "sgl-project/sglang tokenizer_manager.py",
        r#"{"object":"error","message":"The input (140000 tokens) is longer than the model's context length (131072 tokens).","type":"BadRequestError","code":400}"#,
        (140_000, 131_072, None),
    ),
    (
        "TGI",
        "huggingface/chat-ui#1149",
        r#"{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. Given: 6204 `inputs` tokens and 2047 `max_new_tokens`","error_type":"validation"}"#,
        (6204, 8192, Some(2047)),
    ),
    (
        "llama.cpp",
        "ggml-org/llama.cpp#15780",
        r#"{"error":{"code":400,"message":"request (13392 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":13392,"n_ctx":8192}}"#,
        (13_392, 8192, None),
    ),
    (
        "llama.cpp, first builds",
        "ggml-org/llama.cpp#15780",
        r#"{"error":{"code":500,"message":"the request exceeds the available context size. try increasing the context size or enable context shift","type":"exceed_context_size_error","n_prompt_tokens":13392,"n_ctx":8192}}"#,
        (13_392, 8192, None),
    ),
    (
        "Ollama",
        "ollama/ollama#17944",
        r#"{"error":"prompt too long; exceeded max context length by 4 tokens"}"#,
        (4100, 4096, None),
    ),
    (
        "Ollama, llama.cpp template",
        "ollama/ollama#16800",
        r#"{"error":"{\"error\":{\"code\":400,\"message\":\"request (351 tokens) exceeds the available context size (256 tokens), try increasing it\",\"type\":\"exceed_context_size_error\",\"n_prompt_tokens\":351,\"n_ctx\":256}}"}"#,
        (351, 256, None),
    ),
    (
        "LM Studio",
        "lmstudio-ai/lmstudio-bug-tracker#546",
        r#"{"error":"The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 4166>= n_ctx: 4096). Try to load the model with a larger context length, or provide a shorter input."}"#,
        (4166, 4096, None),
    ),
    (
        "LM Studio, older",
        "lmstudio-ai/lmstudio-bug-tracker#546",
        r#"{"error":"Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with context length of only 32768 tokens, which is not enough."}"#,
        (111_490, 32_768, None),
    ),
    (
        "Groq",
        "earendil-works/pi utils/overflow.ts; code unconfirmed",
        r#"{"error":{"message":"Please reduce the length of the messages or completion.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        (5000, 4096, None),
    ),
    (
        "xAI",
        "cline/cline#3120",
        r#"{"code":"Client specified an invalid argument","error":"This model's maximum prompt length is 131072 but the request contains 136973 tokens."}"#,
        (136_973, 131_072, None),
    ),
    (
        "Kimi",
        "earendil-works/pi utils/overflow.ts",
        r#"{"error":{"message":"Invalid request: Your request exceeded model token limit: 262144 (requested: 263000)","type":"invalid_request_error"}}"#,
        (263_000, 262_144, None),
    ),
    (
        "MiniMax",
        "earendil-works/pi utils/overflow.ts",
        r#"{"error":{"type":"invalid_request_error","message":"invalid params, context window exceeds limit (2013)"}}"#,
        (5000, 4096, None),
    ),
];

/// Errors that are not overflows, with the sources.
const OTHERS: [(&str, bool, &str); 14] = [
    (
        "continuedev/continue#10218: Groq, 413",
        true,
        r#"{"error":{"message":"Request too large for model `llama-3.3-70b-versatile` in organization `org` service tier `on_demand` on tokens per minute (TPM): Limit 12000, Requested 14137, please reduce your message size and try again.","type":"tokens","code":"rate_limit_exceeded"}}"#,
    ),
    (
        "OpenAI, 429",
        true,
        r#"{"error":{"message":"Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 36000. The input or output tokens must be reduced in order to run successfully. This model's maximum context length is 128000 tokens.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
    ),
    (
        "a long string",
        false,
        r#"{"error":{"message":"Invalid 'messages[3].content': string too long. Expected a string with maximum length 10485760, but got a string with length 10540016 instead.","type":"invalid_request_error","param":"messages[3].content","code":"string_above_max_length"}}"#,
    ),
    (
        "a user's words",
        false,
        r#"{"error":{"message":"Invalid value: \"prompt is too long\". Supported values are: \"auto\" and \"none\".","type":"invalid_request_error","param":"tool_choice","code":"invalid_value"}}"#,
    ),
    (
        "a bound above the model's",
        false,
        r#"{"error":{"message":"max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided 100000.","type":"invalid_request_error","param":"max_tokens","code":"invalid_value"}}"#,
    ),
    ("no words", false, r#"{"error":{"message":"","type":"invalid_request_error"}}"#),
    // Errors that quote a request; the forms are OpenAI's and Anthropic's.
    (
        "quoted arguments",
        false,
        r#"{"error":{"message":"Could not parse tool arguments: {\"error\":\"prompt is too long: 200251 tokens > 200000 maximum\"}","type":"invalid_request_error","code":null}}"#,
    ),
    (
        "a quoted tool name",
        false,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$' (input: 'prompt is too long: 9 tokens > 3 maximum')"}}"#,
    ),
    (
        "a quoted schema",
        false,
        r#"{"error":{"message":"Invalid schema for function 'f': 'This model's maximum context length is 8192 tokens' is not of type 'object'","type":"invalid_request_error","code":null}}"#,
    ),
    (
        "code of a value",
        false,
        r#"{"error":{"message":"Invalid value: prompt is too long: 5 tokens > 3 maximum. Supported values are: 'a', 'b'.","type":"invalid_request_error","param":"messages[0].content","code":"invalid_value"}}"#,
    ),
    (
        "code of a tool",
        false,
        r#"{"error":{"message":"Invalid schema for function f: This model's maximum context length is 8192 tokens","type":"invalid_request_error","param":"tools[0].function.parameters","code":"invalid_function_parameters"}}"#,
    ),
    (
        "code of one string",
        false,
        r#"{"error":{"message":"The image prompt is too long. Max 4000 characters.","type":"invalid_request_error","code":"string_above_max_length","param":"prompt"}}"#,
    ),
    // @anthropic-ai/claude-code 2.1.331 does not compact after these two words.
    ("a policy", false, r#"{"error":{"message":"prompt is too long for policy","type":"policy_blocked"}}"#),
    ("a policy's name", false, r#"{"error":{"message":"dlp_request_denied: prompt is too long","code":"400"}}"#),
];

/// Overflows that a gateway passes on inside its own message.
const WRAPPED: [(&str, &str); 3] = [
    (
        "BerriAI/litellm#6975",
        r#"{"error":{"message":"litellm.BadRequestError: litellm.ContextWindowExceededError: AnthropicError - {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 209303 tokens > 200000 maximum\"}}\nReceived Model Group=claude","type":null,"param":null,"code":"400"}}"#,
    ),
    (
        "BerriAI/litellm#6975, as Python writes it",
        r#"{"error":{"message":"OpenAIException - Error code: 400 - {'error': {'message': \"This model's maximum context length is 200000 tokens. However, your messages resulted in 209303 tokens.\", 'type': None}}","code":"400"}}"#,
    ),
    (
        "google-gemini/gemini-cli#4231",
        r#"{"error":{"message":"{\n  \"error\": {\n    \"code\": 400,\n    \"message\": \"The input token count (209303) exceeds the maximum number of tokens allowed (200000).\",\n    \"status\": \"INVALID_ARGUMENT\"\n  }\n}\n","code":400,"status":"Bad Request"}}"#,
    ),
];

fn overflow(body: &str) -> Option<Overflow> {
    Overflow::of(&read_error(body.as_bytes()).unwrap())
}

/// Message and error body for a client of this format.
fn translated(to: Shape, body: &str) -> (String, String) {
    let text = read_error(body.as_bytes()).unwrap();
    let message = Overflow::of(&text).unwrap().message(to, ESTIMATE, CONTEXT, Some(&text.message));
    let words = ErrorWords {
        kind: "invalid_request_error",
        status: 400,
        word: "context_length_exceeded",
        message: &message,
        details: None,
        resets_at: None,
        request_id: "req_1",
    };
    let mut out = Vec::new();
    error_body(Some(ModelEndpoint::generate(to)), &words, &mut out);
    (message.clone(), String::from_utf8(out).unwrap())
}

const FORMATS: [Shape; 3] = [Shape::Chat, Shape::Messages, Shape::Responses];

#[test]
fn overflows_of_all_providers_are_reported_with_their_numbers() {
    for (provider, source, body, (prompt, context, answer)) in ROWS {
        for to in FORMATS {
            let want = match (to, answer) {
                (Shape::Messages, None) => format!("prompt is too long: {prompt} tokens > {context} maximum"),
                (Shape::Messages, Some(answer)) => format!(
                    "input length and `max_tokens` exceed context limit: {prompt} + {answer} > {context}, decrease \
                     input length or `max_tokens` and try again (context length exceeded)"
                ),
                (_, None) => format!(
                    "This model's maximum context length is {context} tokens. However, your messages resulted in \
                     {prompt} tokens. Please reduce the length of the messages."
                ),
                (_, Some(answer)) => format!(
                    "This model's maximum context length is {context} tokens. However, you requested {} tokens \
                     ({prompt} in the messages, {answer} in the completion). Please reduce the length of the messages \
                     or completion.",
                    prompt + answer
                ),
            };
            assert!(overflow(body).is_some(), "{provider} ({source})");
            assert_eq!(translated(to, body).0, want, "{provider} ({source}) to {to:?}");
        }
    }
}

#[test]
fn error_in_an_array_is_read_with_status_200_and_in_a_stream() {
    // Gitlawb/openclaude#583: Google's OpenAI-compatible endpoint wraps the object in an array.
    let (.., array, _) = ROWS.iter().find(|(provider, ..)| *provider == "Gemini, array").unwrap();
    let want = read_error(array.as_bytes()).unwrap();
    for (from, to) in FORMATS.iter().flat_map(|from| FORMATS.iter().map(move |to| (*from, *to))) {
        let (state, mut out) = (TranslationState::default(), Vec::new());
        let read = match from == to {
            true => whole(ModelEndpoint::generate(from), array.as_bytes(), &ME, &mut out),
            false => reply((from, to), array.as_bytes(), &state, &ME, &mut out),
        };
        assert_eq!(read, Err(Broken::Error(want.clone())), "{from:?} to {to:?}");
        let events = format!("data: {array}\n\ndata: [DONE]\n\n");
        let read = run_stream((from, to), &state, &events).result;
        assert_eq!(read, Err(StreamFault::Error(want.clone())), "{from:?} to {to:?}");
        let other = run_stream((from, to), &state, "data: [{\"choices\":[]}]\n\n").result;
        assert_eq!(other, Err(StreamFault::Malformed), "{from:?} to {to:?}");
    }
}

#[test]
fn body_with_too_many_bytes_keeps_its_message() {
    // earendil-works/pi utils/overflow.ts: Anthropic, 413.
    let body = r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#;
    for to in FORMATS {
        let want = "Request exceeds the maximum size (prompt is too long: context length exceeded)";
        assert_eq!(translated(to, body).0, want);
    }
}

#[test]
fn rate_limits_and_other_errors_are_not_overflows() {
    for (what, rate, body) in OTHERS {
        assert_eq!((overflow(body), is_rate(&read_error(body.as_bytes()).unwrap())), (None, rate), "{what}");
    }
}

#[test]
fn error_inside_a_gateways_message_is_an_overflow() {
    for (source, body) in WRAPPED {
        assert!(overflow(body).is_some(), "{source}");
        assert_eq!(
            translated(Shape::Messages, body).0,
            "prompt is too long: 209303 tokens > 200000 maximum",
            "{source}"
        );
    }
}

#[test]
fn quotation_before_the_providers_own_words_is_skipped() {
    let body = r#"{"error":{"message":"Model 'prompt is too long: 5 tokens > 3 maximum': prompt is too long: 9 tokens > 7 maximum"}}"#;
    assert_eq!(translated(Shape::Messages, body).0, "prompt is too long: 9 tokens > 7 maximum");
}

#[test]
fn members_of_llama_cpp_are_enough_for_its_numbers() {
    let body = r#"{"error":{"code":400,"message":"","n_prompt_tokens":13392,"n_ctx":8192}}"#;
    assert_eq!(translated(Shape::Messages, body).0, "prompt is too long: 13392 tokens > 8192 maximum");
}

#[test]
fn estimate_below_the_context_is_reported_above_it() {
    let text = read_error(br#"{"message":"Input is too long for requested model."}"#).unwrap();
    let message = Overflow::of(&text).unwrap().message(Shape::Messages, 10, CONTEXT, None);
    assert_eq!(message, "prompt is too long: 4097 tokens > 4096 maximum");
}

#[test]
fn full_context_with_status_200_is_an_end_not_an_overflow() {
    // Anthropic's newer models: `model_context_window_exceeded` in the schema of `llm-comply`.
    let answer = br#"{"id":"msg_1","type":"message","role":"assistant","model":"up","content":[{"type":"text","text":"Hi"}],
        "stop_reason":"model_context_window_exceeded","stop_sequence":null,"usage":{"input_tokens":9,"output_tokens":3}}"#;
    for (to, body, member, word) in [
        (
            Shape::Chat,
            r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#,
            "/choices/0/finish_reason",
            "length",
        ),
        (Shape::Responses, r#"{"model":"m","input":"a"}"#, "/status", "incomplete"),
    ] {
        let (_, state) = request_for((to, Shape::Messages), body, "up", &Capabilities::default()).unwrap();
        let mut out = Vec::new();
        reply((Shape::Messages, to), answer, &state, &ME, &mut out).unwrap();
        let written: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(written.pointer(member).unwrap(), word, "{written}");
    }
}

/// True if `text` has a word of `words` after `context`, as `/\bcontext\s*(length|window|limit)\b/i` finds it.
fn names_context(text: &str) -> bool {
    ["context length", "context window", "context limit"].iter().any(|words| text.contains(words))
}

/// True if all digits after `lead` are followed by `tail`: `/lead(\d+)tail/`.
fn number_between(text: &str, lead: &str, tail: &str) -> bool {
    let Some((_, rest)) = text.split_once(lead) else { return false };
    let behind = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    behind.len() < rest.len() && behind.starts_with(tail)
}

/// `/prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)/i`: tells Claude Code how much to cut.
fn tells_how_much(text: &str) -> bool {
    number_between(text, "prompt is too long: ", " tokens > ")
}

#[test]
fn every_clients_pattern_matches_the_answer() {
    for (provider, _, body, (.., answer)) in ROWS {
        for to in FORMATS {
            let (message, whole) = translated(to, body);
            let (text, error) = (message.to_ascii_lowercase(), serde_json::from_str::<Value>(&whole).unwrap());
            let has = |words: &str| text.contains(words);
            let coded = error["error"]["code"] == "context_length_exceeded";
            assert_eq!(coded, to != Shape::Messages, "{whole}");
            assert_eq!(error["error"]["type"], "invalid_request_error");
            if to != Shape::Messages {
                let param = if to == Shape::Chat { "messages" } else { "input" };
                assert_eq!(error["error"]["param"], param, "{whole}");
            }
            let long = has("prompt is too long");
            let bound = number_between(&text, "input length and `max_tokens` exceed context limit: ", " + ");
            let matches = [
                // @anthropic-ai/claude-code 2.1.331.
                ("Claude Code", long || has("maximum context length") || (bound && answer.is_some())),
                // openai/codex: only the string code.
                ("Codex", coded || to != Shape::Responses),
                // opencode-ai 1.18.33 and @kilocode/cli 7.7.9, `ProviderError.OVERFLOW_PATTERNS`.
                ("opencode, Kilo", coded || long || has("context length exceeded")),
                (
                    "opencode by text",
                    to == Shape::Messages || number_between(&text, "maximum context length is ", " tokens"),
                ),
                // cline/cline and RooCodeInc/Roo-Code `context-error-handling.ts`.
                ("Cline, Roo", long || names_context(&text)),
                // BerriAI/litellm `is_error_str_context_window_exceeded`, used by aider.
                ("aider", long || has("this model's maximum context length is") || has("exceed context limit")),
                // block/goose `openai_compatible.rs`.
                ("goose", has("too long") || has("context length") || has("exceed")),
                // All-Hands-AI/agent-sdk `tests/sdk/llm/test_context_window_detection.py`.
                ("OpenHands", long || has("please reduce the length of") || bound),
                // earendil-works/pi `utils/overflow.ts`, also OpenClaw.
                ("pi, OpenClaw", long || has("reduce the length of the messages") || has("context length exceeded")),
            ];
            for (client, matches) in matches {
                assert!(matches, "{client} does not know {provider} to {to:?}: {whole}");
            }
            if to == Shape::Messages && answer.is_none() {
                assert!(tells_how_much(&text), "{message}");
            }
            for forbidden in [
                "rate limit",
                "too many requests",
                "per minute",
                "policy_blocked",
                "dlp_request_denied",
                "string too long",
            ] {
                assert!(!has(forbidden), "{provider}: {message}");
            }
        }
    }
}
