//! `[[models]]` and `[[plans]]`.

use super::ENTRIES_MAX;
use super::providers::Declared;
use super::reader::{Field, Reader, Section};
use super::units;
use super::upstream::{Timeouts, UpstreamLimits};
use crate::base::time::Unix;
use crate::policy::catalog::{Capabilities, Model, Prices, StructuredOutput, Target, context_text};
use crate::policy::plan::{Plan, UNLIMITED};
use crate::policy::window::{Period, parse_moment};
use std::time::Duration;

/// Targets of one model.
const TARGETS_MAX: usize = 32;
/// Tokens a context, a reservation or an answer may have; far above any model.
const TOKENS_MAX: u64 = 1 << 40;
/// Request fields that no model can do without.
const NEEDED: [&str; 3] = ["model", "messages", "stream"];
/// Windows that a plan may have.
const WINDOW: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(31 * 86_400);

/// Reads `[[models]]`; at least one is needed.
pub(super) fn read(
    reader: &mut Reader<'_>,
    top: &mut Section<'_>,
    providers: &[Declared],
    limits: &UpstreamLimits,
) -> Vec<Model> {
    let mut models: Vec<Model> = Vec::new();
    let mut ids: Vec<String> = Vec::new();
    let written = top.peek_start("models").is_some();
    let sections = reader.tables(top, "models", ENTRIES_MAX);
    if sections.is_empty() && !written {
        reader.report(top.start(), "models".to_string(), "at least one [[models]] is needed");
    }
    for mut section in sections {
        let id = reader.required(&mut section, "id").and_then(|field| {
            let id = model_id(reader, &field)?;
            if ids.contains(&id) {
                reader.error(&field, format!("a second model has the id `{id}`"));
            }
            ids.push(id.clone());
            Some(id)
        });
        let model = read_one(reader, &mut section, id, providers, limits);
        section.finish(reader);
        models.extend(model);
    }
    models
}

fn model_id(reader: &mut Reader<'_>, field: &Field<'_>) -> Option<String> {
    let id = reader.word(field, 128)?;
    // A comma separates ids on the command line, `*` means all of them, and `?` or `#` would end a path.
    let bad = |c: char| c.is_whitespace() || matches!(c, ',' | '?' | '#' | '"' | '\\' | '%');
    if id.contains(bad) || id == "*" {
        reader.error(field, "must not contain spaces or any of , ? # % \" \\, nor be *");
        return None;
    }
    Some(id)
}

fn read_one(
    reader: &mut Reader<'_>,
    s: &mut Section<'_>,
    id: Option<String>,
    providers: &[Declared],
    limits: &UpstreamLimits,
) -> Option<Model> {
    let name = s.take("name").and_then(|field| reader.word(&field, 128));
    let owned_by = s.take("owned_by").and_then(|field| reader.word(&field, 128));
    let created = s.take("created").and_then(|field| read_created(reader, &field)).unwrap_or_default();
    let context = reader.required(s, "context").and_then(|field| read_context(reader, &field));
    let input = reader.price(s, "input_price").unwrap_or_default();
    let output = reader.price(s, "output_price").unwrap_or_default();
    let cache_read = reader.price(s, "cache_read_price").unwrap_or(input);
    let cache_write = reader.price(s, "cache_write_price").unwrap_or(input);
    let timeouts = Timeouts::read(reader, s);
    let default_max_tokens = reader.integer(s, "default_max_tokens", 4096, 1..=TOKENS_MAX);
    let reserve_tokens = reader.integer(s, "reserve_tokens", 4096, 0..=TOKENS_MAX);
    let mut drop_params = Vec::new();
    for (field, param) in reader.strings(s, "drop_params").unwrap_or_default() {
        if NEEDED.contains(&param.as_str()) {
            reader.error(&field, format!("`{param}` cannot be dropped"));
        }
        drop_params.push(param);
    }
    let capabilities = match reader.table(s, "capabilities") {
        Some(mut table) => read_capabilities(reader, &mut table),
        None => Capabilities::default(),
    };
    let targets = read_targets(reader, s, id.as_deref(), providers, &timeouts, limits);
    let (id, (context, context_text)) = (id?, context?);
    let first = targets.first().and_then(|target| providers.get(target.provider)?.name.clone());
    Some(Model {
        name: name.unwrap_or_else(|| id.clone()),
        owned_by: owned_by.or(first).unwrap_or_default(),
        id: id.into(),
        created,
        context,
        context_text,
        prices: Prices { input, output, cache_read, cache_write },
        timeouts,
        targets,
        default_max_tokens,
        reserve_tokens,
        drop_params,
        capabilities,
    })
}

fn read_created(reader: &mut Reader<'_>, field: &Field<'_>) -> Option<Unix> {
    let moment = field.moment_text().and_then(|text| parse_moment(&text));
    if moment.is_none() {
        reader.error(field, "expected a date such as 2026-11-20, or a date-time with its offset");
    }
    moment
}

fn read_context(reader: &mut Reader<'_>, field: &Field<'_>) -> Option<(u64, String)> {
    if field.is_integer() {
        let tokens = reader.as_integer(field, 1..=TOKENS_MAX)?;
        return Some((tokens, context_text(tokens)));
    }
    let text = reader.string(field)?;
    let tokens = units::context(&text).filter(|tokens| (1..=TOKENS_MAX).contains(tokens));
    if tokens.is_none() {
        reader.error(field, "expected a number of tokens such as \"1M\", \"256K\" or \"128Ki\"");
    }
    tokens.map(|tokens| (tokens, context_text(tokens)))
}

fn read_capabilities(reader: &mut Reader<'_>, s: &mut Section<'_>) -> Capabilities {
    let usual = Capabilities::default();
    let choices = [StructuredOutput::Native, StructuredOutput::Tool, StructuredOutput::Instruction];
    let capabilities = Capabilities {
        sampling: reader.boolean(s, "sampling", usual.sampling),
        mid_conversation_system: reader.boolean(s, "mid_conversation_system", usual.mid_conversation_system),
        replay_reasoning: reader.boolean(s, "replay_reasoning", usual.replay_reasoning),
        max_completion_tokens: reader.boolean(s, "max_completion_tokens", usual.max_completion_tokens),
        max_output_tokens: s.take("max_output_tokens").and_then(|field| reader.as_integer(&field, 1..=TOKENS_MAX)),
        structured_output: s
            .take("structured_output")
            .and_then(|field| reader.choice(&field, &choices.map(|choice| (choice.as_str(), choice))))
            .unwrap_or_default(),
        effort: reader.boolean(s, "effort", usual.effort),
        strict_tools: reader.boolean(s, "strict_tools", usual.strict_tools),
    };
    s.finish(reader);
    capabilities
}

/// Targets sorted by priority. Without one a target's priority is its place, so that "ordered" is what is written.
fn read_targets(
    reader: &mut Reader<'_>,
    s: &mut Section<'_>,
    id: Option<&str>,
    providers: &[Declared],
    timeouts: &Timeouts,
    limits: &UpstreamLimits,
) -> Vec<Target> {
    let Some(field) = reader.required(s, "targets") else { return Vec::new() };
    let (at, path) = (field.start(), field.path.clone());
    let was_array = field.is_array();
    let items = reader.items(field, TARGETS_MAX);
    if items.is_empty() && was_array {
        reader.report(at, path, "at least one target is needed");
    }
    let mut targets: Vec<Target> = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        let Some(mut table) = reader.as_table(item) else { continue };
        let t = &mut table;
        let provider = reader.required(t, "provider").and_then(|field| {
            let name = reader.string(&field)?;
            let found = providers.iter().position(|declared| declared.name.as_deref() == Some(&name));
            if found.is_none() {
                reader.error(&field, format!("no provider is named `{name}`"));
            }
            found
        });
        let model = t.take("model").and_then(|field| reader.word(&field, 256));
        let priority = reader.integer(t, "priority", index as u64 + 1, 0..=1000) as u32;
        let weight = reader.integer(t, "weight", 1, 1..=1000) as u32;
        table.finish(reader);
        let (Some(provider), Some(model)) = (provider, model.or_else(|| id.map(str::to_string))) else { continue };
        let Some(Declared { name: Some(name), provider: known }) = providers.get(provider) else { continue };
        let limits = timeouts.over(known.as_ref().map_or(limits, |provider| &provider.limits));
        let label = format!("{name}/{model}").into();
        targets.push(Target { provider, model, label, priority, weight, limits });
    }
    targets.sort_by_key(|target| target.priority);
    targets
}

/// Reads `[[plans]]`; without any there is one, unlimited, called `default` (contract section 6).
pub(super) fn read_plans(reader: &mut Reader<'_>, top: &mut Section<'_>) -> Vec<Plan> {
    let mut plans: Vec<Plan> = Vec::new();
    for mut section in reader.tables(top, "plans", ENTRIES_MAX) {
        let s = &mut section;
        let name = reader.required(s, "name").and_then(|field| {
            let name = reader.word(&field, 64)?;
            if plans.iter().any(|plan| *plan.name == *name) {
                reader.error(&field, format!("a second plan is named `{name}`"));
            }
            Some(name)
        });
        let mut plan = Plan::unlimited(&name.unwrap_or_default());
        plan.tokens = reader.integer(s, "tokens", 0, 0..=UNLIMITED);
        if let Some(field) = s.take("period") {
            let periods = [Period::Month, Period::Week, Period::Day];
            let choices = periods.map(|period| (period.as_str(), period));
            plan.period = reader.choice(&field, &choices).unwrap_or_default();
        }
        plan.requests = reader.integer(s, "requests", 0, 0..=UNLIMITED);
        let window = s.peek_start("window");
        if let Some(length) = reader.duration(s, "window", WINDOW) {
            plan.window = length;
            if length.subsec_millis() != 0 {
                let at = window.unwrap_or(s.start());
                reader.report(at, s.path_of("window"), "expected whole seconds: x-ratelimit-reset has no finer ones");
            }
        }
        plan.tokens_per_window = reader.integer(s, "tokens_per_window", 0, 0..=UNLIMITED);
        plan.concurrency = reader.integer(s, "concurrency", 0, 0..=UNLIMITED);
        section.finish(reader);
        plans.push(plan);
    }
    if plans.is_empty() {
        plans.push(Plan::unlimited("default"));
    }
    plans
}
