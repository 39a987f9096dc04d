//! `tollgate prices`: compares the prices of the configured models with a published price list, in a file or
//! downloaded, and changes them with `--write`. Reads LiteLLM's `model_prices_and_context_window.json` (USD per token;
//! tiers in members that end in `_above_200k_tokens`) and models.dev's `api.json` (USD per million tokens; tiers in
//! `tiers`, or the older member `context_over_200k`).

mod list;

use super::args::ConfigArg;
use super::http::download::{download, parse_url};
use super::load::{self, Secrets};
use super::output::{Align, Failure, Table, clean, models, print};
use crate::base::text::plural;
use crate::io::files::{self, FileDraft};
use crate::policy::catalog::{Catalog, Model, context_text};
use crate::policy::prices::{KEYS, PriceTier, price_text};
use clap::Args;
use list::{ListedPrices, PriceList, Tiered, refuse_small};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// `tollgate prices`.
#[derive(Args, Debug)]
pub struct PricesArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Price list: LiteLLM's model_prices_and_context_window.json, or the api.json of models.dev
    #[arg(long, value_name = "FILE", conflicts_with = "fetch")]
    from: Option<PathBuf>,
    /// Download the price list over HTTPS [default URL: that of models.dev]
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = MODELS_DEV, value_parser = parse_url)]
    fetch: Option<String>,
    /// Trust the certificate authorities in this file, too
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Write the new prices into the configuration; comments are kept
    #[arg(long)]
    write: bool,
}

/// Price list that `--fetch` downloads by default.
const MODELS_DEV: &str = "https://models.dev/api.json";
/// Maximum bytes of a price list in a file. Both have about two million.
const LIST_MAX: usize = 8 << 20;
/// A price that differs.
struct PriceChange {
    key: &'static str,
    configured: Option<Tiered>,
    listed: Tiered,
}

/// The price list, and what to call it.
fn read(args: &PricesArgs) -> Result<(String, Vec<u8>), Failure> {
    let file = match (&args.fetch, &args.from, &args.ca) {
        (Some(url), _, ca) => return Ok((clean(url), download(url, ca.as_deref())?)),
        (None, _, Some(ca)) => {
            let ca = clean(&ca.to_string_lossy());
            return Err(Failure::misused(format!("--ca {ca}: expected only with --fetch")));
        }
        (None, None, None) => return Err(Failure::misused("name a price list: --fetch, or --from FILE")),
        (None, Some(file), None) => file,
    };
    let place = clean(&file.to_string_lossy());
    let bytes = files::read_at_most(file, LIST_MAX);
    let bytes = bytes.map_err(|error| Failure::failed(format!("cannot read {place}: {error}")))?;
    Ok((place, bytes))
}

/// Compares, prints, and with `--write` writes the prices.
pub fn run(args: &PricesArgs) -> Result<(), Failure> {
    let path = load::find(&args.config)?;
    let config = load::read(&path, Secrets::Optional).map_err(Failure::Config)?;
    let (place, mut bytes) = read(args)?;
    refuse_small(&mut bytes);
    let list = PriceList::read(&String::from_utf8_lossy(&bytes), &config)
        .map_err(|error| Failure::failed(format!("{place} is not JSON: {error}")))?;
    let list = list.ok_or_else(|| {
        Failure::failed(format!("{place} is neither LiteLLM's price list nor the api.json of models.dev"))
    })?;
    let (mut found, mut unknown, mut unusable) = (Vec::new(), Vec::new(), Vec::new());
    for model in config.catalog.models() {
        match list.entry(&config, model) {
            Some((name, prices)) if prices[0].is_some() => found.push((model, name, differences(model, prices))),
            Some(_) => unusable.push(&*model.id),
            None => unknown.push(&*model.id),
        }
    }
    let count = found.iter().map(|(_, _, differences)| differences.len()).sum::<usize>();
    let is_freed = |one: &PriceChange| {
        let costs = |tiers: &Tiered| tiers.iter().any(|(_, price)| *price > 0);
        one.configured.as_ref().is_some_and(costs) && one.listed.iter().any(|(_, price)| *price == 0)
    };
    let freed = found.iter().filter(|(_, _, all)| all.iter().any(is_freed)).map(|(model, ..)| &*model.id).collect();
    let rest = [
        ("not in the list", unknown),
        ("without a usable input price in the list", unusable),
        ("warning: the list has a price of 0 for", freed),
    ];
    print(&report(&found, &rest, count, args.write))?;
    if !args.write || count == 0 {
        return Ok(());
    }
    write(&path, &found)?;
    print(&format!("wrote {count} price{} to {}\n", plural(count as u64), clean(&path.to_string_lossy())))
}

/// The configured price of a model that is number `at` in [`KEYS`], without tiers that change nothing. Empty if there
/// is none.
fn configured_price(model: &Model, at: usize) -> Tiered {
    let (_, of) = KEYS[at];
    plain(if model.has_token_prices {
        let tier = |tier: &PriceTier| (tier.above, of(&tier.prices));
        std::iter::once((0, of(&model.prices.base))).chain(model.prices.tiers.iter().map(tier)).collect()
    } else {
        model.unused_prices.get(at).cloned().unwrap_or_default()
    })
}

/// Listed prices that differ from the model's. A price that is not listed stays unchanged.
fn differences(model: &Model, listed: &ListedPrices) -> Vec<PriceChange> {
    let of_keys = KEYS.iter().zip(listed).enumerate();
    let differ = of_keys.filter_map(|(at, (&(key, _), listed))| {
        let listed = plain(listed.clone()?);
        let configured = Some(configured_price(model, at)).filter(|prices| !prices.is_empty());
        (configured.as_ref() != Some(&listed)).then_some(PriceChange { key, configured, listed })
    });
    differ.collect()
}

/// Removes tiers that cost the same as the tier below.
fn plain(mut tiers: Tiered) -> Tiered {
    tiers.dedup_by_key(|(_, price)| *price);
    tiers
}

/// A price in the notation of the configuration.
fn toml_text(tiers: &Tiered) -> String {
    let one = |(above, price): &(u64, u64)| format!("\"{}\" = {}", context_text(*above), price_text(*price));
    match tiers.len() {
        1 => price_text(tiers[0].1),
        _ => format!("{{ {} }}", tiers.iter().map(one).collect::<Vec<_>>().join(", ")),
    }
}

fn report(
    found: &[(&Model, String, Vec<PriceChange>)],
    rest: &[(&str, Vec<&str>)],
    count: usize,
    writes: bool,
) -> String {
    let mut table = Table::new(&[
        ("MODEL", Align::Left),
        ("ENTRY", Align::Left),
        ("PRICE", Align::Left),
        ("CONFIGURED", Align::Left),
        ("LISTED", Align::Left),
    ]);
    for (model, name, differences) in found {
        for difference in differences {
            let configured = difference.configured.as_ref().map_or("none".to_owned(), toml_text);
            let (key, listed) = (difference.key.to_owned(), toml_text(&difference.listed));
            table.row(vec![model.id.to_string(), name.clone(), key, configured, listed]);
        }
    }
    let mut text = if count > 0 { table.text() } else { String::new() };
    for (why, models) in rest.iter().filter(|(_, models)| !models.is_empty()) {
        text.push_str(&format!("{why}: {}\n", clean(&models.join(", "))));
    }
    let equal = found.iter().filter(|(_, _, differences)| differences.is_empty()).count();
    text.push_str(&format!("listed prices match: {equal} of {}\n", models(found.len())));
    if count > 0 && !writes {
        text.push_str("nothing was changed: add --write to change the configuration\n");
    }
    text
}

/// Writes the listed prices to the file at `path`, if the changed file then has exactly these prices.
fn write(path: &Path, found: &[(&Model, String, Vec<PriceChange>)]) -> Result<(), Failure> {
    let shown = clean(&path.to_string_lossy());
    let failed = |error: std::io::Error| Failure::failed(format!("cannot write {shown}: {error}"));
    // A symbolic link is kept: its target is replaced.
    let path = &std::fs::canonicalize(path).map_err(failed)?;
    let old = std::fs::metadata(path).map_err(failed)?;
    files::has_one_name(&old).map_err(failed)?;
    let mut text = files::read_text(path).map_err(failed)?;
    for (model, _, differences) in found {
        let change = |text: &str| edited(text, &model.id, differences);
        text = change(&text).map_err(|why| Failure::failed(format!("{why}; nothing was written")))?;
    }
    let config = load::parse(path, &text, Secrets::Optional).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Failure::failed(format!("with the listed prices, the configuration is invalid: {}", errors.join("; ")))
    })?;
    if !found.iter().all(|(model, _, wanted)| has_prices(&config.catalog, &model.id, wanted)) {
        return Err(Failure::failed("the prices cannot be changed by program: write them by hand"));
    }
    let (draft, mut file) = FileDraft::beside(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    fchown(&file, Some(old.uid()), Some(old.gid())).map_err(failed)?;
    file.set_permissions(old.permissions()).map_err(failed)?;
    draft.replace(file, path).map_err(failed)
}

fn has_prices(catalog: &Catalog, id: &str, wanted: &[PriceChange]) -> bool {
    let listed = |key: &str| wanted.iter().find(|one| one.key == key).map(|one| one.listed.clone());
    let model = catalog.models().iter().find(|model| &*model.id == id);
    model.is_some_and(|model| differences(model, &KEYS.map(|(key, _)| listed(key))).is_empty())
}

/// The document with the prices of one model changed. Everything else keeps its bytes.
fn edited(text: &str, id: &str, differences: &[PriceChange]) -> Result<String, String> {
    let by_hand = |why: &str| format!("model `{id}` {why}: change its prices by hand");
    let document = DeTable::parse(text).map_err(|error| error.to_string())?;
    let models = document.get_ref().get("models").map(toml::Spanned::get_ref);
    let Some(DeValue::Array(models)) = models else { return Err(by_hand("is not in this file")) };
    let is_it = |table: &&DeTable<'_>| {
        table.get("id").is_some_and(|value| matches!(value.get_ref(), DeValue::String(text) if text == id))
    };
    let mut tables = models.iter().filter_map(|model| match model.get_ref() {
        DeValue::Table(table) => Some(table),
        _ => None,
    });
    let table = tables.find(is_it).ok_or_else(|| by_hand("is not in this file"))?;
    let after_id = table.get("id").map(|value| value.span().end).unwrap_or_default();
    let is_inline = text[..after_id].rsplit('\n').next().is_some_and(|line| line.contains('{'));
    let line_end = text[after_id..].find('\n').map_or(text.len(), |length| after_id + length);
    let (line_end, newline) = match text[..line_end].ends_with('\r') {
        true => (line_end - 1, "\r\n"),
        false => (line_end, "\n"),
    };
    let mut edits = Vec::new();
    for PriceChange { key, listed, .. } in differences {
        let value = toml_text(listed);
        match table.get(*key) {
            Some(old) if matches!(old.get_ref(), DeValue::Table(_)) && !text[old.span()].starts_with('{') => {
                return Err(by_hand("has its prices in a table"));
            }
            Some(old) if text[old.span()].contains('#') => {
                return Err(by_hand("has a comment between its prices"));
            }
            Some(old) => edits.push((old.span(), value)),
            None if is_inline => edits.push((after_id..after_id, format!(", {key} = {value}"))),
            None => edits.push((line_end..line_end, format!("{newline}{key} = {value}"))),
        }
    }
    edits.sort_unstable_by_key(|(span, _)| span.start);
    let mut result = text.to_owned();
    for (span, value) in edits.iter().rev() {
        result.replace_range(span.clone(), value);
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::list::{ENTRY_MAX, micro};
    use super::*;
    use crate::policy::config::Config;
    use serde_json::Value;

    /// Entries from the published file of 2026-11.
    const LITELLM: &str = r#"{
        "sample_spec": {"input_cost_per_token": 0, "litellm_provider": "one of the providers"},
        "gpt-5.5": {"litellm_provider": "openai", "input_cost_per_token": 5e-06, "output_cost_per_token": 3e-05,
            "cache_read_input_token_cost": 5e-07, "input_cost_per_token_above_272k_tokens": 1e-05,
            "output_cost_per_token_above_272k_tokens": 4.5e-05, "input_cost_per_token_batches": 2.5e-06,
            "cache_read_input_token_cost_above_272k_tokens": 1e-06, "input_cost_per_token_above_128k_tokens": null},
        "claude-sonnet-4-5": {"litellm_provider": "anthropic", "input_cost_per_token": 3e-06,
            "output_cost_per_token": 1.5e-05, "cache_creation_input_token_cost": 3.75e-06,
            "cache_creation_input_token_cost_above_1hr": 6e-06},
        "gemini/gemini-2.5-pro": {"litellm_provider": "gemini", "input_cost_per_token": 1.25e-06,
            "output_cost_per_token": 1e-05},
        "divided": {"litellm_provider": "vertex_ai-language-models", "input_cost_per_token": 1e-06},
        "no-price": {"litellm_provider": "openai", "mode": "moderation"}
    }"#;

    /// Entries from the published file of 2026-11.
    const LISTED: &str = r#"{
        "openai": {"id": "openai", "models": {"gpt-5.5": {"id": "gpt-5.5", "cost": {"input": 5, "output": 30,
            "cache_read": 0.5, "tiers": [{"input": 10, "output": 45, "cache_read": 1,
            "tier": {"type": "context", "size": 272000}}], "context_over_200k": {"input": 10, "output": 45}}}}},
        "google": {"id": "google", "models": {"gemini-2.5-pro": {"cost": {"input": 1.25, "output": 10,
            "context_over_200k": {"input": 2.5, "output": 15}}}}}
    }"#;

    const CONFIG: &str = "default_model = \"a\"\n\
        [[providers]]\nname = \"openai\"\nshape = \"chat\"\nbase_url = \"https://api.openai.com/v1\"\n\
        [[providers]]\nname = \"g\"\nshape = \"chat\"\nbase_url = \"https://generativelanguage.googleapis.com/v1\"\n\
        [[providers]]\nname = \"local\"\nshape = \"chat\"\nbase_url = \"http://127.0.0.1:9/v1\"\n\
        [[models]]\nid = \"a\" # the first\ncontext = \"1M\"\ninput_price = 4 # too low\noutput_price = 30.0\n\
        targets = [{ provider = \"openai\", model = \"gpt-5.5\" }]\n\
        [[models]]\nid = \"b\"\ncontext = \"1M\"\ntargets = [{ provider = \"g\", model = \"gemini-2.5-pro\" }]\n\
        [[models]]\nid = \"c\"\ncontext = \"1M\"\ntargets = [{ provider = \"local\", model = \"gpt-5.5\" }]\n";

    fn parsed(text: &str) -> Config {
        let (env, read) = (|_: &str| None, |_: &str| Err(std::io::ErrorKind::NotFound.into()));
        let source = crate::policy::config::Source {
            file: "tollgate.toml",
            text,
            env: &env,
            read: &read,
            run: &|_, _| Err(std::io::ErrorKind::NotFound.into()),
        };
        Config::parse(&source).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"))
    }

    /// Differences of all models by id, as `key: configured -> listed`; `None` for models that are not in the list.
    fn compared(config: &Config, list: &str) -> Vec<(String, Option<Vec<String>>)> {
        let list = PriceList::read(list, config).unwrap().unwrap();
        let of = |model: &Model| {
            let (_, prices) = list.entry(config, model)?;
            let text = |one: PriceChange| {
                let configured = one.configured.as_ref().map_or("none".to_owned(), toml_text);
                format!("{}: {configured} -> {}", one.key, toml_text(&one.listed))
            };
            Some(differences(model, prices).into_iter().map(text).collect())
        };
        config.catalog.models().iter().map(|model| (model.id.to_string(), of(model))).collect()
    }

    #[test]
    fn both_lists_are_read_with_their_tiers() {
        let config = parsed(CONFIG);
        let first = [
            "input_price: 4.00 -> { \"0\" = 5.00, \"272K\" = 10.00 }",
            "output_price: 30.00 -> { \"0\" = 30.00, \"272K\" = 45.00 }",
            "cache_read_price: 4.00 -> { \"0\" = 0.50, \"272K\" = 1.00 }",
        ]
        .map(str::to_owned);
        for (list, second) in [
            (LITELLM, ["input_price: none -> 1.25", "output_price: none -> 10.00"]),
            (
                LISTED,
                [
                    "input_price: none -> { \"0\" = 1.25, \"200K\" = 2.50 }",
                    "output_price: none -> { \"0\" = 10.00, \"200K\" = 15.00 }",
                ],
            ),
        ] {
            let second = second.map(str::to_owned).to_vec();
            let expected = [("a", Some(first.to_vec())), ("b", Some(second)), ("c", None)];
            assert_eq!(compared(&config, list), expected.map(|(id, all)| (id.to_owned(), all)));
        }
        for (provider, host, model, is_listed) in [
            ("openai", "127.0.0.1", "gpt-5.5", true),
            ("open", "127.0.0.1", "gpt-5.5", false),
            ("x", "api.openai.com", "gpt-5.5", true),
            ("x", "eu-aiplatform.googleapis.com", "divided", true),
            ("vertex_ai", "127.0.0.1", "divided", false),
            ("x", "api.openai.com", "divided", false),
        ] {
            let text = CONFIG.replace("\"local\"", &format!("\"{provider}\"")).replace("127.0.0.1:9", host);
            let text = text.replacen("name = \"openai\"", "name = \"first\"", 1);
            let text = text.replacen("provider = \"openai\"", "provider = \"first\"", 1);
            let text = text.replacen(
                &format!("provider = \"{provider}\", model = \"gpt-5.5\""),
                &format!("provider = \"{provider}\", model = \"{model}\""),
                1,
            );
            let config = parsed(&text.replace("http://", "https://"));
            let list = PriceList::read(LITELLM, &config).unwrap().unwrap();
            let found = list.entry(&config, &config.catalog.models()[2]).is_some();
            assert_eq!(found, is_listed, "{provider} at {host}: {model}");
        }
        for (text, is_json) in [("{\"a\": 1}", true), ("[]", true), ("{\"a\": {}", false), ("{} x", false)] {
            let list = PriceList::read(text, &config);
            assert!(list.map_or(!is_json, |list| is_json && list.is_none()), "{text}");
        }
    }

    #[test]
    fn changed_configuration_keeps_everything_else_and_has_the_listed_prices() {
        let config = parsed(CONFIG);
        let list = PriceList::read(LISTED, &config).unwrap().unwrap();
        let mut text = CONFIG.to_owned();
        for model in &config.catalog.models()[..2] {
            let (_, prices) = list.entry(&config, model).unwrap();
            text = edited(&text, &model.id, &differences(model, prices)).unwrap();
        }
        let changed = "[[models]]\nid = \"a\" # the first\ncache_read_price = { \"0\" = 0.50, \"272K\" = 1.00 }\n\
                       context = \"1M\"\ninput_price = { \"0\" = 5.00, \"272K\" = 10.00 } # too low\n";
        assert!(text.contains(changed), "{text}");
        let differ = compared(&parsed(&text), LISTED);
        assert!(differ.iter().all(|(_, all)| all.as_ref().is_none_or(Vec::is_empty)), "{differ:?}");
    }

    #[test]
    fn price_that_cannot_be_written_is_unusable() {
        let price = |usd: &str| micro(&serde_json::from_str(usd).unwrap(), 1.0);
        assert_eq!([price("0"), price("5e-6"), price("1e-12")], [Some(0), Some(5_000_000), Some(1)]);
        for odd in ["1e-13", "1e-300", "-1e-6", "2", "1e300", "\"5e-6\"", "null"] {
            assert_eq!(price(odd), None, "{odd}");
        }
        for (listed, read) in
            [("1e-400", None), ("0.1E-999", None), ("0e-400", Some(0)), ("0.0", Some(0)), ("0", Some(0))]
        {
            let mut text = format!("{{\"note\": \"e: 1\", \"price\" : {listed}, \"next\": 5e-6}}").into_bytes();
            refuse_small(&mut text);
            let list: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!((micro(&list["price"], 1.0), micro(&list["next"], 1.0)), (read, Some(5_000_000)), "{listed}");
            assert_eq!(list["note"], "e: 1");
        }
        let list = LITELLM.replace("\"input_cost_per_token\": 5e-06", "\"input_cost_per_token\": 1e-300");
        let config = parsed(CONFIG);
        let list = PriceList::read(&list, &config).unwrap().unwrap();
        let entry = list.entry(&config, &config.catalog.models()[0]);
        assert!(entry.is_some_and(|(name, prices)| name == "gpt-5.5" && prices[0].is_none()), "listed, but unusable");
    }

    #[test]
    fn prices_of_a_model_that_lacks_one_are_compared() {
        let one = CONFIG.replace("id = \"b\"", "id = \"b\"\ninput_price = { \"0\" = 1.25, \"200K\" = 2.5 }");
        let expected = |lines: &[&str]| Some(lines.iter().map(ToString::to_string).collect());
        let differ = |config: &str| compared(&parsed(config), LISTED).remove(1).1;
        assert_eq!(differ(&one), expected(&["output_price: none -> { \"0\" = 10.00, \"200K\" = 15.00 }"]));
        let other = one.replace("\"0\" = 1.25", "\"0\" = 1.0");
        let input = "input_price: { \"0\" = 1.00, \"200K\" = 2.50 } -> { \"0\" = 1.25, \"200K\" = 2.50 }";
        let output = "output_price: none -> { \"0\" = 10.00, \"200K\" = 15.00 }";
        assert_eq!(differ(&other), expected(&[input, output]));
    }

    #[test]
    fn price_with_an_invalid_tier_is_unusable() {
        let tier = "\"input_cost_per_token_above_272k_tokens\": 1e-05";
        let far = "99999999999999999999k_tokens\": 1e-05";
        let many: Vec<String> = (1..10).map(|at| format!("{at}k_tokens\": 1e-0{at}")).collect();
        let many = many.join(", \"input_cost_per_token_above_");
        for odd in ["272k_tokens\": \"NaN\"", "272k_tokens\": -1", "0k_tokens\": 1e-06", far, &many] {
            let list = LITELLM.replace(tier, &format!("\"input_cost_per_token_above_{odd}"));
            let config = parsed(CONFIG);
            let list = PriceList::read(&list, &config).unwrap().unwrap();
            let (_, prices) = list.entry(&config, &config.catalog.models()[0]).unwrap();
            assert!(prices[0].is_none() && prices[1].is_some(), "{odd}");
        }
        for odd in ["\"10\"", "-1"] {
            let list = LISTED.replace("[{\"input\": 10", &format!("[{{\"input\": {odd}"));
            let config = parsed(CONFIG);
            let list = PriceList::read(&list, &config).unwrap().unwrap();
            let (_, prices) = list.entry(&config, &config.catalog.models()[0]).unwrap();
            assert!(prices[0].is_none() && prices[1].is_some(), "{odd}");
        }
    }

    /// Tollgate keeps only the entries of a list that can belong to a configured model.
    #[test]
    fn list_is_read_entry_by_entry() {
        let config = parsed(CONFIG);
        let filler: String = (0..1000).map(|at| format!("\"other-{at}\": {{\"input_cost_per_token\": 1}}, ")).collect();
        let Ok(Some(PriceList::LiteLlm(kept))) =
            PriceList::read(&LITELLM.replacen('{', &format!("{{{filler}"), 1), &config)
        else {
            panic!("not read")
        };
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["gemini/gemini-2.5-pro", "gpt-5.5"]);
        let Ok(Some(PriceList::ModelsDev(kept))) = PriceList::read(LISTED, &config) else { panic!("not read") };
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["google/gemini-2.5-pro", "openai/gpt-5.5"]);
        // An entry that is too long has no price.
        let long = LITELLM.replacen("\"openai\",", &format!("\"openai\", \"note\": \"{}\",", "x".repeat(ENTRY_MAX)), 1);
        assert!(compared(&config, &long).iter().any(|(id, all)| id == "a" && all.is_none()));
        // Of two entries of one name, the last counts.
        let twice =
            LITELLM.replacen('{', "{\"gpt-5.5\": {\"litellm_provider\": \"openai\", \"input_cost_per_token\": 1}, ", 1);
        assert_eq!(compared(&config, &twice), compared(&config, LITELLM));
    }

    #[test]
    fn models_in_other_forms_are_changed_or_named() {
        let listed =
            || vec![PriceChange { key: "input_price", configured: None, listed: Tiered::from([(0, 1_500_000)]) }];
        let inline = "models = [{ id = \"m\", context = \"1M\" }]";
        let expected = "models = [{ id = \"m\", input_price = 1.50, context = \"1M\" }]";
        assert_eq!(edited(inline, "m", &listed()).as_deref(), Ok(expected));
        let literal = "[[models]]\nid = 'm'";
        assert_eq!(edited(literal, "m", &listed()).as_deref(), Ok("[[models]]\nid = 'm'\ninput_price = 1.50"));
        let windows = "[[models]]\r\nid = 'm'\r\ncontext = \"1M\"\r\n";
        let expected = "[[models]]\r\nid = 'm'\r\ninput_price = 1.50\r\ncontext = \"1M\"\r\n";
        assert_eq!(edited(windows, "m", &listed()).as_deref(), Ok(expected));
        let dotted = "[[models]]\nid = \"m\"\ninput_price.\"0\" = 4\ninput_price.\"272K\" = 8\n";
        assert!(edited(dotted, "m", &listed()).unwrap_err().contains("change its prices by hand"));
        let comment = "[[models]]\nid = \"m\"\ninput_price = {\n\"0\" = 1, # base\n\"272K\" = 2\n}\n";
        assert!(edited(comment, "m", &listed()).unwrap_err().contains("change its prices by hand"));
        let apart = "[[models]]\nid = \"m\"\n[models.input_price]\n\"0\" = 1\n";
        assert!(edited(apart, "m", &listed()).unwrap_err().contains("change its prices by hand"));
        assert!(edited(apart, "other", &listed()).unwrap_err().contains("is not in this file"));
    }
}
