//! The pairs of request and response in the API pages: each request is sent to a gateway with the simulated provider,
//! and the response must equal the one on the page. `BLESS=1 cargo test --test it docs::` writes the responses.

use super::openapi::{Answer, ask};
use super::pages::root;
use super::rig::Rig;
use std::fs;

/// Header fields that vary between runs or contain nothing new.
const HIDDEN: [&str; 6] = ["date", "content-length", "transfer-encoding", "connection", "request-id", "x-request-id"];
/// JSON levels whose members are each on a separate line.
const LEVELS: usize = 3;

/// Starts a gateway with priced models and one plan with limits.
fn setting() -> Rig {
    let rig = Rig::new("pairs", "");
    let models = format!(
        "[[providers]]\nname = \"local\"\nshape = \"chat\"\nbase_url = \"http://{}/v1\"\n\
         [[models]]\nid = \"small\"\ncontext = \"256K\"\ninput_price = 0.75\noutput_price = 4.5\n\
         targets = [{{ provider = \"local\" }}]\n\
         [[models]]\nid = \"wide\"\ncontext = \"8K\"\ninput_price = 0.1\noutput_price = 0.1\n\
         serves = [\"embeddings\", \"rerank\", \"completions\", \"images\", \"moderations\"]\n\
         targets = [{{ provider = \"local\" }}]\n",
        rig.provider
    );
    rig.configure("", &models, "[[plans]]\nname = \"team\"\ntokens = \"10M\"\nrequests = 600\nbudget = 50.0\n");
    rig
}

/// Returns the bytes of a request on a page.
fn sent(written: &str, key: &str) -> String {
    let (head, body) = written.split_once("\n\n").unwrap_or((written, ""));
    let body = body.trim_end().replace("\"Hello\"", "\"Hello #sim tokens=3\"");
    let head = head.trim_end().replace("$KEY", key).replace('\n', "\r\n");
    format!("{head}\r\nhost: h\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Texts that precede values which vary between runs.
const MARKS: [&str; 7] = ["req_", "msg_", "\"created\":", "_at\":", "-reset: ", "\"start\":", "\"renews\":"];

/// Replaces the values after the marks by fixed ones: the time of a request, and the ends of its minute and its month.
fn steady(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((end, mark)) = MARKS.iter().filter_map(|mark| Some((rest.find(mark)? + mark.len(), *mark))).min() {
        let end = end + usize::from(rest[end..].starts_with('"'));
        out.push_str(&rest[..end]);
        rest = &rest[end..];
        let is_id = mark.ends_with('_');
        let fits = |c: char| if is_id { c.is_ascii_hexdigit() } else { c.is_ascii_digit() || "-:.TZ".contains(c) };
        let value = &rest[..rest.find(|c| !fits(c)).unwrap_or(rest.len())];
        out.push_str(match value {
            "" => "",
            _ if is_id => "0123456789abcdef0123456789abcdef",
            _ if value.ends_with("-01T00:00:00Z") => "2026-12-01T00:00:00Z",
            _ if value.contains('T') => "2026-11-25T14:31:00Z",
            _ if !value.contains('-') => "1795617012",
            _ if mark.contains("start") => "2026-11-01",
            _ => "2026-12-01",
        });
        rest = &rest[value.len()..];
    }
    out + rest
}

/// Returns JSON with the members of its upper levels on separate lines, in the original order.
fn lines(json: &str) -> String {
    let (mut out, mut depth, mut inside, mut escaped) = (String::new(), 0, false, false);
    let mut chars = json.chars().peekable();
    while let Some(c) = chars.next() {
        let is_empty = chars.peek().is_some_and(|next| "}]".contains(*next));
        let line = |depth: usize| if depth <= LEVELS { format!("\n{}", "  ".repeat(depth)) } else { String::new() };
        match c {
            _ if inside || c == '"' => out.push(c),
            '}' | ']' => {
                depth -= 1;
                if depth < LEVELS && !out.ends_with(['{', '[']) {
                    out += &line(depth);
                }
                out.push(c);
            }
            '{' | '[' => {
                depth += 1;
                out.push(c);
                out += &(if is_empty { String::new() } else { line(depth) });
            }
            ',' => out += &(if depth <= LEVELS { format!(",{}", line(depth)) } else { ", ".to_owned() }),
            ':' => out += ": ",
            _ => out.push(c),
        }
        inside ^= c == '"' && !escaped;
        escaped = inside && c == '\\' && !escaped;
    }
    out
}

/// Returns a response as a page shows it.
fn shown(answer: &Answer) -> String {
    let fields = answer.fields.iter().filter(|(name, _)| !HIDDEN.contains(&name.as_str()));
    let head: String = fields.map(|(name, value)| format!("{name}: {value}\n")).collect();
    let text = steady(&format!("HTTP/1.1 {}\n{head}\n{}", answer.status, answer.body));
    let (head, body) = text.split_once("\n\n").unwrap();
    let body = if body.starts_with('{') { lines(body) } else { body.to_owned() };
    format!("{head}\n\n{}\n", body.trim_end())
}

#[test]
fn responses_of_the_api_pages_are_real() {
    let rig = setting();
    let gate = rig.start();
    let folder = root().join("src/docs");
    let mut pages: Vec<_> = super::pages::pages(&folder.join("api"));
    pages.push(folder.join("api.md"));
    let mut count = 0;
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let mut parts: Vec<String> = text.split("```").map(str::to_owned).collect();
        let pairs: Vec<usize> = (1..parts.len()).step_by(2).filter(|at| parts[*at].starts_with("http\n")).collect();
        for pair in pairs.chunks(2) {
            let [request, response] = pair[..] else { panic!("{}: a request has no response", page.display()) };
            let request = sent(&parts[request]["http\n".len()..], &rig.issue("--plan team"));
            parts[response] = format!("http\n{}", shown(&ask(&gate, &request)));
            count += 1;
        }
        let made = parts.join("```");
        if std::env::var_os("BLESS").is_some() {
            fs::write(&page, made).unwrap();
        } else {
            let different = text.lines().zip(made.lines()).find(|(is, should)| is != should);
            assert!(text == made, "{}: BLESS=1 writes it; the first difference: {different:#?}", page.display());
        }
    }
    assert!(count >= 15, "{count}");
}

#[test]
fn json_has_line_breaks_only_at_its_upper_levels() {
    let json = r#"{"a":[],"b":{"c":{"d":{"e":",\"{"}}}}"#;
    let made = "{\n  \"a\": [],\n  \"b\": {\n    \"c\": {\n      \"d\": {\"e\": \",\\\"{\"}\n    }\n  }\n}";
    assert_eq!(lines(json), made);
}
