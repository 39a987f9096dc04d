//! Reads a provider's list of models for the catalog. Blocks: called on separate threads by `serve`, and by `models`
//! and `check`. Never called on the event loop.

use super::http::provider_client::{Asker, encoded, list_path, read};
use crate::base::limits::TOLD_BYTES_MAX;
use crate::gateway::orders::{List, NoList};
use crate::io::tls::Security;
use crate::policy::config::Provider;
use crate::policy::discover::{Discover, LISTED_MAX, Listed};
use crate::policy::memory::SHORT_LIST_BYTES;
use crate::policy::vendors::capabilities::TOKENS_MAX;
use crate::wire::json;
use crate::wire::json::{Raw, ValueKind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pages of one provider's list of models.
const LIST_PAGES_MAX: usize = 16;

/// Members with the context size of a listed model: vLLM; OpenRouter and Together; Groq, and gateways such as Tollgate;
/// Mistral; Anthropic. llama.cpp has it in `meta`.
const CONTEXTS: [&str; 5] =
    ["max_model_len", "context_length", "context_window", "max_context_length", "max_input_tokens"];

/// The models of a provider, requested with the first of its credentials that it accepts.
/// A page of the list has at most `most` bytes.
pub(super) fn ask(provider: &Provider, security: &Security, most: usize) -> Result<List, NoList> {
    let mut answer = ask_by(provider, security, most);
    for credential in provider.credentials.iter().skip(1) {
        if answer.is_ok() {
            break;
        }
        let credentials = vec![credential.clone()];
        answer = ask_by(&Provider { credentials, ..provider.clone() }, security, most);
    }
    answer
}

/// Held while a page of more than [`SHORT_LIST_BYTES`] is in memory: the account of memory has room for one.
static LONG: Mutex<()> = Mutex::new(());

/// Body of a page. Its fields are dropped in this order.
#[derive(Default)]
struct PageBody {
    body: Vec<u8>,
    turn: Option<MutexGuard<'static, ()>>,
}

impl PageBody {
    /// Adds a piece; false if there are `most` bytes. A long page waits for its turn.
    fn take(&mut self, piece: &[u8], most: usize) -> bool {
        let PageBody { body, turn } = self;
        if turn.is_none() && body.len() + piece.len() > SHORT_LIST_BYTES {
            *turn = Some(LONG.lock().unwrap_or_else(PoisonError::into_inner));
            body.reserve_exact(most - body.len());
        }
        body.extend_from_slice(&piece[..piece.len().min(most - body.len())]);
        body.len() < most
    }
}

fn ask_by(provider: &Provider, security: &Security, most: usize) -> Result<List, NoList> {
    let no = |why: &str| NoList { why: why.to_string(), refused: false };
    let discover = provider.discover.clone().unwrap_or_default();
    let (asker, mut list, mut path) = (Asker::new(security), List::default(), list_path(provider));
    for _ in 0..LIST_PAGES_MAX {
        let mut got = PageBody::default();
        let status =
            read(provider, &asker, &path, &mut |piece| got.take(piece, most)).map_err(|why| no(why.words()))?;
        if status != 200 {
            return Err(NoList { why: format!("status {status}"), refused: status == 401 });
        }
        if got.body.len() >= most {
            return Err(no(&format!("the list has {most} bytes or more")));
        }
        let next = page(&got.body, &discover, &mut list).map_err(no)?;
        match next.filter(|_| provider.shape.is_anthropic() && list.models.len() < LISTED_MAX) {
            Some(last) => path = format!("{}&after_id={}", list_path(provider), encoded(&last)),
            None => break,
        }
    }
    Ok(list)
}

/// Adds one page to the list. Returns the cursor of the next page, if there is one.
fn page(body: &[u8], discover: &Discover, list: &mut List) -> Result<Option<String>, &'static str> {
    json::check(body).map_err(|_| "the list is no JSON")?;
    let document = Raw::new(body);
    let [data, more, last] = document.pick(["data", "has_more", "last_id"]);
    // Together's list is a bare array.
    let entries = data.or(Some(document)).filter(|entries| entries.kind() == ValueKind::Array);
    for entry in entries.ok_or("there is no list of models in it")?.items() {
        let Some(name) = entry.get("id").and_then(Raw::text) else { continue };
        match discover.id_of(&name) {
            Some(_) if list.models.len() < LISTED_MAX => {
                list.models.push(Listed { model: name.into_owned(), context: context_of(entry) });
            }
            _ => {
                let fits = |(at, c): &(usize, char)| at + c.len_utf8() <= TOLD_BYTES_MAX;
                let first = || name.char_indices().take_while(fits).map(|(_, c)| c).collect();
                list.skipped.get_or_insert_with(|| (0, first())).0 += 1;
            }
        }
    }
    let more = more.and_then(Raw::bool).unwrap_or(false);
    Ok(last.and_then(Raw::text).filter(|_| more).map(|last| last.into_owned()))
}

fn context_of(entry: Raw<'_>) -> Option<u64> {
    let meta = || entry.get("meta")?.get("n_ctx_train");
    let said = entry.pick(CONTEXTS).into_iter().flatten().next().or_else(meta);
    said.and_then(Raw::count).filter(|tokens| (1..=TOKENS_MAX).contains(tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Result of one page: names with contexts, the skipped ones, and the cursor of the next page.
    fn read(prefix: &str, body: &str) -> Result<(List, Option<String>), &'static str> {
        let mut list = List::default();
        let next = page(body.as_bytes(), &Discover { prefix: prefix.into(), ..Discover::default() }, &mut list)?;
        Ok((list, next))
    }

    fn named(list: &List) -> Vec<(&str, Option<u64>)> {
        list.models.iter().map(|one| (one.model.as_str(), one.context)).collect()
    }

    #[test]
    fn every_known_form_of_list_is_read() {
        let (list, next) = read(
            "",
            r#"{"object":"list","data":[
            {"id":"gpt-5","object":"model","created":1,"owned_by":"openai"},
            {"id":"qwen","max_model_len":40960},
            {"id":"a/b:free","context_length":262144},
            {"id":"mistral","max_context_length":32768},
            {"id":"groq","context_window":131072},
            {"id":"gguf","meta":{"n_vocab":5,"n_ctx_train":8192}},
            {"id":"odd","context_length":"many"},{"id":"none","max_model_len":0},{"id":"nul","max_model_len":null},
            {"id":7},{},4,"x"]}"#,
        )
        .unwrap();
        let some = [
            ("gpt-5", None),
            ("qwen", Some(40_960)),
            ("a/b:free", Some(262_144)),
            ("mistral", Some(32_768)),
            ("groq", Some(131_072)),
            ("gguf", Some(8192)),
            ("odd", None),
            ("none", None),
            ("nul", None),
        ];
        assert_eq!((named(&list), &list.skipped, next), (some.to_vec(), &None, None));
        let (list, _) = read("", r#"[{"id":"together","context_length":4096}]"#).unwrap();
        assert_eq!(named(&list), [("together", Some(4096))]);
        let (list, next) = read(
            "",
            r#"{"data":[{"type":"model","id":"claude","display_name":"C","max_input_tokens":200000}],
                 "has_more":true,"first_id":"claude","last_id":"claude"}"#,
        )
        .unwrap();
        assert_eq!((named(&list), next), (vec![("claude", Some(200_000))], Some("claude".to_string())));
    }

    #[test]
    fn invalid_list_is_reported() {
        for (body, why) in [
            ("{\"data\":[{\"id\":\"a\"}", "the list is no JSON"),
            ("<html>", "the list is no JSON"),
            ("", "the list is no JSON"),
            ("{\"error\":\"x\"}", "there is no list of models in it"),
            ("{\"data\":{\"id\":\"a\"}}", "there is no list of models in it"),
            ("\"data\"", "there is no list of models in it"),
        ] {
            assert_eq!(read("", body), Err(why), "{body}");
        }
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert_eq!(read("", &deep), Err("the list is no JSON"));
    }

    #[test]
    fn invalid_model_names_are_skipped_and_reported_cut() {
        let (long, evil) = ("x".repeat(1 << 20), "\\u0000\\u001b[2J\\ninject");
        let body = format!(
            "{{\"data\":[{{\"id\":\"{long}\"}},{{\"id\":\"{evil}\"}},{{\"id\":\"\"}},{{\"id\":\"two words\"}},\
             {{\"id\":\"*\"}},{{\"id\":\"a,b\"}},{{\"id\":\"ünder\"}},{{\"id\":\"good\"}}]}}"
        );
        let (list, _) = read("", &body).unwrap();
        assert_eq!(named(&list), [("ünder", None), ("good", None)]);
        assert_eq!(list.skipped, Some((6, "x".repeat(TOLD_BYTES_MAX))));
        for unseen in ["\u{202e}", "\u{9b}2J", "\u{200b}", "\u{feff}", "\u{61c}", "\u{2066}", "\u{7f}"] {
            let (list, _) = read("", &format!("[{{\"id\":\"gpt{unseen}\"}}]")).unwrap();
            assert_eq!((list.models.len(), list.skipped.map(|(count, _)| count)), (0, Some(1)), "{unseen:?}");
        }
        let (list, _) = read(&"p".repeat(125), r#"[{"id":"abc"},{"id":"abcd"}]"#).unwrap();
        assert_eq!((list.models.len(), list.skipped.map(|(count, _)| count)), (1, Some(1)), "with the prefix");
    }

    #[test]
    fn number_of_listed_models_is_bounded() {
        let all: Vec<String> = (0..LISTED_MAX + 5).map(|n| format!("{{\"id\":\"m{n}\"}}")).collect();
        let (list, _) = read("", &format!("[{}]", all.join(","))).unwrap();
        assert_eq!((list.models.len(), list.skipped), (LISTED_MAX, Some((5, format!("m{LISTED_MAX}")))));
    }

    #[test]
    fn one_long_page_is_in_memory_at_a_time() {
        let (mut short, mut long, most) = (PageBody::default(), PageBody::default(), 300 << 10);
        assert!(short.take(&[b' '; SHORT_LIST_BYTES], most));
        assert!(LONG.try_lock().is_ok(), "short pages do not wait");
        assert!(long.take(&[b' '; SHORT_LIST_BYTES], most) && long.take(b" ", most));
        assert!(LONG.try_lock().is_err());
        assert!(!long.take(&vec![b' '; most], most));
        assert_eq!((long.body.len(), long.body.capacity()), (most, most));
        drop(long);
        assert!(LONG.try_lock().is_ok());
    }
}
