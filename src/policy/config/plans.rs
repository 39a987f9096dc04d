//! `[[plans]]`.

use crate::policy::plan::Plan;
use crate::policy::settings::Settings;
use crate::policy::settings::reader::{ENTRIES_MAX, Reader, Section};

/// Reads `[[plans]]`; without any there is one unlimited plan called `default`.
pub(super) fn read(reader: &mut Reader<'_>, top: &mut Section<'_>, is_model: &dyn Fn(&str) -> bool) -> Vec<Plan> {
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
        report_unknown(reader, &section, &plan, is_model);
        section.finish(reader);
        plans.push(plan.settled(""));
    }
    if plans.is_empty() {
        plans.push(Plan::default());
    }
    plans
}

/// Reports an `on_exhausted` that names no model.
pub(super) fn report_unknown(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    limits: &Plan,
    is_model: &dyn Fn(&str) -> bool,
) {
    if let Some(model) = limits.on_exhausted.as_deref().filter(|model| !is_model(model)) {
        let at = section.place("on_exhausted").unwrap_or(section.start());
        reader.report(at, section.path_of("on_exhausted"), format!("no model has the id `{model}`; see [[models]]"));
    }
}
