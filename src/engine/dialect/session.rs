//! Identifies, from its body, the user of a request and the conversation that it continues: by a name, otherwise by the
//! conversation's beginning. Pure. Must never copy the body. Called by the gateway for every request that names a user,
//! and for the conversation if a model has several targets.

use super::dispatch::with_format;
use super::passthrough::PassthroughFormat;
use super::request::{Fields, Name};
use crate::base::hash::{mix, mix_bytes};
use crate::base::limits::NAMED_BYTES_MAX;
use crate::wire::ModelEndpoint;
use crate::wire::json::Raw;
use std::borrow::Cow;

/// Bytes hashed at either end of a long text.
const END: usize = 256;
/// Maximum number of blocks read in one message, and of messages read before the first user message.
const ITEMS_MAX: usize = 16;

/// Hash of the conversation, the same for each of its turns.
pub fn conversation(endpoint: ModelEndpoint, body: &[u8], fields: &Fields) -> u64 {
    let member = |wanted: Name| member(wanted, body, fields);
    // Most requests have neither.
    if fields.members.iter().any(|known| matches!(known.name, Name::PromptCacheKey | Name::Metadata)) {
        if let Some(key) = member(Name::PromptCacheKey).string().filter(|key| !key.is_empty()) {
            return mix_bytes(1, key);
        }
        if let Some((_, Some(session))) = user_id(member(Name::Metadata)) {
            return mix_bytes(2, session.as_bytes());
        }
    }
    // Requests with the same beginning stay together, so that a server's prompt cache has their common prefix.
    if let Some(passthrough) = endpoint.as_passthrough() {
        let first =
            PassthroughFormat::of(passthrough).needed.first().map_or(Raw::NULL, |(name, _)| member(*name)).bytes();
        return mix_bytes(3, &first[..first.len().min(END)]);
    }
    let opening = with_format!(endpoint.shape, F => F::REQUESTS).opening;
    let [system, conversation] = opening.map(|name| name.map_or(Raw::NULL, member));
    let mut begun = texts(3, system);
    // The input of a response may be a single string.
    if conversation.string().is_some() {
        return texts(begun, conversation);
    }
    // The scan has usually noted where those texts are.
    if let Some(opening) = fields.opening.texts() {
        return opening.iter().fold(begun, |sum, text| ends(sum, text.of(body)));
    }
    let mut messages = conversation.items();
    for _ in 0..ITEMS_MAX {
        let Some((_, [content, role])) = messages.pick(["content", "role"]) else { break };
        begun = texts(begun, content.unwrap_or(Raw::NULL));
        if role.is_some_and(|role| role.is("user")) {
            break;
        }
    }
    begun
}

/// User and conversation of a request in the client's own words, if it names them. At most [`NAMED_BYTES_MAX`] bytes of
/// each.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct Named<'a> {
    /// `user`, otherwise `safety_identifier`, otherwise `metadata.user_id`. Claude Code's forms of the last are split.
    pub user: Option<Cow<'a, str>>,
    /// `prompt_cache_key`, otherwise the session in `metadata.user_id`.
    pub session: Option<Cow<'a, str>>,
}

/// See [`Named`]. An empty value, or one of the wrong type, is absent.
#[inline]
pub fn named<'a>(body: &'a [u8], fields: &Fields) -> Named<'a> {
    let says = |name| matches!(name, Name::User | Name::SafetyIdentifier | Name::Metadata | Name::PromptCacheKey);
    match fields.members.iter().any(|known| says(known.name)) {
        true => named_by(body, fields),
        // Most requests have none of these.
        false => Named::default(),
    }
}

fn named_by<'a>(body: &'a [u8], fields: &Fields) -> Named<'a> {
    let mut found = [Raw::NULL; 4];
    for known in &fields.members {
        let place = match known.name {
            Name::User => 0,
            Name::SafetyIdentifier => 1,
            Name::Metadata => 2,
            Name::PromptCacheKey => 3,
            _ => continue,
        };
        found[place] = Raw::new(known.value.of(body));
    }
    let [user, safety_identifier, metadata, cache_key] = found;
    let (of_metadata, session) = user_id(metadata).unzip();
    let user = text_of(user).or_else(|| text_of(safety_identifier)).or_else(|| of_metadata.flatten());
    Named { user, session: text_of(cache_key).or_else(|| session.flatten()) }
}

fn member<'a>(wanted: Name, body: &'a [u8], fields: &Fields) -> Raw<'a> {
    let found = fields.members.iter().find(|member| member.name == wanted);
    found.map_or(Raw::NULL, |member| Raw::new(member.value.of(body)))
}

/// A string that is not empty, cut to the bound.
fn text_of(raw: Raw<'_>) -> Option<Cow<'_, str>> {
    let text = raw.string().filter(|text| !text.is_empty())?;
    Some(match text.get(..NAMED_BYTES_MAX) {
        // A cut may split an escape, so escapes stay undecoded.
        Some(begin) if text.len() > begin.len() => String::from_utf8_lossy(begin),
        _ => Raw::text_of(text),
    })
}

/// User and session in `metadata.user_id`: Claude Code writes JSON there, or `user_…_account_…_session_…`. The user is
/// the account if known, otherwise the device. Any other text is a user.
type UserId<'a> = (Option<Cow<'a, str>>, Option<Cow<'a, str>>);

fn user_id(metadata: Raw<'_>) -> Option<UserId<'_>> {
    let text = text_of(metadata.get("user_id")?)?;
    let owned = |part: &str| (!part.is_empty()).then(|| Cow::Owned(part.to_owned()));
    if text.starts_with('{') {
        let object = Raw::new(text.as_bytes());
        let part = |name| object.get(name).and_then(text_of).and_then(|part| owned(&part));
        let (session, user) = (part("session_id"), part("account_uuid").or_else(|| part("device_id")));
        if session.is_some() || user.is_some() {
            return Some((user, session));
        }
    } else if let Some((user, session)) = text.split_once("_session_") {
        let (device, account) = user.split_once("_account_").unwrap_or((user, ""));
        let device = device.strip_prefix("user_").unwrap_or(device);
        return Some((owned(account).or_else(|| owned(device)), owned(session)));
    }
    Some((Some(text), None))
}

/// Hashes the text of a content: a string, or the text of its blocks. Other members may change from turn to turn.
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

    fn of(endpoint: ModelEndpoint, body: &str) -> u64 {
        let mut scan = RequestScan::new();
        scan.reset(endpoint);
        scan.finish(body.as_bytes()).unwrap();
        conversation(endpoint, body.as_bytes(), scan.fields())
    }

    fn chat(rest: &str) -> u64 {
        of(ModelEndpoint::CHAT, &format!("{{\"model\":\"m\",{rest}}}"))
    }

    const FIRST: &str = r#"{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}"#;

    #[test]
    fn turns_of_a_conversation_hash_alike_and_conversations_differ() {
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
            of(ModelEndpoint::MESSAGES, &text)
        };
        assert_eq!(marked(""), marked(",\"cache_control\":{\"type\":\"ephemeral\"}"), "marks move from turn to turn");
    }

    #[test]
    fn notation_of_messages_makes_no_difference() {
        let plain = chat(&format!("\"messages\":[{FIRST}]"));
        let spaced = FIRST.replace("\":\"", "\": \"").replace(",\"", ", \"");
        assert_eq!(chat(&format!("\"messages\":[{spaced}]")), plain);
        // Messages in another form than the plain ones, or with more members: they are read member by member.
        let turned = r#"{"content":"Be brief.","role":"system"},{"content":"hi","role":"user"}"#;
        let parts =
            r#"{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"hi"}]}"#;
        let named = FIRST.replace("\"hi\"", "\"hi\",\"name\":\"n\"");
        for other in [turned, parts, &named, &FIRST.replace(':', " : ")] {
            assert_eq!(chat(&format!("\"messages\":[{other}]")), plain, "{other}");
        }
        // More messages than the scan notes.
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
    fn name_has_priority_over_the_beginning() {
        let with = |rest: &str, hi: &str| chat(&format!("{rest}\"messages\":[{}]", FIRST.replace("hi", hi)));
        assert_eq!(with("\"prompt_cache_key\":\"a\",", "x"), with("\"prompt_cache_key\":\"a\",", "y"));
        assert_ne!(with("\"prompt_cache_key\":\"a\",", "x"), with("\"prompt_cache_key\":\"b\",", "x"));
        let user = |id: &str, hi: &str| {
            let messages = format!("\"messages\":[{{\"role\":\"user\",\"content\":\"{hi}\"}}]");
            of(
                ModelEndpoint::MESSAGES,
                &format!("{{\"model\":\"m\",\"max_tokens\":1,\"metadata\":{{\"user_id\":\"{id}\"}},{messages}}}"),
            )
        };
        let long = "user_0a1b_account_2c3d_session_4e5f";
        let json = "{\\\"device_id\\\":\\\"d\\\",\\\"session_id\\\":\\\"4e5f\\\"}";
        assert_eq!(user(long, "x"), user(json, "y"));
        assert_ne!(user(long, "x"), user(&long.replace("4e5f", "4e60"), "x"));
        assert_ne!(user("somebody", "x"), user("somebody", "y"), "a user has many conversations");
    }

    /// User and session that a body names.
    fn who(rest: &str) -> [Option<String>; 2] {
        let body = format!("{{\"model\":\"m\",\"messages\":[{FIRST}]{rest}}}");
        let mut scan = RequestScan::new();
        scan.reset(ModelEndpoint::CHAT);
        scan.finish(body.as_bytes()).unwrap();
        let Named { user, session } = named(body.as_bytes(), scan.fields());
        [user, session].map(|text| text.map(Cow::into_owned))
    }

    fn is(user: &str, session: &str) -> [Option<String>; 2] {
        [user, session].map(|text| (!text.is_empty()).then(|| text.to_string()))
    }

    #[test]
    fn user_is_read_from_several_members_in_order() {
        let (user, safety, cache) = (",\"user\":\"u\"", ",\"safety_identifier\":\"s\"", ",\"prompt_cache_key\":\"k\"");
        let metadata = |id: &str| format!(",\"metadata\":{{\"a\":\"b\",\"user_id\":{id}}}");
        let plain = metadata("\"m\"");
        assert_eq!(who(""), is("", ""));
        assert_eq!(who(&format!("{plain}{safety}{user}{cache}")), is("u", "k"));
        assert_eq!(who(&format!("{plain}{safety}{cache}")), is("s", "k"));
        assert_eq!(who(&plain), is("m", ""));
        for absent in ["\"\"", "null", "7", "[\"x\"]", "{\"user_id\":\"x\"}"] {
            assert_eq!(who(&metadata(absent)), is("", ""), "{absent}");
            assert_eq!(who(&format!(",\"safety_identifier\":{absent}{plain}")), is("m", ""), "{absent}");
            assert_eq!(who(&format!(",\"prompt_cache_key\":{absent}")), is("", ""), "{absent}");
        }
        assert_eq!(who(",\"metadata\":\"x\""), is("", ""));
        assert_eq!(who(",\"user\":\"a\\u00fc\\n\\\"\""), is("a\u{fc}\n\"", ""));
    }

    #[test]
    fn forms_of_claude_code_are_split() {
        let id = |id: &str| who(&format!(",\"metadata\":{{\"user_id\":{}}}", serde_json::to_string(id).unwrap()));
        assert_eq!(id("user_0a1b_account_2c3d_session_4e5f"), is("2c3d", "4e5f"));
        assert_eq!(id("user_0a1b_account__session_4e5f"), is("0a1b", "4e5f"));
        assert_eq!(id("user_0a1b_session_4e5f"), is("0a1b", "4e5f"));
        assert_eq!(id("user_0a1b_account_2c3d_session_"), is("2c3d", ""));
        let json = |device: &str, account: &str, session: &str| {
            id(&format!("{{\"device_id\":\"{device}\",\"account_uuid\":\"{account}\",\"session_id\":\"{session}\"}}"))
        };
        assert_eq!(json("d", "a", "s"), is("a", "s"));
        assert_eq!(json("d", "", "s"), is("d", "s"));
        assert_eq!(json("", "", "s"), is("", "s"));
        assert_eq!(json("d", "\\u00e4", ""), is("\u{e4}", ""));
        // A text with only the beginning of such a form is a user as a whole.
        for other in
            ["{", "{}", "{\"session_id\":7}", "{\"x\":{\"session_id\":\"s\"}}", "[\"session_id\"]", "user_0a1b"]
        {
            assert_eq!(id(other), is(other, ""), "{other}");
        }
    }

    #[test]
    fn endless_names_are_cut() {
        let long = |n: usize| "x".repeat(n);
        for rest in
            [",\"user\":\"{}\"", ",\"metadata\":{\"user_id\":\"{}\"}", ",\"metadata\":{\"user_id\":\"{}_session_s\"}"]
        {
            let found = who(&rest.replace("{}", &long(1 << 20)));
            assert_eq!(found, is(&long(NAMED_BYTES_MAX), ""));
        }
        let nested = format!("{}{}", "{\\\"a\\\":".repeat(60_000), "}".repeat(60_000));
        let [user, session] = who(&format!(",\"metadata\":{{\"user_id\":\"{nested}\"}}"));
        assert_eq!((user.map(|user| user.len()), session), (Some(NAMED_BYTES_MAX), None));
        // A cut within an escape, and within a character.
        for (text, at) in [("\\u00fc", 1), ("\\u00fc", 4), ("\u{fc}", 1)] {
            let found = who(&format!(",\"user\":\"{}{text}{}\"", long(NAMED_BYTES_MAX - at), long(9)));
            assert!(found[0].as_ref().is_some_and(|user| user.starts_with(&long(NAMED_BYTES_MAX - at))));
        }
    }

    #[test]
    fn responses_are_identified_by_the_beginning_of_their_input() {
        let response = |rest: &str| of(ModelEndpoint::RESPONSES, &format!("{{\"model\":\"m\",{rest}}}"));
        let first =
            r#""instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}"#;
        let later = format!("{first},{{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"x\"}}]");
        assert_eq!(response(&later), response(&format!("{first}]")));
        assert_ne!(response(&later), response(&format!("{}]", first.replace("hi", "ho"))));
        assert_ne!(response(&later), response(&format!("{}]", first.replace("brief", "kind"))));
        assert_ne!(response("\"input\":\"hi\""), response("\"input\":\"ho\""));
    }

    #[test]
    fn both_ends_of_long_texts_count() {
        let long = |start: &str, end: &str| {
            chat(&format!("\"messages\":[{{\"role\":\"user\",\"content\":\"{start}{}{end}\"}}]", "x".repeat(9000)))
        };
        assert_ne!(long("a", "z"), long("b", "z"));
        assert_ne!(long("a", "z"), long("a", "y"));
        assert_eq!(long("a", "z"), long("a", "z"));
    }
}
