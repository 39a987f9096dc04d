//! `[[groups]]`: trees of at most [`LEVELS_MAX`] levels.

use super::plans::{KnownModels, report_unknown};
use crate::policy::catalog::IndexByName;
use crate::policy::keys::is_group_name;
use crate::policy::plan::{Group, LEVELS_MAX, PATH_SEPARATOR, Plan, chain_error};
use crate::policy::settings::reader::{ENTRIES_MAX, Field, Reader, Section};
use std::sync::Arc;

/// Bytes of a name.
const NAME_MAX: usize = 64;

/// Reads `[[groups]]`, which are optional.
pub(super) fn read(
    reader: &mut Reader<'_>,
    top: &mut Section<'_>,
    plans: &[Plan],
    known: &KnownModels<'_>,
) -> Vec<Group> {
    let mut chains = Vec::new();
    let (mut groups, mut parents): (Vec<Group>, Vec<Option<Field<'_>>>) = (Vec::new(), Vec::new());
    let mut places: IndexByName = IndexByName::with_hasher(ahash::RandomState::with_seeds(1, 2, 3, 4));
    for mut section in reader.tables(top, "groups", ENTRIES_MAX) {
        let field = reader.required(&mut section, "name");
        let name = field.and_then(|field| read_name(reader, &field, &places)).unwrap_or_default();
        let parent = section.take("parent");
        let mut limits = Plan::unlimited(&name);
        for row in Group::rows() {
            row.read(reader, &mut section, &mut limits);
        }
        let (at, path) = (section.place("limits").unwrap_or(section.start()), section.path_of("limits"));
        limits.report_twice(reader, at, &path);
        report_unknown(reader, &section, &limits, known);
        chains.push((section.place("on_exhausted"), section.path_of("on_exhausted")));
        section.finish(reader);
        let limits = limits.settled(&name);
        places.insert(limits.name.clone().into(), groups.len());
        let named = parent.as_ref().and_then(|field| reader.word(field, NAME_MAX)).map(Arc::from);
        groups.push(Group { parent: named, path: limits.name.clone(), limits });
        parents.push(parent);
    }
    for (index, field) in parents.iter().enumerate() {
        let Some(field) = field else { continue };
        match path_of(index, &groups, &places) {
            Ok(path) => groups[index].path = path.into(),
            Err(wrong) => reader.error(field, wrong),
        }
    }
    for (group, (at, path)) in groups.iter().zip(chains) {
        let error = plans.iter().find_map(|plan| chain_error(&chain(plan, Some(group), &groups)));
        if let (Some(at), Some(error)) = (at, error) {
            reader.report(at, path, error);
        }
    }
    groups
}

/// The models of `on_exhausted` for a key of this plan and this group, in their order.
pub fn chain<'a>(plan: &'a Plan, group: Option<&'a Group>, groups: &'a [Group]) -> Vec<Option<&'a str>> {
    let names = group.map_or("", |group| &group.path).rsplit(PATH_SEPARATOR);
    let limits =
        names.filter_map(|name| groups.iter().find(|group| *group.limits.name == *name)).map(|one| &one.limits);
    let plans = [&plan.own_on_exhausted, &plan.on_exhausted].into_iter();
    plans.chain(limits.map(|limits| &limits.on_exhausted)).map(Option::as_deref).collect()
}

fn read_name(reader: &mut Reader<'_>, field: &Field<'_>, places: &IndexByName) -> Option<String> {
    let name = reader.string(field)?;
    if !is_group_name(&name) {
        reader.wrong(field, format!("expected 1 to {NAME_MAX} visible characters, no `/`, and not `none`"));
    } else if places.contains_key(name.as_bytes()) {
        reader.error(field, format!("a second group is named `{name}`: names must be unique"));
    }
    Some(name)
}

/// Names from the root of the tree to the group at `index`, or the error on the path.
fn path_of(index: usize, groups: &[Group], places: &IndexByName) -> Result<String, String> {
    let (mut names, mut at) = (vec![&*groups[index].limits.name], index);
    while let Some(parent) = &groups[at].parent {
        let Some(place) = places.get(parent.as_bytes()) else {
            // An error further up is reported at that group.
            return if at == index {
                Err(format!("no group is named `{parent}`; see [[groups]]"))
            } else {
                Ok(String::new())
            };
        };
        if names.contains(&&**parent) {
            names.insert(0, parent);
            names.reverse();
            return Err(format!("groups must form a tree, but this is a cycle: `{}`", names.join("` in `")));
        }
        if names.len() == LEVELS_MAX {
            return Err(format!("expected at most {LEVELS_MAX} levels of groups: choose another parent"));
        }
        names.insert(0, parent);
        at = *place;
    }
    Ok(names.join(&PATH_SEPARATOR.to_string()))
}
