//! Tests of the tokens that images and files count as, by media type, and of files by address.

use super::{of_parts, prompt};
use crate::dialect::tokens::{FILE_TOKENS_MAX, IMAGE_TOKENS};
use crate::wire::ModelEndpoint;

#[test]
fn images_and_files_are_cheap_in_parts_that_carry_them() {
    let (chat, messages, responses) = (ModelEndpoint::CHAT, ModelEndpoint::MESSAGES, ModelEndpoint::RESPONSES);
    let image = IMAGE_TOKENS..IMAGE_TOKENS + 60;
    let pdf = 5000..5060;
    for (shape, part, tokens) in [
        (chat, r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,DATA"}}"#, &image),
        (chat, r#"{"image_url":{"detail":"low","url":"data:image/png;base64,DATA"},"type":"image_url"}"#, &image),
        (chat, r#"{"type":"image_url","image_url":{"url":"https://h/a.png"}}"#, &image),
        (chat, r#"{"type":"image_url","image_url":"data:image\/png;base64,DATA"}"#, &image),
        (chat, r#"{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,DATA"}}"#, &pdf),
        (chat, r#"{"type":"input_audio","input_audio":{"data":"DATA","format":"wav"}}"#, &pdf),
        (messages, r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"DATA"}}"#, &image),
        (messages, r#"{"source":{"data":"DATA","media_type":"image/png","type":"base64"},"type":"image"}"#, &image),
        (messages, r#"{"type":"image","source":{"type":"url","url":"https://h/a.png"}}"#, &image),
        (messages, r#"{"type":"document","source":{"type":"base64","data":"DATA"}}"#, &pdf),
        (
            messages,
            r#"{"type":"tool_result","tool_use_id":"t","content":[{"source":{"data":"DATA","media_type":"IMAGE/webp","type":"base64"},"type":"image"}]}"#,
            &image,
        ),
        (
            responses,
            r#"{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,DATA"}]}"#,
            &image,
        ),
        (
            responses,
            r#"{"type":"function_call_output","call_id":"c","output":[{"type":"input_image","image_url":"data:image/png;base64,DATA"}]}"#,
            &image,
        ),
        // One token for eight bytes that only the provider can read, and for five bytes of text.
        (responses, r#"{"type":"reasoning","summary":[],"encrypted_content":"DATA"}"#, &(12_500..12_560)),
        (messages, r#"{"type":"redacted_thinking","data":"DATA"}"#, &(12_500..12_560)),
        (chat, r#"{"type":"file","file":{"file_data":"data:text/plain;base64,DATA"}}"#, &(20_000..20_060)),
        // An address counts at least as text.
        (chat, r#"{"type":"image_url","image_url":{"url":"http://DATA"}}"#, &(12_500..12_560)),
    ] {
        let got = prompt(shape, &of_parts(shape, &part.replace("DATA", &"A".repeat(100_000))));
        assert!(tokens.contains(&got), "{got}: {part}");
    }
}

/// A part in a request of this format: in a message of the user, and in the result of a tool.
fn places(shape: ModelEndpoint, part: &str) -> [String; 2] {
    match shape {
        ModelEndpoint::MESSAGES => {
            [part.to_owned(), format!(r#"{{"type":"tool_result","tool_use_id":"t","content":[{part}]}}"#)]
        }
        ModelEndpoint::RESPONSES => [
            format!(r#"{{"role":"user","content":[{part}]}}"#),
            format!(r#"{{"type":"function_call_output","call_id":"c","output":[{part}]}}"#),
        ],
        _ => [part.to_owned(), part.to_owned()],
    }
}

#[test]
fn data_counts_by_its_media_type_in_parts_of_images() {
    let files = ["application/pdf", "APPLICATION/PDF", "video/mp4", "", "image", " application/pdf", "x-image/png"];
    let texts = ["text/plain", "application/json", " text/html"];
    let kinds = files.into_iter().map(|kind| (kind, 25_000)).chain(texts.map(|kind| (kind, 100_000)));
    let data = "A".repeat(500_000);
    for (kind, least) in kinds.chain([("image/png", 1000)]) {
        for (shape, part) in [
            (ModelEndpoint::CHAT, r#"{"type":"image_url","image_url":{"url":"data:KIND;base64,FILL"}}"#),
            (ModelEndpoint::CHAT, r#"{"type":"image_url","image_url":"d\u0061ta:KIND;base64,FILL"}"#),
            (ModelEndpoint::CHAT, r#"{"image_url":"data:KIND;base64,FILL","type":"image_url"}"#),
            (
                ModelEndpoint::MESSAGES,
                r#"{"type":"image","source":{"type":"base64","media_type":"KIND","data":"FILL"}}"#,
            ),
            (
                ModelEndpoint::MESSAGES,
                r#"{"source":{"data":"FILL","type":"base64","media_type":"KIND"},"type":"image"}"#,
            ),
            (
                ModelEndpoint::MESSAGES,
                r#"{"type":"image","source":{"type":"base64","media_typ\u0065":"KIND","data":"FILL"}}"#,
            ),
            (ModelEndpoint::RESPONSES, r#"{"type":"input_image","image_url":"data:KIND;base64,FILL"}"#),
            (ModelEndpoint::RESPONSES, r#"{"type":"input_image","image_url":"DATA:KIND;base64,FILL"}"#),
        ] {
            let part = part.replace("KIND", kind).replace("FILL", &data);
            for item in places(shape, &part) {
                let tokens = prompt(shape, &of_parts(shape, &item));
                assert!((least..least + 200).contains(&tokens), "{tokens} of {least}: {}", &item[..120]);
            }
        }
    }
    // The more expensive of two types counts.
    for kinds in [["image/png", "application/pdf"], ["application/pdf", "image/png"]] {
        let source =
            format!(r#""media_type":"{}","media_type":"{}","data":"{}""#, kinds[0], kinds[1], "A".repeat(500_000));
        let part = format!(r#"{{"type":"image","source":{{"type":"base64",{source}}}}}"#);
        assert!(prompt(ModelEndpoint::MESSAGES, &of_parts(ModelEndpoint::MESSAGES, &part)) >= 25_000, "{kinds:?}");
    }
    let large =
        format!(r#"{{"type":"image_url","image_url":"data:application/pdf;base64,{}"}}"#, "A".repeat(21_000_000));
    let tokens = prompt(ModelEndpoint::CHAT, &of_parts(ModelEndpoint::CHAT, &large));
    assert!((FILE_TOKENS_MAX..FILE_TOKENS_MAX + 60).contains(&tokens), "{tokens}");
}

#[test]
fn files_by_address_count_as_largest_file() {
    let (chat, messages, responses) = (ModelEndpoint::CHAT, ModelEndpoint::MESSAGES, ModelEndpoint::RESPONSES);
    for (shape, part) in [
        (responses, r#"{"type":"input_file","file_url":"URL"}"#),
        (responses, r#"{"file_url":"URL","type":"input_file"}"#),
        (responses, r#"{"type":"input_file","file_url":"URL","file_data":""}"#),
        (responses, r#"{"type":"input_file","filename":"a.pdf","file_data":"URL"}"#),
        (responses, r#"{"type":"input_file","file_\u0075rl":"URL"}"#),
        (responses, r#"{"type":"input\u005ffile","file_url":"URL"}"#),
        (messages, r#"{"type":"document","source":{"type":"url","url":"URL"}}"#),
        (messages, r#"{"type":"document","source":{"type":"url","url":"URL","data":""}}"#),
        (messages, r#"{"type":"document","source":{"type":"url","url":"URL","encrypted_content":""}}"#),
        (messages, r#"{"type":"docum\u0065nt","source":{"type":"\u0075rl","\u0075rl":"URL"}}"#),
        (chat, r#"{"type":"file","file":{"file_url":"URL"}}"#),
        (chat, r#"{"type":"file","file":{"url":"URL"}}"#),
        (chat, r#"{"type":"file","file":{"filename":"a","file_data":"URL"}}"#),
        (chat, r#"{"type":"file_url","file_url":{"url":"URL"}}"#),
        (chat, r#"{"type":"document","source":{"type":"url","url":"URL"}}"#),
        (chat, r#"{"type":"document","document":{"url":"URL"}}"#),
        (chat, r#"{"type":"document_url","document_url":"URL"}"#),
        (chat, r#"{"type":"document_url","document_url":{"url":"URL"}}"#),
        (chat, r#"{"type":"video_url","video_url":"URL"}"#),
        (chat, r#"{"type":"video_url","video_url":{"url":"URL"}}"#),
        (chat, r#"{"type":"audio_url","audio_url":"URL"}"#),
        (chat, r#"{"type":"input_video","input_video":{"url":"URL"}}"#),
        (chat, r#"{"type":"input_video","video_url":"URL"}"#),
    ] {
        for url in
            ["https://h/a.pdf", "HTTPS://h/a.pdf", "ht\\u0074ps://h/a.pdf", " gs://h/a.pdf", "https:\\/\\/h\\/a.pdf"]
        {
            for item in places(shape, &part.replace("URL", url)) {
                let tokens = prompt(shape, &of_parts(shape, &item));
                assert!((FILE_TOKENS_MAX..FILE_TOKENS_MAX + 60).contains(&tokens), "{tokens}: {item}");
            }
        }
    }
    for (shape, part) in [
        (responses, r#"{"type":"input_image","image_url":"https://h/a.png"}"#),
        (messages, r#"{"type":"image","source":{"type":"url","url":"https://h/a.png"}}"#),
        (chat, r#"{"type":"image_url","image_url":"https://h/a.png"}"#),
    ] {
        for item in places(shape, part) {
            let tokens = prompt(shape, &of_parts(shape, &item));
            assert!((IMAGE_TOKENS..IMAGE_TOKENS + 60).contains(&tokens), "{tokens}: {item}");
        }
    }
    let found = r#"{"type":"web_search_result","url":"https://h/a","encrypted_content":"AAAA"}"#;
    let found = format!(r#"{{"type":"web_search_tool_result","tool_use_id":"t","content":[{found}]}}"#);
    assert!(prompt(messages, &of_parts(messages, &found)) < 100);
}
