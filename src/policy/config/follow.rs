//! Reload of the configuration in a running process. Settings that cannot change at run time keep their values, and TLS
//! peers keep their numbers.

use super::document::Config;
use super::providers::AuthoritySpec;
use super::server::Server;
use super::store::StoreConfig;
use crate::policy::settings::reader::ENTRIES_MAX;
use crate::policy::settings::{Reload, Settings};

impl Config {
    /// Makes this the configuration that follows `before`. Returns the names of the changed settings that need a
    /// restart; they keep their old values.
    ///
    /// TLS peers keep their numbers, since exchanges that began under `before` still connect by them. New peers are
    /// appended. It is an error if that table would grow beyond [`ENTRIES_MAX`].
    pub fn follow(&mut self, before: &Config) -> Result<Vec<String>, String> {
        self.follow_peers(before);
        if self.authorities.len() > ENTRIES_MAX {
            return Err("too many TLS peers since the start: a restart forgets the old ones".to_string());
        }
        let server = self.server.keep(&before.server).into_iter().map(|key| format!("server.{key}"));
        let store = self.store.keep(&before.store).into_iter().map(|key| format!("store.{key}"));
        Ok(server.chain(store).collect())
    }

    fn follow_peers(&mut self, before: &Config) {
        let mut table: Vec<AuthoritySpec> = before.authorities.clone();
        table.iter_mut().for_each(|spec| spec.retired = true);
        let mut places = Vec::with_capacity(self.authorities.len());
        for spec in self.authorities.drain(..) {
            let same = |old: &AuthoritySpec| (&old.server_name, &old.ca_file) == (&spec.server_name, &spec.ca_file);
            let place = table.iter().position(same).unwrap_or(table.len());
            match table.get_mut(place) {
                Some(old) => old.retired = false,
                None => table.push(spec),
            }
            places.push(place as u32);
        }
        self.authorities = table;
        let collectors = [self.telemetry.collector.as_deref_mut(), self.alerts.collector.as_deref_mut()];
        for provider in self.providers.iter_mut().chain(collectors.into_iter().flatten()) {
            provider.authority = provider.authority.and_then(|index| places.get(index as usize).copied());
        }
    }
}

/// Paths of all settings that need a restart, also for the manual. Other sections have none: their values apply to all
/// requests after a reload.
pub fn fixed() -> Vec<String> {
    let server = fixed_in::<Server>().map(|key| format!("server.{key}"));
    let store = fixed_in::<StoreConfig>().map(|key| format!("store.{key}"));
    server.chain(store).collect()
}

fn fixed_in<T: Settings>() -> impl Iterator<Item = &'static str> {
    T::ROWS.iter().filter(|row| row.reload == Reload::Restart).map(|row| row.key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::plan::Plan;
    use crate::policy::settings::reader::Source;
    use crate::policy::upstream_limits::UpstreamLimits;
    use crate::policy::vendors::capabilities::Capabilities;

    fn parse(server: &str, hosts: &[&str]) -> Config {
        let providers = hosts.iter().enumerate().map(|(n, host)| {
            format!("[[providers]]\nname = \"p{n}\"\nshape = \"chat\"\nbase_url = \"https://{host}/v1\"\n")
        });
        let text = format!(
            "{server}\n{}[[models]]\nid = \"m\"\ncontext = \"1K\"\ntargets = [{{ provider = \"p0\" }}]",
            providers.collect::<String>()
        );
        let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        Config::parse(&Source { file: "t.toml", text: &text, env: &|_| None, read: &read, run: &Source::no_program })
            .unwrap()
    }

    fn peer_of(config: &Config, provider: usize) -> &str {
        let index = config.providers[provider].authority.unwrap();
        &config.authorities[index as usize].server_name
    }

    #[test]
    fn tls_peers_keep_their_index_across_reloads() {
        let first = parse("", &["a.test", "b.test"]);
        let mut second = parse("", &["c.test", "b.test"]);
        second.follow(&first).unwrap();
        assert_eq!((peer_of(&second, 0), peer_of(&second, 1)), ("c.test", "b.test"));
        let names: Vec<(&str, bool)> =
            second.authorities.iter().map(|spec| (spec.server_name.as_str(), spec.retired)).collect();
        assert_eq!(names, [("a.test", true), ("b.test", false), ("c.test", false)]);
        let mut third = parse("", &["a.test"]);
        third.follow(&second).unwrap();
        assert_eq!((peer_of(&third, 0), third.authorities.len()), ("a.test", 3));
        assert!(!third.authorities[0].retired && third.authorities[1].retired);
    }

    #[test]
    fn a_reload_that_would_overfill_the_table_is_refused() {
        let mut config = parse("", &["a.test"]);
        for n in 0..ENTRIES_MAX - 1 {
            let mut next = parse("", &[&format!("host{n}.test")]);
            next.follow(&config).unwrap();
            config = next;
        }
        assert!(parse("", &["one-more.test"]).follow(&config).is_err());
        assert!(parse("", &["a.test"]).follow(&config).is_ok());
    }

    #[test]
    fn no_upstream_plan_or_capability_setting_needs_a_restart() {
        assert!(fixed().len() >= 9, "{:?}", fixed());
        let others = fixed_in::<UpstreamLimits>().chain(fixed_in::<Plan>()).chain(fixed_in::<Capabilities>());
        assert_eq!(others.collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn settings_that_need_a_restart_are_reported_and_keep_their_value() {
        let first = parse("[server]\nlisten = \"127.0.0.1:1\"\nmax_body = \"1MiB\"", &["a.test"]);
        let mut second = parse(
            "[server]\nlisten = \"127.0.0.1:2\"\nmax_body = \"2MiB\"\n[store]\nurl = \"sqlite:other.db\"\n\
             max_commit_lag = \"9s\"",
            &["a.test"],
        );
        assert_eq!(second.follow(&first).unwrap(), ["server.listen", "store.url"]);
        assert_eq!((&second.server.listen, &second.store.url), (&first.server.listen, &first.store.url));
        assert_eq!((second.server.max_body, second.store.max_commit_lag.as_secs()), (2 << 20, 9));
    }
}
