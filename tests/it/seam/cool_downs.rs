//! Who rests a credential for whom: a generated table of statuses, words, headers and owners of keys. For each row the
//! test knows from the rules of the manual ("Routing and cool-downs") what the client gets, and which later requests
//! still go to the first target.

use super::rig::Rig;

/// Text of a provider's error.
#[derive(Copy, Clone, PartialEq, Debug)]
enum Words {
    Plain,
    TooLarge,
    Credit,
    /// A code in the details, as Google writes it.
    Key,
    /// Suspended, with the account's name in the middle.
    Suspended,
    /// The client's text, quoted by the provider: it has all words of the others.
    Quoted,
    /// A message that begins with the client's text, which is a failure of the account.
    Echo,
}

impl Words {
    /// True for an error that Tollgate takes for a failure of the account.
    fn are_of_account(self) -> bool {
        matches!(self, Words::Credit | Words::Key | Words::Suspended | Words::Echo)
    }
}

const WORDS: [(Words, &str); 7] = [
    (Words::Plain, r#"{"error":{"message":"Slow down, please.","type":"x"}}"#),
    (
        Words::TooLarge,
        r#"{"error":{"message":"Request too large for m in organization o on tokens per min (TPM): Limit 30000, Requested 40024. The input or output tokens must be reduced in order to run successfully.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
    ),
    (
        Words::Credit,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."}}"#,
    ),
    (
        Words::Key,
        r#"[{"error":{"code":400,"message":"Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID","domain":"googleapis.com"}]}}]"#,
    ),
    (
        Words::Suspended,
        r#"{"error":{"message":"Account team-7 is suspended, possibly due to reaching the monthly spending limit.","param":null,"code":"PRECONDITION_FAILED","type":"error"}}"#,
    ),
    (
        Words::Quoted,
        r#"{"error":{"message":"messages[0]: unexpected text 'Your credit balance is too low. API key not valid. API_KEY_INVALID insufficient_quota Account x is suspended'","type":"invalid_request_error","param":"messages"}}"#,
    ),
    (
        Words::Echo,
        r#"{"error":{"message":"API key expired: a text that this model does not accept","type":"invalid_request_error"}}"#,
    ),
];

#[derive(Copy, Clone, PartialEq, Debug)]
enum Headers {
    None,
    /// A time to wait, or an exhausted limit whose reset is unknown.
    Stated(&'static str),
    /// An exhausted limit: until its reset, the provider is not asked, whatever the status is.
    Spent(&'static str),
    /// Enough is left for every request here.
    Much,
}

const HEADERS: [Headers; 5] = [
    Headers::None,
    Headers::Stated("retry-after: 20\r\n"),
    Headers::Spent("x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: 20s\r\n"),
    Headers::Stated("x-ratelimit-remaining-tokens: 0\r\n"),
    Headers::Much,
];
const MUCH: &str = "x-ratelimit-remaining-tokens: 3000000\r\nx-ratelimit-reset-tokens: 20s\r\n";

const STATUSES: [u16; 12] = [400, 401, 402, 403, 404, 412, 413, 422, 429, 500, 503, 529];

/// For whom a failure rests the credential.
#[derive(Copy, Clone, PartialEq, Debug)]
enum Rests {
    Nobody,
    /// The owner who has met it; a second owner makes it rest for all.
    Owner,
    /// Nobody; a second owner makes it rest for all.
    SecondOwner,
    All,
}

/// The rules: for whom the credential rests, and the status that a client gets if there is no other target.
fn rule(status: u16, words: Words, headers: Headers) -> (Rests, u16) {
    let is_stated = matches!(headers, Headers::Stated(_));
    // Some providers refuse a request that exceeds a rate limit alone with 413.
    let is_of_request = matches!(status, 400 | 422) || (status == 413 && words != Words::TooLarge);
    let alone = |rests| (rests, if is_of_request && !words.are_of_account() { 400 } else { 500 });
    alone(match status {
        _ if matches!(headers, Headers::Spent(_)) => Rests::All,
        401 | 503 | 529 => Rests::All,
        500 => Rests::Nobody,
        429 if is_stated => Rests::All,
        402 => Rests::SecondOwner,
        _ if words == Words::Key => Rests::All,
        429 if words == Words::TooLarge => Rests::Nobody,
        429 => Rests::Owner,
        403 => Rests::SecondOwner,
        _ if words.are_of_account() => Rests::SecondOwner,
        _ => Rests::Nobody,
    })
}

/// Keys `k0` and `k1` have one owner, `k2` and `k3` one each.
const GROUPS: [&str; 4] = ["one", "one", "", ""];

struct Row {
    status: u16,
    words: (Words, &'static str),
    headers: Headers,
    /// Keys of the first two requests.
    keys: [usize; 2],
}

fn rig() -> Rig {
    let target = |provider: &str| format!("{{ provider = \"{provider}\", model = \"m\" }}");
    let (pair, lone) =
        (format!("targets = [{}, {}]", target("p1"), target("p2")), format!("targets = [{}]", target("p1")));
    let lines = [
        ("upstream", "breaker_failures = 0"),
        ("group one", "budget = 1000.0"),
        ("provider p1", "shape = \"chat\""),
        ("provider p1", "base_url = \"http://10.0.1.1/v1\""),
        ("provider p2", "shape = \"chat\""),
        ("provider p2", "base_url = \"http://10.0.1.2/v1\""),
        ("model small", &pair),
        ("model lone", "context = \"256K\""),
        ("model lone", "input_price = 1.0"),
        ("model lone", "output_price = 1.0"),
        ("model lone", &lone),
    ];
    Rig::owned(&GROUPS, &lines)
}

const ANSWER: &str = "{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"message\":{\"content\":\"\"}}],\
                      \"usage\":{\"prompt_tokens\":2,\"completion_tokens\":1,\"total_tokens\":3}}";

/// Sends a request of a key. The first provider answers as the row says, the second one well. Returns the providers
/// that were asked, and the client's answer.
fn ask(rig: &mut Rig, key: usize, model: &str, row: &Row) -> (Vec<u16>, String) {
    let client = format!("c{key}");
    let body = format!("{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
        rig.keys.texts[&format!("k{key}")],
        body.len()
    );
    rig.send(&client, format!("{head}{body}"));
    let mut asked = Vec::new();
    while let Some(label) = rig.asked().pop() {
        let is_first = String::from_utf8_lossy(&rig.world.ends[&label].got).contains("host: 10.0.1.1\r\n");
        asked.push(if is_first { 1 } else { 2 });
        let (status, more, body) = match (is_first, row.headers) {
            (false, _) => (200, "", ANSWER),
            (true, Headers::None) => (row.status, "", row.words.1),
            (true, Headers::Stated(lines) | Headers::Spent(lines)) => (row.status, lines, row.words.1),
            (true, Headers::Much) => (row.status, MUCH, row.words.1),
        };
        rig.answer(&label, &format!("HTTP/1.1 {status} X\r\n{more}content-length: {}\r\n\r\n{body}", body.len()));
    }
    let end = rig.world.end(&client).unwrap();
    end.got.clear();
    (asked, String::from_utf8(std::mem::take(&mut end.all)).unwrap())
}

fn check(row: &Row) {
    let Row { status, words, headers, keys } = *row;
    let name = format!("{status} {:?} {headers:?} {keys:?}", words.0);
    let (mut rig, (rests, alone)) = (rig(), rule(status, words.0, headers));
    let owner = |key: usize| if key < 2 { 0 } else { key };
    let goes_on = alone == 500 && (status != 412 || words.0.are_of_account());
    // Owners that meet the failure: those whose requests reach the first provider.
    let mut met: Vec<usize> = Vec::new();
    let rests_for = |met: &[usize], key: usize| match rests {
        Rests::Nobody => false,
        Rests::All => !met.is_empty(),
        Rests::Owner => met.contains(&owner(key)) || met.iter().any(|one| *one != met[0]),
        Rests::SecondOwner => met.iter().any(|one| *one != met[0]),
    };
    for key in keys.into_iter().chain([3, keys[0]]) {
        let is_resting = rests_for(&met, key);
        let (asked, got) = ask(&mut rig, key, "small", row);
        let want: &[u16] = match (is_resting, goes_on) {
            (true, _) => &[2],
            (false, true) => &[1, 2],
            (false, false) => &[1],
        };
        assert_eq!(asked, want, "{name}: k{key} after {met:?}: {got}");
        let code = if goes_on || is_resting { 200 } else { alone };
        assert!(got.starts_with(&format!("HTTP/1.1 {code}")), "{name}: {got}");
        // The answer of the second provider ends no count at the first one.
        if !is_resting {
            met.push(owner(key));
        }
    }
    let (asked, got) = ask(&mut rig, 2, "lone", row);
    let is_held_back = asked.is_empty();
    assert!(is_held_back || asked == [1], "{name}: {asked:?}");
    assert!(
        got.starts_with(&format!("HTTP/1.1 {alone}")) || (is_held_back && got.starts_with("HTTP/1.1 503")),
        "{name}: {got}"
    );
    assert!(
        alone == 400 || !["credit", "API key", "suspended", "too large"].iter().any(|word| got.contains(word)),
        "{name}: {got}"
    );
}

#[test]
fn credentials_rest_only_for_those_whom_the_rules_name() {
    let mut count = 0;
    for status in STATUSES {
        for words in WORDS {
            for headers in HEADERS {
                for keys in [[0, 0], [0, 1], [0, 2], [2, 0]] {
                    check(&Row { status, words, headers, keys });
                    count += 1;
                }
            }
        }
    }
    assert_eq!(count, 12 * 7 * 5 * 4);
}
