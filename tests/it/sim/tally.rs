//! Counts of a run, and its configuration.

use super::ledger::{HOSTS, LedgerKind, Story};
use super::media;
use super::wider::Wider;
use crate::support::setting::Setting;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Counts of injected faults, by kind.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Faults(BTreeMap<&'static str, u64>);

impl Faults {
    /// Counts one fault.
    pub fn note(&mut self, kind: &'static str) {
        *self.0.entry(kind).or_default() += 1;
    }

    /// Returns the number of all faults.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the number of kinds that have occurred.
    pub fn kinds(&self) -> usize {
        self.0.len()
    }
}

/// Number of existing kinds of faults.
const FAULTS: usize = 52;
/// Requests among which a shared ledger certainly lowers a strict reservation: one seed in hundreds does.
const RARE_REQUESTS: u64 = 200_000;

/// Counts of a run.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Tally {
    /// Requests that a provider has billed more than they had reserved.
    pub overruns: u64,
    pub requests: u64,
    pub faults: Faults,
    pub answers: u64,
    pub whole: u64,
    pub rows: u64,
    pub exact_rows: u64,
    /// Usage records whose cost was compared with that in the answer.
    pub costs: u64,
    pub left_rows: u64,
    pub retried_rows: u64,
    pub queued_rows: u64,
    pub timeouts: u64,
    pub limited: u64,
    pub errors_in_streams: u64,
    pub unavailable: u64,
    pub cut_for_stalling: u64,
    pub drains: u64,
    pub reused: u64,
    pub crossed: u64,
    /// Usage records of relayed requests.
    pub relayed: u64,
    pub reloads: u64,
    pub handovers: u64,
    /// Successors that failed to serve.
    pub taken_back: u64,
    /// Attempts in exported spans.
    pub spans: u64,
    /// Connections without a key, and those of them that the gateway has closed.
    pub strangers: u64,
    pub strangers_closed: u64,
    /// Usage records of disconnected clients that were compared with the sent and received bytes.
    pub charged_left: u64,
    /// Those of them for audio and images without a report of their provider, by endpoint and form of the answer.
    pub media_left: BTreeMap<media::Way, u64>,
    /// Nano-dollars spent by the greedy tenant, without a shared ledger.
    pub greedy_nano: u64,
    /// Only for a shared ledger.
    pub story: Story,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        for (mine, theirs) in self.fields().into_iter().zip(other.clone().fields()) {
            *mine += *theirs;
        }
        for (mine, theirs) in self.story.fields().into_iter().zip(other.story.clone().fields()) {
            *mine += *theirs;
        }
        self.greedy_nano += other.greedy_nano;
        for (way, count) in &other.media_left {
            *self.media_left.entry(*way).or_default() += count;
        }
        for (kind, count) in &other.faults.0 {
            *self.faults.0.entry(kind).or_default() += count;
        }
    }

    fn fields(&mut self) -> [&mut u64; 25] {
        [
            &mut self.requests,
            &mut self.answers,
            &mut self.whole,
            &mut self.rows,
            &mut self.exact_rows,
            &mut self.costs,
            &mut self.left_rows,
            &mut self.retried_rows,
            &mut self.queued_rows,
            &mut self.timeouts,
            &mut self.limited,
            &mut self.errors_in_streams,
            &mut self.unavailable,
            &mut self.cut_for_stalling,
            &mut self.drains,
            &mut self.reused,
            &mut self.crossed,
            &mut self.relayed,
            &mut self.reloads,
            &mut self.handovers,
            &mut self.taken_back,
            &mut self.spans,
            &mut self.strangers,
            &mut self.strangers_closed,
            &mut self.charged_left,
        ]
    }

    /// Returns true if every outcome and every fault has occurred.
    pub fn is_rich(&self) -> bool {
        self.is_full() && self.greedy_nano > 0 && self.has_all_media() && self.faults.kinds() >= FAULTS
    }

    /// Returns true if every outcome has occurred on a shared ledger, and every fault but one, which only a file has.
    pub fn is_rich_and_shared(&self) -> bool {
        let mut story = self.story.clone();
        if self.requests < RARE_REQUESTS {
            story.less = story.less.max(1);
        }
        let story = story.fields().iter().all(|count| **count > 0);
        story && self.is_full() && self.faults.kinds() >= FAULTS - 1
    }

    /// Returns true if clients have left each endpoint for audio and images, and each form of an answer.
    fn has_all_media(&self) -> bool {
        let (endpoints, answers): (BTreeSet<_>, BTreeSet<_>) = self.media_left.keys().copied().unzip();
        (endpoints.len(), answers.len()) == (media::ENDPOINTS, media::ANSWERS)
    }

    fn is_full(&self) -> bool {
        !self.media_left.is_empty() && self.clone().fields().iter().all(|count| **count > 0)
    }
}

impl fmt::Display for Tally {
    /// Writes the totals, as the soak test prints them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} requests, {} faults of {} kinds:", self.requests, self.faults.total(), self.faults.kinds())?;
        for (kind, count) in &self.faults.0 {
            writeln!(f, "{count:>10}  {kind}")?;
        }
        let Tally { answers, whole, rows, exact_rows, costs, retried_rows, queued_rows, errors_in_streams, .. } = self;
        writeln!(
            f,
            "{answers} answers read to their end, {whole} of them whole, {errors_in_streams} streams with an error"
        )?;
        write!(
            f,
            "{rows} rows in the ledger, {exact_rows} of them exact, {costs} with a cost in the answer, {retried_rows} after more than one attempt, \
             {queued_rows} after waiting for a place"
        )?;
        let (left, kinds) = (self.media_left.values().sum::<u64>(), self.media_left.len());
        write!(f, "; {left} for media of {kinds} kinds whose client had left")
    }
}

/// Limits beside those of the settings. The quota shows a budget for all models in another member, too.
const LIMITS: [&str; 8] = [
    "requests=90/2h",
    "requests=300/week",
    "tokens=400K/3h",
    "tokens=2M/quarter",
    "budget=0.4/5h:sm*",
    "budget=0.3/day:*,!small",
    "running=25",
    "requests=60/2h:small",
];

/// Returns the configuration: short timeouts, small bounds, two providers of one API format and one of the other.
pub fn setting(before_reply: bool, ledger_kind: LedgerKind, wider: Wider) -> Setting {
    let mut setting = Setting::default();
    if ledger_kind != LedgerKind::File {
        setting.set("store", "url = \"redis://10.0.0.9/0\"");
        setting.set("store", &format!("hosts = {HOSTS}"));
    }
    if wider.greedy {
        setting.set("server", "attribution = \"plain\"");
        setting.set("plan greedy", "budget = 0.05");
        setting.set("plan greedy", "tokens = 0");
    }
    if ledger_kind == LedgerKind::Local {
        setting.set("store", "on_outage = \"local\"");
    }
    if wider.spans {
        setting.set("telemetry", "otlp = \"http://10.0.0.9:4318\"");
    }
    if before_reply {
        setting.set("store", "durability = \"before-reply\"");
    }
    for (section, line) in [
        ("server", "max_body = \"256KiB\""),
        ("server", &format!("max_buffered = \"{}MiB\"", wider.budget())),
        ("server", "write_stall = \"30s\""),
        ("upstream", "first_byte_timeout = \"20s\""),
        ("upstream", "idle_timeout = \"20s\""),
        ("upstream", "request_timeout = \"60s\""),
        ("upstream", "max_event = \"64KiB\""),
        ("upstream", "max_response = \"128KiB\""),
        ("upstream", "breaker_cooldown = \"5s\""),
        ("provider ant", "base_url = \"http://ant.test\""),
        ("provider second", "shape = \"chat\""),
        ("provider second", "base_url = \"http://10.0.0.3/v1\""),
        (
            "model small",
            "targets = [{ provider = \"up\", model = \"up-small\" }, { provider = \"second\", model = \"up-small\" }]",
        ),
        ("plan team", "tokens = 0"),
        ("plan team", "requests = 0"),
        ("plan tight", "requests = 4"),
        ("plan tight", "tokens = 50_000"),
        ("plan firm", "tokens = 20_000"),
        ("plan firm", "budget = 0.05"),
        ("plan one", "concurrency = 1"),
        ("plan one", "budget = 50.0"),
        ("group all", "budget = 500.0"),
        ("group all", "concurrency = 40"),
        ("group dept", "parent = \"all\""),
        ("group dept", "budget = 1.0"),
        ("group dept", "period = \"day\""),
        ("group team", "parent = \"dept\""),
        ("group team", "requests = 200"),
        ("group team", "budget = 0.5"),
        ("group dept", "on_exhausted = { model = \"small\" }"),
        ("plan team", "on_exhausted = { model = \"small\" }"),
    ] {
        setting.set(section, line);
    }
    let of = ["plan team", "group dept", "group team"];
    for (section, bits) in of.into_iter().zip([wider.limits, wider.limits >> 8, wider.limits >> 16]) {
        let chosen = LIMITS.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1).map(|(_, text)| *text);
        let list: Vec<&str> = chosen.collect();
        setting.set(section, &format!("limits = {list:?}"));
    }
    let bits = if ledger_kind == LedgerKind::File { wider.target_limits } else { 0 };
    for (provider, bits) in [(UP, bits), ("ant", bits >> 4)] {
        let chosen = TARGET_LIMITS.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1).map(|(_, text)| *text);
        let list: Vec<&str> = chosen.collect();
        setting.set(&format!("provider {provider}"), &format!("limits = {list:?}"));
    }
    if wider.strangers {
        setting.set("server", &format!("max_connections = {CONNECTIONS}"));
    }
    if wider.places {
        set_targets(&mut setting, "small", &[UP, SECOND], wider);
        let target = format!("{{ provider = \"ant\", model = \"up-large\", concurrency = {PLACES} }}");
        setting.set("model large", &format!("targets = [{target}]"));
    }
    if wider.lies {
        setting.set("provider resp", "shape = \"responses\"");
        setting.set("provider resp", "base_url = \"http://10.0.0.4/v1\"");
        for line in ["name = \"Reply\"", "owned_by = \"resp\"", "context = \"256K\"", "input_price = 1.0"] {
            setting.set("model reply", line);
        }
        setting.set("model reply", "output_price = 4.0");
        let places = if wider.places { format!(", concurrency = {PLACES}") } else { String::new() };
        setting.set("model reply", &format!("targets = [{{ provider = \"resp\", model = \"up-reply\"{places} }}]"));
    }
    if wider.relays {
        setting.set("model small", "serves = [\"chat\", \"embeddings\", \"rerank\", \"completions\"]");
    }
    if wider.greedy {
        let all = "\"embeddings\", \"rerank\", \"completions\", \"transcriptions\", \"images\"";
        setting.set("model small", &format!("serves = [\"chat\", {all}]"));
        let [request, image, minute] = media::UNITS.map(|nano| nano as f64 / 1e9);
        for line in [
            "owned_by = \"up\"",
            "context = \"256K\"",
            "input_price = 1.0",
            "output_price = 4.0",
            "serves = [\"speech\", \"images\", \"transcriptions\", \"translations\"]",
            &format!("reserve_tokens = {}", media::RESERVE),
            &format!("price_per_request = {request}"),
            &format!("price_per_image = {image}"),
            &format!("price_per_minute = {minute}"),
        ] {
            setting.set(&format!("model {}", media::MODEL), line);
        }
        set_targets(&mut setting, media::MODEL, &[UP, SECOND], wider);
    }
    if wider.queue {
        setting.set("model small", "queue = { max = 6, wait = \"30s\" }");
        setting.set("model large", "queue = { max = 6, wait = \"30s\" }");
        setting.set("plan one", "share = 3");
    }
    setting
}

/// Limits of providers, of which a world has some.
const TARGET_LIMITS: [&str; 4] = ["requests=9/1m", "tokens=60000/5m:up-*", "budget=0.2/1h", "running=3"];

/// `max_connections` in worlds with connections without a key.
pub const CONNECTIONS: usize = 24;

/// Concurrency limit of each target, in worlds that have one.
pub const PLACES: usize = 2;

/// The providers of the model `small`.
pub const UP: &str = "up";
pub const SECOND: &str = "second";

/// Moves groups and changes their limits, or leaves them unchanged, depending on `number`.
pub fn set_groups(setting: &mut Setting, number: u64) {
    match number % 4 {
        1 => setting.set("group team", "parent = \"all\""),
        2 => setting.set("group dept", "budget = 0.05"),
        3 => {
            setting.set("group team", "window = \"1h\"");
            setting.set("group team", "budget = 0.1");
        }
        _ => {}
    }
}

/// Sets the providers that serve a model.
pub fn set_targets(setting: &mut Setting, model: &str, providers: &[&str], wider: Wider) {
    let places = if wider.places { format!(", concurrency = {PLACES}") } else { String::new() };
    let target = |provider: &&str| format!("{{ provider = \"{provider}\", model = \"up-small\"{places} }}");
    let targets: Vec<String> = providers.iter().map(target).collect();
    setting.set(&format!("model {model}"), &format!("targets = [{}]", targets.join(", ")));
}
