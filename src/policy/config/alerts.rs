//! `[alerts]`: the webhook that receives alerts. It is called like a provider.

use super::base_url::parse_base;
use super::providers::Provider;
use crate::base::words;
use crate::policy::settings::kinds::{Kind, OneOf, Or, Pem, Shown};
use crate::policy::settings::reader::{Field, Reader, Section};
use crate::policy::settings::units::quoted;
use crate::policy::settings::{Settings, section};
use crate::policy::upstream_limits::UpstreamLimits;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Time for a connection to the webhook, and as long again for TLS.
const ALERT_CONNECT: Duration = Duration::from_secs(5);
/// Shares of a budget that raise an alert.
const ALERT_THRESHOLDS_MAX: usize = 8;

words! {
    /// Format of an alert.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub enum AlertForm {
        /// A JSON object with a field for each fact.
        #[default]
        Generic = "generic",
        /// The `text` of Slack's incoming webhooks.
        Slack = "slack",
    }
}

section! {
    /// `[alerts]`.
    #[derive(Clone, Debug)]
    pub struct Alerts {
        /// Webhook that receives each alert as one POST of JSON. Its path is often a secret, so use a reference to an
        /// environment variable or file. `tollgate check --print` masks the path. Value: an `http://` or `https://`
        /// URL, `{ env = "NAME" }` or `{ file = "path" }`.
        pub url: Option<Webhook> = None, Or(WebhookUrl, "none"), Live;
        /// Thresholds in percent. Tollgate sends an alert when use of a budget reaches one of them. Value: a list of at
        /// most 8 integers from 1 to 100; an empty one raises none.
        pub budget: Vec<u8> = vec![80, 100], Percents, Live;
        /// Format of an alert: `"generic"` has a field for each fact, `"slack"` is for Slack's incoming webhooks.
        pub form: AlertForm = AlertForm::Generic, OneOf(&AlertForm::ALL, AlertForm::as_str), Live;
        /// Certificate authorities that are trusted for the webhook in addition to the public ones. Value: path of a
        /// PEM file.
        pub ca_file: Option<PathBuf> = None, Or(Pem("-----BEGIN CERTIFICATE-----"), "none, the public authorities"),
            Live;
        /// Server of the webhook; none if `url` is not set.
        pub collector: Option<Box<Provider>> = None;
    }
}

impl Alerts {
    /// Reads `[alerts]`.
    pub(super) fn read(reader: &mut Reader<'_>, top: &mut Section<'_>) -> Alerts {
        let mut alerts = Alerts::default();
        if let Some(mut section) = reader.table(top, "alerts") {
            alerts.read_rows(reader, &mut section);
            section.finish(reader);
        }
        // An invalid URL has been reported.
        let parts = alerts.url.as_ref().map(|webhook| parts(&webhook.url));
        let parsed = parts.and_then(|(server, path)| Some((parse_base(server).ok()?, path)));
        alerts.collector = parsed.map(|(base, path)| {
            let (ca_file, path) = (alerts.ca_file.clone(), if path.is_empty() { "/" } else { path }.to_string());
            let limits = UpstreamLimits { connect_timeout: ALERT_CONNECT, ..UpstreamLimits::default() };
            Box::new(Provider { ca_file, limits, ..Provider::at(&base, path) })
        });
        alerts
    }

    /// Shares of a budget that raise an alert.
    pub fn thresholds(&self) -> &[u8] {
        if self.collector.is_some() { &self.budget } else { &[] }
    }
}

/// Scheme and authority of a URL; path and query.
fn parts(url: &str) -> (&str, &str) {
    let authority = url.find("://").map_or(0, |at| at + 3);
    url.split_at(url[authority..].find(['/', '?']).map_or(url.len(), |at| authority + at))
}

/// The URL of a webhook, which may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Webhook {
    url: String,
    /// Printable form: without the path, or the source of the URL.
    shown: String,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// Reads a [`Webhook`]. An error must never repeat the URL.
struct WebhookUrl;

impl Kind<Webhook> for WebhookUrl {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Webhook> {
        let (at, name) = (field.start(), field.path.clone());
        let (url, origin) = if field.is_text() {
            (reader.string(&field)?, None)
        } else {
            let secret = reader.secret(field)?;
            (secret.expose().to_string(), Some(secret.origin().to_string()))
        };
        let (server, path) = parts(&url);
        let is_path = path.bytes().all(|b| b.is_ascii_graphic() && b != b'#') && !path.starts_with('?');
        if parse_base(server).is_err() || !is_path {
            reader.report(at, name, EXPECTED);
            return None;
        }
        let shown =
            origin.unwrap_or_else(|| quoted(&if path.len() > 1 { format!("{server}/***") } else { url.clone() }));
        Some(Webhook { url, shown })
    }

    fn shown(&self, value: &Webhook) -> Shown {
        Shown::Value(value.shown.clone())
    }
}

const EXPECTED: &str = "expected a URL such as \"https://hooks.example.com/services/T0/B0/XXXX\", with a path of \
     printable ASCII, and without a user and a fragment";

/// Shares in percent.
struct Percents;

impl Kind<Vec<u8>> for Percents {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Vec<u8>> {
        let mut is_share = [false; 101];
        for item in reader.items(field, ALERT_THRESHOLDS_MAX) {
            is_share[usize::try_from(reader.integer(&item, &(1..=100))?).unwrap_or(0)] = true;
        }
        Some((1..=100).filter(|share| is_share[usize::from(*share)]).collect())
    }

    fn shown(&self, value: &Vec<u8>) -> Shown {
        // The syntax is also TOML's.
        Shown::Value(format!("{value:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::config::{Config, Source, effective};

    fn parse(alerts: &str) -> Result<Config, String> {
        let text = format!(
            "[alerts]\n{alerts}\n[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"https://p.test/v1\"\n\
             [[models]]\nid = \"m\"\ncontext = \"1K\"\ntargets = [{{ provider = \"p\" }}]"
        );
        let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let env = |name: &str| match name {
            "HOOK" => Some("https://hooks.test/services/s3cret".to_string()),
            "BAD_HOOK" => Some("hooks.test/s3cret".to_string()),
            _ => None,
        };
        let source = Source { file: "t", text: &text, env: &env, read: &read, run: &Source::no_program };
        Config::parse(&source).map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn alerts_are_read_and_printed_without_the_path() {
        let config =
            parse("url = \"https://hooks.test:8443/services/s3cret?a=b\"\nbudget = [100, 50, 50]\nform = \"slack\"");
        let config = config.unwrap();
        let collector = config.alerts.collector.as_deref().unwrap();
        assert_eq!((&*collector.path, &*collector.host, collector.port), ("/services/s3cret?a=b", "hooks.test", 8443));
        assert_eq!((config.alerts.thresholds(), config.alerts.form), (&[50, 100][..], AlertForm::Slack));
        assert_eq!(config.authorities[collector.authority.unwrap() as usize].server_name, "hooks.test");
        let page = effective(&config);
        assert!(
            page.contains("url = \"https://hooks.test:8443/***\"\nbudget = [50, 100]\nform = \"slack\"\n"),
            "{page}"
        );
        assert!(!page.contains("s3cret"));
        let mut next = parse("url = \"https://other.test/x\"").unwrap();
        next.follow(&config).unwrap();
        let moved = next.alerts.collector.as_deref().unwrap();
        assert_eq!(next.authorities[moved.authority.unwrap() as usize].server_name, "other.test");
        let bare = parse("url = \"http://127.0.0.1:9\"").unwrap();
        assert_eq!(bare.alerts.collector.as_deref().unwrap().path, "/");
        assert!(effective(&bare).contains("url = \"http://127.0.0.1:9\"\n"));
        let secret = parse("url = { env = \"HOOK\" }").unwrap();
        assert_eq!(secret.alerts.collector.as_deref().unwrap().path, "/services/s3cret");
        assert!(effective(&secret).contains("url = { env = \"HOOK\" }\n"));
        assert!(!format!("{:?}", secret.alerts.url).contains("s3cret"));
        let none = parse("").unwrap();
        assert!(none.alerts.thresholds().is_empty() && effective(&none).contains("# url: none\nbudget = [80, 100]"));
    }

    #[test]
    fn mistakes_in_alerts_are_reported_without_the_url() {
        for (wrong, why) in [
            ("url = \"hooks.test/s3cret\"", "url: expected a URL"),
            ("url = \"https://me:s3cret@hooks.test/x\"", "url: expected a URL such as \"https://hooks."),
            ("url = \"https://hooks.test/s3cret x\"", "with a path of printable ASCII"),
            ("url = \"https://hooks.test/s3cret#x\"", "url: expected a URL"),
            ("url = { env = \"BAD_HOOK\" }", "url: expected a URL"),
            ("url = { file = \"none\" }", "url.file: "),
            ("budget = [0]", "budget[0]: expected an integer from 1 to 100"),
            ("budget = [101]", "expected an integer from 1 to 100"),
            ("budget = [1, 2, 3, 4, 5, 6, 7, 8, 9]", "budget: expected at most 8 entries, found 9"),
            ("form = \"teams\"", "form"),
            ("every = 1", "known are url, budget, form, ca_file"),
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains(why) && !error.contains("s3cret"), "{wrong}: {error}");
        }
    }
}
