//! The catalog with the models that providers list: first the configured models, then the listed ones. The gateway
//! fetches the lists.

use super::document::Config;
use super::models::{DEFAULT_TOKENS, by_credential, caches_by_key};
use super::providers::Provider;
use super::target_limits::set_accounts;
use crate::base::hash::mix_bytes;
use crate::policy::catalog::{CATALOG_MAX, Catalog, IndexByName, Model, SHARE, Target, context_text};
use crate::policy::discover::{Discover, DiscoveredModel, Listed};
use crate::policy::plan::caps::Caps;
use crate::policy::upstream_limits::Timeouts;
use crate::policy::vendors::VendorRules;
use crate::policy::vendors::capabilities::Capabilities;
use crate::wire::ModelEndpoint;
use std::sync::Arc;

impl Config {
    /// Replaces the list of the provider with this index. Returns false if the list is the same.
    pub fn take_list(&mut self, provider: usize, listed: Vec<Listed>) -> bool {
        let Some(known) = self.providers.get_mut(provider) else { return false };
        if known.listed == listed {
            return false;
        }
        known.listed = listed;
        self.fill();
        true
    }

    /// Number of models in the catalog from a provider's list.
    pub fn discovered(&self, provider: usize) -> usize {
        let own = |model: &&Model| model.discovered && model.targets.iter().any(|target| target.provider == provider);
        self.catalog.models().iter().filter(own).count()
    }

    /// A copy with the lists of the previous configuration, for providers with the same address.
    pub fn with_lists_of(&self, before: &Config) -> Config {
        let mut copy = self.clone();
        for provider in copy.providers.iter_mut().filter(|provider| provider.discover.is_some()) {
            let same = |known: &&Provider| known.name == provider.name && known.base_url == provider.base_url;
            if let Some(known) = before.providers.iter().find(same) {
                provider.listed.clone_from(&known.listed);
            }
        }
        copy.fill();
        copy
    }

    /// All lists, for the next process.
    pub fn lists(&self) -> Vec<DiscoveredModel> {
        let mut models = Vec::new();
        for provider in &self.providers {
            models.extend(provider.listed.iter().map(|one| (provider.name.clone(), one.model.clone(), one.context)));
        }
        models
    }

    /// A copy with the lists of the previous process, for providers without a list.
    pub fn with_lists(&self, lists: &[DiscoveredModel]) -> Config {
        let mut copy = self.clone();
        for provider in copy.providers.iter_mut().filter(|one| one.discover.is_some() && one.listed.is_empty()) {
            let own = lists.iter().filter(|(name, ..)| *name == provider.name);
            provider.listed =
                own.map(|(_, model, context)| Listed { model: model.clone(), context: *context }).collect();
        }
        copy.fill();
        copy
    }

    /// Appends the models that providers list to the configured ones. It skips names that already mean a configured
    /// model, and providers' models that are targets of one, since these have a price.
    fn fill(&mut self) {
        let (default, known) = (self.catalog.default_model(), self.catalog.clone());
        let mut models: Vec<Model> = known.models().iter().filter(|model| !model.discovered).cloned().collect();
        let hand = models.len();
        let most = CATALOG_MAX.min(hand + self.server.bounds.listed);
        // A name or alias of a configured model must never mean another model.
        let is_hand = |id: &str| known.asked(id).and_then(|at| known.get(at)).is_some_and(|model| !model.discovered);
        let mut all_rules: Vec<Arc<VendorRules>> = Vec::new();
        let mut taken = IndexByName::with_hasher(known.hasher());
        for (index, provider) in self.providers.iter().enumerate() {
            let Some(discover) = &provider.discover else { continue };
            let targets = models[..hand].iter().flat_map(|model| &model.targets);
            let here = targets.filter(|target| target.provider == index);
            let mut served: Vec<u64> = here.map(|target| mix_bytes(0, target.model.as_bytes())).collect();
            served.sort_unstable();
            for listed in provider.listed.iter().take(most.saturating_sub(models.len())) {
                let is_served = served.binary_search(&mix_bytes(0, listed.model.as_bytes())).is_ok();
                let Some(id) = discover.id_of(&listed.model) else { continue };
                if is_served || is_hand(&id) || taken.contains_key(id.as_bytes()) {
                    continue;
                }
                let rules = self.vendors.rules(&provider.place(), &listed.model, &Capabilities::default());
                let rules = known_rules(&mut all_rules, rules);
                let model = discovered(id.into(), (index, provider), listed, discover, rules);
                taken.insert(model.id.clone().into(), index);
                models.push(model);
            }
        }
        self.catalog = Arc::new(Catalog::new(models, default));
    }
}

/// Shares equal rules: most models of a provider have the same.
fn known_rules(all: &mut Vec<Arc<VendorRules>>, rules: VendorRules) -> Arc<VendorRules> {
    match all.iter().find(|known| ***known == rules) {
        Some(known) => known.clone(),
        None => {
            all.push(Arc::new(rules));
            all[all.len() - 1].clone()
        }
    }
}

/// The entry of a model that a provider lists: without a price, and otherwise with all defaults.
fn discovered(
    id: Arc<str>,
    (index, provider): (usize, &Provider),
    listed: &Listed,
    discover: &Discover,
    rules: Arc<VendorRules>,
) -> Model {
    let (model, context) = (listed.model.clone(), listed.context.unwrap_or(discover.context));
    let label = format!("{}/{model}", provider.name);
    let target = Target {
        provider: index,
        model,
        credential: 0,
        seed: mix_bytes(0, label.as_bytes()),
        label: label.into(),
        priority: 1,
        weight: 1,
        share: SHARE,
        concurrency: 0,
        context,
        slots: 0,
        prices: None,
        caps: Caps::default(),
        accounts: None,
        rules,
        limits: provider.limits,
    };
    let mut targets = match provider.credentials.len() {
        0 | 1 => vec![target],
        _ => by_credential(&target, provider),
    };
    targets.iter_mut().for_each(|target| set_accounts(target, provider));
    Model {
        name: id.to_string(),
        owned_by: provider.name.to_string(),
        id,
        aliases: Vec::new(),
        created: Default::default(),
        context,
        largest: context,
        narrow: u64::MAX,
        context_text: context_text(context),
        prices: Default::default(),
        has_token_prices: false,
        units: Default::default(),
        priced: false,
        priced_by_target: false,
        limited: targets.iter().any(|target| target.accounts.is_some()),
        unused_prices: Vec::new(),
        client_credential: false,
        checked: true,
        timeouts: Timeouts::default(),
        serves: vec![ModelEndpoint::CHAT],
        passthrough_targets: Vec::new(),
        caches_by_key: caches_by_key(&targets),
        shares: targets.len() > 1,
        targets,
        affinity: Default::default(),
        balance: Default::default(),
        queue: None,
        default_max_tokens: DEFAULT_TOKENS,
        reserve_tokens: DEFAULT_TOKENS,
        drop_params: Vec::new(),
        set_params: Vec::new(),
        default_params: Vec::new(),
        hosted_tools: Vec::new(),
        capabilities: Capabilities::default(),
        discovered: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::config::{Source, effective};
    use crate::policy::discover::LISTED_MAX;
    use std::time::Duration;

    fn parse(text: &str) -> Result<Config, Vec<String>> {
        let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let env = |name: &str| Some(name.to_string());
        let source = Source { file: "t", text, env: &env, read: &read, run: &Source::no_program };
        Config::parse(&source).map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    fn provider(name: &str, more: &str) -> String {
        format!("[[providers]]\nname = \"{name}\"\nshape = \"chat\"\nbase_url = \"http://10.0.0.1/v1\"\n{more}\n")
    }

    fn list(names: &[&str]) -> Vec<Listed> {
        names.iter().map(|name| Listed { model: name.to_string(), context: None }).collect()
    }

    fn ids(config: &Config) -> Vec<&str> {
        config.catalog.models().iter().map(|model| &*model.id).collect()
    }

    #[test]
    fn discover_is_read_printed_and_checked() {
        let config = parse(&provider("p", "discover = {}")).unwrap();
        let default = Discover { every: Duration::from_secs(300), prefix: String::new(), context: 128_000 };
        assert_eq!(config.providers[0].discover, Some(default), "no [[models]] is needed with `discover`");
        let page = effective(&config);
        assert!(page.contains("discover = { every = \"5m\", prefix = \"\", context = \"128K\" }\n"), "{page}");
        assert_eq!(effective(&parse(&page).unwrap()), page);
        assert!(effective(&parse(&provider("p", "discover = { context = 7 }")).unwrap()).contains("context = \"7\""));
        for (wrong, why) in [
            ("{ every = \"999ms\" }", "discover.every: expected a duration from \"1s\" to \"1d\""),
            ("{ prefix = \"a b\" }", "discover.prefix: expected the beginning of an id"),
            ("{ context = \"much\" }", "discover.context: expected a number of tokens"),
            ("{ models = [] }", "discover.models: unknown key"),
            ("true", "discover: expected a table"),
        ] {
            let errors = parse(&provider("p", &format!("discover = {wrong}"))).unwrap_err();
            assert!(errors.iter().any(|error| error.contains(why)), "{wrong}: {errors:?}");
        }
        let errors = parse(&provider("p", "")).unwrap_err();
        assert!(errors[0].contains("at least one [[models]] is needed, or a provider with `discover`"), "{errors:?}");
    }

    #[test]
    fn a_discovered_model_has_a_target_per_credential_and_disappears_with_its_list() {
        let two = "api_keys = [{ env = \"A\" }, { env = \"B\" }]\ndiscover = { prefix = \"p/\" }";
        let mut config = parse(&provider("p", two)).unwrap();
        assert!(config.take_list(0, list(&["m", "n", "m"])) && !config.take_list(0, list(&["m", "n", "m"])));
        assert_eq!(ids(&config), ["p/m", "p/n"]);
        let model = config.catalog.get(config.catalog.asked("p/m").unwrap()).unwrap();
        let labels: Vec<&str> = model.targets.iter().map(|target| &*target.label).collect();
        assert_eq!((labels, model.shares, model.discovered), (vec!["p#1/m", "p#2/m"], true, true));
        assert!(!effective(&config).contains("[[models]]"), "a discovered model is not printed as configured");
        let next = parse(&provider("p", two)).unwrap().with_lists_of(&config);
        assert_eq!(ids(&next), ["p/m", "p/n"]);
        let other = parse(&provider("q", two)).unwrap().with_lists_of(&config);
        assert_eq!(ids(&other), [""; 0]);
        assert!(config.take_list(0, list(&[])) && ids(&config).is_empty());
    }

    #[test]
    fn the_catalog_holds_a_limited_number_of_models() {
        let providers: String =
            (0..CATALOG_MAX / LISTED_MAX + 1).map(|n| provider(&format!("p{n}"), "discover = {}")).collect();
        let mut config = parse(&providers).unwrap();
        for (n, provider) in config.providers.iter_mut().enumerate() {
            provider.listed =
                (0..LISTED_MAX).map(|m| Listed { model: format!("m{n}-{m}"), context: Some(9) }).collect();
        }
        config.fill();
        assert_eq!(config.catalog.models().len(), CATALOG_MAX);
        assert!(CATALOG_MAX <= usize::from(u16::MAX));
        let mut config = parse(&format!("[server]\nmemory = \"24MiB\"\n{}", provider("p", "discover = {}"))).unwrap();
        let worst = config.worst_case_bytes(0);
        config.take_list(0, (0..LISTED_MAX).map(|n| Listed { model: n.to_string(), context: None }).collect());
        assert_eq!((config.catalog.models().len(), config.worst_case_bytes(0)), (69, worst));
    }
}
