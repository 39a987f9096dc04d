//! `tollgate check --connect`: requests the models of every provider as the gateway would, and reports problems and
//! their solutions. Must never repeat a provider's text: it may contain a credential.

use crate::cli::discover;
use crate::cli::http::blocking_http::{HttpResponse, NoAnswer};
use crate::cli::http::provider_client::{ANSWER, Asker, base_path, encoded, get, list_path, request, send};
use crate::cli::output::{self, Failure, clean, print};
use crate::cli::store;
use crate::io::clock::Clock;
use crate::io::tls::blocking::Trouble;
use crate::io::tls::{Authority, Security};
use crate::policy::catalog::{Model, Target};
use crate::policy::config::{Auth, Config, Provider, StoreUrl};
use crate::policy::vendors::Vendors;
use crate::wire::head::values;
use serde_json::Value;
use std::fmt::Write as _;

/// Endings of base URLs that name an endpoint.
const ENDPOINTS: [&str; 6] =
    ["/chat/completions", "/completions", "/v1/messages", "/messages", "/responses", "/models"];

/// Maximum number of models that a line names.
const NAMED_MAX: usize = 10;

/// Result for one provider or target.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// A request would work.
    Good(String),
    /// A request may work, with a remark.
    Hint(String),
    /// A request would fail.
    Bad(String),
}

impl Found {
    fn text(&self) -> (&'static str, &str) {
        match self {
            Found::Good(text) => ("ok", text),
            Found::Hint(text) => ("hint", text),
            Found::Bad(text) => ("error", text),
        }
    }
}

/// Queries the shared ledger, if there is one, and all providers concurrently, and prints the results in the order of
/// the configuration. Fails if a request would fail.
pub fn run(config: &Config, security: &Security) -> Result<(), Failure> {
    let ledger = ledger(config);
    let reports: Vec<(String, bool)> = std::thread::scope(|scope| {
        let asked: Vec<_> = config
            .providers
            .iter()
            .enumerate()
            .map(|(at, _)| scope.spawn(move || report(config, at, security)))
            .collect();
        asked.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let text: String = ledger.iter().chain(&reports).map(|(text, _)| text.as_str()).collect();
    print(&text)?;
    if ledger.is_some_and(|(_, bad)| bad) {
        return Err(Failure::failed("the gateway would not start: its ledger does not answer"));
    }
    match reports.iter().filter(|(_, bad)| *bad).count() {
        0 => Ok(()),
        1 => Err(Failure::failed("requests to one provider would fail")),
        count => Err(Failure::failed(format!("requests to {count} providers would fail"))),
    }
}

/// The lines about a shared ledger, and whether it cannot be used.
fn ledger(config: &Config) -> Option<(String, bool)> {
    let StoreUrl::Redis(_) = &config.store.url else { return None };
    let opened = store::open(config);
    let said = match &opened {
        Ok(_) => "ok: the ledger answers".to_string(),
        Err(why) => format!("error: {}", clean(&why.text())),
    };
    Some((format!("store  {}\n  {said}\n", config.store.url), opened.is_err()))
}

/// The lines about one provider and its targets, and whether a request would fail.
fn report(config: &Config, index: usize, security: &Security) -> (String, bool) {
    let Some(provider) = config.provider(index) else { return Default::default() };
    let (clock, mut list) = (Clock::new(), None);
    let began = clock.mono();
    let asker = &Asker::new(security);
    let found = match misnamed(provider) {
        Some(mend) => Found::Bad(mend),
        None => match get(provider, asker, &list_path(provider)) {
            Ok(answer) => judge(provider, asker, &answer, &mut list),
            Err(why) => Found::Bad(no_answer(provider, asker, &why)),
        },
    };
    let (word, said) = found.text();
    let millis = clock.mono().micros_since(began) / 1000;
    let mut text = format!("{}  {}\n  {word}: {} ({millis} ms)\n", provider.name, provider.base_url, clean(said));
    let mut bad = matches!(found, Found::Bad(_));
    if bad {
        text += &without(config, index);
    }
    for (place, credential) in provider.credentials.iter().enumerate().skip(1) {
        let began = clock.mono();
        let one = Provider { credentials: vec![credential.clone()], ..provider.clone() };
        let asker = &Asker::new(security);
        let found = match get(&one, asker, &list_path(&one)) {
            Ok(answer) => judge(&one, asker, &answer, &mut None),
            Err(why) => Found::Bad(no_answer(&one, asker, &why)),
        };
        bad |= matches!(found, Found::Bad(_));
        let (word, said) = found.text();
        let millis = clock.mono().micros_since(began) / 1000;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {word}: {}: {} ({millis} ms)", provider.credential_name(place), clean(said));
    }
    if let (Some(_), false) = (&provider.discover, bad) {
        let (word, said) = match discover::ask(provider, security, config.server.bounds.list_bytes) {
            Ok(list) => ("ok", format!("{} of its list for the catalog", output::models(list.models.len()))),
            Err(no) => ("hint", format!("its list cannot be used: {}", no.why)),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {word}: discover: {}", clean(&said));
    }
    for (model, target) in targets(config, index) {
        let Some(list) = &list else { continue };
        let asker = &Asker::new(security);
        let found = match look_for(provider, asker, list, target) {
            Found::Good(there) => unserved(provider, asker, model, target).unwrap_or(Found::Good(there)),
            other => other,
        };
        bad |= matches!(found, Found::Bad(_));
        let (word, said) = found.text();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {word}: {} -> {}: {}", model.id, clean(&target.model), clean(said));
    }
    (text, bad)
}

fn targets(config: &Config, provider: usize) -> impl Iterator<Item = (&Model, &Target)> {
    let all = config.catalog.models().iter().flat_map(|model| model.targets.iter().map(move |target| (model, target)));
    all.filter(move |(_, target)| target.provider == provider && target.credential == 0)
}

/// The lines about the models of a provider that does not answer: models without another provider, and models with one.
fn without(config: &Config, provider: usize) -> String {
    let is_own = |target: &Target| target.provider == provider;
    let models = config.catalog.models().iter().filter(|model| model.targets.iter().any(is_own));
    let (failing, served): (Vec<&Model>, Vec<&Model>) = models.partition(|model| model.targets.iter().all(is_own));
    let line = |what: &str, models: &[&Model]| {
        let names: Vec<&str> = models.iter().take(NAMED_MAX).map(|model| &*model.id).collect();
        let more = models.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        if names.is_empty() { String::new() } else { format!("  {what}: {}{more}\n", clean(&names.join(", "))) }
    };
    line("models without another provider", &failing) + &line("models with another provider", &served)
}

/// Error text for a `base_url` that names an endpoint.
fn misnamed(provider: &Provider) -> Option<String> {
    let url = &provider.base_url;
    let bare = ENDPOINTS.iter().find_map(|end| url.strip_suffix(end))?;
    Some(format!("base_url names an endpoint: write base_url = \"{bare}\""))
}

/// The scheme and host of a `base_url`.
fn origin(provider: &Provider) -> String {
    format!("{}://{}", if provider.tls { "https" } else { "http" }, provider.host_header)
}

/// A model that a provider lists.
struct ListedModel {
    id: String,
    /// The day on which it is shut down, if the provider reports it (`shutdown_date`, as in OpenAI's list).
    ends: Option<String>,
}

/// Evaluates an answer to the request for models. `list`: the models, if there is a list.
fn judge(provider: &Provider, asker: &Asker<'_>, answer: &HttpResponse, list: &mut Option<Vec<ListedModel>>) -> Found {
    let status = answer.status;
    match status {
        200 => match serde_json::from_str::<Value>(&String::from_utf8_lossy(&answer.body)) {
            Ok(value) => judge_list(provider, asker, &value, list),
            Err(_) if !answer.whole => {
                Found::Bad(format!("200, but the list is incomplete after {} s", ANSWER.as_secs()))
            }
            Err(_) => {
                Found::Bad(format!("200, but the response is not JSON: correct base_url = \"{}\"", provider.base_url))
            }
        },
        401..=403 if provider.auth == Auth::Client => {
            Found::Good(format!("{status}: it is there; each client sends a credential of its own"))
        }
        401..=403 => Found::Bad(rejected(provider, status)),
        404 | 405 => not_there(provider, asker, status),
        408 | 429 | 500..=599 => {
            Found::Hint(format!("{status}: the provider is busy or broken at the moment: try again later"))
        }
        300..=399 => {
            let to = values(&answer.head, "location").next().map(|to| String::from_utf8_lossy(to).into_owned());
            let to = to.map(|to| to.trim_end_matches("/models").to_string()).unwrap_or_default();
            Found::Bad(format!("{status}: a redirect, which Tollgate never follows: write base_url = \"{to}\""))
        }
        _ if speaks_of_tls(&answer.body) => Found::Bad(wants_tls(provider)),
        _ => Found::Hint(format!("{status} to the request for its models: it lists none")),
    }
}

fn judge_list(provider: &Provider, asker: &Asker<'_>, value: &Value, list: &mut Option<Vec<ListedModel>>) -> Found {
    let Some(entries) = value["data"].as_array() else {
        return Found::Hint("200, but the response is not a list of models".to_string());
    };
    let theirs = value["object"] != "list" && value.get("has_more").is_some();
    // Some providers with such a list have a chat endpoint, too.
    if !provider.shape.is_anthropic() && theirs && !is_there(provider, asker) {
        return Found::Bad("it speaks the messages shape: write shape = \"messages\"".to_string());
    }
    let text = |value: &Value| value.as_str().map(str::to_string);
    let listed = |entry: &Value| Some(ListedModel { id: text(&entry["id"])?, ends: text(&entry["shutdown_date"]) });
    let models: Vec<ListedModel> = entries.iter().filter_map(listed).collect();
    let found = Found::Good(format!("200, {}", output::models(models.len())));
    *list = Some(models);
    found
}

/// Returns the remedy for the status of a rejected credential.
fn rejected(provider: &Provider, status: u16) -> String {
    match status {
        402 => "402: the account has no credit left: add credit at the provider".to_string(),
        403 => {
            "403: the credential is valid, but lacks permission: check its rights, project and region at the provider"
                .to_string()
        }
        _ => unauthorized(provider),
    }
}

/// Name of a provider's vendor for people.
fn title<'a>(provider: &'a Provider, title: &'a Option<String>) -> &'a str {
    title.as_deref().or(provider.vendor.as_deref()).unwrap_or(&provider.name)
}

fn unauthorized(provider: &Provider) -> String {
    let Some(credential) = provider.credentials.first() else {
        return "401: it wants a credential: set api_key = { env = \"…\" }".to_string();
    };
    let (name, _) = provider.header_of(credential);
    let identity = Vendors::built_in().identity(&provider.place());
    if let Some(auth) = identity.auth.filter(|auth| auth != name) {
        return format!(
            "401: {} takes its keys in another header: write auth = \"{auth}\"",
            title(provider, &identity.title)
        );
    }
    format!(
        "401: it refuses the credential of {}, sent as `{name}`: is it whole, and is it this provider's?",
        credential.secret.origin()
    )
}

/// Statuses of an endpoint that does not exist.
const ABSENT: [u16; 3] = [404, 405, 501];
/// Phrases of providers about a model that does not support an endpoint.
const NOT_FOR_IT: [&str; 3] = ["does not support", "not supported", "not a chat model"];

/// The answer to a request without a message or text: a provider refuses it free of charge.
fn post(provider: &Provider, asker: &Asker<'_>, path: &str, body: &[u8]) -> Option<HttpResponse> {
    send(provider, asker, &request(provider, "POST", path, &[], body)).ok()
}

/// True if the provider has an endpoint for conversations in its format.
fn is_there(provider: &Provider, asker: &Asker<'_>) -> bool {
    post(provider, asker, &provider.path, b"{}").is_some_and(|answer| !ABSENT.contains(&answer.status))
}

/// The first endpoint in `serves` that the provider does not offer for this model, or for which it rejects the
/// credential: a list of models may be open to everybody.
fn unserved(provider: &Provider, asker: &Asker<'_>, model: &Model, target: &Target) -> Option<Found> {
    let body = serde_json::json!({ "model": target.model }).to_string();
    let asked = model.serves.iter().filter_map(|served| match served.as_passthrough() {
        Some(_) if provider.shape != served.shape => None,
        Some(passthrough) => Some((passthrough.as_str(), format!("{}{}", base_path(provider), served.path_below()))),
        None => Some(("chat", provider.path.to_string())),
    });
    asked.into_iter().find_map(|(word, path)| {
        let answer = post(provider, asker, &path, body.as_bytes())?;
        let says = String::from_utf8_lossy(&answer.body).to_ascii_lowercase();
        let refused = matches!(answer.status, 400 | 403 | 422) && NOT_FOR_IT.iter().any(|words| says.contains(words));
        let status = answer.status;
        if refused || ABSENT.contains(&status) {
            return Some(Found::Bad(format!(
                "available, but not for {path}, which returns {status}: check \"{word}\" in `serves`"
            )));
        }
        matches!(status, 401..=403).then(|| Found::Bad(rejected(provider, status)))
    })
}

/// Explains a missing model list: either the provider has none, or `base_url` is wrong.
fn not_there(provider: &Provider, asker: &Asker<'_>, status: u16) -> Found {
    let generate = post(provider, asker, &provider.path, b"{}");
    if generate.as_ref().is_some_and(|answer| answer.status == 401) {
        return Found::Bad(unauthorized(provider));
    }
    if generate.is_some_and(|answer| !ABSENT.contains(&answer.status)) {
        return Found::Hint(format!("{status}: it answers, but lists no models"));
    }
    let base = base_path(provider);
    let doubled = base.strip_suffix("/v1/v1").map(|bare| (format!("{bare}/v1"), "has /v1 twice"));
    let more = [("/v1", "lacks /v1"), ("/api/v1", "lacks /api/v1"), ("/openai/v1", "lacks /openai/v1")];
    let more = more.into_iter().map(|(end, what)| (format!("{base}{end}"), what));
    for (path, what) in doubled.into_iter().chain(more) {
        let there = get(provider, asker, &format!("{path}/models"));
        if there.is_ok_and(|answer| matches!(answer.status, 200 | 401 | 403)) {
            let written = if provider.shape.is_anthropic() { path.trim_end_matches("/v1") } else { &*path };
            let url = format!("{}{written}", origin(provider));
            return Found::Bad(format!("{status}: base_url {what}: write base_url = \"{url}\""));
        }
    }
    Found::Bad(format!("{status}: nothing at {base}: correct base_url = \"{}\"", provider.base_url))
}

/// True if an answer complains about plain HTTP on a TLS port.
fn speaks_of_tls(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body).to_ascii_lowercase();
    text.contains("https") && text.contains("http request")
}

fn wants_tls(provider: &Provider) -> String {
    format!(
        "it speaks TLS, and base_url says http: write base_url = \"{}\"",
        provider.base_url.replacen("http:", "https:", 1)
    )
}

fn no_answer(provider: &Provider, asker: &Asker<'_>, why: &NoAnswer) -> String {
    if let (Some(proxy), NoAnswer::Name | NoAnswer::Refused(_) | NoAnswer::Unreachable(..)) = (&provider.proxy, why) {
        return format!("the proxy {}:{} cannot be reached: correct `proxy`", proxy.host, proxy.port);
    }
    match why {
        NoAnswer::Proxy(why) => format!("{why}: check `proxy` and the rules of the proxy"),
        NoAnswer::Name => {
            format!("no address for `{}`: correct the name, or the resolver of this host", provider.host)
        }
        NoAnswer::Refused(at) => {
            format!("connection refused: nothing listens at {at}: start the server or correct the port")
        }
        NoAnswer::Unreachable(at, why) => {
            format!("no connection to {at}: {why}: check the address, firewalls and proxies")
        }
        NoAnswer::Silent | NoAnswer::Broken(_) if provider.tls && answers_plain(provider, asker) => {
            no_answer(provider, asker, &NoAnswer::Tls(Trouble::NotTls))
        }
        NoAnswer::Silent => format!("connected, but no answer came within {} s", ANSWER.as_secs()),
        NoAnswer::WantsTls => wants_tls(provider),
        NoAnswer::Broken(_) if !provider.tls && answers_tls(provider, asker) => wants_tls(provider),
        NoAnswer::Broken(why) => format!("not HTTP: {why}: correct the port"),
        NoAnswer::Tls(Trouble::NotTls) => {
            let url = provider.base_url.replacen("https:", "http:", 1);
            format!("it does not speak TLS: write base_url = \"{url}\" if the way there is safe")
        }
        NoAnswer::Tls(Trouble::UnknownIssuer) => {
            "its certificate is signed by nobody who is trusted: name the authority \
             by ca_file = \"ca.pem\""
                .to_string()
        }
        NoAnswer::Tls(Trouble::OutOfTime) => {
            "its certificate has expired or is not valid yet: renew it there, or set the clock here".to_string()
        }
        NoAnswer::Tls(Trouble::OtherName) => {
            format!("its certificate is not for `{}`: write the name that it is for into base_url", provider.host)
        }
        NoAnswer::Tls(Trouble::Authority) => {
            "a CA certificate serves as the server's own: issue one with CA:FALSE for it".to_string()
        }
        NoAnswer::Tls(Trouble::Other(why)) => format!("TLS fails: {why}"),
    }
}

/// True if the port answers plain HTTP after a failed TLS handshake.
fn answers_plain(provider: &Provider, asker: &Asker<'_>) -> bool {
    // Without a credential, since it would be sent in clear text.
    let plain = Provider { authority: None, ..provider.clone() };
    send(&plain, asker, b"GET / HTTP/1.0\r\n\r\n").is_ok()
}

/// True if the port answers TLS after plain HTTP failed: some servers close without an answer.
fn answers_tls(provider: &Provider, asker: &Asker<'_>) -> bool {
    // Any peer is accepted: whether it is trusted does not matter here.
    let peer = Authority { server_name: provider.host.to_string(), ca_file: None, retired: false };
    let Ok(security) = Security::load(&[peer], None, None) else { return false };
    let asker = &Asker { security: &security, clock: asker.clock.clone(), until: asker.until };
    let secure = Provider { authority: Some(0), ..provider.clone() };
    match send(&secure, asker, b"GET / HTTP/1.0\r\n\r\n") {
        Ok(_) => true,
        Err(NoAnswer::Tls(trouble)) => trouble != Trouble::NotTls,
        Err(_) => false,
    }
}

/// True if the provider has the model of a target.
fn look_for(provider: &Provider, asker: &Asker<'_>, list: &[ListedModel], target: &Target) -> Found {
    if let Some(ListedModel { ends, .. }) = list.iter().find(|model| model.id == target.model) {
        return match ends {
            Some(day) => Found::Hint(format!("available until {day}, when the provider ends it: choose another")),
            None => Found::Good("available".to_string()),
        };
    }
    // A provider may accept names that it does not list.
    let path = format!("{}/models/{}", base_path(provider), encoded(&target.model));
    if get(provider, asker, &path).is_ok_and(|answer| answer.status == 200) {
        return Found::Good("available".to_string());
    }
    let identity = Vendors::built_in().identity(&provider.place());
    if identity.unlisted == Some(true) {
        return Found::Hint(format!(
            "not listed: {} does not list all that it serves",
            title(provider, &identity.title)
        ));
    }
    let far = |model: &&ListedModel| distance(&model.id, &target.model);
    let nearest = list.iter().min_by_key(far).filter(|model| far(model) <= 3);
    match (nearest, list) {
        (Some(near), _) => Found::Bad(format!("the provider has no such model; did you mean `{}`?", near.id)),
        (None, []) => Found::Hint("the provider lists no models at all".to_string()),
        (None, some) => {
            let some: Vec<&str> = some.iter().take(5).map(|model| &*model.id).collect();
            Found::Bad(format!("the provider has no such model; it has {}, …", some.join(", ")))
        }
    }
}

/// Number of characters to change, add or remove to turn one word into the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut before: Vec<usize> = (0..=other.len()).collect();
    for (row, c) in one.chars().enumerate() {
        let mut now = vec![row + 1];
        for (column, d) in other.iter().enumerate() {
            let changed = before[column] + usize::from(c != *d);
            now.push(changed.min(before[column + 1] + 1).min(now[column] + 1));
        }
        before = now;
    }
    before[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::config::Source;

    #[test]
    fn models_of_a_dead_provider_are_named() {
        let model =
            |id: String, targets: &str| format!("[[models]]\nid = \"{id}\"\ncontext = \"1K\"\ntargets = [{targets}]\n");
        let provider = |name: &str| {
            format!("[[providers]]\nname = \"{name}\"\nshape = \"chat\"\nbase_url = \"http://10.0.0.1/v1\"\n")
        };
        let [p, q] = ["{ provider = \"p\" }", "{ provider = \"q\" }"];
        let many: String = (0..12).map(|number| model(format!("m{number}"), p)).collect();
        let both = model("both".to_string(), &format!("{p}, {q}"));
        let text = [provider("p"), provider("q"), provider("r"), many, both].concat();
        let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let source = Source { file: "t", text: &text, env: &|_| None, read: &read, run: &Source::no_program };
        let config = Config::parse(&source).unwrap();
        let failing = "m0, m1, m2, m3, m4, m5, m6, m7, m8, m9 and 2 more";
        let hint = "  models with another provider: both\n";
        assert_eq!(without(&config, 0), format!("  models without another provider: {failing}\n{hint}"));
        assert_eq!([without(&config, 1), without(&config, 2)], [hint, ""]);
    }

    #[test]
    fn distance_counts_changed_characters() {
        for (one, other, far) in [("", "", 0), ("abc", "abc", 0), ("abc", "abd", 1), ("abc", "xabc", 1), ("ab", "", 2)]
        {
            assert_eq!(distance(one, other), far, "{one} {other}");
        }
        assert_eq!(distance("gpt-5-mimi", "gpt-5-mini"), 1);
    }
}
