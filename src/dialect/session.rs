//! Which conversation a request goes on with, by its body (contract sections 10 and 11): what names it, or else how it
//! began. Pure. Must never copy the body; called by the gateway where a model has several targets to choose from.

use super::request::{Fields, Name};
use crate::base::hash::{mix, mix_bytes};
use crate::wire::Dialect;
use crate::wire::json::Raw;

/// Bytes at either end of a long text that are looked at.
const END: usize = 256;
/// Blocks of one message, and messages before the first one of a user's, that are looked at.
const ITEMS_MAX: usize = 16;
/// What stands before the session in the longer form of a user id.
const SESSION_MARK: &[u8] = b"_session_";

/// A number for the conversation, the same for each of its turns.
pub fn conversation(shape: Dialect, body: &[u8], fields: &Fields) -> u64 {
    let member = |wanted: Name| {
        let found = fields.members.iter().find(|member| member.name == wanted);
        found.map_or(Raw::NULL, |member| Raw::new(member.value.of(body)))
    };
    if let Some(key) = member(Name::PromptCacheKey).string().filter(|key| !key.is_empty()) {
        return mix_bytes(1, key);
    }
    if let Some(session) = member(Name::Metadata).get("user_id").and_then(Raw::string).and_then(session_of) {
        return session;
    }
    let (system, talk) = match shape {
        Dialect::Chat => (Raw::NULL, member(Name::Messages)),
        Dialect::Messages => (member(Name::System), member(Name::Messages)),
        Dialect::Responses => (member(Name::Instructions), member(Name::Input)),
    };
    let mut begun = texts(3, system);
    // The input of a response may be a text by itself.
    if talk.string().is_some() {
        return texts(begun, talk);
    }
    // Mostly the scan has seen where those texts lie.
    if let Some(opening) = fields.opening.texts() {
        return opening.iter().fold(begun, |sum, text| ends(sum, text.of(body)));
    }
    let mut messages = talk.items();
    for _ in 0..ITEMS_MAX {
        let Some((_, [content, role])) = messages.pick(["content", "role"]) else { break };
        begun = texts(begun, content.unwrap_or(Raw::NULL));
        if role.is_some_and(|role| role.is("user")) {
            break;
        }
    }
    begun
}

/// The session in a user id of Claude Code's: JSON, or `user_…_account_…_session_…`.
fn session_of(user: &[u8]) -> Option<u64> {
    if let Some(at) = user.windows(SESSION_MARK.len()).position(|window| window == SESSION_MARK) {
        let session = &user[at + SESSION_MARK.len()..];
        return (!session.is_empty()).then(|| mix_bytes(2, session));
    }
    let text = Raw::text_of(user);
    let value = serde_json::from_str::<serde_json::Value>(&text).ok()?;
    let session = value.get("session_id")?.as_str()?;
    (!session.is_empty()).then(|| mix_bytes(2, session.as_bytes()))
}

/// Mixes a content's text: a string, or the text of its blocks. What stands beside that may change from turn to turn.
fn texts(so_far: u64, content: Raw<'_>) -> u64 {
    match content.string() {
        Some(text) => ends(so_far, text),
        None => content.items().take(ITEMS_MAX).fold(so_far, |sum, block| {
            let text = block.get("text").and_then(Raw::string);
            text.map_or(sum, |text| ends(sum, text))
        }),
    }
}

fn ends(so_far: u64, text: &[u8]) -> u64 {
    match text.len() {
        short if short <= 2 * END => mix_bytes(so_far, text),
        long => mix_bytes(mix_bytes(mix(so_far, long as u64), &text[..END]), &text[long - END..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::RequestScan;

    fn of(shape: Dialect, body: &str) -> u64 {
        let mut scan = RequestScan::new();
        scan.reset(shape);
        scan.finish(body.as_bytes()).unwrap();
        conversation(shape, body.as_bytes(), scan.fields())
    }

    fn chat(rest: &str) -> u64 {
        of(Dialect::Chat, &format!("{{\"model\":\"m\",{rest}}}"))
    }

    const FIRST: &str = r#"{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}"#;

    #[test]
    fn turns_of_a_conversation_are_alike_and_conversations_are_not() {
        let first = chat(&format!("\"messages\":[{FIRST}]"));
        let later = format!(
            "\"messages\":[{FIRST},{{\"role\":\"assistant\",\"content\":\"ho\"}},{{\"role\":\"user\",\"content\":\"x\"}}]"
        );
        assert_eq!(chat(&later), first);
        assert_eq!(chat(&format!("\"temperature\":1,{later},\"stream\":true")), first);
        assert_ne!(chat(&format!("\"messages\":[{}]", FIRST.replace("hi", "ho"))), first);
        assert_ne!(chat(&format!("\"messages\":[{}]", FIRST.replace("brief", "kind"))), first);
        let marked = |mark: &str| {
            let text = format!(
                "{{\"model\":\"m\",\"max_tokens\":1,\"system\":[{{\"type\":\"text\",\"text\":\"S\"{mark}}}],\"messages\":[\
                 {{\"role\":\"user\",\"content\":[{{\"type\":\"text\",\"text\":\"hi\"{mark}}}]}}]}}"
            );
            of(Dialect::Messages, &text)
        };
        assert_eq!(marked(""), marked(",\"cache_control\":{\"type\":\"ephemeral\"}"), "marks move from turn to turn");
    }

    #[test]
    fn how_messages_are_written_makes_no_difference() {
        let plain = chat(&format!("\"messages\":[{FIRST}]"));
        let spaced = FIRST.replace("\":\"", "\": \"").replace(",\"", ", \"");
        assert_eq!(chat(&format!("\"messages\":[{spaced}]")), plain);
        // Neither form of a plain message, or one that is longer: those are walked through.
        let turned = r#"{"content":"Be brief.","role":"system"},{"content":"hi","role":"user"}"#;
        let parts =
            r#"{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"hi"}]}"#;
        let named = FIRST.replace("\"hi\"", "\"hi\",\"name\":\"n\"");
        for other in [turned, parts, &named, &FIRST.replace(':', " : ")] {
            assert_eq!(chat(&format!("\"messages\":[{other}]")), plain, "{other}");
        }
        // In pieces it is not noted where they lie.
        let body = format!("{{\"model\":\"m\",\"messages\":[{FIRST}]}}");
        let mut scan = RequestScan::new();
        scan.reset(Dialect::Chat);
        (1..body.len()).for_each(|end| scan.feed(&body.as_bytes()[..end]).unwrap());
        scan.finish(body.as_bytes()).unwrap();
        assert!(scan.fields().opening.texts().is_none());
        assert_eq!(conversation(Dialect::Chat, body.as_bytes(), scan.fields()), plain);
        // More of them than are noted.
        let system = r#"{"role":"system","content":"Be brief."},"#;
        let many = |turned: bool| {
            let more = system.repeat(6);
            chat(&format!("\"messages\":[{more}{}]", if turned { turned_of(FIRST) } else { FIRST.to_owned() }))
        };
        assert_eq!(many(true), many(false));
    }

    fn turned_of(messages: &str) -> String {
        messages.replace("{\"role\":\"user\",\"content\":\"hi\"}", "{\"content\":\"hi\",\"role\":\"user\"}")
    }

    #[test]
    fn a_name_goes_before_how_it_began() {
        let with = |rest: &str, hi: &str| chat(&format!("{rest}\"messages\":[{}]", FIRST.replace("hi", hi)));
        assert_eq!(with("\"prompt_cache_key\":\"a\",", "x"), with("\"prompt_cache_key\":\"a\",", "y"));
        assert_ne!(with("\"prompt_cache_key\":\"a\",", "x"), with("\"prompt_cache_key\":\"b\",", "x"));
        let user = |id: &str, hi: &str| {
            let messages = format!("\"messages\":[{{\"role\":\"user\",\"content\":\"{hi}\"}}]");
            of(
                Dialect::Messages,
                &format!("{{\"model\":\"m\",\"max_tokens\":1,\"metadata\":{{\"user_id\":\"{id}\"}},{messages}}}"),
            )
        };
        let long = "user_0a1b_account_2c3d_session_4e5f";
        let json = "{\\\"device_id\\\":\\\"d\\\",\\\"session_id\\\":\\\"4e5f\\\"}";
        assert_eq!(user(long, "x"), user(json, "y"));
        assert_ne!(user(long, "x"), user(&long.replace("4e5f", "4e60"), "x"));
        assert_ne!(user("somebody", "x"), user("somebody", "y"), "a user has many conversations");
    }

    #[test]
    fn responses_go_on_with_what_their_input_began_with() {
        let response = |rest: &str| of(Dialect::Responses, &format!("{{\"model\":\"m\",{rest}}}"));
        let first =
            r#""instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}"#;
        let later = format!("{first},{{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"x\"}}]");
        assert_eq!(response(&later), response(&format!("{first}]")));
        assert_ne!(response(&later), response(&format!("{}]", first.replace("hi", "ho"))));
        assert_ne!(response(&later), response(&format!("{}]", first.replace("brief", "kind"))));
        assert_ne!(response("\"input\":\"hi\""), response("\"input\":\"ho\""));
    }

    #[test]
    fn of_long_texts_both_ends_count() {
        let long = |start: &str, end: &str| {
            chat(&format!("\"messages\":[{{\"role\":\"user\",\"content\":\"{start}{}{end}\"}}]", "x".repeat(9000)))
        };
        assert_ne!(long("a", "z"), long("b", "z"));
        assert_ne!(long("a", "z"), long("a", "y"));
        assert_eq!(long("a", "z"), long("a", "z"));
    }
}
