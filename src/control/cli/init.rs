//! `tollgate init`: writes a first configuration, from the usual environment variables of providers and from local
//! servers on their usual ports. If neither is found, it writes an example to fill in. Never overwrites a file.

use super::http::blocking_http::{ServerAddress, ask};
use super::load;
use super::output::{Failure, clean, models, print, remark, warn};
use crate::io::files::FileDraft;
use crate::io::tls::Security;
use crate::policy::catalog::is_bad;
use crate::policy::config::units::quoted;
use crate::policy::keys::is_unseen;
use crate::policy::vendors::Vendors;
use crate::policy::vendors::capabilities::TOKENS_MAX;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

/// `tollgate init`.
#[derive(clap::Args, Debug)]
pub struct InitArgs {
    /// File to write; it must not exist yet [default: tollgate.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Maximum time to connect to a local server.
const REACHED: Duration = Duration::from_millis(500);
/// Maximum time for its complete list of models.
const LISTED: Duration = Duration::from_secs(3);
/// Maximum models of one local server in the file.
const MODELS_MAX: usize = 8;
/// Maximum characters of a model's id, and of its name at its provider, in a configuration.
const ID_MAX: usize = 128;
const NAME_MAX: usize = 256;
/// Ports for clients and for the admin listener; of each, the first free one is used.
const PORTS: [[u16; 3]; 2] = [[8080, 8081, 8088], [9090, 9091, 9098]];

/// A hosted provider: vendor, API format, id and upstream name of a model, context, input and output price, and further
/// lines of its table. Models and prices change, so the generated file calls them examples, and `check --connect`
/// reports models that are no longer served.
struct Hosted {
    name: &'static str,
    shape: &'static str,
    model: &'static str,
    context: &'static str,
    prices: Option<(&'static str, &'static str)>,
    more: &'static str,
}

/// A hosted provider with what the table of vendors says of it: the variable of its key, and its base URL.
struct HostedOffer {
    hosted: &'static Hosted,
    variable: String,
    base_url: String,
}

impl HostedOffer {
    /// All of them, in the order of the menu.
    fn all(vendors: &Vendors) -> Vec<HostedOffer> {
        let known = vendors.identities();
        let offer = |hosted: &'static Hosted| {
            let (_, identity) = known.iter().find(|(name, _)| *name == hosted.name)?;
            Some(HostedOffer { hosted, variable: identity.env.first()?.clone(), base_url: identity.base_url.clone()? })
        };
        HOSTED.iter().filter_map(offer).collect()
    }
}

const FORWARD: &str = "unknown_fields = \"forward\"          # it takes fields that OpenAI's API does not document\n";

const HOSTED: [Hosted; 8] = [
    Hosted {
        name: "openai",
        shape: "chat",
        model: "gpt-5.4-mini",
        context: "400K",
        prices: Some(("0.75", "4.5")),
        more: "",
    },
    Hosted {
        name: "anthropic",
        shape: "messages",
        model: "claude-sonnet-5-5",
        context: "1M",
        prices: Some(("2.0", "10.0")),
        more: "",
    },
    Hosted { name: "gemini", shape: "chat", model: "gemini-3.8-flash", context: "1M", prices: None, more: "" },
    Hosted { name: "mistral", shape: "chat", model: "mistral-small-latest", context: "128K", prices: None, more: "" },
    Hosted { name: "deepseek", shape: "chat", model: "deepseek-flash", context: "1M", prices: None, more: FORWARD },
    Hosted { name: "groq", shape: "chat", model: "openai/gpt-oss-120b", context: "128K", prices: None, more: "" },
    Hosted {
        name: "openrouter",
        shape: "chat",
        model: "openrouter/auto",
        context: "128K",
        prices: None,
        more: FORWARD,
    },
    Hosted { name: "xai", shape: "chat", model: "grok-4.3", context: "1M", prices: None, more: "" },
];

/// A local server that answers.
struct Local {
    port: u16,
    name: String,
    title: String,
    /// Names of its models for the file, with the context if reported.
    models: Vec<(String, Option<u64>)>,
    /// Number of models omitted because there are too many.
    more: usize,
    /// Number of models omitted because their names are not allowed in a configuration.
    odd: usize,
}

impl Local {
    /// Selects the server's models for the file.
    fn new((port, name, title): (u16, &str, &str), all: Vec<(String, Option<u64>)>) -> Local {
        let found = all.len();
        let mut ids: Vec<String> = Vec::new();
        let mut models = all;
        models.retain(|(model, _)| {
            let id = id_of(model);
            let fits = (1..=NAME_MAX).contains(&model.chars().count()) && !model.chars().any(is_unseen);
            // The server's name may be put before the id.
            let good = fits && !id.is_empty() && id.chars().count() + name.len() < ID_MAX && !ids.contains(&id);
            ids.extend(good.then_some(id));
            good
        });
        let good = models.len();
        models.truncate(MODELS_MAX);
        Local {
            port,
            name: name.to_string(),
            title: title.to_string(),
            more: good - models.len(),
            odd: found - good,
            models,
        }
    }

    /// Line of output about the server.
    fn found(&self) -> String {
        let mut text = format!("found {} on port {} with {}", self.title, self.port, models(self.models.len()));
        if self.more > 0 {
            let _ = write!(text, "; {} more are left out: name them in the file", self.more);
        }
        if self.odd > 0 {
            let _ = write!(text, "; {} are left out, whose names no id can have, or another one has", self.odd);
        }
        text
    }
}

/// Searches for providers and writes the file.
pub fn run(args: &InitArgs) -> Result<(), Failure> {
    let path = args.config.clone().unwrap_or_else(|| PathBuf::from("tollgate.toml"));
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Failure::failed(format!("{} already exists: remove it, or name another file with --config", path.display()))
        }
        _ => Failure::failed(format!("cannot write {}: {error}", path.display())),
    };
    // An existing file is never overwritten. That, and a folder without write permission, is found before the search.
    if path.symlink_metadata().is_ok() {
        return Err(failed(std::io::ErrorKind::AlreadyExists.into()));
    }
    drop(FileDraft::beside(&path).map_err(failed)?);
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let vendors = Vendors::built_in();
    let offers = HostedOffer::all(&vendors);
    let hosted: Vec<&HostedOffer> = offers.iter().filter(|offer| set(&offer.variable)).collect();
    let servers = vendors.identities().into_iter();
    let servers = servers.filter_map(|(name, identity)| Some((identity.port?, name, identity.title.as_deref()?)));
    let local: Vec<Local> = servers.filter_map(|(port, name, title)| look(port, name, title)).collect();
    let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let ports = PORTS.map(|ports| ports.into_iter().find(free).unwrap_or(ports[0]));
    let (draft, mut file) = FileDraft::with_mode(&path, 0o666).map_err(failed)?;
    file.write_all(text(&hosted, &offers[0], &local, ports).as_bytes()).map_err(failed)?;
    draft.put(file, &path).map_err(failed)?;
    for hosted in &hosted {
        remark(&format!("found {} (${})", hosted.hosted.name, hosted.variable));
    }
    for local in &local {
        remark(&local.found());
    }
    let found = !hosted.is_empty() || !local.is_empty();
    if !found {
        warn("found no provider: replace the example in the file");
    }
    for hosted in hosted.iter().map(|offer| offer.hosted).filter(|hosted| hosted.prices.is_none()) {
        warn(&format!("{} has no prices in the file: keys with a budget get 403 for it", hosted.model));
    }
    if let Some(variable) = load::hiding(&path) {
        warn(&format!("${variable} is set, so commands ignore this file: unset it, or use --config"));
    }
    print(&format!("wrote {}\n", clean(&path.to_string_lossy())))?;
    remark(&format!("gateway http://127.0.0.1:{}, dashboard http://127.0.0.1:{}", ports[0], ports[1]));
    let edit = if found { "" } else { "\n  edit the file" };
    remark(&format!("next:{edit}\n  tollgate check --connect\n  tollgate keys issue --name NAME\n  tollgate serve"));
    Ok(())
}

/// Requests the models from a port of this host.
fn look(port: u16, name: &str, title: &str) -> Option<Local> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let place = ServerAddress {
        socket: None,
        addresses: &[address],
        host: "127.0.0.1",
        port,
        tunnel: None,
        tls: (&Security::default(), None),
        connect: REACHED,
        answer: LISTED,
    };
    let request = format!("GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n");
    let answer = ask(&place, request.as_bytes()).ok().filter(|answer| answer.status == 200)?;
    let list: Value = serde_json::from_str(str::from_utf8(&answer.body).ok()?).ok()?;
    let entries = list["data"].as_array()?;
    let said = |entry: &Value| entry["max_model_len"].as_u64().or_else(|| entry["meta"]["n_ctx_train"].as_u64());
    let context = |entry: &Value| said(entry).filter(|tokens| (1..=TOKENS_MAX).contains(tokens));
    let model = |entry: &Value| Some((entry["id"].as_str()?.to_string(), context(entry)));
    Some(Local::new((port, name, title), entries.iter().filter_map(model).collect()))
}

/// An upstream's name as an id: without characters that an id must not have.
fn id_of(name: &str) -> String {
    let bad = |c: char| is_bad(c) || c == '*';
    let plain: String = name.chars().map(|c| if bad(c) { '-' } else { c }).collect();
    // For the path of a file, its last part.
    plain.rsplit('/').next().filter(|last| last.ends_with(".gguf")).map_or(plain.clone(), str::to_string)
}

/// `example`: the provider of the example, if none is found.
fn text(hosted: &[&HostedOffer], example: &HostedOffer, local: &[Local], [listen, admin]: [u16; 2]) -> String {
    let mut out = format!(
        "# Written by `tollgate init`. What every key means: the configuration reference.\n\
         # Next: tollgate check --connect, tollgate keys issue --name NAME, tollgate serve\n\n\
         [server]\nlisten = \"127.0.0.1:{listen}\"\n\
         admin_listen = \"127.0.0.1:{admin}\"       # dashboard, admin API, health, metrics\n\n\
         [store]\nurl = \"sqlite:tollgate.db\"            # keys and usage, beside this file\n\n"
    );
    let mut ids: Vec<String> = Vec::new();
    for hosted in hosted {
        out.push_str(&provider_text(hosted, ""));
        ids.push(hosted.hosted.model.to_string());
    }
    for local in local {
        let (name, title, port) = (&local.name, &local.title, local.port);
        let _ = write!(
            out,
            "[[providers]]                         # {title} answers there\nname = \"{name}\"\nvendor = \"{name}\"\n\
             shape = \"chat\"\n\
             base_url = \"http://127.0.0.1:{port}/v1\"\n\n"
        );
        for (model, context) in &local.models {
            let mut id = id_of(model);
            if ids.contains(&id) {
                id = format!("{name}-{id}");
            }
            let (context, said) = match context {
                Some(tokens) => (tokens.to_string(), "as the server says"),
                None => ("\"32K\"".to_string(), "a guess: set the size it was started with"),
            };
            let _ = write!(
                out,
                "[[models]]\nid = {}\ncontext = {context:<28}  # {said}\n\
                 targets = [{{ provider = \"{name}\", model = {} }}]\n\n",
                quoted(&id),
                quoted(model)
            );
            ids.push(id);
        }
        if local.models.is_empty() {
            let _ = write!(
                out,
                "# It has no model loaded. Load one, and name it here:\n# [[models]]\n# id = \"NAME\"\n\
                 # context = \"32K\"\n# targets = [{{ provider = \"{name}\" }}]\n\n"
            );
        }
    }
    if ids.is_empty() {
        out.push_str("# No provider was found. Set its variable, uncomment these lines and adapt them.\n");
        out.push_str(&provider_text(example, "# "));
    }
    if let Some(first) = ids.first() {
        // A top-level key must come before all tables.
        let tables = out.find("[server]").unwrap_or_default();
        out.insert_str(tables, &format!("default_model = {}\n\n", quoted(first)));
    }
    out.push_str(
        "# A plan limits each of its keys; a key without a plan gets the first one.\n\
         [[plans]]\nname = \"team\"\ntokens = \"10M\"                        # per calendar month\n\
         requests = 600                        # per minute\n",
    );
    out
}

/// The tables of a hosted provider, each line after `mark`.
fn provider_text(offer: &HostedOffer, mark: &str) -> String {
    let HostedOffer { hosted, variable, base_url } = offer;
    let Hosted { name, shape, model, context, prices, more } = hosted;
    let prices = match prices {
        Some((input, output)) => {
            format!("input_price = {input:<23} # USD per 1M tokens; check current prices\noutput_price = {output}\n")
        }
        None => "# input_price = 0.0                   # USD per 1M tokens, so that usage has a cost\n\
                 # output_price = 0.0\n"
            .to_string(),
    };
    let text = format!(
        "[[providers]]\nname = \"{name}\"\nshape = \"{shape}\"\nbase_url = \"{base_url}\"\n\
         api_key = {{ env = \"{variable}\" }}\n{more}\n\
         [[models]]                            # an example: `check --connect` lists the models\n\
         id = \"{model}\"\n\
         # aliases = [\"claude-*\"]                # other names that clients may ask for\n\
         context = \"{context}\"\n{prices}targets = [{{ provider = \"{name}\", model = \"{model}\" }}]\n\n"
    );
    if mark.is_empty() {
        return text;
    }
    text.lines().map(|line| if line.is_empty() { "\n".to_string() } else { format!("{mark}{line}\n") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::config::{Config, Source};

    fn parse(text: &str) -> Result<Config, Vec<String>> {
        let env = |_: &str| Some("sk-test".to_string());
        let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let source = Source { file: "tollgate.toml", text, env: &env, read: &read, run: &Source::no_program };
        Config::parse(&source).map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn generated_configuration_is_valid() {
        let offers = HostedOffer::all(&Vendors::built_in());
        let hosted: Vec<&HostedOffer> = offers.iter().collect();
        assert_eq!(hosted.len(), HOSTED.len(), "the table has all of them");
        let local = [
            Local::new((8000, "vllm", "vLLM"), vec![("org/model".into(), Some(40960))]),
            Local::new(
                (1234, "lmstudio", "LM Studio"),
                vec![("org/model".into(), None), ("a \"b\", c*".into(), None), ("/m/x.gguf".into(), None)],
            ),
        ];
        let text = text(&hosted, &offers[0], &local, [8081, 9090]);
        let config = parse(&text).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
        assert_eq!(config.providers.len(), HOSTED.len() + 2);
        let ids: Vec<&str> = config.catalog.models().iter().map(|model| &*model.id).collect();
        assert_eq!(ids[HOSTED.len()..], ["org/model", "lmstudio-org/model", "a--b---c-", "x.gguf"]);
        let default = config.catalog.default_model().and_then(|index| config.catalog.get(index));
        assert_eq!(default.map(|model| &*model.id), Some("gpt-5.4-mini"));
        assert_eq!(config.server.listen, ["127.0.0.1:8081".parse().unwrap()]);
        assert_eq!(config.plans[0].tokens, 10_000_000);
        // The user must not rely on prices that a provider may change any day.
        let priced = HOSTED.iter().filter(|hosted| hosted.prices.is_some()).count();
        assert_eq!(text.matches("  # an example: `check --connect` lists the models\n").count(), HOSTED.len());
        assert_eq!(text.matches("; check current prices\n").count(), priced);
        assert!(text.starts_with("# Written by `tollgate init`."), "{text}");
    }

    #[test]
    fn example_is_valid_once_uncommented() {
        let text = text(&[], &HostedOffer::all(&Vendors::built_in())[0], &[], [8080, 9090]);
        let errors = parse(&text).unwrap_err();
        assert!(errors.iter().any(|error| error.contains("at least one [[models]] is needed")), "{errors:?}");
        let (before, example) = text.split_once("adapt them.\n").unwrap();
        let filled: String =
            example.lines().map(|line| format!("{}\n", line.strip_prefix("# ").unwrap_or(line))).collect();
        let filled = filled.replace("A plan limits", "# A plan limits");
        parse(&format!("{before}adapt them.\n{filled}")).unwrap_or_else(|errors| panic!("{errors:?}\n{filled}"));
    }

    #[test]
    fn configuration_is_valid_for_any_model_names_of_a_server() {
        let names = ["", "a\u{1}b", &"x".repeat(129), &"y/".repeat(200), "/m/.gguf", "a b", "a,b", "é", "\u{202e}x"];
        let odd = names.iter().map(|name| (name.to_string(), Some(7)));
        let many = (0..20).map(|number| (format!("model-{number}"), None));
        for (at, all) in [odd.collect::<Vec<_>>(), many.collect()].into_iter().enumerate() {
            let local = Local::new((8000, "vllm", "vLLM"), all);
            let text =
                text(&[], &HostedOffer::all(&Vendors::built_in())[0], std::slice::from_ref(&local), [8080, 9090]);
            let config = parse(&text).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
            assert_eq!(config.catalog.models().len(), local.models.len());
            let said = ["with 3 models; 6 are left out, whose names", "with 8 models; 12 more are left out"][at];
            assert!(local.found().contains(said), "{}", local.found());
        }
    }

    #[test]
    fn generated_ids_are_valid() {
        for (name, id) in [("llama3.2:3b", "llama3.2:3b"), ("a b", "a-b"), ("/models/q.gguf", "q.gguf"), ("o/m", "o/m")]
        {
            assert_eq!(id_of(name), id, "{name}");
        }
    }
}
