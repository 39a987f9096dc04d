//! `[[plans]]`.

use crate::policy::plan::Plan;
use crate::policy::plan::caps::Cap;
use crate::policy::settings::Settings;
use crate::policy::settings::reader::{ENTRIES_MAX, Reader, Section};

/// Reads `[[plans]]`; without any there is one unlimited plan called `default`.
pub(super) fn read(reader: &mut Reader<'_>, top: &mut Section<'_>, known: &KnownModels<'_>) -> Vec<Plan> {
    let mut plans: Vec<Plan> = Vec::new();
    for mut section in reader.tables(top, "plans", ENTRIES_MAX) {
        let name = reader.required(&mut section, "name").and_then(|field| {
            let name = reader.word(&field, 64)?;
            if plans.iter().any(|plan| *plan.name == *name) {
                reader.error(&field, format!("a second plan is named `{name}`: names must be unique"));
            }
            Some(name)
        });
        let mut plan = Plan::unlimited(&name.unwrap_or_default());
        plan.read_rows(reader, &mut section);
        let (at, field) = (section.place("limits").unwrap_or(section.start()), section.path_of("limits"));
        plan.report_twice(reader, at, &field);
        report_unknown(reader, &section, &plan, known);
        section.finish(reader);
        plans.push(plan.settled(""));
    }
    if plans.is_empty() {
        plans.push(Plan::default());
    }
    plans
}

/// Models that the configuration knows.
pub struct KnownModels<'a> {
    /// Their ids.
    pub ids: Vec<&'a str>,
    /// Prefixes of the models that providers list, of which nothing else is known.
    pub listed: Vec<&'a str>,
}

impl KnownModels<'_> {
    /// True if a model may have this id.
    pub fn has(&self, id: &str) -> bool {
        self.ids.contains(&id) || self.listed.iter().any(|prefix| id.starts_with(prefix))
    }

    /// Warnings about names in limits that fit no model, so that no request counts because of them.
    pub fn unused(&self, caps: &[Cap]) -> Vec<String> {
        let fits = |name: &str| match name.strip_suffix('*') {
            Some(start) => self.has(start) || self.ids.iter().chain(&self.listed).any(|id| id.starts_with(start)),
            None => self.has(name),
        };
        let mut unused = Vec::new();
        for (cap, names) in caps.iter().filter_map(|cap| Some((cap, cap.models.text()?))) {
            let names = names.split(',').filter(|name| !fits(name.trim_start_matches('!')));
            unused.extend(names.map(|name| format!("`{}`: `{name}` fits the id of no model", cap.text())));
        }
        unused
    }
}

/// Reports an `on_exhausted` that names no model, and warns of limits that name none.
pub(super) fn report_unknown(reader: &mut Reader<'_>, section: &Section<'_>, limits: &Plan, known: &KnownModels<'_>) {
    if let Some(model) = limits.on_exhausted.as_deref().filter(|model| !known.has(model)) {
        let at = section.place("on_exhausted").unwrap_or(section.start());
        reader.report(at, section.path_of("on_exhausted"), format!("no model has the id `{model}`; see [[models]]"));
    }
    for text in known.unused(&limits.limits) {
        reader.warn(section.place("limits").unwrap_or(section.start()), section.path_of("limits"), text);
    }
}
