//! `tollgate check`: checks a configuration and shows its effective values; with `--connect`, also checks that its
//! providers answer.

pub mod connect;

use super::args::CheckArgs;
use super::keys::chain_of;
use super::load::{self, Secrets};
use super::output::{Failure, clean, line, print, print_json, warn};
use super::serve::{UNUSED_MAX, descriptors};
use super::store;
use crate::base::text::plural;
use crate::io::clock::unix;
use crate::io::listen;
use crate::io::machine;
use crate::policy::catalog::{Model, Target};
use crate::policy::config::{Config, StoreUrl, effective};
use crate::policy::keys::KeyId;
use crate::policy::refusal::Missing;
use std::collections::BTreeMap;

/// Checks; with `--print`, prints the effective configuration.
pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let path = load::find(&args.config)?;
    let config = match load::read(&path, Secrets::Needed) {
        Err(errors) if args.json => {
            let errors: Vec<String> = errors.iter().map(line).collect();
            print_json(&serde_json::json!({ "ok": false, "errors": errors }))?;
            return Err(Failure::failed("the configuration is wrong"));
        }
        read => read.map_err(Failure::Config)?,
    };
    let security = load::security(&config, None).map_err(Failure::failed)?;
    store::supported(&config.store.url)?;
    store::is_ledger(&config.store.url)?;
    store::may_snapshot(&config.store)?;
    if args.print {
        config.warnings.iter().for_each(|warning| warn(&line(warning)));
        // With whole paths it means the same wherever it is kept.
        let whole = std::path::absolute(&path).map_err(Failure::failed)?;
        return print(&effective(&load::read(&whole, Secrets::Needed).map_err(Failure::Config)?));
    }
    let warnings = warnings(&config);
    warnings.iter().for_each(|warning| warn(warning));
    if args.json {
        return print_json(&serde_json::json!({
            "ok": true,
            "file": path.to_string_lossy(),
            "warnings": warnings,
            "providers": config.providers.len(),
            "models": config.catalog.models().len(),
            "plans": config.plans.len(),
            "groups": config.groups.len(),
        }));
    }
    if args.connect {
        return connect::run(&config, &security);
    }
    let count = |count: usize, noun: &str| format!("{count} {noun}{}", plural(count as u64));
    let (providers, models) =
        (count(config.providers.len(), "provider"), count(config.catalog.models().len(), "model"));
    let models = match config.providers.iter().filter(|provider| provider.discover.is_some()).count() {
        0 => models,
        1 => format!("{models} and those that one provider lists"),
        lists => format!("{models} and those that {lists} providers list"),
    };
    let plans = count(config.plans.len(), "plan");
    let groups = match config.groups.len() {
        0 => String::new(),
        groups => [", ", &count(groups, "group")].concat(),
    };
    let hint = if menu_is_empty(&config) { EMPTY_MENU } else { "" };
    print(&format!("{}: ok ({providers}, {models}, {plans}{groups})\n{hint}", clean(&path.to_string_lossy())))
}

/// Everything that is allowed, but probably not meant.
fn warnings(config: &Config) -> Vec<String> {
    let mut warnings: Vec<String> = config.warnings.iter().map(line).collect();
    if let Ok(limit) = listen::raise_descriptor_limit() {
        warnings.extend(descriptors::warning(config, limit));
    }
    warnings.extend(config.memory_warning(0, machine::memory()));
    warnings.extend(ledger_remarks(config));
    warnings.extend(queue_remarks(config));
    warnings.extend(money_remarks(config));
    warnings.extend(price_remarks(config));
    warnings
}

/// Live keys that the configuration does not fit: their plan or group is not configured, so that they are refused, or
/// models that their limits name. A file may belong to another user: then it is not read.
fn ledger_remarks(config: &Config) -> Vec<String> {
    let (mut missing, mut unused) =
        (BTreeMap::<(Missing, String), usize>::new(), BTreeMap::<String, (KeyId, usize)>::new());
    let (now, known) = (unix(), config.known_models());
    let peeked = store::peek_keys(config, &mut |record| {
        if !record.is_live(now) {
            return;
        }
        for text in known.unused(&record.limits).into_iter().chain(chain_of(&record, config)) {
            if unused.len() < UNUSED_MAX || unused.contains_key(&text) {
                unused.entry(text).or_insert((record.id, 0)).1 += 1;
            }
        }
        let lacks = match record.group {
            _ if config.plan(&record.plan).is_none() => (Missing::Plan, record.plan),
            Some(group) if config.group(&group).is_none() => (Missing::Group, group),
            _ => return,
        };
        *missing.entry(lacks).or_default() += 1;
    });
    match (peeked, &config.store.url) {
        (Ok(()), _) => {
            let missing = missing.into_iter().map(|((what, name), keys)| what.message(&name, keys));
            missing.chain(unused.into_iter().map(|(text, keys)| key_warning(&text, keys))).collect()
        }
        (Err(_), StoreUrl::Sqlite(_)) => Vec::new(),
        (Err(why), StoreUrl::Redis(_)) => vec![format!("store.url: {}", clean(&why.text()))],
    }
}

/// Warning about a limit that these keys have: the id of the first, and their number.
fn key_warning(text: &str, (first, keys): (KeyId, usize)) -> String {
    let more = keys - 1;
    let others = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("limits of key {first}{others}: {text}")
}

/// Remarks about valid settings of queues and shares that may not have the expected effect.
fn queue_remarks(config: &Config) -> Vec<String> {
    let mut remarks = Vec::new();
    for model in config.catalog.models() {
        let Some(queue) = &model.queue else { continue };
        if model.targets.iter().any(|target| target.concurrency == 0) {
            remarks.push(format!(
                "model `{}`: a target without `concurrency` always has a free slot, so few requests wait: set it",
                model.id
            ));
        }
        let request_timeout = model.targets.iter().map(|target| target.limits.request_timeout).max();
        if request_timeout.is_some_and(|timeout| timeout <= queue.wait) {
            remarks.push(format!(
                "model `{}`: `request_timeout` includes the time in the queue and ends before `queue.wait`: raise it",
                model.id
            ));
        }
    }
    let queues = config.catalog.models().iter().any(|model| model.queue.is_some());
    if let Some(plan) = config.plans.iter().find(|plan| plan.share != 1).filter(|_| !queues) {
        remarks.push(format!("plan `{}`: `share` has no effect, because no model has a `queue`", plan.name));
    }
    remarks
}

/// Targets that have other prices in another model, which uses them first.
fn price_remarks<'a>(config: &'a Config) -> Vec<String> {
    let priced = || config.catalog.models().iter().filter(|model| model.priced);
    let mut remarks = Vec::new();
    for model in priced() {
        for target in model.targets.iter().skip(1) {
            let first = |other: &'a Model| other.targets.first().filter(|first| first.label == target.label);
            let other = priced().find_map(|other| Some((other, first(other)?)));
            let differs =
                |(other, first): &(&Model, &Target)| other.prices_at(Some(first)) != model.prices_at(Some(target));
            if let Some((other, _)) = other.filter(differs) {
                remarks.push(format!(
                    "model `{}`: target `{}` has other prices in model `{}`; a target may have prices of its own",
                    model.id, target.label, other.id
                ));
            }
        }
    }
    remarks
}

/// Models that keys with a budget cannot use.
fn money_remarks(config: &Config) -> Vec<String> {
    let plans = config.plans.iter().map(|plan| ("plan", plan));
    let limits = plans.chain(config.groups.iter().map(|group| ("group", &group.limits)));
    let refusing = limits.filter(|(_, limits)| limits.refuses_unpriced());
    let names: Vec<String> = refusing.map(|(kind, limits)| format!("{kind} `{}`", limits.name)).collect();
    let is_open = |model: &Model| {
        let mut passthrough = model.serves.iter().filter_map(|served| served.as_passthrough());
        let lists = || model.targets.iter().map(|target| model.prices_at(Some(target)));
        passthrough.any(|passthrough| lists().any(|(_, units)| units.is_open(passthrough)))
    };
    let models = config.catalog.models().iter().filter(|_| !names.is_empty());
    let remark = |model: &Model| {
        let (lacks, advice) = if is_open(model) {
            ("`price_per_minute` but no `price_per_request`", "set that, too (0 = nothing in addition)")
        } else if !model.priced {
            ("no `input_price` or no `output_price`", "set both prices (0 = free)")
        } else {
            return None;
        };
        let names = names.join(", ");
        Some(format!("model `{}` has {lacks}: keys with the budget of {names} get 403; {advice}", model.id))
    };
    models.filter_map(remark).collect()
}

/// Not a warning: many operators have no user of Claude Code.
const EMPTY_MENU: &str = "hint: Claude Code's model menu lists only names with `claude` or `anthropic`,\n\
     and no model has one: an alias such as `claude-small` is enough\n";

/// True if the model menu of Claude Code shows no model. The names that a provider lists are not known here.
fn menu_is_empty(config: &Config) -> bool {
    let is_shown = |name: &str| {
        let has = |word: &[u8]| name.as_bytes().windows(word.len()).any(|part| part.eq_ignore_ascii_case(word));
        has(b"claude") || has(b"anthropic")
    };
    let mut models = config.catalog.models().iter();
    // The list of models contains exact aliases only.
    let is_listed = |alias: &&String| !alias.ends_with('*');
    let shown =
        models.any(|model| is_shown(&model.id) || model.aliases.iter().filter(is_listed).any(|alias| is_shown(alias)));
    !shown && config.providers.iter().all(|provider| provider.discover.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::config::Source;

    fn remarks(model: &str, plan: &str) -> Vec<String> {
        let text = format!(
            "[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://10.0.0.1/v1\"\n\
             [[plans]]\nname = \"team\"\n{plan}\n[[models]]\nid = \"m\"\ncontext = \"1K\"\n{model}"
        );
        let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let source = Source { file: "t", text: &text, env: &|_| None, read: &read, run: &Source::no_program };
        queue_remarks(&Config::parse(&source).unwrap())
    }

    #[test]
    fn target_that_another_model_prices_differently_is_named() {
        let said = |price: &str| {
            let text = format!(
                "[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://10.0.0.1/v1\"\n[[plans]]\nname = \"t\"\n\
                 [[models]]\nid = \"a\"\ncontext = \"1K\"\ninput_price = 1\noutput_price = 2\n\
                 targets = [{{ provider = \"p\", model = \"a\" }}, {{ provider = \"p\", model = \"b\" }}]\n\
                 [[models]]\nid = \"b\"\ncontext = \"1K\"\n{price}targets = [{{ provider = \"p\", model = \"b\" }}]\n"
            );
            let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
            let source = Source { file: "t", text: &text, env: &|_| None, read: &read, run: &Source::no_program };
            price_remarks(&Config::parse(&source).unwrap())
        };
        let one = said("input_price = 3\noutput_price = 4\n");
        assert!(one.len() == 1 && one[0].contains("model `a`: target `p/b` has other prices in model `b`"), "{one:?}");
        assert_eq!([said("input_price = 1\noutput_price = 2\n"), said("")], [[""; 0]; 2]);
    }

    #[test]
    fn models_without_a_price_are_named_if_there_is_a_budget() {
        let said = |model: &str, plan: &str| {
            let text = format!(
                "[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://10.0.0.1/v1\"\n\
                 [[plans]]\nname = \"team\"\n{plan}\n[[groups]]\nname = \"labs\"\nbudget = 1\nunpriced = \"allow\"\n\
                 [[models]]\nid = \"m\"\ncontext = \"1K\"\ntargets = [{{ provider = \"p\" }}]\n{model}"
            );
            let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
            let source = Source { file: "t", text: &text, env: &|_| None, read: &read, run: &Source::no_program };
            money_remarks(&Config::parse(&source).unwrap())
        };
        assert_eq!(said("", ""), [""; 0]);
        assert_eq!(said("input_price = 0\noutput_price = 0", "budget = 5.0"), [""; 0]);
        let one = said("input_price = 1.0", "budget = 5.0");
        assert!(one.len() == 1 && one[0].contains("keys with the budget of plan `team` get 403"), "{one:?}");
        let minute = said("serves = [\"transcriptions\"]\nprice_per_minute = 0.006", "budget = 5.0");
        assert!(
            minute.len() == 1 && minute[0].contains("has `price_per_minute` but no `price_per_request`"),
            "{minute:?}"
        );
        let tokens = "serves = [\"transcriptions\"]\nprice_per_minute = 0.006\ninput_price = 1\noutput_price = 1";
        assert_eq!(said(tokens, "budget = 5.0"), minute);
        let both = "serves = [\"transcriptions\"]\nprice_per_minute = 0.006\nprice_per_request = 0";
        assert_eq!(said(both, "budget = 5.0"), [""; 0]);
        let group = "budget = 5.0\n[[groups]]\nname = \"team\"\nbudget = 1.0";
        let both = said("", group);
        assert!(both.len() == 1 && both[0].contains("of plan `team`, group `team` get 403"), "{both:?}");
    }

    #[test]
    fn menu_of_claude_code_needs_a_name_with_its_word() {
        let said = |model: &str| {
            let text = format!(
                "[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://10.0.0.1/v1\"\n{model}\n\
                 context = \"1K\"\ntargets = [{{ provider = \"p\" }}]\n[[plans]]\nname = \"team\"\n"
            );
            let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
            let source = Source { file: "t", text: &text, env: &|_| None, read: &read, run: &Source::no_program };
            menu_is_empty(&Config::parse(&source).unwrap())
        };
        for empty in ["gpt-*", "claude-*"] {
            assert!(said(&format!("[[models]]\nid = \"small\"\naliases = [\"{empty}\"]")), "{empty}");
        }
        for good in [
            "[[models]]\nid = \"us.Anthropic.x\"",
            "[[models]]\nid = \"small\"\naliases = [\"gpt-*\", \"Claude-1\"]",
            "discover = {}\n[[models]]\nid = \"small\"",
        ] {
            assert!(!said(good), "{good}");
        }
    }

    #[test]
    fn ineffective_queue_settings_are_reported() {
        let bounded = "targets = [{ provider = \"p\", concurrency = 4 }]\nqueue = { wait = \"1m\" }\n";
        assert_eq!(remarks(bounded, "share = 3"), [""; 0]);
        let said = remarks(&format!("{bounded}request_timeout = \"50s\""), "");
        assert!(said.len() == 1 && said[0].contains("`request_timeout` includes the time in the queue"), "{said:?}");
        let said = remarks("targets = [{ provider = \"p\" }]\nqueue = {}", "");
        assert!(said.len() == 1 && said[0].contains("always has a free slot"), "{said:?}");
        let said = remarks("targets = [{ provider = \"p\", concurrency = 4 }]", "share = 3");
        assert!(said.len() == 1 && said[0].starts_with("plan `team`: `share` has no effect"), "{said:?}");
    }
}
