use super::*;
use crate::base::time::Unix;
use crate::policy::catalog::{Affinity, Balance, QueueLimits, SHARE};
use crate::policy::plan::{Plan, Shorthand, UNLIMITED};
use crate::policy::prices::Prices;
use crate::policy::upstream_limits::UpstreamLimits;
use crate::policy::vendors::capabilities::StructuredOutput;
use crate::policy::window::Period;
use std::sync::Arc;
use std::time::Duration;

const PEM: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n";

fn env(name: &str) -> Option<String> {
    match name {
        "GOOD_KEY" => Some("sk-good".to_string()),
        "LONG_TOKEN" => Some("a-token-that-is-long".to_string()),
        "OTHER_TOKEN" => Some("another-one-that-is-long".to_string()),
        "ODD_KEY" => Some("p@ss/:w%".to_string()),
        "EMPTY_KEY" => Some(" \n".to_string()),
        "SPLIT_KEY" => Some("sk\r\nhost: evil".to_string()),
        _ => None,
    }
}

fn read(path: &str) -> std::io::Result<String> {
    match path {
        "/run/secrets/key" | "conf/secret" => Ok("sk-from-file\n".to_string()),
        "cert.pem" | "key.pem" | "conf/ca.pem" | "ca.pem" => Ok(PEM.to_string()),
        "plain.txt" => Ok("hello".to_string()),
        _ => Err(std::io::Error::from(std::io::ErrorKind::NotFound)),
    }
}

fn parse_as(file: &str, text: &str) -> Result<Config, Vec<ConfigError>> {
    let run = |program: &[String], _: &[String]| match program {
        [path, word] if path == "token" => Ok(format!("{word}\n")),
        _ => Err(std::io::Error::from(std::io::ErrorKind::NotFound)),
    };
    Config::parse(&Source { file, text, env: &env, read: &read, run: &run })
}

fn parse(text: &str) -> Result<Config, Vec<ConfigError>> {
    parse_as("tollgate.toml", text)
}

fn errors(text: &str) -> Vec<String> {
    parse(text).err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

/// Checks that `text` has exactly one error, which is at this line and field and whose message contains `words`.
#[track_caller]
fn one_error(text: &str, line: u32, field: &str, words: &str) {
    let found = parse(text).err().unwrap_or_default();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].line, found[0].field.as_str()), (Some(line), field), "{}", found[0]);
    assert!(found[0].message.contains(words), "{}", found[0]);
}

const PROVIDER: &str = "[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://127.0.0.1:9/v1\"\n";
const MODEL: &str = "[[models]]\nid = \"m\"\ncontext = \"1M\"\ntargets = [{ provider = \"p\" }]\n";

/// Returns a valid configuration that begins with `more`, so the lines of `more` are numbered from 1.
fn with(more: &str) -> String {
    format!("{more}\n{PROVIDER}{MODEL}")
}

/// Returns a provider with these lines, which begin on line 3, and a model that it serves.
fn provider(lines: &str) -> String {
    format!("[[providers]]\nname = \"p\"\n{lines}\n{MODEL}")
}

/// Returns a model with these lines, which begin on line 6.
fn model(lines: &str) -> String {
    format!("{PROVIDER}[[models]]\n{lines}\n")
}

#[test]
fn the_full_example_is_read() {
    let text = r#"
default_model = "small"

[server]
listen = "127.0.0.1:8080"
admin_listen = "127.0.0.1:9090"
# tls = { cert = "cert.pem", key = "key.pem" }

[store]
url = "sqlite:tollgate.db"
durability = "write-behind"

[[providers]]
name = "openai"
shape = "chat"
base_url = "https://api.openai.com/v1"
api_key = { env = "GOOD_KEY" }

[[models]]
id = "small"
name = "Small"
owned_by = "openai"
context = "256K"
input_price = 0.25
output_price = 2.0
targets = [{ provider = "openai", model = "gpt-5-mini" }]

[[plans]]
name = "team"
tokens = 10_000_000
requests = 600
"#;
    let config = parse(text).unwrap();
    assert_eq!(config.catalog.default_model(), Some(0));
    let (small, openai) = (&config.catalog.models()[0], &config.providers[0]);
    assert_eq!((small.context, small.context_text.as_str()), (256_000, "256K"));
    let prices =
        Prices { input: 250_000, output: 2_000_000, cache_read: 250_000, cache_write: 250_000, hour_write: 250_000 };
    assert_eq!((&small.prices, small.reserve_tokens), (&prices.into(), 4096));
    assert_eq!(&*small.targets[0].label, "openai/gpt-5-mini");
    assert_eq!((openai.tls, &*openai.host, openai.port), (true, "api.openai.com", 443));
    assert_eq!((openai.host_header.as_str(), openai.path.as_str()), ("api.openai.com", "/v1/chat/completions"));
    let (name, value) = openai.header_of(&openai.credentials[0]);
    assert_eq!((name, value.as_str()), ("authorization", "Bearer sk-good"));
    assert_eq!(config.server.admin_listen, Some(AdminListen::Address("127.0.0.1:9090".parse().unwrap())));
    let team = config.plan("team").unwrap();
    assert_eq!((team.tokens, team.requests, team.period), (10_000_000, 600, Period::Month));
    assert_eq!((team.window, team.concurrency), (Duration::from_secs(60), 0));
}

#[test]
fn every_documented_default_is_filled_in() {
    let config = parse(&with("")).unwrap();
    let server = &config.server;
    assert_eq!(server.listen, ["127.0.0.1:8080".parse().unwrap()]);
    assert_eq!((server.key_prefix.as_str(), server.max_header, server.max_body), ("tg_", 16 << 10, 32 << 20));
    let seconds = [server.header_timeout, server.body_timeout, server.keepalive_timeout, server.heartbeat_after];
    assert_eq!(seconds.map(|wait| wait.as_secs()), [10, 30, 75, 15]);
    assert_eq!((server.max_connections, server.reuse_port, server.cors_origins.len()), (10_000, false, 0));
    let upstream = &config.upstream;
    let waits = [
        upstream.connect_timeout,
        upstream.first_byte_timeout,
        upstream.idle_timeout,
        upstream.request_timeout,
        upstream.breaker_cooldown,
    ];
    assert_eq!(waits.map(|wait| wait.as_secs()), [5, 300, 600, 590, 30]);
    assert_eq!((upstream.attempts, upstream.breaker_failures), (2, 5));
    assert_eq!((upstream.max_event, upstream.max_response), (8 << 20, 64 << 20));
    assert_eq!(config.store.url, StoreUrl::Sqlite("tollgate.db".into()));
    assert_eq!((config.store.durability, config.store.on_outage), (Durability::WriteBehind, OnOutage::Refuse));
    assert_eq!((config.store.max_commit_lag, config.store.hosts), (Duration::from_secs(5), 1));
    let model = &config.catalog.models()[0];
    assert_eq!((model.name.as_str(), model.owned_by.as_str(), model.created), ("m", "p", Unix(0)));
    assert_eq!((model.default_max_tokens, model.reserve_tokens), (4096, 4096));
    assert_eq!(model.targets[0].model, "m");
    assert_eq!(config.catalog.default_model(), None);
    // Without configured plans there is an unlimited one named default.
    assert_eq!(config.plans, [Plan::unlimited("default")]);
}

#[test]
fn the_configuration_can_be_shared_between_threads() {
    fn shareable<T: Send + Sync + 'static>(_: &T) {}
    shareable(&Arc::new(parse(&with("")).unwrap()));
}

#[test]
fn an_error_names_file_line_and_field() {
    let found = errors(&with("[server]\nmax_connections = 0"));
    let most = crate::base::limits::CONNECTIONS_MAX;
    let expected = format!("tollgate.toml:2: server.max_connections: expected an integer from 1 to {most}, found 0");
    assert_eq!(found, [expected]);
}

#[test]
fn a_syntax_error_names_its_line() {
    let found = parse("default_model = \"a\"\n[server\n").unwrap_err();
    assert_eq!((found.len(), found[0].line, found[0].field.as_str()), (1, Some(2), ""));
    let found = parse("[server]\nlisten = \"a\"\nlisten = \"b\"\n").unwrap_err();
    assert_eq!(found[0].line, Some(3));
    assert!(found[0].message.contains("duplicate"), "{}", found[0]);
}

#[test]
fn all_errors_are_reported_together_in_line_order() {
    let text = with("default_model = \"x\"\n[server]\nlisten = \"nowhere\"\nmax_body = \"huge\"\n[store]\nurl = \"x\"");
    let lines: Vec<Option<u32>> = parse(&text).unwrap_err().iter().map(|error| error.line).collect();
    assert_eq!(lines, [Some(1), Some(3), Some(4), Some(6)]);
}

#[test]
fn unknown_keys_are_errors_with_a_hint_if_a_known_key_is_similar() {
    one_error(&with("defaultmodel = \"m\""), 1, "defaultmodel", "did you mean `default_model`?");
    one_error(&with("[servers]"), 1, "servers", "did you mean `server`?");
    one_error(
        &with("[store]\ndurability = \"write-behnd\""),
        2,
        "store.durability",
        "(did you mean \"write-behind\"?)",
    );
    one_error(&with("[server]\nlistn = \"127.0.0.1:1\""), 2, "server.listn", "did you mean `listen`?");
    one_error(&with("[server]\nbanana = 1"), 2, "server.banana", "unknown key");
    one_error(&with("[store]\npath = 1"), 2, "store.path", "unknown key");
    one_error(&with("[upstream]\nretries = 1"), 2, "upstream.retries", "unknown key");
    one_error(&with("[[plans]]\nname = \"a\"\nlimit = 1"), 3, "plans[0].limit", "unknown key");
    one_error(&with("[[plans]]\nname = \"a\"\ntime_zone = \"Europe/Berlin\""), 3, "plans[0].time_zone", "unknown key");
    let good = "shape = \"chat\"\nbase_url = \"http://h/v1\"\n";
    one_error(&provider(&format!("{good}key = 1")), 5, "providers[0].key", "unknown key");
    one_error(
        &provider(&format!("{good}api_key = {{ enw = \"A\", env = \"GOOD_KEY\" }}")),
        5,
        "providers[0].api_key.enw",
        "unknown key",
    );
    let good = "id = \"m\"\ncontext = \"1M\"\ntargets = [{ provider = \"p\" }]\n";
    one_error(&model(&format!("{good}price = 1")), 9, "models[0].price", "unknown key");
    one_error(&model(&format!("{good}attempts = 1")), 9, "models[0].attempts", "unknown key");
    one_error(
        &model(&format!("{good}capabilities = {{ vision = true }}")),
        9,
        "models[0].capabilities.vision",
        "unknown key",
    );
    let text = model("id = \"m\"\ncontext = \"1M\"\ntargets = [{ provider = \"p\", name = \"x\" }]");
    one_error(&text, 8, "models[0].targets[0].name", "unknown key");
}

#[test]
fn listen_takes_an_address_or_a_list() {
    let config = parse(&with("[server]\nlisten = [\"127.0.0.1:1\", \"[::]:2\"]")).unwrap();
    assert_eq!(config.server.listen.len(), 2);
    one_error(&with("[server]\nlisten = []"), 2, "server.listen", "at least one");
    one_error(&with("[server]\nlisten = [\"[::1]:1\", \"here\"]"), 2, "server.listen[1]", "address with a port");
    one_error(&with("[server]\nlisten = 8080"), 2, "server.listen", "expected a string, found 8080");
    one_error(&with("[server]\nlisten = [\"[::1]:1\", \"[::1]:1\"]"), 2, "server.listen[1]", "twice");
    assert!(parse(&with("[server]\nlisten = [\"[::1]:0\", \"[::1]:0\"]")).is_ok());
    let same = with("[server]\nlisten = \"[::1]:1\"\nadmin_listen = \"[::1]:1\"");
    one_error(&same, 3, "server.admin_listen", "must differ");
}

#[test]
fn every_key_of_the_server_table_is_read() {
    let config = parse(&with(
        "[server]\nlisten = \"0.0.0.0:80\"\nadmin_listen = \"127.0.0.1:81\"\nadmin_token = { env = \"GOOD_KEY\" }\n\
         key_prefix = \"acme-\"\ntls = { cert = \"cert.pem\", key = \"key.pem\" }\n\
         cors_origins = [\"https://a.example\"]\nreuse_port = true\nmax_connections = 5\nmax_connections_per_ip = 2\n\
         max_header = \"8KiB\"\nmax_body = \"1MiB\"\nmax_buffered = \"4MiB\"\nheader_timeout = \"1s\"\n\
         body_timeout = \"2s\"\nkeepalive_timeout = \"3s\"\nwrite_stall = \"4s\"\ndrain_timeout = \"0s\"\n\
         heartbeat_after = \"6s\"\ntrusted_proxies = [\"10.0.0.0/8\", \"::1\"]\nproxy_protocol = true\nlog = 0.25\n\
         [store]\nurl = \"redis://h:6379/0\"\n",
    ))
    .unwrap();
    let s = &config.server;
    assert_eq!(s.admin_token.as_ref().map(Secret::expose), Some("sk-good"));
    assert_eq!((s.key_prefix.as_str(), s.reuse_port, s.cors_origins.len()), ("acme-", true, 1));
    assert_eq!((s.trusted_proxies.len(), s.proxy_protocol, s.log), (2, true, RequestLog::Share(0.25)));
    assert_eq!((s.max_connections, s.max_connections_per_ip), (5, 2));
    assert_eq!((s.max_header, s.max_body, s.max_buffered), (8 << 10, 1 << 20, 4 << 20));
    let waits =
        [s.header_timeout, s.body_timeout, s.keepalive_timeout, s.write_stall, s.drain_timeout, s.heartbeat_after];
    assert_eq!(waits.map(|wait| wait.as_secs()), [1, 2, 3, 4, 0, 6]);
    assert_eq!(s.tls, Some(TlsFiles { cert: "cert.pem".into(), key: "key.pem".into() }));
}

#[test]
fn values_of_the_server_table_are_checked() {
    let cases = [
        ("key_prefix = \"\"", "server.key_prefix", "1 to 32"),
        ("key_prefix = \"a b\"", "server.key_prefix", "1 to 32"),
        ("admin_token = \"abc\"", "server.admin_token", "never written here"),
        ("tls = { cert = \"cert.pem\" }", "server.tls.key", "missing"),
        ("tls = { cert = \"none.pem\", key = \"key.pem\" }", "server.tls.cert", "cannot read"),
        ("tls = { cert = \"plain.txt\", key = \"key.pem\" }", "server.tls.cert", "expected kind of PEM block"),
        ("admin_listen = \"0.0.0.0:81\"", "server.admin_listen", "set an `admin_token`"),
        ("cors_origins = [\"a.example\"]", "server.cors_origins[0]", "expected an origin"),
        ("cors_origins = [\"https://a.example/path\"]", "server.cors_origins[0]", "expected an origin"),
        ("cors_origins = [\"://a.example\"]", "server.cors_origins[0]", "expected an origin"),
        ("cors_origins = [\"a_b://a.example\"]", "server.cors_origins[0]", "expected an origin"),
        ("cors_origins = [\"app://\"]", "server.cors_origins[0]", "expected an origin"),
        ("proxy_protocol = true", "server.proxy_protocol", "requires `trusted_proxies`"),
        ("trusted_proxies = [\"10.0.0.1/8\"]", "server.trusted_proxies[0]", "a network such as"),
        ("trusted_proxies = [\"lb.internal\"]", "server.trusted_proxies[0]", "a network such as"),
        ("log = \"some\"", "server.log", "\"all\", \"failures\" or a number from 0 to 1"),
        ("log = 1.5", "server.log", "from 0 to 1"),
        ("log = -1", "server.log", "from 0 to 1"),
        ("log = true", "server.log", "from 0 to 1"),
        ("reuse_port = 1", "server.reuse_port", "true or false"),
        ("reuse_port = true", "server.reuse_port", "shared store"),
        ("max_connections = \"5\"", "server.max_connections", "expected an integer"),
        ("max_connections = -1", "server.max_connections", "from 1"),
        ("max_header = \"32MiB\"", "server.max_header", "to \"1MiB\", such as \"1MiB\""),
        ("max_body = \"32\"", "server.max_body", "such as \"32MiB\""),
        ("max_body = 3.5", "server.max_body", "expected a size"),
        ("max_buffered = \"64MiB\"", "server.max_buffered", "(64MiB) to be at least four times max_body (32MiB)"),
        ("max_body = \"1GiB\"", "server.max_body", "to be at least four times max_body (1GiB)"),
        ("memory = 15728639", "server.memory", "expected a size from \"15MiB\" to "),
        ("header_timeout = 10", "server.header_timeout", "expected a duration"),
        ("header_timeout = \"0s\"", "server.header_timeout", "from \"1ms\""),
        ("drain_timeout = \"forever\"", "server.drain_timeout", "expected a duration"),
    ];
    for (line, field, words) in cases {
        one_error(&with(&format!("[server]\n{line}")), 2, field, words);
    }
    one_error(&with("server = 5"), 1, "server", "expected a table");
}

fn shared(url: &str) -> StoreUrl {
    StoreUrl::Redis(SharedUrl::parse(url).unwrap())
}

#[test]
fn the_store_is_sqlite_or_redis_and_paths_are_relative_to_the_file() {
    let url = |file: &str, url: &str| parse_as(file, &with(&format!("[store]\nurl = \"{url}\""))).unwrap().store.url;
    assert_eq!(url("/etc/tollgate/tollgate.toml", "sqlite:t.db"), StoreUrl::Sqlite("/etc/tollgate/t.db".into()));
    assert_eq!(url("/etc/tollgate/tollgate.toml", "sqlite:/var/t.db"), StoreUrl::Sqlite("/var/t.db".into()));
    for right in
        ["rediss://h:6379/0", "redis://u:p@[::1]:6379/0", "redis+cluster://a:1,b,[::1]:2", "redis+cluster://a/"]
    {
        assert_eq!(url("t.toml", right), shared(right));
    }
    let wrong = ["t.db", "sqlite:", "sqlite::memory:", "postgres://h/d", "redis:h", "redis://", "redis://h/x"];
    let shared = ["redis://h:port/0", "redis://h:0/0", "redis://:p/w@h/0", "redis://u@/0", "rediss://h/0#insecure"];
    for wrong in wrong.into_iter().chain(shared) {
        one_error(&with(&format!("[store]\nurl = \"{wrong}\"")), 2, "store.url", "expected \"sqlite:PATH\"");
    }
    one_error(&with("[store]\nurl = \"redis://h/0?protocol=resp3\""), 2, "store.url", "no options");
    one_error(&with("[store]\nurl = \"redis://a,b\""), 2, "store.url", "\"redis+cluster://HOST:PORT,HOST,...\"");
    let nodes = format!("redis+cluster://a{}", ",a".repeat(16));
    let cluster = ["redis+cluster://", "redis+cluster://a,,b", "redis+cluster://a/1", "redis+cluster://a,redis://b"];
    for wrong in cluster.into_iter().chain(["rediss+cluster://a,b:x", "redis+cluster://a,b/0#insecure", &nodes]) {
        one_error(&with(&format!("[store]\nurl = \"{wrong}\"")), 2, "store.url", "one to 16 nodes");
    }
}

#[test]
fn values_of_the_store_table_are_checked() {
    let cases = [
        ("durability = \"sync\"", "store.durability", "one of write-behind, before-reply"),
        ("on_outage = \"allow\"", "store.on_outage", "one of refuse, local"),
        ("on_outage = \"local\"\ndurability = \"before-reply\"", "store.on_outage", "before-reply"),
        ("hosts = 0", "store.hosts", "from 1"),
        ("replicas = 6", "store.replicas", "from 0 to 5"),
        ("commit_every = \"24ms\"", "store.commit_every", "from \"25ms\" to \"1m\""),
        ("commit_every = \"26ms\"\ndurability = \"before-reply\"", "store.commit_every", "waits for its commit"),
        ("sync_every = \"2h\"", "store.sync_every", "from \"1s\" to \"1h\""),
        ("page_size = 1000", "store.page_size", "512, 1024, 2048 or 4096"),
        ("page_size = 8192", "store.page_size", "from 512 to 4096"),
        ("snapshot = { to = \"a.db\", every = \"10ms\" }", "store.snapshot.every", "from \"1s\""),
        ("snapshot = { to = \"tollgate.db\", every = \"1m\" }", "store.snapshot", "another file"),
        ("snapshot = { to = \"\", every = \"1m\" }", "store.snapshot.to", "a path that is not empty"),
        ("snapshot = { to = \"a.db\", every = \"1m\" }\nurl = \"redis://h\"", "store.snapshot", "in a file"),
        ("max_commit_lag = \"0s\"", "store.max_commit_lag", "duration"),
        ("retention = \"7d\"", "store.retention", "from \"32d\""),
        ("ca_file = \"none.pem\"", "store.ca_file", "cannot read"),
    ];
    for (line, field, words) in cases {
        one_error(&with(&format!("[store]\n{line}")), 2, field, words);
    }
    let all = "[store]\nurl = \"rediss://h/0\"\nca_file = \"ca.pem\"\ndurability = \"write-behind\"\n\
               max_commit_lag = \"2s\"\non_outage = \"local\"\nhosts = 3\nretention = \"400d\"";
    let store = parse(&with(all)).unwrap().store;
    assert_eq!((store.on_outage, store.hosts), (OnOutage::Local, 3));
    assert_eq!(store.retention, Some(Duration::from_secs(400 * 86_400)));
    let flash = "commit_every = \"10s\"\nsync_every = \"1m\"\npage_size = 1024\n\
                 snapshot = { to = \"/flash/a.db\", every = \"30m\" }";
    let store = parse(&with(&format!("[store]\n{flash}"))).unwrap().store;
    assert_eq!((store.commit_every, store.sync_every), (Duration::from_secs(10), Duration::from_secs(60)));
    let snapshot = Snapshot { to: "/flash/a.db".into(), every: Duration::from_secs(1800) };
    assert_eq!((store.page_size, store.snapshot), (1024, Some(snapshot)));
    let warned = |lines: &str| {
        let warnings = parse(&with(&format!("[store]\n{lines}"))).unwrap().warnings;
        warnings.iter().map(|warning| format!("{}: {}", warning.field, warning.message)).collect::<Vec<_>>()
    };
    assert_eq!(warned(&all["[store]\n".len()..]), [""; 0]);
    assert_eq!(warned("hosts = 1\nreplicas = 0"), [""; 0], "defaults");
    let ignored = |name: &str, owner: &str| format!("store.{name}: only {owner} uses it: remove it, or change `url`");
    assert_eq!(warned("hosts = 3\nreplicas = 1"), ["hosts", "replicas"].map(|name| ignored(name, "a shared store")));
    let flash = warned("url = \"redis://h\"\nsync_every = \"1m\"");
    assert_eq!(flash, [ignored("sync_every", "a ledger in a file")]);
}

#[test]
fn limits_derived_from_memory_keep_the_worst_case_within_it() {
    let tls = "[[providers]]\nname = \"q\"\nshape = \"messages\"\nbase_url = \"https://h/v1\"\n";
    let lists = "[[providers]]\nname = \"l\"\nshape = \"chat\"\nbase_url = \"http://h/v1\"\ndiscover = {}\n\
         api_keys = [{ env = \"GOOD_KEY\" }, { env = \"GOOD_KEY\" }]\n";
    let targets = "{ provider = \"l\" }, { provider = \"l\", model = \"n\" }";
    let models = (0..90).map(|n| {
        format!("[[models]]\nid = \"m{n}\"\ncontext = 1\ntargets = [{targets}]\nserves = [\"chat\", \"embeddings\"]\n")
    });
    let models = lists.to_string() + &models.collect::<String>();
    for memory in [16, 64, 256, 2048] {
        for more in ["", tls, lists, models.as_str()] {
            if memory == 16 && more == models {
                continue;
            }
            let text = with(&format!("[server]\nmemory = \"{memory}MiB\"\nadmin_listen = \"127.0.0.1:1\"\n{more}"));
            let config = parse(&text).unwrap();
            let (server, worst) = (&config.server, config.worst_case_bytes(0));
            assert!(worst <= memory << 20, "{worst} of {memory} MiB");
            assert!(worst >= (memory << 20) * 3 / 4 || memory > 256, "only {worst} bytes of {memory} MiB are used");
            assert!(server.max_buffered as u64 >= 4 * server.max_body && server.max_body >= 128 << 10);
            let printed = effective(&config);
            assert!(printed.contains("# max_body = ") && effective(&parse(&printed).unwrap()) == printed, "{printed}");
        }
    }
    let config = parse(&with("[server]\nmemory = \"32MiB\"")).unwrap();
    assert_eq!(config.memory_warning(0, None), None);
    let text = config.memory_warning(20 << 20, None).unwrap();
    assert!(text.contains("MiB more than server.memory allows: raise it"), "{text}");
    let config = parse(&with("[server]\nmax_connections = 100")).unwrap();
    let warning = |bytes| config.memory_warning(0, Some((bytes, "this machine")));
    let text = warning(32 << 20).unwrap();
    assert!(text.contains("this machine has 32 MiB: set server.memory") && text.contains("server.max_body"), "{text}");
    assert_eq!((warning(config.worst_case_bytes(0)), config.memory_warning(0, None)), (None, None));
    for key in ["max_body = \"1MiB\"", "max_buffered = \"64MiB\"", "max_connections = 9"] {
        let (name, _) = key.split_once(' ').unwrap();
        let text = with(&format!("[server]\n{key}\nmemory = \"1GiB\""));
        one_error(&text, 2, &format!("server.{name}"), "derived from `memory`");
    }
    one_error(&with("[server]\nmemory = \"14MiB\""), 2, "server.memory", "from \"15MiB\"");
    assert!(parse(&with("[server]\nadmin_listen = \"127.0.0.1:9\"\nmemory = \"15MiB\"")).is_ok());
    let many: String = (0..40).map(|n| tls.replace("\"q\"", &format!("\"q{n}\""))).collect();
    one_error(&with(&format!("[server]\nmemory = \"16MiB\"\n{many}")), 2, "server.memory", "too little");
}

#[test]
fn a_provider_overrides_limits_and_a_model_overrides_timeouts() {
    let text = "[upstream]\nconnect_timeout = \"1s\"\nidle_timeout = \"2s\"\nattempts = 3\nbreaker_failures = 0\n\
        breaker_cooldown = \"9s\"\npool_max_idle = 1\npool_idle_timeout = \"8s\"\nmax_event = \"1MiB\"\n\
        max_response = \"2MiB\"\nfirst_byte_timeout = \"7s\"\nrequest_timeout = \"6s\"\n\
        [[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://h/v1\"\n\
        idle_timeout = \"3s\"\nattempts = 4\n\
        [[models]]\nid = \"a\"\ncontext = 1\ntargets = [{ provider = \"p\" }]\nidle_timeout = \"4s\"\n\
        [[models]]\nid = \"b\"\ncontext = 1\ntargets = [{ provider = \"p\" }]\n";
    let config = parse(text).unwrap();
    let limits = |index: usize| config.catalog.models()[index].targets[0].limits;
    assert_eq!((config.upstream.attempts, config.upstream.breaker_failures), (3, 0));
    assert_eq!((limits(0).connect_timeout, limits(0).idle_timeout), (Duration::from_secs(1), Duration::from_secs(4)));
    assert_eq!((limits(1).idle_timeout, limits(1).attempts), (Duration::from_secs(3), 4));
    assert_eq!((limits(1).pool_max_idle, limits(1).max_event, limits(1).max_response), (1, 1 << 20, 2 << 20));
    one_error(&with("[upstream]\nattempts = 0"), 2, "upstream.attempts", "from 1 to 10");
}

#[test]
fn each_timeout_of_a_model_sets_only_the_limit_of_its_name() {
    let set = |key: &str| {
        let text = model(&format!("id = \"m\"\ncontext = 1\ntargets = [{{ provider = \"p\" }}]\n{key} = \"7s\""));
        parse(&text).unwrap().catalog.models()[0].targets[0].limits
    };
    let (seven, usual) = (Duration::from_secs(7), UpstreamLimits::default());
    let cases = [
        ("connect_timeout", UpstreamLimits { connect_timeout: seven, ..usual }),
        ("first_byte_timeout", UpstreamLimits { first_byte_timeout: seven, ..usual }),
        ("idle_timeout", UpstreamLimits { idle_timeout: seven, ..usual }),
        ("request_timeout", UpstreamLimits { request_timeout: seven, ..usual }),
    ];
    for (key, limits) in cases {
        assert_eq!(set(key), limits, "{key}");
    }
}

#[test]
fn an_unknown_setting_is_refused_with_the_known_ones() {
    one_error(&with("[server]\ncommit_after = \"6s\""), 2, "server.commit_after", "unknown key; known are listen");
}

#[test]
fn ineffective_admin_tokens_cause_a_warning() {
    let (long, other) = ("{ env = \"LONG_TOKEN\" }", "{ env = \"OTHER_TOKEN\" }");
    let warned = |listen: &str, read: &str, write: &str| {
        let text = with(&format!("[server]\n{listen}\nadmin_token = {read}\nadmin_write_token = {write}"));
        let warnings = parse(&text).unwrap().warnings;
        warnings.iter().map(|warning| format!("{}: {}", warning.field, warning.message)).collect::<Vec<_>>()
    };
    let listen = "admin_listen = \"127.0.0.1:81\"";
    assert_eq!(warned(listen, long, other), [""; 0]);
    let same = "server.admin_write_token: the same as `admin_token`: every reader can also make changes; use \
                another token";
    assert_eq!(warned(listen, long, long), [same]);
    let short = "server.admin_token: shorter than 16 characters, so it can be guessed: use a longer token";
    assert_eq!(warned(listen, "{ env = \"GOOD_KEY\" }", long), [short]);
    let idle = "no effect, because `admin_listen` is not set: set it, or remove this key";
    let idle = ["server.admin_token", "server.admin_write_token"].map(|name| format!("{name}: {idle}"));
    assert_eq!(warned("", long, other), idle);
}

fn base(shape: &str, url: &str) -> Provider {
    let text = provider(&format!("shape = \"{shape}\"\nbase_url = \"{url}\""));
    parse(&text).unwrap_or_else(|errors| panic!("{url}: {errors:?}")).providers.remove(0)
}

#[test]
fn a_base_url_has_the_form_that_the_providers_own_sdk_takes() {
    let cases = [
        ("chat", "https://h/v1", "/v1/chat/completions"),
        ("chat", "https://h/v1/", "/v1/chat/completions"),
        ("chat", "https://h", "/chat/completions"),
        ("chat", "https://h/openai/v1", "/openai/v1/chat/completions"),
        ("messages", "https://h", "/v1/messages"),
        ("messages", "https://h/", "/v1/messages"),
        ("messages", "https://h/v1", "/v1/messages"),
        ("messages", "https://h/v1/", "/v1/messages"),
        ("messages", "https://h/anthropic", "/anthropic/v1/messages"),
        ("messages", "https://h/anthropic/v1", "/anthropic/v1/messages"),
    ];
    for (shape, url, path) in cases {
        assert_eq!(base(shape, url).path, path, "{shape} {url}");
    }
}

#[test]
fn host_and_port_are_taken_from_the_url() {
    let cases = [
        ("http://h/v1", "h", 80, "h"),
        ("https://h:443/v1", "h", 443, "h"),
        ("https://h:8443/v1", "h", 8443, "h:8443"),
        ("http://127.0.0.1:11434/v1", "127.0.0.1", 11434, "127.0.0.1:11434"),
        ("http://[::1]:80/v1", "::1", 80, "[::1]"),
        ("http://[::1]:8000/v1", "::1", 8000, "[::1]:8000"),
    ];
    for (url, host, port, header) in cases {
        let provider = base("chat", url);
        assert_eq!((&*provider.host, provider.port, provider.host_header.as_str()), (host, port, header));
    }
    // A host that is an address needs no look-up.
    assert_eq!(base("chat", "http://[::1]:8000/v1").addresses, ["[::1]:8000".parse().unwrap()]);
    assert!(base("chat", "http://h/v1").addresses.is_empty());
}

#[test]
fn a_bad_base_url_is_refused() {
    let cases = [
        ("ftp://h/v1", "expected a URL"),
        ("h/v1", "expected a URL"),
        ("https://", "expected a URL"),
        ("https:///v1", "expected a URL"),
        ("https://h h/v1", "expected a URL"),
        ("https://h/v 1", "expected a URL"),
        ("https://[::1/v1", "expected a URL"),
        ("https://[zz]/v1", "expected a URL"),
        ("https://::1/v1", "port"),
        ("https://h:0/v1", "port"),
        ("https://h:99999/v1", "port"),
        ("https://h:/v1", "port"),
        ("https://[::1]x/v1", "port"),
        ("https://user:pw@h/v1", "must not carry a user"),
        ("https://h/v1?key=1", "query"),
        ("https://h/v1#a", "query or a fragment"),
    ];
    for (url, words) in cases {
        let text = provider(&format!("shape = \"chat\"\nbase_url = \"{url}\""));
        if url == "https://::1/v1" || url == "https://[::1]x/v1" {
            assert_eq!(errors(&text).len(), 1, "{url}");
        } else {
            one_error(&text, 4, "providers[0].base_url", words);
        }
    }
}

/// Lines of a valid provider. The next line is line 5.
const RIGHT: &str = "shape = \"chat\"\nbase_url = \"https://h/v1\"\n";

#[test]
fn a_program_is_not_run_if_its_entry_has_an_error() {
    let ran = std::cell::Cell::new(0);
    let run = |_: &[String], _: &[String]| {
        ran.set(ran.get() + 1);
        Ok("secret".to_string())
    };
    let parse = |list: &str| {
        let text = provider(&format!("{RIGHT}api_keys = [{list}]"));
        let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        Config::parse(&Source { file: "t", text: &text, env: &|_| None, read: &read, run: &run }).is_ok()
    };
    for wrong in [
        "{ command = [\"rm\", 7, \"all\"] }",
        "{ command = [\"rm\"], refresh = \"0s\" }",
        "{ command = [\"rm\"], refresh = 5 }",
        "{ command = [\"rm\"], weight = 0 }",
        "{ command = [\"rm\"], arguments = [\"-r\"] }",
        "{ command = \"rm\" }",
        "{ command = [\"rm\"], file = \"x\" }",
    ] {
        assert!(!parse(wrong) && ran.get() == 0, "{wrong}");
    }
    assert!(parse("{ command = [\"print\"], refresh = \"1h\", weight = 2 }") && ran.get() == 1);
}

#[test]
fn secrets_come_from_a_variable_or_a_file_and_never_from_the_text() {
    let key = |value: &str| provider(&format!("{RIGHT}api_key = {value}"));
    let of = |text: &str| parse(text).unwrap().providers[0].credentials[0].secret.expose().to_string();
    assert_eq!(of(&key("{ env = \"GOOD_KEY\" }")), "sk-good");
    assert_eq!(of(&key("{ file = \"/run/secrets/key\" }")), "sk-from-file");
    let relative = parse_as("conf/t.toml", &key("{ file = \"secret\" }")).unwrap();
    assert_eq!(relative.providers[0].credentials[0].secret.expose(), "sk-from-file");
    let field = "providers[0].api_key";
    one_error(&key("\"sk-literal\""), 5, field, "never written here");
    one_error(&key("\"sk-literal\""), 5, field, "or { command = [\"path\"] }");
    assert!(!errors(&key("\"sk-literal\""))[0].contains("sk-literal"));
    one_error(&key("{ env = \"UNSET\" }"), 5, "providers[0].api_key.env", "`UNSET` is not set");
    one_error(&key("{ file = \"/none\" }"), 5, "providers[0].api_key.file", "cannot read `/none`");
    one_error(&key("{}"), 5, field, "exactly one of");
    one_error(&key("{ env = \"GOOD_KEY\", file = \"secret\" }"), 5, field, "exactly one of");
    one_error(&key("{ env = \"EMPTY_KEY\" }"), 5, field, "empty");
    one_error(&key("{ env = \"SPLIT_KEY\" }"), 5, field, "a header cannot carry");
    one_error(&key("5"), 5, field, "expected a table");
}

#[test]
fn a_provider_may_have_several_credentials_some_printed_by_programs() {
    let key = |line: &str| provider(&format!("{RIGHT}{line}"));
    let all = "api_keys = [{ env = \"GOOD_KEY\" }, { command = [\"token\", \"sk-x\"], weight = 3 }, \
               { file = \"/run/secrets/key\" }]";
    let config = parse(&key(all)).unwrap();
    let p = &config.providers[0];
    let said: Vec<(&str, u32)> = p.credentials.iter().map(|one| (one.secret.expose(), one.weight)).collect();
    assert_eq!(said, [("sk-good", 1), ("sk-x", 3), ("sk-from-file", 1)]);
    let refresh = Duration::from_secs(45 * 60);
    let program = vec!["token".to_string(), "sk-x".to_string()];
    assert_eq!(*p.credentials[1].secret.origin(), Origin::Command { program, refresh });
    assert_eq!((p.credential_name(0), p.credential_name(2)), ("p#1".to_string(), "p#3".to_string()));
    let targets = &config.catalog.models()[0].targets;
    let labels: Vec<(&str, usize)> = targets.iter().map(|t| (&*t.label, t.credential)).collect();
    assert_eq!(labels, [("p#1/m", 0), ("p#2/m", 1), ("p#3/m", 2)]);
    let shares: Vec<u64> = targets.iter().map(|t| t.share).collect();
    assert_eq!((shares[1] / shares[0], SHARE - shares.iter().sum::<u64>() < 3), (3, true), "{shares:?}");
    let alone = parse(&key("api_keys = [{ command = [\"token\", \"sk-x\"], refresh = \"1h\" }]")).unwrap();
    assert_eq!((&*alone.providers[0].credential_name(0), &*alone.catalog.models()[0].targets[0].label), ("p", "p/m"));
    let field = "providers[0].api_keys";
    one_error(&key("api_keys = []"), 5, field, "at least one credential");
    one_error(&key(&format!("api_key = {{ env = \"GOOD_KEY\" }}\n{all}")), 6, field, "either api_key or api_keys");
    one_error(&key("api_keys = [{ env = \"GOOD_KEY\", weight = 0 }]"), 5, "providers[0].api_keys[0].weight", "from 1");
    one_error(&key("api_key = { env = \"GOOD_KEY\", weight = 1 }"), 5, "providers[0].api_key.weight", "unknown key");
    one_error(&key("api_key = { command = [] }"), 5, "providers[0].api_key.command", "the path of a program");
    one_error(&key("api_key = { command = [\"no-such\"] }"), 5, "providers[0].api_key.command", "printed no secret");
    let early = "api_key = { command = [\"token\", \"x\"], refresh = \"1ms\" }";
    one_error(&key(early), 5, "providers[0].api_key.refresh", "from \"1s\"");
    let file = "api_key = { file = \"/run/secrets/key\", refresh = \"1h\" }";
    one_error(&key(file), 5, "providers[0].api_key.refresh", "works only with `command`");
    let many = ["{ provider = \"p\", model = \"m\" }"; 3];
    let keys = vec!["{ env = \"GOOD_KEY\" }"; 32].join(", ");
    let text = key(&format!("api_keys = [{keys}]")).replace("{ provider = \"p\" }", &many.join(", "));
    assert!(errors(&text).iter().any(|error| error.contains("at most 64 targets")), "{:?}", errors(&text));
}

#[test]
fn affinity_balance_and_target_concurrency_are_read() {
    let text = |more: &str, url: &str| {
        let targets = "targets = [{ provider = \"p\", concurrency = 5 }, { provider = \"p\", model = \"n\" }]";
        format!(
            "[store]\nurl = \"{url}\"\nhosts = 2\n{}",
            model(&format!("id = \"m\"\ncontext = 1\n{targets}\n{more}"))
        )
    };
    let model = |more: &str, url: &str| parse(&text(more, url)).unwrap().catalog.models()[0].clone();
    let plain = model("", "redis://h/0");
    assert_eq!((plain.affinity, plain.balance, plain.shares), (Affinity::Session, Balance::Affinity, false));
    let places: Vec<(u32, u32)> = plain.targets.iter().map(|t| (t.concurrency, t.slots)).collect();
    assert_eq!(places, [(5, 2), (0, 0)], "with two hosts, each may use half of a target's concurrency");
    let alone = model("affinity = \"key\"\nbalance = \"least_busy\"", "sqlite:t.db");
    assert_eq!((alone.affinity, alone.balance, alone.targets[0].slots), (Affinity::Key, Balance::LeastBusy, 5));
    assert!(errors(&text("affinity = \"user\"", "sqlite:t.db"))[0].contains("models[0].affinity"));
}

#[test]
fn a_target_may_have_its_own_context_and_the_largest_bounds_reservations() {
    let read = |targets: &str| {
        let text = model(&format!("id = \"m\"\ncontext = \"64K\"\ntargets = [{targets}]"));
        parse(&text).unwrap().catalog.models()[0].clone()
    };
    let one = read("{ provider = \"p\" }, { provider = \"p\", model = \"n\" }");
    assert_eq!((one.prompt_max(), one.narrow), (80_000, u64::MAX));
    let two = read("{ provider = \"p\", context = \"8K\" }, { provider = \"p\", model = \"n\", context = \"1M\" }");
    assert_eq!((two.targets[0].context, two.targets[1].context), (8000, 1_000_000));
    assert_eq!((two.context, two.prompt_max(), two.narrow), (64_000, 1_250_000, 10_000));
    let text = model("id = \"m\"\ncontext = \"64K\"\ntargets = [{ provider = \"p\", context = \"much\" }]");
    assert!(errors(&text)[0].contains("models[0].targets[0].context"), "{:?}", errors(&text));
}

#[test]
fn the_queue_of_a_model_and_the_share_of_a_plan_are_read() {
    let text = |more: &str| model(&format!("id = \"m\"\ncontext = 1\ntargets = [{{ provider = \"p\" }}]\n{more}"));
    let queue = |more: &str| parse(&text(more)).unwrap().catalog.models()[0].queue;
    assert_eq!(queue(""), None);
    let default = QueueLimits { max: 64, wait: Duration::from_secs(120) };
    assert_eq!((queue("queue = {}"), default), (Some(QueueLimits::default()), QueueLimits::default()));
    let own = QueueLimits { max: 3, wait: Duration::from_millis(1500) };
    assert_eq!(queue("queue = { max = 3, wait = \"1500ms\" }"), Some(own));
    for (wrong, field) in [
        ("queue = 3", "models[0].queue"),
        ("queue = { max = 0 }", "models[0].queue.max"),
        ("queue = { max = 10001 }", "models[0].queue.max"),
        ("queue = { wait = \"2h\" }", "models[0].queue.wait"),
        ("queue = { size = 1 }", "models[0].queue.size"),
    ] {
        assert!(errors(&text(wrong))[0].contains(field), "{wrong}: {:?}", errors(&text(wrong)));
    }
    let shares = |share: &str| format!("{}\n[[plans]]\nname = \"a\"\nshare = {share}", text(""));
    assert_eq!(parse(&shares("7")).unwrap().plans[0].share, 7);
    assert!(errors(&shares("0"))[0].contains("plans[0].share"));
}

#[test]
fn a_secret_written_in_place_of_its_name_is_not_shown_in_the_error() {
    for secret in ["sk-proj-abcdef0123456789", "gsk_abcdef0123456789", "AIzaSyabcdef0123456789", "a1b2c3d4e5f60718"] {
        for reference in [format!("{{ env = \"{secret}\" }}"), format!("{{ file = \"{secret}\" }}")] {
            let text = provider(&format!("{RIGHT}api_key = {reference}"));
            let found = errors(&text);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(!found[0].contains(secret) && found[0].contains("providers[0].api_key"), "{found:?}");
        }
    }
    let named = provider(&format!("{RIGHT}api_key = {{ file = \"conf/my-secret.txt\" }}"));
    assert!(errors(&named)[0].contains("my-secret.txt"), "a path is shown");
}

#[test]
fn a_credential_is_sent_in_the_header_of_the_shape_or_of_auth() {
    let header = |shape: &str, more: &str| {
        let lines =
            format!("shape = \"{shape}\"\nbase_url = \"https://h/v1\"\napi_key = {{ env = \"GOOD_KEY\" }}\n{more}");
        let provider = parse(&provider(&lines)).unwrap().providers.remove(0);
        let (name, value) = provider.header_of(&provider.credentials[0]);
        format!("{name}: {value}")
    };
    assert_eq!(header("chat", ""), "authorization: Bearer sk-good");
    assert_eq!(header("messages", ""), "x-api-key: sk-good");
    assert_eq!(header("messages", "auth = \"bearer\""), "authorization: Bearer sk-good");
    assert_eq!(header("chat", "auth = \"x-api-key\""), "x-api-key: sk-good");
    assert_eq!(header("chat", "auth = \"API-Key\""), "api-key: sk-good");
    assert!(parse(&provider(RIGHT)).unwrap().providers[0].credentials.is_empty());
    one_error(&provider(&format!("{RIGHT}auth = \"a b\"")), 5, "providers[0].auth", "name of a header");
    one_error(&provider(&format!("{RIGHT}auth = \"host\"")), 5, "providers[0].auth", "name of a header");
}

#[test]
fn headers_that_break_a_request_or_carry_credentials_are_refused() {
    let headers = |value: &str| provider(&format!("{RIGHT}headers = {{ {value} }}"));
    let read = parse(&headers("\"X-Tenant\" = \"a b\", other = \"1\"")).unwrap().providers.remove(0).headers;
    assert_eq!(read.len(), 2);
    assert!(read.contains(&("x-tenant".to_string(), "a b".to_string())));
    let cases = [
        ("\"a b\" = \"1\"", "providers[0].headers.a b", "the name of a header"),
        ("Host = \"h\"", "providers[0].headers.Host", "gateway's own"),
        ("Authorization = \"Bearer x\"", "providers[0].headers.Authorization", "api_key"),
        ("x-api-key = \"x\"", "providers[0].headers.x-api-key", "api_key"),
        ("a = \"x\\r\\ny: z\"", "providers[0].headers.a", "printable ASCII"),
        ("a = 1", "providers[0].headers.a", "expected a string"),
        ("a = \"1\", A = \"2\"", "providers[0].headers.a", "twice"),
    ];
    for (value, field, words) in cases {
        one_error(&headers(value), 5, field, words);
    }
}

#[test]
fn values_of_a_provider_are_checked() {
    let cases = [
        ("betas = \"a\"", "providers[0].betas", "expected an array"),
        ("ca_file = \"none\"", "providers[0].ca_file", "cannot read"),
        ("addresses = [\"h\"]", "providers[0].addresses[0]", "expected an IP address"),
        ("addresses = [\"10.0.0.1:0\"]", "providers[0].addresses[0]", "expected an IP address"),
        ("unknown_fields = true", "providers[0].unknown_fields", "expected a string"),
        ("unknown_fields = \"keep\"", "providers[0].unknown_fields", "one of auto, drop, forward"),
        ("stream_usage = \"no\"", "providers[0].stream_usage", "true or false"),
        ("attempts = 99", "providers[0].attempts", "from 1 to 10"),
    ];
    for (line, field, words) in cases {
        one_error(&provider(&format!("{RIGHT}{line}")), 5, field, words);
    }
    let plain = "shape = \"chat\"\nbase_url = \"http://h/v1\"\nca_file = \"ca.pem\"";
    one_error(&provider(plain), 5, "providers[0].ca_file", "no effect");
    one_error(&provider("shape = \"gemini\"\nbase_url = \"http://h\""), 3, "providers[0].shape", "chat, messages");
    one_error(&provider("base_url = \"http://h\""), 1, "providers[0].shape", "missing");
    one_error(&provider("shape = \"chat\""), 1, "providers[0].base_url", "missing");
    one_error(
        &with("[[providers]]\nname = \"a/b\"\nshape = \"chat\"\nbase_url = \"http://h\""),
        2,
        "providers[0].name",
        "letters, digits",
    );
    let twice = with("[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://h\"");
    one_error(&twice, 6, "providers[1].name", "a second provider is named `p`");
    assert_eq!(errors("[providers]\nname = \"p\"\n").len(), 2);
}

#[test]
fn addresses_without_a_port_use_the_port_of_the_url() {
    let text = provider(&format!("{RIGHT}addresses = [\"10.0.0.1\", \"10.0.0.2:8\", \"::1\", \"[::1]:9\"]"));
    let addresses: Vec<String> = parse(&text).unwrap().providers[0].addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.1:443", "10.0.0.2:8", "[::1]:443", "[::1]:9"]);
}

#[test]
fn each_tls_peer_is_listed_once() {
    let one = |name: &str, url: &str, more: &str| {
        format!("[[providers]]\nname = \"{name}\"\nshape = \"chat\"\nbase_url = \"{url}\"\n{more}\n")
    };
    let text = [
        one("a", "https://h/v1", ""),
        one("b", "https://h:8443/v2", ""),
        one("c", "http://h/v1", ""),
        one("d", "https://h/v1", "ca_file = \"ca.pem\""),
        one("e", "https://i/v1", ""),
        MODEL.replace("\"p\"", "\"a\""),
    ]
    .concat();
    let config = parse(&text).unwrap();
    let indexes: Vec<Option<u32>> = config.providers.iter().map(|provider| provider.authority).collect();
    assert_eq!(indexes, [Some(0), Some(0), None, Some(1), Some(2)]);
    assert_eq!(config.authorities[1].ca_file, Some("ca.pem".into()));
    assert_eq!(config.authorities[2].server_name, "i");
}

#[test]
fn values_of_a_model_are_checked() {
    let right = "id = \"m\"\ncontext = \"1M\"\ntargets = [{ provider = \"p\" }]\n";
    let cases = [
        ("name = \"\"", "models[0].name", "1 to 128"),
        ("created = \"soon\"", "models[0].created", "expected a date"),
        ("created = 5", "models[0].created", "expected a date"),
        ("input_price = -1.0", "models[0].input_price", "expected USD"),
        ("input_price = \"1\"", "models[0].input_price", "expected USD"),
        ("output_price = 0.0000001", "models[0].output_price", "six decimals"),
        ("output_price = 1e-9", "models[0].output_price", "six decimals"),
        ("cache_read_price = nan", "models[0].cache_read_price", "expected USD"),
        ("cache_write_price = inf", "models[0].cache_write_price", "expected USD"),
        ("default_max_tokens = 0", "models[0].default_max_tokens", "from 1"),
        ("reserve_tokens = -1", "models[0].reserve_tokens", "from 0"),
        ("drop_params = [\"model\"]", "models[0].drop_params[0]", "cannot be dropped"),
        ("drop_params = [1]", "models[0].drop_params[0]", "expected a string"),
        ("serves = []", "models[0].serves", "at least one"),
        ("serves = [\"chat\", \"video\"]", "models[0].serves[1]", "chat, embeddings, rerank"),
        ("price_per_image = -1", "models[0].price_per_image", "expected US dollars"),
        ("price_per_request = 0.0000001", "models[0].price_per_request", "six decimals"),
        ("idle_timeout = \"x\"", "models[0].idle_timeout", "duration"),
        ("capabilities = { sampling = 1 }", "models[0].capabilities.sampling", "true or false"),
        ("capabilities = { structured_output = \"x\" }", "models[0].capabilities.structured_output", "native, tool"),
        ("capabilities = { max_output_tokens = 0 }", "models[0].capabilities.max_output_tokens", "from 1"),
    ];
    for (line, field, words) in cases {
        one_error(&model(&format!("{right}{line}")), 9, field, words);
    }
}

#[test]
fn params_of_a_model_are_checked() {
    let right = "id = \"m\"\ncontext = \"1M\"\ntargets = [{ provider = \"p\" }]\n";
    let many: String = (0..33).map(|n| format!("a{n} = 1, ")).collect();
    let long = format!("{{ a = \"{}\", b = \"{}\" }}", "x".repeat(8000), "x".repeat(8400));
    let deep = format!("{{ a = {}1{} }}", "[".repeat(40), "]".repeat(40));
    for key in ["set_params", "default_params"] {
        let (table, a) = (format!("models[0].{key}"), format!("models[0].{key}.a"));
        for (value, field, words) in [
            ("5", &table, "expected a table"),
            ("[{ a = 1 }]", &table, "expected a table"),
            (&format!("{{ {many}}}"), &table, "more than 32 members"),
            (&long, &table, "more than 16384 bytes as JSON"),
            (&deep, &a, "more than 32 arrays and tables"),
            ("{ a = nan }", &a, "expected a finite number"),
            ("{ a = [1, -inf] }", &a, "expected a finite number"),
            ("{ a = { b = 1e999 } }", &a, "expected a finite number"),
            ("{ a = 9223372036854775808 }", &a, "at most 64 bits"),
            ("{ a = [{ b = 2026-11-20 }] }", &a, "no dates"),
            ("{ \"a b\" = 1 }", &format!("{table}.a b"), "letters, digits, _ and -"),
            ("{ \"\" = 1 }", &format!("{table}."), "letters, digits, _ and -"),
            ("{ model = \"x\" }", &format!("{table}.model"), "cannot be set here"),
            ("{ stream_options = {} }", &format!("{table}.stream_options"), "cannot be set here"),
            ("{ query = \"x\" }", &format!("{table}.query"), "cannot be set here"),
            ("{ documents = [\"x\"] }", &format!("{table}.documents"), "cannot be set here"),
            ("{ input = \"x\" }", &format!("{table}.input"), "cannot be set here"),
            ("{ prompt = \"x\" }", &format!("{table}.prompt"), "cannot be set here"),
            ("{ best_of = 9 }", &format!("{table}.best_of"), "cannot be set here"),
            ("{ max_tokens = 5 }", &format!("{table}.max_tokens"), "use `default_max_tokens`, `reserve_tokens`"),
        ] {
            one_error(&model(&format!("{right}{key} = {value}")), 9, field, words);
        }
        // Errors name the line of the value itself, at any depth.
        let lines = format!("{right}[models.{key}]\nb = 1\na = [\n  1,\n  nan,\n]");
        one_error(&model(&lines), 13, &a, "expected a finite number");
    }
    let text = format!("{right}set_params = {{ a = 1 }}\ndefault_params = {{ a = 2, b = 3 }}");
    one_error(&model(&text), 10, "models[0].default_params.a", "`a` is also in `set_params`");
}

#[test]
fn params_of_a_model_are_read_as_json_in_order() {
    let right = "id = \"m\"\ncontext = \"1M\"\ntargets = [{ provider = \"p\" }]\n";
    let text = format!(
        "{right}set_params = {{ z = +1_000.50, top-k = 0xff, a = [true, -0.0, {{}}], s = \"\\\"\\u0001\\n\\\\é\" }}\n\
         [models.default_params]\nb.y = 1\nb.\"x y\" = [1e5, -7]\nc = '''\''''\n"
    );
    let config = parse(&model(&text)).unwrap();
    let json = |config: &Config| -> Vec<(String, String)> {
        let m = &config.catalog.models()[0];
        m.set_params.iter().chain(&m.default_params).map(|param| (param.name.clone(), param.json.clone())).collect()
    };
    let want = [
        ("z", "1000.50"),
        ("top-k", "255"),
        ("a", "[true,-0.0,{}]"),
        ("s", "\"\\\"\\u0001\\u000A\\\\é\""),
        ("b", "{\"y\":1,\"x y\":[1e5,-7]}"),
        ("c", "\"'\""),
    ];
    assert_eq!(json(&config), want.map(|(name, json)| (name.to_owned(), json.to_owned())));
    for (_, value) in json(&config) {
        serde_json::from_str::<serde_json::Value>(&value).unwrap();
    }
    let printed = effective(&config);
    let again = parse(&printed).unwrap_or_else(|errors| panic!("{errors:?}\n{printed}"));
    assert_eq!((json(&again), effective(&again)), (json(&config), printed));
}

#[test]
fn ids_and_contexts_of_models_are_checked() {
    let targets = "targets = [{ provider = \"p\" }]";
    let text = |id: &str, context: &str| model(&format!("id = {id}\ncontext = {context}\n{targets}"));
    for id in ["\"\"", "\"a b\"", "\"a,b\"", "\"*\"", "\"a\\nb\"", "\"a?b\""] {
        assert_eq!(parse(&text(id, "1")).unwrap_err()[0].field, "models[0].id", "{id}");
    }
    assert!(parse(&text("\"vendor/model:7b\"", "1")).is_ok());
    one_error(&text("5", "1"), 6, "models[0].id", "expected a string");
    for context in ["\"1G\"", "\"\"", "0", "-5", "\"0K\"", "1.5", "true"] {
        assert_eq!(parse(&text("\"m\"", context)).unwrap_err()[0].field, "models[0].context", "{context}");
    }
    let sizes = [("\"1M\"", 1_000_000, "1M"), ("\"256K\"", 256_000, "256K"), ("131072", 131_072, "128Ki")];
    for (context, tokens, shown) in sizes {
        let config = parse(&text("\"m\"", context)).unwrap();
        let model = &config.catalog.models()[0];
        assert_eq!((model.context, model.context_text.as_str()), (tokens, shown));
    }
    one_error(&model(&format!("context = 1\n{targets}")), 5, "models[0].id", "missing");
    one_error(&model(&format!("id = \"m\"\n{targets}")), 5, "models[0].context", "missing");
    one_error(&model("id = \"m\"\ncontext = 1"), 5, "models[0].targets", "missing");
    let twice = format!("{}[[models]]\nid = \"m\"\ncontext = 1\n{targets}", with(""));
    one_error(&twice, 11, "models[1].id", "a second model has the id `m`");
    one_error(PROVIDER, 1, "models", "at least one");
    one_error(&with("default_model = \"x\""), 1, "default_model", "no model has the id `x`");
}

#[test]
fn targets_are_checked_and_sorted_by_priority() {
    let text = |targets: &str| model(&format!("id = \"m\"\ncontext = 1\ntargets = {targets}"));
    one_error(&text("[]"), 8, "models[0].targets", "at least one target");
    one_error(&text("\"p\""), 8, "models[0].targets", "expected an array");
    one_error(&text("[\"p\"]"), 8, "models[0].targets[0]", "expected a table");
    one_error(&text("[{ model = \"x\" }]"), 8, "models[0].targets[0].provider", "missing");
    one_error(&text("[{ provider = \"x\" }]"), 8, "models[0].targets[0].provider", "no provider is named `x`");
    one_error(&text("[{ provider = \"p\", weight = 0 }]"), 8, "models[0].targets[0].weight", "from 1");
    let order = |targets: &str| -> Vec<String> {
        parse(&text(targets)).unwrap().catalog.models()[0].targets.iter().map(|t| t.label.to_string()).collect()
    };
    let (a, b) = ("{ provider = \"p\", model = \"a\"", "{ provider = \"p\", model = \"b\"");
    assert_eq!(order(&format!("[{a} }}, {b} }}]")), ["p/a", "p/b"]);
    assert_eq!(order(&format!("[{a}, priority = 5 }}, {b} }}]")), ["p/b", "p/a"]);
    assert_eq!(order(&format!("[{a}, priority = 1 }}, {b}, priority = 1 }}]")), ["p/a", "p/b"]);
}

#[test]
fn an_invalid_value_is_not_reported_as_missing_too() {
    let targets = "targets = [{ provider = \"p\" }]";
    let text = format!("default_model = \"m x\"\n{}", model(&format!("id = \"m x\"\ncontext = 1\n{targets}")));
    one_error(&text, 7, "models[0].id", "without spaces");
    let text = with("").replace("name = \"p\"", "name = \"my provider\"");
    let text = text.replace("provider = \"p\"", "provider = \"my provider\"");
    one_error(&text, 3, "providers[0].name", "expected 1 to 64 letters");
    let text = with("[server]\ntrusted_proxies = [\"foo\"]\nproxy_protocol = true");
    one_error(&text, 2, "server.trusted_proxies[0]", "a network such as");
    let text = with("[server]\ntrusted_proxies = []\nproxy_protocol = true");
    one_error(&text, 3, "server.proxy_protocol", "requires `trusted_proxies`");
}

#[test]
fn an_invalid_provider_causes_no_errors_in_its_models() {
    let text = provider("shape = \"chat\"\nbase_url = \"nowhere\"");
    one_error(&text, 4, "providers[0].base_url", "expected a URL");
}

#[test]
fn every_key_of_a_model_is_read() {
    let config = parse(&model(
        "id = \"m\"\nname = \"M\"\nowned_by = \"o\"\ncreated = 2026-11-20\ncontext = \"128Ki\"\ninput_price = 1\n\
         output_price = 2.5\ncache_read_price = 0.1\ncache_write_price = 1.25\ncache_write_1h_price = 2\ntargets = [{ provider = \"p\" }]\n\
         default_max_tokens = 100\nreserve_tokens = 50\ndrop_params = [\"temperature\"]\n\
         capabilities = { sampling = false, mid_conversation_system = true, replay_reasoning = true, \
         max_completion_tokens = true, max_output_tokens = 9, structured_output = \"tool\", effort = true, \
         strict_tools = true, effort_with_tools = false, developer_role = true }",
    ))
    .unwrap();
    let m = &config.catalog.models()[0];
    assert_eq!((m.name.as_str(), m.owned_by.as_str(), m.context), ("M", "o", 131_072));
    assert_eq!(m.created, Unix(1_795_132_800_000));
    let prices = Prices {
        input: 1_000_000,
        output: 2_500_000,
        cache_read: 100_000,
        cache_write: 1_250_000,
        hour_write: 2_000_000,
    };
    assert_eq!((&m.prices, m.default_max_tokens, m.reserve_tokens), (&prices.into(), 100, 50));
    let c = m.capabilities;
    assert_eq!(
        (c.sampling, c.max_output_tokens, c.structured_output),
        (Some(false), Some(9), Some(StructuredOutput::Tool))
    );
    assert_eq!((c.replay_reasoning, c.strict_tools), (Some(true), Some(true)));
    assert_eq!((c.developer_role, c.mid_conversation_system), (Some(true), Some(true)));
    assert_eq!((c.max_completion_tokens, c.effort, c.effort_with_tools), (Some(true), Some(true), Some(false)));
}

#[test]
fn plans_are_checked_and_read() {
    let cases = [
        ("tokens = -1", "plans[0].tokens", "from 0"),
        ("tokens = 1.5", "plans[0].tokens", "expected an integer"),
        ("period = \"year\"", "plans[0].period", "one of month, week, day, quarter"),
        ("requests = \"many\"", "plans[0].requests", "expected a number such as 600"),
        ("window = \"0s\"", "plans[0].window", "duration"),
        ("window = \"1500ms\"", "plans[0].window", "whole seconds"),
        ("tokens_per_window = -1", "plans[0].tokens_per_window", "from 0"),
        ("concurrency = -1", "plans[0].concurrency", "from 0"),
    ];
    for (line, field, words) in cases {
        one_error(&with(&format!("[[plans]]\nname = \"a\"\n{line}")), 3, field, words);
    }
    one_error(&with("[[plans]]\ntokens = 1"), 1, "plans[0].name", "missing");
    let found =
        format!("expected 1 to 64 visible characters, no `/`, and not `none`, found \"{}\" … (66", "g".repeat(64));
    for (name, words) in
        [("a/b", "visible characters, no `/`"), ("none", "not `none`, found"), (&"g".repeat(66), &found)]
    {
        one_error(&with(&format!("[[groups]]\nname = \"{name}\"")), 2, "groups[0].name", words);
    }
    one_error(&with("[[plans]]\nname = \"a\"\n[[plans]]\nname = \"a\""), 4, "plans[1].name", "a second plan");
    let text = "[[plans]]\nname = \"a\"\ntokens = 5\nperiod = \"week\"\nrequests = 6\nwindow = \"1h\"\n\
                tokens_per_window = 7\nconcurrency = 8\n[[plans]]\nname = \"b\"\ntokens = 9007199254740991";
    let config = parse(&with(text)).unwrap();
    let a = config.plan("a").unwrap();
    assert_eq!((a.tokens, a.period, a.requests, a.window), (5, Period::Week, 6, Duration::from_secs(3600)));
    assert_eq!((a.tokens_per_window, a.concurrency), (7, 8));
    assert_eq!((&*config.plans[0].name, config.plan("b").unwrap().tokens), ("a", UNLIMITED));
    assert!(config.plan("c").is_none());
}

#[test]
fn the_effective_configuration_parses_to_the_same_and_shows_no_secret() {
    let text = format!(
        "[server]\nadmin_token = {{ env = \"GOOD_KEY\" }}\ntls = {{ cert = \"cert.pem\", key = \"key.pem\" }}\n\
         [store]\nretention = \"400d\"\n[[providers]]\nname = \"q\"\nshape = \"messages\"\n\
         base_url = \"https://h/v1\"\n\
         api_key = {{ file = \"/run/secrets/key\" }}\nheaders = {{ \"x-tenant\" = \"a \\\"b\\\"\" }}\nbetas = [\"b\"]\n\
         ca_file = \"ca.pem\"\naddresses = [\"10.0.0.1\"]\nunknown_fields = \"forward\"\n[[providers]]\nname = \"r\"\n{RIGHT}\
         api_keys = [{{ env = \"GOOD_KEY\" }}, {{ command = [\"token\", \"word\"], weight = 2 }}]\n\
         {PROVIDER}{MODEL}idle_timeout = \"90s\"\ninput_price = 0.0375\ncapabilities = {{ max_output_tokens = 9 }}\n\
         [[plans]]\nname = \"\\\"x\\\"\"\nperiod = \"day\"\nwindow = \"90s\"\n"
    );
    let printed = effective(&parse(&format!("default_model = \"m\"\n{text}")).unwrap());
    assert!(!printed.contains("sk-"), "{printed}");
    let again = parse(&printed).unwrap_or_else(|errors| panic!("{errors:?}\n{printed}"));
    assert_eq!(effective(&again), printed);
    assert_eq!(again.providers[0].credentials[0].secret.expose(), "sk-from-file");
}

#[test]
fn the_effective_configuration_has_every_key_of_a_model() {
    let free = "input_price = 0\noutput_price = 0\nprice_per_image = 1\nhosted_tools = [\"a\"]\n";
    let config = parse(&format!("default_model = \"m\"\n{PROVIDER}{MODEL}{free}")).unwrap();
    let printed = effective(&config);
    let page = include_str!("../../docs/configuration/models.md");
    let keys = page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    for key in keys.filter(|key| !key.contains('.')) {
        let has = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{key} = "));
        let is_none = |line: &str| line.starts_with(&format!("# {key}: "));
        assert!(printed.lines().any(|line| has(line) || is_none(line)), "{key}: {printed}");
    }
    for line in ["input_price = 0.00", "output_price = 0.00", "hosted_tools = [\"a\"]"] {
        assert!(printed.lines().any(|own| own == line), "{line}: {printed}");
    }
    assert_eq!(parse(&printed).unwrap().catalog.models()[0].hosted_tools, ["a"]);
}

#[test]
fn prices_may_have_tiers_by_prompt_length() {
    let text = "input_price = { \"272000\" = 2, \"0\" = 1 }\noutput_price = { \"0\" = 10, \"200K\" = 15 }\n\
                cache_read_price = 0.1\n";
    let config = parse(&format!("default_model = \"m\"\n{PROVIDER}{MODEL}{text}")).unwrap();
    assert_eq!(config.warnings, []);
    let prices = &config.catalog.models()[0].prices;
    let of = |prices: &Prices| [prices.input, prices.output, prices.cache_read, prices.cache_write, prices.hour_write];
    let micro = |usd: [u64; 5]| usd.map(|tenths| tenths * 100_000);
    assert_eq!(of(&prices.base), micro([10, 100, 1, 10, 10]));
    let tiers: Vec<_> = prices.tiers.iter().map(|tier| (tier.above, of(&tier.prices))).collect();
    // A price without an entry for a tier keeps its value from the tier below. Without a price of its own, a cache
    // write costs as much as the tier's input.
    assert_eq!(tiers, [(200_000, micro([10, 150, 1, 10, 10])), (272_000, micro([20, 150, 1, 20, 20]))]);
    let printed = effective(&config);
    assert!(printed.contains("input_price = { \"0\" = 1.00, \"200K\" = 1.00, \"272K\" = 2.00 }"), "{printed}");
    assert_eq!(effective(&parse(&printed).unwrap()), printed);
    let line = format!("{PROVIDER}{MODEL}").lines().count() as u32;
    for (table, field, words) in [
        ("{ \"200K\" = 2 }", "input_price", "expected also a price \"0\", for short prompts"),
        ("{}", "input_price", "expected also a price \"0\", for short prompts"),
        ("{ \"0\" = 1, \"200X\" = 2 }", "input_price.200X", "no number of prompt tokens"),
        ("{ \"0\" = 1, \"200K\" = 2, \"200000\" = 3 }", "input_price.200K", "in another form"),
        ("{ \"0\" = 1, \"200K\" = -2 }", "input_price.200K", "from 0 to 1000000"),
        (
            "{ \"0\" = 1, 1K = 1, 2K = 1, 3K = 1, 4K = 1, 5K = 1, 6K = 1, 7K = 1, 8K = 1, 9K = 1 }",
            "input_price",
            "more than 9",
        ),
        ("\"1\"", "input_price", "or a table"),
    ] {
        let text = format!("{PROVIDER}{MODEL}input_price = {table}\noutput_price = 1");
        one_error(&text, line + 1, &format!("models[0].{field}"), words);
    }
}

#[test]
fn a_model_with_one_price_of_two_is_unpriced_with_a_warning() {
    let prices = |text: &str| {
        let config = parse(&format!("{PROVIDER}{MODEL}{text}")).unwrap();
        let model = &config.catalog.models()[0];
        let said: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
        let printed = effective(&config);
        assert_eq!(printed.contains("# input_price: none"), !model.priced, "{printed}");
        (model.priced, model.prices.base.input, said)
    };
    assert_eq!(prices(""), (false, 0, vec![]));
    assert_eq!(prices("input_price = 1\noutput_price = 0"), (true, 1_000_000, vec![]));
    let (priced, input, said) = prices("input_price = 1");
    assert_eq!((priced, input, said.len()), (false, 0, 1));
    assert!(said[0].contains("models[0].output_price: missing, so the model is unpriced"), "{said:?}");
    // Embeddings and rerank answers have no output tokens, so they need no output price.
    assert_eq!(prices("serves = [\"embeddings\", \"rerank\"]\ninput_price = 1"), (true, 1_000_000, vec![]));
    assert!(!prices("serves = [\"embeddings\", \"completions\"]\ninput_price = 1").0);
    assert!(!prices("serves = [\"embeddings\"]\noutput_price = 1").0);
    assert!(prices("cache_read_price = 1").2[0].contains("models[0].input_price: missing"));
}

#[test]
fn a_target_has_the_prices_of_its_model_where_it_has_none() {
    let model = "[[models]]\nid = \"m\"\ncontext = \"1M\"\n";
    let read = |own: &str, targets: &[&str]| {
        let targets: Vec<String> = targets.iter().map(|more| format!("{{ provider = \"p\"{more} }}")).collect();
        let config = parse(&format!("{PROVIDER}{model}{own}targets = [{}]\n", targets.join(", "))).unwrap();
        let page = effective(&config);
        assert_eq!(effective(&parse(&page).unwrap()), page);
        let (said, model) = (config.warnings.len(), config.catalog.models()[0].clone());
        let of = |target| {
            let (prices, units) = model.prices_at(Some(target));
            (prices.base.input, prices.base.output, prices.base.cache_read, units.request)
        };
        (model.targets.iter().map(of).collect::<Vec<_>>(), model.priced, said)
    };
    let own = "input_price = 2\noutput_price = 8\ncache_read_price = 1\n";
    let (prices, priced, said) = read(own, &["", ", input_price = 3", ", cache_read_price = 0, price_per_request = 1"]);
    let micro = 1_000_000;
    let want = [(2, 8, 1, None), (3, 8, 1, None), (2, 8, 0, Some(micro))];
    let want = want.map(|(input, output, read, request)| (input * micro, output * micro, read * micro, request));
    assert_eq!(prices, want);
    assert!(priced && said == 0);
    // A cache price that neither sets follows the input price of the target.
    let (prices, ..) = read("input_price = 2\noutput_price = 8\n", &[", input_price = { \"0\" = 3, \"200K\" = 6 }"]);
    assert_eq!(prices, [(3 * micro, 8 * micro, 3 * micro, None)]);
    let both = ", input_price = 1, output_price = 2";
    assert!(read("", &[both, both]).1, "a model needs no prices if each target has some");
    let (_, priced, said) = read("", &[both, ""]);
    assert!(!priced && said == 0);
    let (_, priced, said) = read("", &[both, ", input_price = 1"]);
    assert!(!priced && said == 1);
    let (_, priced, said) = read("input_price = 1\n", &[", output_price = 2"]);
    assert!(priced && said == 0);
}

#[test]
fn a_price_of_a_unit_is_enough_for_endpoints_that_it_covers() {
    let priced = |text: &str| {
        let config = parse(&format!("{PROVIDER}{MODEL}{text}")).unwrap();
        let page = effective(&config);
        assert_eq!(effective(&parse(&page).unwrap()), page);
        config.catalog.models()[0].priced
    };
    for (serves, price, expected) in [
        ("\"images\"", "price_per_image = 0.04", true),
        ("\"images\", \"speech\"", "price_per_image = 0.04", false),
        ("\"images\", \"speech\"", "price_per_request = 0", true),
        ("\"images\", \"chat\"", "price_per_request = 1\nprice_per_image = 1", false),
        ("\"images\", \"chat\"", "price_per_image = 1\ninput_price = 1\noutput_price = 1", true),
        // Their providers bill completion tokens.
        ("\"images\"", "input_price = 1", false),
        ("\"moderations\"", "input_price = 0", true),
        ("\"speech\"", "", false),
    ] {
        assert_eq!(priced(&format!("serves = [{serves}]\n{price}\n")), expected, "{serves} {price}");
    }
}

#[test]
fn a_password_in_a_store_url_is_masked() {
    for url in ["redis://user:hunter2@h:6379/0", "rediss://:hunter2@h/0", "redis://:hunter@hunter2@h/0"] {
        let printed = effective(&parse(&with(&format!("[store]\nurl = \"{url}\""))).unwrap());
        assert!(!printed.contains("hunter2") && printed.contains("***"), "{url}");
    }
    for wrong in ["redis://:hunter2/@h/0", "redis://h:6379/0?password=hunter2", "redis://h:hunter2", "hunter2://h"] {
        let broken = errors(&with(&format!("[store]\nurl = \"{wrong}\"")));
        assert!(broken.len() == 1 && !broken[0].contains("hunter2"), "{broken:?}");
    }
    let printed = effective(&parse(&with("[store]\nurl = \"redis://h:6379/0\"")).unwrap());
    assert!(printed.contains("redis://h:6379/0"));
}

#[test]
fn a_secret_prints_as_stars() {
    let secret = Secret::new("sk-1".to_string(), Origin::Env("A".to_string()));
    assert_eq!(format!("{secret} {secret:?}"), "*** ***");
    let config = parse(&provider(&format!("{RIGHT}api_key = {{ env = \"GOOD_KEY\" }}"))).unwrap();
    assert!(!format!("{config:?}").contains("sk-good"));
}

#[test]
fn debug_output_of_a_store_shows_no_password() {
    let config = parse(&with("[store]\nurl = \"redis://:hunter2@h/0\"")).unwrap();
    assert!(!format!("{:?}", config.store).contains("hunter2"));
}

fn at(base_url: &str) -> Provider {
    let text = format!("[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"{base_url}\"\n{MODEL}",);
    parse(&text).unwrap_or_else(|errors| panic!("{errors:?}")).providers.remove(0)
}

#[test]
fn openai_and_azure_are_recognised_by_host() {
    for url in [
        "https://api.openai.com/v1",
        "https://API.OpenAI.com./v1",
        "https://eu.api.openai.com/v1",
        "https://us-east.openai.azure.com/openai/v1",
        "https://x.cognitiveservices.azure.com/openai/v1",
    ] {
        let vendor = at(url).vendor;
        assert!(matches!(vendor.as_deref(), Some("openai" | "azure")) && !at(url).is_near(), "{url}");
    }
    for url in ["https://openai.com.example/v1", "https://notapi.openai.com/v1", "http://127.0.0.1/v1"] {
        assert_eq!(at(url).vendor, None, "{url}");
    }
}

#[test]
fn providers_on_the_local_network_are_recognised_by_host() {
    for url in [
        "http://127.0.0.1:8000/v1",
        "http://10.1.2.3/v1",
        "http://172.16.0.1/v1",
        "http://192.168.1.9:11434/v1",
        "http://169.254.1.1/v1",
        "http://[::1]:8000/v1",
        "http://[fd00::1]/v1",
        "http://[fe80::1]/v1",
        "http://[::ffff:10.0.0.1]/v1",
        "http://localhost:1234/v1",
        "http://ollama:11434/v1",
        "http://box.local/v1",
        "http://box.lan/v1",
        "http://host.docker.internal:11434/v1",
    ] {
        assert!(at(url).is_near(), "{url}");
    }
    for url in ["https://api.example.com/v1", "http://8.8.8.8/v1", "http://172.32.0.1/v1", "http://[2001:db8::1]/v1"] {
        assert!(!at(url).is_near(), "{url}");
    }
}

#[test]
fn an_alias_belongs_to_one_model_and_may_only_end_in_a_star() {
    let models = |first: &str, second: &str| {
        format!(
            "[[models]]\nid = \"a\"\naliases = {first}\ncontext = \"1M\"\ntargets = [{{ provider = \"p\" }}]\n\
             [[models]]\nid = \"b\"\naliases = {second}\ncontext = \"1M\"\ntargets = [{{ provider = \"p\" }}]\n{PROVIDER}"
        )
    };
    one_error(&models("[\"x\"]", "[\"x\"]"), 8, "models[1].aliases[0]", "`x` is already an alias");
    one_error(&models("[\"x*\", \"x*\"]", "[]"), 3, "models[0].aliases[1]", "`x*` is already an alias");
    one_error(&models("[\"b\"]", "[]"), 3, "models[0].aliases[0]", "`b` is the id of a model");
    one_error(&models("[\"x*y\"]", "[]"), 3, "models[0].aliases[0]", "a * at its end alone");
    one_error(&models("[\"\"]", "[]"), 3, "models[0].aliases[0]", "expected a name");
    one_error(&models("[]", "[]").replace("id = \"a\"", "id = \"a*\""), 2, "models[0].id", "expected an id without");

    let text = models("[\"gpt-4o\", \"claude-opus-*\", \"claude-*\"]", "[\"claude-opus-4*\", \"*\"]");
    let config = parse(&text).unwrap_or_else(|errors| panic!("{errors:?}"));
    for (name, id) in [
        ("a", "a"),
        ("gpt-4o", "a"),
        ("gpt-4o-mini", "b"),
        ("claude-opus-3", "a"),
        ("claude-opus-4-1", "b"),
        ("claude-haiku", "a"),
        ("b", "b"),
    ] {
        let found = config.catalog.asked(name).and_then(|index| config.catalog.get(index));
        assert_eq!(found.map(|model| &*model.id), Some(id), "{name}");
    }
    assert_eq!(config.catalog.find("gpt-4o"), None, "an alias is not an id");
}

#[test]
fn a_secret_in_the_store_url_is_read_from_its_source_and_percent_encoded() {
    let url = |written: &str| format!("[store]\nurl = {written}\n{PROVIDER}{MODEL}");
    let read = |written: &str| parse(&url(written)).unwrap_or_else(|errors| panic!("{errors:?}")).store.url;
    let meant = shared("redis://:sk-good@cache:6379/0");
    assert_eq!(read("[\"redis://:\", { env = \"GOOD_KEY\" }, \"@cache:6379/0\"]"), meant);
    assert_eq!(meant.to_string(), "redis://***@cache:6379/0");
    let odd = shared("rediss://u:p%40ss%2F%3Aw%25@cache");
    assert_eq!(read("[\"rediss://u:\", { env = \"ODD_KEY\" }, \"@cache\"]"), odd);
    let file = shared("redis://:sk-from-file@cache");
    assert_eq!(read("[\"redis://:\", { file = \"/run/secrets/key\" }, \"@cache\"]"), file);
    one_error(&url("[\"redis://:\", { env = \"NOT_SET\" }, \"@cache\"]"), 2, "store.url[1].env", "is not set");
    one_error(&url("[\"redis://:\", { env = \"GOOD_KEY\" }]"), 2, "store.url[0]", "expected \"sqlite:PATH\"");
}

#[test]
fn relayed_requests_go_to_the_chat_targets_with_the_providers_model_of_the_first() {
    let providers = "[[providers]]\nname = \"m\"\nshape = \"messages\"\nbase_url = \"http://10.0.0.1\"\n\
                     [[providers]]\nname = \"c\"\nshape = \"chat\"\nbase_url = \"http://10.0.0.2/v1\"\n";
    let models = |serves: &str, targets: &str| {
        format!("{providers}[[models]]\nid = \"x\"\ncontext = \"8K\"\nserves = {serves}\ntargets = [{targets}]\n")
    };
    let target = |provider: &str, model: &str| format!("{{ provider = \"{provider}\", model = \"{model}\" }}");
    let all = [target("m", "a"), target("c", "b"), target("c", "a"), target("c", "b")].join(", ");
    let relayed = |serves: &str| {
        let config = parse(&models(serves, &all)).unwrap_or_else(|errors| panic!("{errors:?}"));
        let model = &config.catalog.models()[0];
        (
            model.serves.len(),
            model.passthrough_targets.iter().map(|target| target.label.to_string()).collect::<Vec<_>>(),
        )
    };
    assert_eq!(relayed("[\"chat\", \"rerank\"]"), (2, vec!["c/b".to_string(), "c/b".to_string()]));
    assert_eq!(relayed("[\"chat\"]"), (1, Vec::new()));
    let messages = models("[\"embeddings\"]", &target("m", "a"));
    one_error(&messages, 12, "models[0].serves[0]", "`embeddings` needs a target at a provider of shape \"chat\"");
}

#[test]
fn a_response_limit_that_the_buffers_can_never_hold_is_refused() {
    let small = "[server]\nmax_body = \"1MiB\"\nmax_buffered = \"16MiB\"\n";
    let most = (4 << 20) - (128 << 10);
    let config = parse(&with(small)).unwrap();
    assert_eq!((config.upstream.max_response, config.upstream.max_event), (most, most));
    assert!(config.providers.iter().all(|provider| provider.limits.max_response == most));
    let fits = parse(&with(&format!("{small}[upstream]\nmax_response = \"3968KiB\"\nmax_event = \"1MiB\""))).unwrap();
    assert_eq!((fits.upstream.max_response, fits.upstream.max_event), (most, 1 << 20));
    for key in ["max_response", "max_event"] {
        let text = with(&format!("{small}[upstream]\n{key} = \"4MiB\""));
        one_error(
            &text,
            5,
            &format!("upstream.{key}"),
            "expected at most 3968 KiB, as server.max_buffered allows, found ",
        );
    }
}

#[test]
fn entries_of_limits_are_read_as_tables_or_texts_and_a_second_one_is_refused() {
    let plan = |lines: &str| parse(&with(&format!("[[plans]]\nname = \"p\"\n{lines}")));
    let config = plan(
        "limits = [{ requests = 600, per = \"1m\" }, { tokens = \"2M\", per = \"day\" }, \"budget=5/5h:opus-*\", \
         { running = 4 }]",
    )
    .unwrap();
    let texts: Vec<String> = config.plans[0].limits.iter().map(|cap| cap.text()).collect();
    assert_eq!(texts, ["requests=600/1m", "tokens=2000000/day", "budget=5/5h:opus-*", "running=4"]);
    assert_eq!(config.plans[0].limit(Shorthand::Concurrency), 4);
    let many = |count: u64| {
        let entries: Vec<String> = (1..=count).map(|seconds| format!("\"requests=5/{seconds}s\"")).collect();
        plan(&format!("limits = [{}]", entries.join(", ")))
    };
    assert_eq!(many(16).unwrap().plans[0].limits.len(), 16);
    let errors = many(17).unwrap_err();
    assert!(errors.len() == 1 && errors[0].to_string().contains("at most 16"), "{errors:?}");
    let names = |count: usize| vec!["a"; count].join(",");
    assert!(plan(&format!("limits = [\"budget=5/day:{}\"]", names(16))).is_ok());
    assert!(plan(&format!("limits = [\"budget=5/day:{}\"]", names(17))).is_err());
    for (lines, wrong) in [
        ("limits = [{ requests = 0, per = \"1m\" }]", "plans[0].limits[0]: expected a number from 1 on"),
        ("limits = [\"requests/1m=none\"]", "plans[0].limits[0]: expected a number from 1 on"),
        ("limits = [{ requests = 5 }]", "plans[0].limits[0]: per: expected 1s to 31d"),
        ("limits = [{ budget = 5, per = 5 }]", "plans[0].limits[0]: per: expected 1s to 31d"),
        ("limits = [{ budget = 5, per = \"day\", models = [] }]", "plans[0].limits[0]: models: expected 1 to 16 ids"),
        ("limits = [{ per = \"day\" }]", "plans[0].limits[0]: expected an entry such as"),
        ("limits = [5]", "plans[0].limits[0]: expected an entry such as"),
        ("limits = [{ requests = 5, tokens = 5, per = \"1m\" }]", "plans[0].limits[0]: expected one of requests, "),
        ("limits = [\"requests=5/1m\", \"requests=6/60s\"]", "requests/1m is limited in plans[0].limits[0] already"),
        ("limits = [\"tokens=5/24h\", \"tokens=5/day\"]", "tokens/day is limited in plans[0].limits[0] already"),
        ("requests = 5\nlimits = [\"requests=5/1m\"]", "requests/1m is limited by `requests` already"),
        ("budget = 5\nlimits = [\"budget=5/month\"]", "budget/month is limited by `budget` already"),
        ("concurrency = 5\nlimits = [\"running=5\"]", "running is limited by `concurrency` already"),
    ] {
        let errors = plan(lines).unwrap_err();
        assert!(errors.iter().any(|error| error.to_string().contains(wrong)), "{lines}: {errors:?}");
    }
}

#[test]
fn on_exhausted_names_a_model_and_forms_no_cycle() {
    let models =
        MODEL.to_string() + &["a", "b", "c", "d"].map(|id| MODEL.replace("\"m\"", &format!("\"{id}\""))).concat();
    let with = |more: &str| [PROVIDER, &models, more].concat();
    let plan = |model: &str| format!("[[plans]]\nname = \"p\"\non_exhausted = {{ model = \"{model}\" }}\n");
    let config = parse(&with(&plan("m"))).unwrap();
    assert_eq!(config.plans[0].on_exhausted.as_deref(), Some("m"));
    let line = with("").lines().count() as u32 + 3;
    one_error(&with(&plan("x")), line, "plans[0].on_exhausted", "no model has the id `x`");
    let group = |name: &str, parent: &str, model: &str| {
        let parent = if parent.is_empty() { String::new() } else { format!("parent = \"{parent}\"\n") };
        format!("[[groups]]\nname = \"{name}\"\n{parent}on_exhausted = {{ model = \"{model}\" }}\n")
    };
    let of = |models: [&str; 4]| {
        let [own, nearest, middle, root] = models;
        with(&[plan(own), group("r", "", root), group("m", "r", middle), group("n", "m", nearest)].concat())
    };
    assert_eq!(errors(&of(["a", "a", "b", "c"])), [""; 0], "the same model in a row counts once");
    let long = errors(&of(["a", "b", "c", "d"]));
    assert!(long.len() == 1 && long[0].contains("groups[2].on_exhausted") && long[0].contains("at most 3"), "{long:?}");
    for (models, cycle) in [
        (["a", "b", "b", "a"], "`a`, `b`, `a`"),
        (["a", "b", "a", "a"], "`a`, `b`, `a`"),
        (["m", "a", "b", "a"], "`m`, `a`, `b`, `a`"),
        (["a", "b", "c", "a"], "`a`, `b`, `c`, `a`"),
    ] {
        let errors = errors(&of(models));
        let said = |error: &String| error.ends_with(&format!("are a cycle: {cycle}"));
        assert!(errors.iter().any(said), "{models:?}: {errors:?}");
    }
    let alias = with(&plan("other")).replace("id = \"a\"", "id = \"a\"\naliases = [\"other\"]");
    assert!(errors(&alias)[0].contains("no model has the id `other`"), "a cycle through an alias is not possible");
    let wrong = with("[[plans]]\nname = \"p\"\non_exhausted = \"m\"\n");
    one_error(&wrong, line, "plans[0].on_exhausted", "table");
    assert!(parse(&with("[[groups]]\nname = \"g\"\non_exhausted = { modal = \"m\" }\n")).is_err());
    let shown = effective(&config);
    assert!(shown.contains("on_exhausted = { model = \"m\" }"), "{shown}");
}

#[test]
fn names_in_limits_that_fit_no_model_are_warnings() {
    let said = |provider: &str, limits: &str| {
        let text = with(&format!("[[plans]]\nname = \"p\"\n[[groups]]\nname = \"g\"\nlimits = [{limits}]\n"));
        let text = text.replacen("shape = \"chat\"", &format!("shape = \"chat\"\n{provider}"), 1);
        let warnings = parse(&text.replacen("id = \"m\"", "id = \"m\"\naliases = [\"name\"]", 1)).unwrap().warnings;
        warnings.iter().map(|warning| format!("{}: {}", warning.field, warning.message)).collect::<Vec<_>>()
    };
    assert_eq!(said("", "\"budget=5/day:m\", \"tokens=5/day:*,!m*\", \"requests=5/1m\""), [""; 0]);
    let opus = "groups[0].limits: `budget=5/day:opus-*,m`: `opus-*` fits the id of no model";
    assert_eq!(said("", "\"budget=5/day:opus-*,m\""), [opus]);
    assert_eq!(
        said("", "{ tokens = 5, per = \"day\", models = [\"name\", \"*\", \"!x\"] }").len(),
        2,
        "an alias is no id"
    );
    // A list of a provider may have such models.
    assert_eq!(said("discover = { prefix = \"p/\" }", "\"budget=5/day:p/*,p/x*,p*\""), [""; 0]);
    assert_eq!(said("discover = { prefix = \"p/\" }", "\"budget=5/day:q*\"").len(), 1);
}
