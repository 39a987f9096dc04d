//! Limits of providers, credentials and targets: names of the accounts that count for them, and which of them an
//! attempt at a target counts in.

use super::providers::{Declared, Provider};
use crate::policy::catalog::{Catalog, Model, Target, TargetAccounts};
use crate::policy::plan::caps::{Cap, Caps, LimitList, Per};
use crate::policy::plan::{Group, PATH_SEPARATOR, Plan, TARGET_MARK};
use crate::policy::settings::reader::Reader;
use crate::policy::window::Period;
use std::sync::Arc;
use std::time::Duration;

/// Sign in place of `/` in an upstream model, since a name contains no separator of a path.
const SLASH: char = '\u{2044}';
/// Window of a limit `per = "window"`.
const MINUTE: Duration = Duration::from_secs(60);

/// Names of the accounts of a provider, of one of its credentials (from 0 on) and of a model there.
pub fn names(provider: &str, credential: usize, model: &str) -> [String; 3] {
    let model = model.replace(PATH_SEPARATOR, &SLASH.to_string());
    [
        format!("{TARGET_MARK}{provider}"),
        format!("{TARGET_MARK}{provider}#{}", credential + 1),
        format!("{TARGET_MARK}{provider}:{model}"),
    ]
}

/// Names of the accounts of a target with this label, and its upstream model.
pub fn names_of_label(label: &str) -> Option<([String; 3], &str)> {
    let (account, model) = label.split_once(PATH_SEPARATOR)?;
    let (provider, number) = account.split_once('#').unwrap_or((account, "1"));
    Some((names(provider, number.parse::<usize>().ok()?.checked_sub(1)?, model), model))
}

/// The name of an account for people: `openai`, `openai#2` or `openai/gpt`.
pub fn shown(name: &str) -> String {
    name.trim_start_matches(TARGET_MARK).replacen(':', "/", 1).replace(SLASH, "/")
}

/// Limits that an attempt at a target counts in, in the order of [`names`].
fn levels<'a>(target: &'a Target, provider: &'a Provider) -> [&'a [Cap]; 3] {
    let credential = provider.credentials.get(target.credential).map_or(&[][..], |one| &one.caps);
    [&provider.caps, credential, &target.caps]
}

/// Limits that an attempt at a target counts in, each after the shown name of its account.
pub fn limits_of(target: &Target, provider: &Provider) -> Vec<(String, Cap)> {
    let of_each = names(&provider.name, target.credential, &target.model).into_iter().zip(levels(target, provider));
    of_each.flat_map(|(name, caps)| caps.iter().map(move |cap| (shown(&name), cap.clone()))).collect()
}

/// Sets the accounts of a target whose limits are known.
pub(super) fn set_accounts(target: &mut Target, provider: &Provider) {
    let of_each = names(&provider.name, target.credential, &target.model).into_iter().zip(levels(target, provider));
    let limited: Vec<String> = of_each.filter(|(_, caps)| !caps.is_empty()).map(|(name, _)| name).collect();
    target.accounts = (!limited.is_empty()).then(|| {
        let path = limited.join(&PATH_SEPARATOR.to_string()).into();
        Arc::new(TargetAccounts { path, model: target.model.as_str().into() })
    });
}

/// Sets what the targets of all models count in. All targets at one model of a provider have the same limits; `at` is
/// the place for the report of different ones.
#[inline(never)]
pub(super) fn set_all(reader: &mut Reader<'_>, at: usize, models: &mut [Model], providers: &[Declared]) {
    let mut known: Vec<(usize, String, Caps)> = Vec::new();
    for target in models.iter().flat_map(|model| &model.targets).filter(|target| !target.caps.is_empty()) {
        match known.iter().find(|(provider, model, _)| (*provider, model) == (target.provider, &target.model)) {
            Some((_, _, caps)) if *caps != target.caps => {
                let text = format!("`{}` has other limits in another place: write the same in both", target.label);
                reader.report(at, "models".to_string(), text);
            }
            Some(_) => {}
            None => known.push((target.provider, target.model.clone(), target.caps.clone())),
        }
    }
    for model in models {
        for target in model.targets.iter_mut().chain(&mut model.passthrough_targets) {
            let is_it =
                |(provider, model, _): &&(usize, String, Caps)| (*provider, model) == (target.provider, &target.model);
            target.caps = known.iter().find(is_it).map(|(_, _, caps)| caps.clone()).unwrap_or_default();
            if let Some(provider) = providers.get(target.provider).and_then(|declared| declared.provider.as_ref()) {
                set_accounts(target, provider);
                model.limited |= target.accounts.is_some();
            }
        }
    }
}

/// All accounts with limits.
pub fn accounts(providers: &[Provider], catalog: &Catalog) -> Vec<Group> {
    let mut all: Vec<Group> = Vec::new();
    let mut add = |name: &str, caps: &Caps| {
        if caps.is_empty() || all.iter().any(|known| *known.path == *name) {
            return;
        }
        let (window, period) = (Per::of_window(MINUTE), Per::Calendar(Period::Month));
        let list = LimitList::new(name, window, period, caps.iter().cloned());
        let limits = Plan { all: list, ..Plan::unlimited(name) };
        all.push(Group { parent: None, path: name.into(), limits });
    };
    for provider in providers {
        add(&names(&provider.name, 0, "")[0], &provider.caps);
        for (at, credential) in provider.credentials.iter().enumerate() {
            add(&names(&provider.name, at, "")[1], &credential.caps);
        }
    }
    for target in catalog.models().iter().flat_map(|model| &model.targets) {
        if let Some(provider) = providers.get(target.provider).filter(|_| !target.caps.is_empty()) {
            add(&names(&provider.name, 0, &target.model)[2], &target.caps);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_of_a_label_are_those_of_its_target() {
        let (of_label, model) = names_of_label("openai#2/a/b:c").unwrap();
        assert_eq!((&of_label, model), (&names("openai", 1, "a/b:c"), "a/b:c"));
        assert_eq!(of_label.each_ref().map(|name| shown(name)), ["openai", "openai#2", "openai/a/b:c"]);
        assert_eq!(names_of_label("p/m").unwrap().0, names("p", 0, "m"));
        assert_eq!(names_of_label(""), None);
    }
}
