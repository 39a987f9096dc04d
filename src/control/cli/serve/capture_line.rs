//! Writes a captured request as a line of JSON.
//!
//! Owns the form of the line. Must never write a credential: headers that carry one, and keys of the gateway anywhere,
//! are starred.

use crate::base::base64;
use crate::base::text::push_number;
use crate::gateway::orders::{Captured, CapturedMessage};
use crate::gateway::redactor::{Redactor, STARS};
use crate::policy::{keys, window};
use crate::wire::json::{item, write_string};
use crate::wire::percent;

/// Characters that separate the parts of a request's first line.
const MARKS: [char; 6] = [' ', '/', '?', '&', '#', ';'];
/// Authentication schemes, which precede a credential in a header.
const SCHEMES: [&str; 10] =
    ["apikey", "aws4-hmac-sha256", "basic", "bearer", "digest", "dpop", "hawk", "negotiate", "ntlm", "token"];
/// Words in the names of headers and parameters that carry a credential.
const CREDENTIALS: [&str; 10] =
    ["auth", "bearer", "cookie", "credential", "key", "passphrase", "passw", "secret", "signature", "token"];
/// The same, but too short to be searched for within longer words.
const SHORT_CREDENTIALS: [&str; 5] = ["jwt", "otp", "pw", "pwd", "sig"];
/// Minimum bytes of a credential of a head that is starred in bodies, too, and maximum number of such credentials.
const SECRET_MIN: usize = 12;
const SECRETS_MAX: usize = 32;

/// Appends the line of a request, with its line feed.
pub(super) fn write(captured: &Captured, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":\"");
    out.extend_from_slice(captured.id());
    out.extend_from_slice(b"\",\"received\":{\"time\":\"");
    window::write_iso(captured.received_at, out);
    out.extend_from_slice(b"\",");
    let Captured { received, sent, answer, prefix, secret_headers, .. } = captured;
    let mut stars = Stars { prefix, names: secret_headers, secrets: Vec::new() };
    for message in sent.iter().map(|(_, message)| message).chain([received]) {
        stars.learn(&String::from_utf8_lossy(&message.head));
    }
    let redactor = stars.redactor();
    write_message(received, &stars, &redactor, out);
    out.extend_from_slice(b"},\"sent\":[");
    for (target, message) in sent {
        item(out);
        out.extend_from_slice(b"{\"target\":");
        write_string(out, target);
        out.push(b',');
        write_message(message, &stars, &redactor, out);
        out.push(b'}');
    }
    out.extend_from_slice(b"],\"answer\":{");
    write_message(answer, &stars, &redactor, out);
    out.extend_from_slice(b"}}\n");
}

/// Appends the members of the message.
fn write_message(message: &CapturedMessage, stars: &Stars<'_>, redactor: &Redactor<'_>, out: &mut Vec<u8>) {
    let CapturedMessage { head, body, left_out, .. } = message;
    out.extend_from_slice(b"\"head\":[");
    for line in head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)) {
        if !line.is_empty() {
            item(out);
            write_string(out, &stars.line(&String::from_utf8_lossy(line)));
        }
    }
    out.extend_from_slice(b"],");
    if message.is_form {
        out.extend_from_slice(b"\"body\":\"form of ");
        push_number(out, *left_out);
        out.extend_from_slice(b" bytes\"");
        return;
    }
    let is_cut = *left_out > 0;
    // A body that was cut may end within a character.
    let text = match std::str::from_utf8(body) {
        Ok(text) => Some(text),
        Err(error) if is_cut && error.error_len().is_none() => std::str::from_utf8(&body[..error.valid_up_to()]).ok(),
        Err(_) => None,
    };
    match text {
        Some(text) => {
            out.extend_from_slice(b"\"body\":");
            write_string(out, &redactor.text(text, is_cut));
        }
        None => {
            out.extend_from_slice(b"\"base64\":");
            let mut shown = Vec::with_capacity(body.len());
            let mut chunks = body.utf8_chunks().peekable();
            while let Some(chunk) = chunks.next() {
                let is_cut = is_cut && chunks.peek().is_none();
                // Most pieces of text between other bytes are too short for a credential.
                match is_cut || chunk.valid().len() >= SECRET_MIN {
                    true => shown.extend_from_slice(redactor.text(chunk.valid(), is_cut).as_bytes()),
                    false => shown.extend_from_slice(chunk.valid().as_bytes()),
                }
                shown.extend_from_slice(chunk.invalid());
            }
            write_string(out, &base64::encode(&shown));
        }
    }
    if is_cut {
        out.extend_from_slice(b",\"left_out\":");
        push_number(out, *left_out);
    }
}

/// The rules by which credentials in heads are starred.
struct Stars<'a> {
    prefix: &'a str,
    /// Names of headers that carry a credential, besides those with [`CREDENTIALS`] in their names.
    names: &'a [String],
    /// Credentials in the heads: a provider may quote them in an error.
    secrets: Vec<String>,
}

impl Stars<'_> {
    /// Finds the credentials in the head of a request.
    fn learn(&mut self, head: &str) {
        for line in head.lines() {
            if is_first(line) {
                self.learn_target(line);
                continue;
            }
            let Some((name, value)) = line.split_once(':') else { continue };
            if self.holds_key(name) {
                self.learn_words(name);
            }
            if self.is_secret(name) || self.value(value) != value {
                self.learn_words(value);
                self.learn_words(&decoded(value));
            }
        }
    }

    /// Finds the credentials in the first line of a request.
    fn learn_target(&mut self, line: &str) {
        let (path, query) = line.split_once('?').unwrap_or((line, ""));
        let parts = path.split(' ').map(str::to_owned);
        let parts = parts.chain(query.split(['&', '#', ' ']).map(|parameter| format!("?{parameter}")));
        for part in parts.filter(|part| self.target(part).contains(STARS)).collect::<Vec<_>>() {
            self.learn_words(part.trim_start_matches('?'));
            self.learn_words(&decoded(&part));
        }
    }

    /// Adds the words of a text that has a credential in it, such as a cookie, a URL or a parameter.
    fn learn_words(&mut self, text: &str) {
        let whole = text.trim();
        let last = whole.rsplit([' ', '\t']).next().unwrap_or_default();
        let words = text.split(|c: char| c.is_whitespace() || ",;:=\"'@{}".contains(c));
        for secret in [whole, last].into_iter().chain(words) {
            let is_new = secret.len() >= SECRET_MIN && !self.secrets.iter().any(|known| known == secret);
            if is_new && self.secrets.len() < SECRETS_MAX {
                self.secrets.push(secret.to_owned());
            }
        }
    }

    /// Stars the credentials of the heads in bodies.
    fn redactor(&self) -> Redactor<'_> {
        Redactor::new(&mut self.secrets.iter().map(String::as_str), self.prefix)
    }

    /// True if a header with this name carries a credential.
    fn is_secret(&self, name: &str) -> bool {
        self.names.iter().any(|known| name.eq_ignore_ascii_case(known)) || speaks_of_credential(name)
    }

    /// A line of a head.
    fn line(&self, line: &str) -> String {
        if is_first(line) { self.target(line) } else { self.header(line) }
    }

    fn header(&self, line: &str) -> String {
        let Some((name, value)) = line.split_once(':') else { return self.value(line) };
        match self.is_secret(name) {
            _ if self.holds_key(name) => format!("{STARS}: {STARS}"),
            true => format!("{name}: {STARS}"),
            false => format!("{name}:{}", self.value(value)),
        }
    }

    /// The first line of a request or an answer.
    fn target(&self, line: &str) -> String {
        let (mut shown, mut is_hidden, mut is_query) = (String::with_capacity(line.len()), false, false);
        for piece in line.split_inclusive(MARKS) {
            let (text, mark) = match piece.char_indices().next_back() {
                Some((at, mark)) if MARKS.contains(&mark) => (&piece[..at], Some(mark)),
                _ => (piece, None),
            };
            match text.split_once('=') {
                _ if is_hidden => {}
                Some((name, value)) if speaks_of_credential(&decoded(name)) || self.is_credential(value) => {
                    shown.extend([name, "=", STARS]);
                    is_hidden = true;
                }
                None if is_query && self.is_credential(text) => {
                    shown.push_str(STARS);
                    is_hidden = true;
                }
                _ if text.find('@').is_some_and(|at| at > 0) => {
                    shown.extend([STARS, &text[text.rfind('@').unwrap_or(0)..]]);
                }
                _ if self.holds_key(text) => shown.push_str(STARS),
                _ => shown.push_str(text),
            }
            // A value may contain the other marks.
            is_hidden &= !matches!(mark, Some('&' | '#' | ' '));
            is_query = (is_query || mark == Some('?')) && mark != Some(' ');
            shown.extend(mark.filter(|_| !is_hidden));
        }
        shown
    }

    /// The value of a header that is not known to carry a credential.
    fn value(&self, value: &str) -> String {
        if self.is_credential(value) { format!(" {STARS}") } else { value.to_owned() }
    }

    /// True if a value contains a credential, or a URL with a password.
    fn is_credential(&self, value: &str) -> bool {
        let has_login = decoded(value).split("://").skip(1).any(|rest| {
            let end = rest.find(['/', '?', '#', ' ']).unwrap_or(rest.len());
            rest[..end].contains('@')
        });
        has_login || self.holds_credential(value)
    }

    /// True if a value contains a key, a scheme, or something with the name of a credential.
    fn holds_credential(&self, value: &str) -> bool {
        let plain = decoded(value);
        let mut words = plain.split(|c: char| c.is_whitespace() || ",;:=?&+\"'".contains(c));
        let has_scheme = words.any(|word| SCHEMES.iter().any(|known| word.eq_ignore_ascii_case(known)));
        let has_name = plain.match_indices(['=', ':']).any(|(at, mark)| {
            let before = plain[..at].trim_end_matches(|c: char| c.is_whitespace() || "\"'\\".contains(c));
            let name = before.rsplit(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c)).next();
            // A host may have such a name.
            let port = plain[at + 1..].split('/').next().and_then(|port| port.parse::<u16>().ok());
            (mark == "=" || port.is_none()) && name.is_some_and(speaks_of_credential)
        });
        has_scheme || has_name || self.holds_key(value)
    }

    fn holds_key(&self, text: &str) -> bool {
        keys::holds_key(text, self.prefix) || keys::holds_key(&decoded(text), self.prefix)
    }
}

/// True for the first line of a message: only it has a blank before its first colon (header names have none).
fn is_first(line: &str) -> bool {
    line.split(':').next().is_some_and(|name| name.contains(' '))
}

/// True if a header or a parameter with this name may carry a credential. Names of token counts do not.
fn speaks_of_credential(name: &str) -> bool {
    let mut name = name.to_ascii_lowercase();
    if name.contains("ratelimit-") {
        name = name.replace("tokens", "");
    }
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    CREDENTIALS.iter().any(|word| name.contains(word)) || words.any(|word| SHORT_CREDENTIALS.contains(&word))
}

fn decoded(text: &str) -> String {
    percent::decoded(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const KEY: &str = "tg_live_0123456789abABCDEFGHIJKLMNOPQRSTUVWXYZabcdef012345";

    fn stars<'a>(names: &'a [String]) -> Stars<'a> {
        Stars { prefix: "tg_", names, secrets: Vec::new() }
    }

    #[test]
    fn credentials_in_a_head_are_starred() {
        let names = ["x-custom".to_owned()];
        for (line, shown) in [
            ("authorization: Bearer abc", "authorization: ***"),
            ("X-API-Key: abc", "X-API-Key: ***"),
            ("x-goog-api-key:abc", "x-goog-api-key: ***"),
            ("Cookie: a=b; c=d", "Cookie: ***"),
            ("x-ratelimit-remaining-tokens: 12", "x-ratelimit-remaining-tokens: 12"),
            ("x-ratelimit-token: abc", "x-ratelimit-token: ***"),
            ("x-note: Bearer abc", "x-note: ***"),
            ("x-note: bearer", "x-note: ***"),
            ("x-note: AWS4-HMAC-SHA256 Credential=a", "x-note: ***"),
            ("x-note: token abc", "x-note: ***"),
            ("x-note: Bearer\tabc", "x-note: ***"),
            ("x-note: Bearer:abc", "x-note: ***"),
            ("x-note: a, Bearer abc", "x-note: ***"),
            ("x-original-uri: /v1/a?api_key=abc", "x-original-uri: ***"),
            ("x-original-uri: /v1/a?n=1", "x-original-uri: /v1/a?n=1"),
            ("referer: //a.example/?token=abc", "referer: ***"),
            ("x-note: GoogleLogin auth=abc", "x-note: ***"),
            ("x-note: SharedAccessSignature sr=x&sig=abc", "x-note: ***"),
            ("x-note: password=abc", "x-note: ***"),
            ("x-note: n=1; password = abc", "x-note: ***"),
            ("x-note: {\"n\":1,\"api_key\": \"abc\"}", "x-note: ***"),
            ("x-note: %61pi_key%3Dabc", "x-note: ***"),
            ("x-note: n=1; x=\"Bearer abc\"", "x-note: ***"),
            ("x-rewrite-url: ?x=Bearer%20abc", "x-rewrite-url: ***"),
            ("x-passphrase: abc", "x-passphrase: ***"),
            ("x-bearer: abc", "x-bearer: ***"),
            ("x-otp: abc", "x-otp: ***"),
            ("x-adopted: abc", "x-adopted: abc"),
            ("GET /v1/a?x=Bearer%20abc&n=1 HTTP/1.1", "GET /v1/a?x=***&n=1 HTTP/1.1"),
            ("GET /v1/a?key=ab/c+d;e?f==&n=1 HTTP/1.1", "GET /v1/a?key=***&n=1 HTTP/1.1"),
            ("GET /v1/a?x=b%26key%3Dabc HTTP/1.1", "GET /v1/a?x=*** HTTP/1.1"),
            // Names of headers, ports and other words are no credentials.
            (
                "access-control-allow-headers: authorization, x-api-key",
                "access-control-allow-headers: authorization, x-api-key",
            ),
            ("host: keys:8080", "host: keys:8080"),
            ("referer: http://keys:8080/a", "referer: http://keys:8080/a"),
            (
                "content-type: application/token+json; charset=utf-8",
                "content-type: application/token+json; charset=utf-8",
            ),
            ("anthropic-beta: token-efficient-tools-2025-02-19", "anthropic-beta: token-efficient-tools-2025-02-19"),
            ("date: Sat, 28 Nov 2026 06:25:35 GMT", "date: Sat, 28 Nov 2026 06:25:35 GMT"),
            ("x-pw: abc", "x-pw: ***"),
            ("x-power: abc", "x-power: abc"),
            ("referer: http://a.example/?n=1&api_key=abc", "referer: ***"),
            ("referer: http://a.example/?n=1", "referer: http://a.example/?n=1"),
            ("POST /v1/a?sig=abc&design=1 HTTP/1.1", "POST /v1/a?sig=***&design=1 HTTP/1.1"),
            ("x-note: bearers abc", "x-note: bearers abc"),
            (
                "POST /v1/a?api%5Fkey=abc&%6Bey=abc&%74oken=abc&kex=abc HTTP/1.1",
                "POST /v1/a?api%5Fkey=***&%6Bey=***&%74oken=***&kex=abc HTTP/1.1",
            ),
            ("x-amz-security-token: abc", "x-amz-security-token: ***"),
            ("X-Custom: abc", "X-Custom: ***"),
            ("host: a.example:8080", "host: a.example:8080"),
            ("x-note: abc", "x-note: abc"),
            (&*format!("x-note: {KEY}"), "x-note: ***"),
            ("x-note: sk-proj-0123456789abcdef", "x-note: ***"),
            ("referer: https://ann:pass@a.example/b", "referer: ***"),
            ("referer: https://a.example/b@c", "referer: https://a.example/b@c"),
            ("POST /v1/chat/completions HTTP/1.1", "POST /v1/chat/completions HTTP/1.1"),
            ("POST /v1/a?api_key=abc&n=1 HTTP/1.1", "POST /v1/a?api_key=***&n=1 HTTP/1.1"),
            ("POST /v1/a?x=sk-proj-0123456789abcdef HTTP/1.1", "POST /v1/a?x=*** HTTP/1.1"),
            ("POST https://ann:pass@a.example/v1 HTTP/1.1", "POST https://***@a.example/v1 HTTP/1.1"),
            (&*format!("GET /v1/models/{KEY} HTTP/1.1"), "GET /v1/models/*** HTTP/1.1"),
            (&*format!("GET /v1/models/%74g_live_{} HTTP/1.1", &KEY[8..]), "GET /v1/models/*** HTTP/1.1"),
            ("GET /v1/models/@cf/llama HTTP/1.1", "GET /v1/models/@cf/llama HTTP/1.1"),
            ("GET /v1/models/monkey:7b?n=1 HTTP/1.1", "GET /v1/models/monkey:7b?n=1 HTTP/1.1"),
            ("GET /v1/a?token:ab/c&n:1&m%3A2 HTTP/1.1", "GET /v1/a?***&n:1&m%3A2 HTTP/1.1"),
            ("GET /v1/a?n=1&api_key%3Aab/c HTTP/1.1", "GET /v1/a?n=1&*** HTTP/1.1"),
            ("GET /v1/a?u=https%3A%2F%2Fann%3Apass%40h%2Fb HTTP/1.1", "GET /v1/a?u=*** HTTP/1.1"),
            ("x-original-url: https%3A%2F%2Fann%3Apass%40h%2Fb", "x-original-url: ***"),
            ("x-original-url: https%3A%2F%2Fh%2Fb%40c", "x-original-url: https%3A%2F%2Fh%2Fb%40c"),
            ("sk-proj-0123456789abcdef: 1", "***: ***"),
            (&*format!("{KEY}: 1"), "***: ***"),
            ("HTTP/1.1 200 OK", "HTTP/1.1 200 OK"),
        ] {
            assert_eq!(stars(&names).line(line), shown);
        }
    }

    #[test]
    fn keys_in_a_body_keep_only_their_ids() {
        let text = format!("a {KEY} b tg_live_0123456789abX {} tg_live_ c tg_live_0123456789ab", &KEY[..30]);
        let shown = "a tg_live_0123456789ab*** b tg_live_0123456789ab*** tg_live_0123456789ab*** tg_live_ c \
                     tg_live_0123456789ab";
        assert_eq!(keys(&stars(&[]), &text), shown);
        // Escapes stay in a text without a key.
        for (text, shown) in [
            (KEY.replace('_', "\\u005f"), "tg\\u005flive\\u005f0123456789ab***"),
            (KEY.replace('_', "\\u005F").replace('c', "\\\\u0063"), "tg\\u005Flive\\u005F0123456789ab***"),
            (KEY.replace("tg", "\\u0074\\u0067"), "\\u0074\\u0067_live_0123456789ab***"),
            ("a\\u005fb \\u00e4 \\u00".to_owned(), "a\\u005fb \\u00e4 \\u00"),
        ] {
            assert_eq!(keys(&stars(&[]), &text), shown, "{text}");
        }
    }

    #[test]
    fn credentials_of_a_head_are_starred_in_bodies() {
        let names = ["x-custom".to_owned()];
        let mut stars = stars(&names);
        stars.learn(
            "POST /v1/a:b HTTP/1.1\r\nauthorization: Bearer secret-of-the-provider\r\nX-Custom: of-the-configuration",
        );
        stars.learn("authorization: Bearer secret-of-the-provider\r\nx-api-key: short\r\nx-note: not-a-credential");
        let words = ["Bearer secret-of-the-provider", "secret-of-the-provider", "of-the-configuration"];
        assert_eq!(stars.secrets, words);
        stars.learn("GET / HTTP/1.1\r\nx-custom: one two three four \r\n");
        assert_eq!(
            keys(&stars, "{\"x-custom\": \"one two three four\"} two three"),
            "{\"x-custom\": \"***\"} two three"
        );
        let shown = keys(
            &stars,
            "Incorrect API key provided: secret-of-the-provider, of-the-configuration; not-a-credential, short",
        );
        assert_eq!(shown, "Incorrect API key provided: ***, ***; not-a-credential, short");
        let next = format!("{KEY}{KEY}{KEY}secret-of-the-provider of-the-configuration{KEY}");
        let id = "tg_live_0123456789ab***";
        assert_eq!(keys(&stars, &next), format!("{id}{id}{id} ***{id}"));
        // Each is found in the text as it was, even if one is the beginning of another, or has a key in it.
        stars.learn(&format!("x-key: secret-of-the\r\nx-key: Bearer\tbehind-a-tabulator\r\nx-key: {KEY}-and-more"));
        let text = format!("secret-of-the-provider secret-of-the-pro {KEY}-and-more {}behind-a-tabulator", &KEY[..40]);
        assert_eq!(keys(&stars, &text), format!("*** {id} {id}"));
    }

    #[test]
    fn credentials_within_a_header_are_starred_in_bodies() {
        let mut stars = stars(&[]);
        stars.learn(
            "x-upstream: Bearer of-the-upstream\r\ncookie: n=1; session=of-the-session\r\nx-api-key: \"of-the-quoted\"\r\n\
             x-url: https://u:of-the-address@h/\r\nx-note: not-a-credential",
        );
        let text = "of-the-upstream of-the-session of-the-quoted of-the-address not-a-credential";
        assert_eq!(keys(&stars, text), "*** *** *** *** not-a-credential");
    }

    #[test]
    fn credentials_of_a_first_line_are_starred_in_bodies() {
        let mut stars = stars(&[]);
        stars.learn(
            "POST /v1/path-of-the-request?api_key=of-the-parameter&token:of-the-colon&n=not-a-credential&\
             u=https%3A%2F%2Fann%3Aof-the-password%40h&sig=of%2Dthe%2Dencoded HTTP/1.1\r\n\
             sk-proj-0123456789abcdef: 1\r\nx-url: https%3A%2F%2Fann%3Aof-the-header-s%40h\r\n",
        );
        let text = "of-the-parameter of-the-colon of-the-password of-the-encoded of-the-header-s sk-proj-0123456789abcdef \
                    not-a-credential path-of-the-request";
        assert_eq!(keys(&stars, text), "*** *** *** *** *** *** not-a-credential path-of-the-request");
    }

    #[test]
    fn beginning_of_a_credential_at_a_cut_is_starred() {
        let mut stars = stars(&[]);
        stars.learn("authorization: Bearer secret-of-the-provider");
        for (body, left_out, shown) in [
            ("a secret-of", 1, json!({"head": [], "body": "a ***", "left_out": 1})),
            ("a secret-of", 0, json!({"head": [], "body": "a secret-of"})),
            ("a secret-of.", 1, json!({"head": [], "body": "a secret-of.", "left_out": 1})),
            ("a sec", 1, json!({"head": [], "body": "a sec", "left_out": 1})),
        ] {
            assert_eq!(written(&stars, body.as_bytes(), left_out), shown, "{body}");
        }
        let starred = base64::encode(b"secr\xff***");
        let shown = written(&stars, b"secr\xffsecret-of", 1);
        assert_eq!(shown, json!({"head": [], "base64": starred, "left_out": 1}), "only the end is cut");
    }

    #[test]
    fn form_is_written_as_its_size() {
        let message = CapturedMessage { is_form: true, left_out: 20, ..CapturedMessage::default() };
        let mut out = Vec::new();
        write_message(&message, &stars(&[]), &stars(&[]).redactor(), &mut out);
        assert_eq!(std::str::from_utf8(&out), Ok("\"head\":[],\"body\":\"form of 20 bytes\""));
    }

    fn keys(stars: &Stars<'_>, text: &str) -> String {
        stars.redactor().text(text, false)
    }

    fn written(stars: &Stars<'_>, body: &[u8], left_out: u64) -> Value {
        let mut message = CapturedMessage::default();
        (message.body, message.left_out) = (body.to_vec(), left_out);
        let mut out = b"{".to_vec();
        write_message(&message, stars, &stars.redactor(), &mut out);
        out.push(b'}');
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn bytes_that_are_no_text_are_written_in_base64() {
        let none = stars(&[]);
        assert_eq!(written(&none, b"RIFF\xff\x00", 0), json!({"head": [], "base64": "UklGRv8A"}));
        let starred = base64::encode(b"\xfftg_live_0123456789ab***");
        assert_eq!(written(&none, &[b"\xff", KEY.as_bytes()].concat(), 0), json!({"head": [], "base64": starred}));
        // A body that was cut within a character is text.
        assert_eq!(written(&none, b"a\xc3", 6), json!({"head": [], "body": "a", "left_out": 6}));
    }
}
