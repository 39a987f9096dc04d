//! `proxy` of a provider: its address and the request for a tunnel. User and password are secret like a credential,
//! whether the setting contains them or refers to them.

use super::base_url::{Base, parse_base};
use crate::base::base64;
use crate::base::seam::Tunnel;
use crate::policy::settings::reader::{Field, Reader};
use crate::policy::settings::secret::Origin;
use crate::policy::settings::units::quoted;
use crate::wire::percent;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Bytes of user and password, each as written.
const PART_MAX: usize = 255;

/// A proxy that is asked for a tunnel to its provider.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// Host without brackets.
    pub host: Arc<str>,
    /// Port.
    pub port: u16,
    /// Request for the tunnel.
    pub tunnel: Tunnel,
    /// Printable form of the setting.
    shown: String,
}

impl Proxy {
    /// Address of the proxy, if its host is one.
    pub fn address(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.host.parse::<IpAddr>().ok()?, self.port))
    }

    /// Printable form of the setting: without user and password, or its source.
    pub fn shown(&self) -> &str {
        &self.shown
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// Reads the setting: a URL, or a reference to one. An error must never repeat it, since it can contain a password.
pub(super) fn read(reader: &mut Reader<'_>, field: Field<'_>, to: &Base) -> Option<Proxy> {
    let (at, path) = (field.start(), field.path.clone());
    let found = if field.is_text() {
        (reader.string(&field)?, None)
    } else {
        let secret = reader.secret(field)?;
        (secret.expose().to_string(), Some(secret.origin().clone()))
    };
    parse(&found.0, found.1.as_ref(), to).map_err(|why| reader.report(at, path, why)).ok()
}

/// The proxy at `text` for connections to `to`. An error does not repeat the text.
pub fn proxy_to(text: &str, to: &Base) -> Result<Proxy, &'static str> {
    parse(text, None, to)
}

fn parse(text: &str, origin: Option<&Origin>, to: &Base) -> Result<Proxy, &'static str> {
    const EXPECTED: &str = "expected a URL such as \"http://user:password@proxy.example:3128\"";
    if text.starts_with("https://") || text.starts_with("socks") {
        return Err("expected a proxy that speaks plain HTTP: \"http://…\"");
    }
    let rest = text.trim_end_matches('/').strip_prefix("http://").ok_or(EXPECTED)?;
    let (login, place) = rest.rsplit_once('@').map_or((None, rest), |(login, place)| (Some(login), place));
    let base = parse_base(&format!("http://{place}")).map_err(|_| EXPECTED)?;
    if !base.path.is_empty() {
        return Err(EXPECTED);
    }
    // The request for a tunnel always has host and port.
    let bare = if to.host.contains(':') { format!("[{}]", to.host) } else { to.host.clone() };
    let target = format!("{bare}:{}", to.port);
    let mut request = format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n");
    if let Some(login) = login {
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let user = percent::decoded(user.as_bytes());
        if user.is_empty() || user.contains(':') || user.len().max(password.len()) > PART_MAX {
            return Err("expected a user without a colon, and user and password of at most 255 bytes");
        }
        request.push_str("proxy-authorization: Basic ");
        request.push_str(&base64::encode(format!("{user}:{}", percent::decoded(password.as_bytes())).as_bytes()));
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    let masked = if login.is_some() { "***@" } else { "" };
    let shown = origin.map_or_else(|| quoted(&format!("http://{masked}{place}")), Origin::to_string);
    Ok(Proxy { host: base.host.into(), port: base.port, tunnel: Tunnel::new(request.into_bytes()), shown })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::config::{Config, Source, effective};

    fn parsed(proxy: &str, base: &str) -> Result<Config, String> {
        let text = format!(
            "[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"{base}\"\nproxy = {proxy}\n\
             [[models]]\nid = \"m\"\ncontext = \"1K\"\ntargets = [{{ provider = \"p\" }}]"
        );
        let read = |_: &str| Ok("http://file:s3cret@10.9.9.9:8080\n".to_string());
        let env = |name: &str| (name == "HTTPS_PROXY").then(|| "http://proxy.lan:3128".to_string());
        let source = Source { file: "t", text: &text, env: &env, read: &read, run: &Source::no_program };
        Config::parse(&source).map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    fn proxy(written: &str, base: &str) -> Proxy {
        parsed(written, base).unwrap().providers[0].proxy.clone().unwrap()
    }

    #[test]
    fn a_connect_request_names_host_and_port_and_carries_the_proxy_credentials() {
        let proxy = |written: &str, base: &str| proxy(written, base);
        let said = |proxy: &Proxy| String::from_utf8(proxy.tunnel.bytes().to_vec()).unwrap();
        let plain = proxy("\"http://proxy.lan:3128\"", "https://api.example.com/v1");
        assert_eq!((&*plain.host, plain.port, plain.address()), ("proxy.lan", 3128, None));
        assert_eq!(said(&plain), "CONNECT api.example.com:443 HTTP/1.1\r\nhost: api.example.com:443\r\n\r\n");
        // RFC 7617 section 2: Aladdin:open sesame.
        let known = proxy("\"http://Aladdin:open%20sesame@[::1]:8080/\"", "http://[2001:db8::1]:81/v1");
        assert_eq!(known.address(), "[::1]:8080".parse().ok());
        assert_eq!(
            said(&known),
            "CONNECT [2001:db8::1]:81 HTTP/1.1\r\nhost: [2001:db8::1]:81\r\n\
             proxy-authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n\r\n"
        );
        assert_eq!(&*proxy("{ env = \"HTTPS_PROXY\" }", "https://a.test/v1").host, "proxy.lan");
        assert_eq!(&*proxy("{ file = \"/run/proxy\" }", "https://a.test/v1").host, "10.9.9.9");
    }

    #[test]
    fn the_password_of_a_proxy_is_never_shown() {
        for (written, shown) in [
            ("\"http://me:s3cret@p.test:1\"", "proxy = \"http://***@p.test:1\""),
            ("{ file = \"/run/proxy\" }", "proxy = { file = \"/run/proxy\" }"),
            ("\"http://p.test:1\"", "proxy = \"http://p.test:1\""),
        ] {
            let config = parsed(written, "https://a.test/v1").unwrap();
            let page = effective(&config);
            assert!(page.contains(&format!("{shown}\n")), "{page}");
            for shown in [page, format!("{config:?}")] {
                assert!(!shown.contains("s3cret") && !shown.contains("bWU6"), "{shown}");
            }
        }
        for wrong in [
            "\"http://me:s3cret@\"",
            "\"me:s3cret@p.test:1\"",
            "\"https://me:s3cret@p.test:1\"",
            "\"http://me:s3cret@p.test:0\"",
            "\"http://me:s3cret@p.test/path\"",
            "\"http://me%3Ax:s3cret@p.test\"",
            "\"http://:s3cret@p.test\"",
            "\"socks5://me:s3cret@p.test\"",
            "{ env = \"UNSET\" }",
            "{ command = [\"s3cret\"] }",
            "7",
        ] {
            let error = parsed(wrong, "https://a.test/v1").unwrap_err();
            assert!(error.contains("providers[0].proxy") && !error.contains("s3cret"), "{wrong}: {error}");
        }
        let long = format!("\"http://u:{}@p.test\"", "x".repeat(PART_MAX + 1));
        assert!(parsed(&long, "https://a.test/v1").is_err());
    }

    #[test]
    fn a_provider_with_a_proxy_connects_only_to_the_proxy() {
        let config = parsed("\"http://10.1.1.1:3128\"", "http://192.0.2.7/v1").unwrap();
        assert_eq!(config.providers[0].addresses, ["10.1.1.1:3128".parse().unwrap()]);
        let config = parsed("\"http://proxy.lan:3128\"", "http://192.0.2.7/v1").unwrap();
        assert!(config.providers[0].addresses.is_empty());
        assert_eq!(config.providers[0].next_hop(), (&Arc::from("proxy.lan"), 3128));
        let error = parsed("\"http://p.test\"\naddresses = [\"192.0.2.8\"]", "https://a.test/v1").unwrap_err();
        assert!(error.contains("providers[0].addresses: has no effect with `proxy`"), "{error}");
    }
}
