//! `[telemetry]`: export of spans. The collector is called like a provider.

use super::base_url::{Base, parse_base};
use super::providers::{CONFIGURED_HEADERS_MAX, CREDENTIALS, Provider, RESERVED, is_token};
use crate::policy::settings::kinds::{Kind, Or, Pem, Shown};
use crate::policy::settings::reader::{Field, Reader, Section};
use crate::policy::settings::secret::{Origin, Secret, fit};
use crate::policy::settings::units::quoted;
use crate::policy::settings::{Settings, section};
use std::path::PathBuf;

/// Path of a collector for spans by OTLP over HTTP, below its URL.
const SPANS_PATH: &str = "/v1/traces";

section! {
    /// `[telemetry]`.
    #[derive(Clone, Debug)]
    pub struct Telemetry {
        /// Collector of traces. Tollgate sends traces by OTLP over HTTP in JSON, and adds `/v1/traces` to the URL.
        pub otlp: Option<String> = None, Or(CollectorUrl, "none"), Live;
        /// Further headers for the collector, each a string or a reference to a secret. Tollgate reads the references
        /// at the start and at each reload. Value: a table of up to 32 headers.
        pub headers: Vec<CollectorHeader> = Vec::new(), Headers, Live;
        /// Certificate authorities that are trusted for the collector in addition to the public ones. Value: path of a
        /// PEM file.
        pub ca_file: Option<PathBuf> = None, Or(Pem("-----BEGIN CERTIFICATE-----"), "none, the public authorities"),
            Live;
        /// Share of traces to record, of the traces that Tollgate starts. If the client started the trace, the client's
        /// sampling flag decides.
        pub sample: f64 = 1.0, Fraction, Live;
        /// Collector of spans; none if `otlp` is not set.
        pub collector: Option<Box<Provider>> = None;
    }
}

/// A header for the collector.
#[derive(Clone, PartialEq, Debug)]
pub struct CollectorHeader {
    /// Name in lower case.
    pub name: String,
    /// Value, which is always treated as a secret.
    pub value: Secret,
    /// True if the configuration contains the value itself: its origin has no meaning.
    is_literal: bool,
}

impl Telemetry {
    /// Reads `[telemetry]`.
    pub(super) fn read(reader: &mut Reader<'_>, top: &mut Section<'_>) -> Telemetry {
        let mut telemetry = Telemetry::default();
        if let Some(mut section) = reader.table(top, "telemetry") {
            telemetry.read_rows(reader, &mut section);
            section.finish(reader);
        }
        // An invalid URL has been reported.
        let base = telemetry.otlp.as_deref().and_then(|url| parse_base(url).ok());
        let path = |base: &Base| [&base.path, SPANS_PATH].concat();
        telemetry.collector = base.map(|base| {
            let ca_file = telemetry.ca_file.clone();
            Box::new(Provider { ca_file, ..Provider::at(&base, path(&base)) })
        });
        telemetry
    }

    /// True if there is a collector.
    pub fn exports(&self) -> bool {
        self.collector.is_some()
    }

    /// True if a trace that begins here is recorded, by its random id.
    pub fn samples(&self, id: &[u8; 16]) -> bool {
        let [a, b, c, d, ..] = *id;
        // Less than one, so that a share of one selects all.
        f64::from(u32::from_be_bytes([a, b, c, d])) / (f64::from(u32::MAX) + 1.0) < self.sample
    }
}

/// A number from 0 to 1.
struct Fraction;

impl Kind<f64> for Fraction {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<f64> {
        let share = field.number().filter(|share| (0.0..=1.0).contains(share));
        if share.is_none() {
            reader.wrong(&field, "expected a number from 0 to 1");
        }
        share
    }

    fn shown(&self, value: &f64) -> Shown {
        Shown::Value(format!("{value:?}"))
    }
}

/// The URL of a collector.
struct CollectorUrl;

impl Kind<String> for CollectorUrl {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<String> {
        let text = reader.string(&field)?;
        let wrong = match parse_base(&text) {
            Ok(base) if base.path.ends_with(SPANS_PATH) => "expected the collector's URL without /v1/traces",
            Ok(_) => return Some(text),
            Err(_) => "expected a URL such as \"http://127.0.0.1:4318\", credentials in `headers`",
        };
        reader.error(&field, wrong);
        None
    }

    fn shown(&self, value: &String) -> Shown {
        Shown::Value(quoted(value))
    }
}

/// Headers by their names.
struct Headers;

impl Kind<Vec<CollectorHeader>> for Headers {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Vec<CollectorHeader>> {
        let (at, path) = (field.start(), field.path.clone());
        let entries = reader.as_table(field)?.take_rest();
        if entries.len() > CONFIGURED_HEADERS_MAX {
            reader.report(at, path, "expected at most 32 headers");
        }
        let mut headers = Vec::new();
        for (name, field) in entries {
            let name = name.to_ascii_lowercase();
            let is_credential = CREDENTIALS.contains(&name.as_str());
            if !is_token(&name) || (RESERVED.contains(&name.as_str()) && !is_credential) {
                reader.error(&field, "expected the name of a header that is not the gateway's own");
                continue;
            }
            let is_literal = field.is_text() && !is_credential;
            let value = match field.text().filter(|_| is_literal) {
                Some(text) if fit(text) == Ok(text) => Some(Secret::new(text.to_string(), Origin::Env(String::new()))),
                Some(_) => {
                    reader.error(&field, "expected printable ASCII without spaces around it");
                    None
                }
                None => reader.secret(field),
            };
            headers.extend(value.map(|value| CollectorHeader { name, value, is_literal }));
        }
        Some(headers)
    }

    fn shown(&self, value: &Vec<CollectorHeader>) -> Shown {
        let mut text = String::from("{");
        for header in value {
            text.push_str(if text.len() > 1 { ", " } else { " " });
            text.push_str(&quoted(&header.name));
            text.push_str(" = ");
            text.push_str(&match header.is_literal {
                true => quoted(header.value.expose()),
                false => header.value.origin().to_string(),
            });
        }
        text.push_str(if value.is_empty() { "}" } else { " }" });
        Shown::Value(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::config::{Config, Source, effective};

    fn parse(telemetry: &str) -> Result<Config, String> {
        let text = format!(
            "[telemetry]\n{telemetry}\n[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"https://p.test/v1\"\n\
             [[models]]\nid = \"m\"\ncontext = \"1K\"\ntargets = [{{ provider = \"p\" }}]"
        );
        let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let env = |name: &str| (name == "AUTH").then(|| "Basic s3cret".to_string());
        let source = Source { file: "t", text: &text, env: &env, read: &read, run: &Source::no_program };
        Config::parse(&source).map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn telemetry_is_read_and_printed_without_secrets() {
        let headers = "{ \"x-tenant\" = \"ops\", \"authorization\" = { env = \"AUTH\" } }";
        let config = parse(&format!("otlp = \"https://c.test/base/\"\nheaders = {headers}\nsample = 0.25")).unwrap();
        let collector = config.telemetry.collector.as_deref().unwrap();
        assert_eq!((&*collector.path, &*collector.host, collector.port), ("/base/v1/traces", "c.test", 443));
        let sent: Vec<(&str, &str)> =
            config.telemetry.headers.iter().map(|one| (&*one.name, one.value.expose())).collect();
        assert!(sent.contains(&("x-tenant", "ops")) && sent.contains(&("authorization", "Basic s3cret")), "{sent:?}");
        let page = effective(&config);
        assert!(page.contains("otlp = \"https://c.test/base/\"\n") && page.contains("\nsample = 0.25\n"), "{page}");
        assert!(page.contains("\"authorization\" = { env = \"AUTH\" }"), "{page}");
        assert_eq!(effective(&parse_page(&page)), page);
        assert!(!format!("{page}{config:?}").contains("s3cret"));
        // The collector is a peer like the providers, and keeps its number.
        assert_eq!(config.authorities[collector.authority.unwrap() as usize].server_name, "c.test");
        let mut next = parse("otlp = \"https://d.test\"").unwrap();
        next.follow(&config).unwrap();
        let moved = next.telemetry.collector.as_deref().unwrap();
        assert_eq!((moved.authority, &*next.authorities[2].server_name), (Some(2), "d.test"));
        let none = parse("").unwrap();
        assert!(!none.telemetry.exports() && effective(&none).contains("# otlp: none\nheaders = {}\n# ca_file: none"));
    }

    fn parse_page(page: &str) -> Config {
        let env = |name: &str| (name == "AUTH").then(|| "Basic s3cret".to_string());
        let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let source = Source { file: "t", text: page, env: &env, read: &read, run: &Source::no_program };
        Config::parse(&source).unwrap()
    }

    #[test]
    fn mistakes_in_telemetry_are_reported() {
        for (wrong, why) in [
            ("otlp = \"localhost:4318\"", "otlp: expected a URL"),
            ("otlp = \"http://me:s3cret@c.test\"", "otlp: expected a URL"),
            ("otlp = \"http://c.test/v1/traces\"", "otlp: expected the collector's URL without /v1/traces"),
            ("sample = 1.1", "sample: expected a number from 0 to 1"),
            ("sample = \"half\"", "sample: expected a number from 0 to 1"),
            ("headers = { authorization = \"Basic s3cret\" }", "headers.authorization: a secret is never written here"),
            ("headers = { traceparent = \"x\" }", "headers.traceparent: expected the name of a header"),
            ("headers = { \"a b\" = \"x\" }", "expected the name of a header"),
            ("headers = { x = \"a\\nb\" }", "headers.x: expected printable ASCII"),
            ("headers = { x = { env = \"NONE\" } }", "headers.x.env: the environment variable `NONE` is not set"),
            ("endpoint = \"x\"", "known are otlp, headers, ca_file, sample"),
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains(why) && !error.contains("s3cret"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_share_of_new_traces_is_recorded() {
        let telemetry = |sample| Telemetry { sample, ..Telemetry::default() };
        let ids = (0..10_000u32).map(|n| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&n.wrapping_mul(0x9e37_79b1).to_be_bytes());
            id
        });
        let kept = |sample: f64| ids.clone().filter(|id| telemetry(sample).samples(id)).count();
        assert_eq!((kept(0.0), kept(1.0)), (0, 10_000));
        assert!((900..1100).contains(&kept(0.1)), "{}", kept(0.1));
    }
}
