//! Downloads a document over HTTPS for a command, through the proxy that the environment names. Blocks; a running
//! gateway must never call it.

use super::blocking_http::{HttpResponse, NoAnswer, ServerAddress, ask_within};
use crate::cli::output::{Failure, clean};
use crate::io::clock::Clock;
use crate::io::reactor::{Authority, Security};
use crate::io::tls::blocking::Trouble;
use crate::policy::config::{Base, Proxy, parse_base, proxy_to};
use crate::policy::network::Network;
use crate::wire::head::values;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

/// Bytes of a document.
pub(crate) const DOCUMENT_MAX: usize = 64 << 20;
/// Time for a document, with all redirects.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time to connect.
const CONNECT: Duration = Duration::from_secs(10);
/// Redirects that are followed.
const REDIRECTS_MAX: usize = 3;

/// Variables that name a proxy, the first that is set decides.
const PROXIES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
/// Variables that name hosts to reach without a proxy.
const DIRECT: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Reads a variable of the environment.
type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Address of a document.
struct DocumentUrl {
    base: Base,
    /// Path and query.
    path: String,
}

impl DocumentUrl {
    /// Reads a URL: HTTPS, or HTTP to a loopback address.
    fn parse(text: &str) -> Result<DocumentUrl, &'static str> {
        let after = text.find("://").map_or(0, |at| at + 3);
        let (server, rest) = text.split_at(text[after..].find(['/', '?', '#']).map_or(text.len(), |at| after + at));
        let base = parse_base(server)?;
        let path = rest.split('#').next().unwrap_or_default();
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("expected a URL without spaces and characters beyond ASCII");
        }
        let url =
            DocumentUrl { path: if path.starts_with('/') { path.to_string() } else { ["/", path].concat() }, base };
        match url.base.tls || url.is_loopback() {
            true => Ok(url),
            false => Err("expected https://, or http:// and a loopback address"),
        }
    }

    /// True for an address of this machine.
    fn is_loopback(&self) -> bool {
        self.base.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// The URL that a redirect from this one names.
    fn redirected(&self, to: &str) -> Result<DocumentUrl, &'static str> {
        let scheme = if self.base.tls { "https:" } else { "http:" };
        let folder =
            self.path.split('?').next().and_then(|path| path.rsplit_once('/')).map_or("", |(folder, _)| folder);
        let url = match to {
            _ if to.contains("://") => DocumentUrl::parse(to)?,
            _ if to.starts_with("//") => DocumentUrl::parse(&[scheme, to].concat())?,
            _ if to.starts_with('/') => DocumentUrl::parse(&[scheme, "//", &self.base.authority, to].concat())?,
            _ => DocumentUrl::parse(&[scheme, "//", &self.base.authority, folder, "/", to].concat())?,
        };
        if self.base.tls && !url.base.tls { Err("it redirects from https:// to http://") } else { Ok(url) }
    }

    /// The proxy of the environment. Loopback addresses are reached without one.
    fn proxy(&self, env: Env<'_>) -> Result<Option<Proxy>, Failure> {
        let set = |names: &[&'static str]| {
            let value = |name: &&'static str| Some((*name, env(name).filter(|value| !value.is_empty())?));
            names.iter().find_map(value)
        };
        let Some((name, value)) = set(&PROXIES).filter(|_| !self.is_loopback()) else { return Ok(None) };
        if set(&DIRECT).is_some_and(|(_, list)| list.split(',').any(|entry| self.is_named(entry.trim()))) {
            return Ok(None);
        }
        let value = if value.contains("://") { value } else { ["http://", &value].concat() };
        // The value can contain a password.
        proxy_to(&value, &self.base).map(Some).map_err(|why| Failure::misused(format!("{name}: {why}")))
    }

    /// True if an entry of `NO_PROXY` means its host: a name with all names below it, an address, a network, or `*`.
    fn is_named(&self, entry: &str) -> bool {
        let host = self.base.host.to_ascii_lowercase();
        if let Ok(address) = host.parse::<IpAddr>() {
            let address = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            return entry == "*" || Network::parse(entry).is_some_and(|network| network.contains(address));
        }
        let (name, port) = entry.split_once(':').map_or((entry, None), |(name, port)| (name, Some(port)));
        let name = name.trim_start_matches("*.").trim_start_matches('.').to_ascii_lowercase();
        let is_below = host.strip_suffix(&*name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        name == "*" || (!name.is_empty() && is_below && port.is_none_or(|port| port.parse() == Ok(self.base.port)))
    }

    /// Requests the document.
    fn get(&self, ca: Option<&Path>, most: usize, left: Duration, env: Env<'_>) -> Result<HttpResponse, Failure> {
        let proxy = if self.base.tls { self.proxy(env)? } else { None };
        let peer =
            Authority { server_name: self.base.host.clone(), ca_file: ca.map(Path::to_path_buf), retired: false };
        let peers = if self.base.tls { vec![peer] } else { Vec::new() };
        let security = Security::load(&peers, None, None).map_err(Failure::failed)?;
        let hop = proxy.as_ref().map_or((&*self.base.host, self.base.port), |proxy| (&*proxy.host, proxy.port));
        let server = ServerAddress {
            socket: None,
            addresses: &[],
            host: hop.0,
            port: hop.1,
            tunnel: proxy.as_ref().map(|proxy| &proxy.tunnel),
            tls: (&security, self.base.tls.then_some(0)),
            connect: CONNECT.min(left),
            answer: left,
        };
        let request = format!(
            "GET {} HTTP/1.1\r\nhost: {}\r\nuser-agent: tollgate/{}\r\naccept: application/json\r\n\
             accept-encoding: identity\r\nconnection: close\r\n\r\n",
            self.path,
            self.base.authority,
            env!("CARGO_PKG_VERSION")
        );
        ask_within(&server, request.as_bytes(), most).map_err(|why| self.failed(&reason(why)))
    }

    fn failed(&self, why: &str) -> Failure {
        let scheme = if self.base.tls { "https" } else { "http" };
        Failure::failed(format!("cannot fetch {scheme}://{}{}: {why}", self.base.authority, clean(&self.path)))
    }
}

/// Why there is no answer.
fn reason(why: NoAnswer) -> String {
    match why {
        NoAnswer::Tls(Trouble::UnknownIssuer) => {
            "no trusted authority has signed its certificate: see --ca".to_string()
        }
        NoAnswer::Tls(Trouble::OutOfTime) => "its certificate has expired, or the clock is wrong".to_string(),
        NoAnswer::Tls(Trouble::OtherName) => "its certificate is for another host".to_string(),
        NoAnswer::Tls(Trouble::Other(why)) => format!("the TLS handshake failed: {why}"),
        NoAnswer::Unreachable(address, why) => format!("no connection to {address}: {why}"),
        NoAnswer::Refused(address) => format!("{address} refuses the connection"),
        NoAnswer::Broken(why) => format!("no answer in HTTP: {why}"),
        other => other.words().to_string(),
    }
}

/// Checks the address of a document.
pub(crate) fn parse_url(text: &str) -> Result<String, String> {
    DocumentUrl::parse(text).map(|_| text.to_string()).map_err(str::to_string)
}

/// The length that an answer announces; 0 if it announces none.
fn declared(answer: &HttpResponse) -> usize {
    let length = values(&answer.head, "content-length").next().and_then(|length| str::from_utf8(length).ok());
    length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

/// Downloads the document at `url`. `ca`: a file with authorities that are trusted, too.
pub(crate) fn download(url: &str, ca: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let env = |name: &str| std::env::var(name).ok();
    download_within(url, ca, (DOCUMENT_MAX, TIMEOUT), &env)
}

fn download_within(
    url: &str,
    ca: Option<&Path>,
    (most, timeout): (usize, Duration),
    env: Env<'_>,
) -> Result<Vec<u8>, Failure> {
    let mut url = DocumentUrl::parse(url).map_err(|why| Failure::misused(format!("--fetch: {why}")))?;
    let clock = Clock::new();
    let until = clock.mono().after(timeout);
    for _ in 0..=REDIRECTS_MAX {
        let left = Duration::from_micros(until.micros_since(clock.mono()));
        if left.is_zero() {
            return Err(url.failed("no answer in time"));
        }
        let answer = url.get(ca, most, left, env)?;
        match answer.status {
            200 if answer.whole => return Ok(answer.body),
            200 if answer.body.len().max(declared(&answer)) >= most => {
                return Err(url.failed(&format!("it has more than {} MiB", most >> 20)));
            }
            200 => return Err(url.failed("it ended too early, or took too long")),
            301 | 302 | 303 | 307 | 308 => {
                let to = values(&answer.head, "location").next().unwrap_or_default();
                let to = str::from_utf8(to).ok().filter(|to| !to.is_empty()).ok_or("no location");
                let to = to.and_then(|to| url.redirected(to));
                url = to.map_err(|why| url.failed(&format!("status {}: {why}", answer.status)))?;
            }
            status => return Err(url.failed(&format!("status {status}"))),
        }
    }
    Err(url.failed(&format!("more than {REDIRECTS_MAX} redirects")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn none(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn url_is_https_or_http_to_a_loopback_address() {
        for (text, host, port, path) in [
            ("https://models.dev/api.json", "models.dev", 443, "/api.json"),
            ("https://a.test", "a.test", 443, "/"),
            ("https://a.test:81?x=1#y", "a.test", 81, "/?x=1"),
            ("http://127.0.0.1:9/a", "127.0.0.1", 9, "/a"),
            ("http://[::1]/a", "::1", 80, "/a"),
        ] {
            let url = DocumentUrl::parse(text).unwrap();
            assert_eq!((&*url.base.host, url.base.port, &*url.path), (host, port, path), "{text}");
        }
        for wrong in ["", "a.test/x", "http://a.test/", "http://localhost/", "http://10.0.0.1/", "ftp://a.test/"] {
            assert!(DocumentUrl::parse(wrong).is_err(), "{wrong}");
        }
        assert!(
            DocumentUrl::parse("https://me:secret@a.test/").is_err()
                && DocumentUrl::parse("https://a.test/a b").is_err()
        );
    }

    #[test]
    fn redirects_are_resolved_and_never_leave_https() {
        let url = DocumentUrl::parse("https://a.test:81/x/y?z").unwrap();
        let to = |text: &str| url.redirected(text).map(|url| format!("{}{}", url.base.authority, url.path));
        assert_eq!(to("https://b.test/c").as_deref(), Ok("b.test/c"));
        assert_eq!(to("//b.test/c").as_deref(), Ok("b.test/c"));
        assert_eq!(to("/c?d").as_deref(), Ok("a.test:81/c?d"));
        assert_eq!(to("c").as_deref(), Ok("a.test:81/x/c"));
        assert!(to("http://127.0.0.1/").is_err() && to("http://b.test/").is_err());
    }

    #[test]
    fn proxy_comes_from_the_environment_unless_excepted() {
        let of = |url: &str, set: &[(&str, &str)]| {
            let env = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_string());
            let found = DocumentUrl::parse(url).unwrap().proxy(&env);
            found.map(|proxy| proxy.map(|proxy| (proxy.host.to_string(), proxy.port)))
        };
        let proxy = |host: &str, port| Ok(Some((host.to_string(), port)));
        let (url, https) = ("https://api.a.test/x", ("HTTPS_PROXY", "http://p.test:3128"));
        assert_eq!(of(url, &[]), Ok(None));
        assert_eq!(of(url, &[https, ("ALL_PROXY", "http://q.test:1")]), proxy("p.test", 3128));
        assert_eq!(of(url, &[("HTTPS_PROXY", ""), ("ALL_PROXY", "q.test:1")]), proxy("q.test", 1));
        assert_eq!(of(url, &[("all_proxy", "http://me:word@q.test:1/")]), proxy("q.test", 1));
        assert_eq!(of("https://127.0.0.1/x", &[https]), Ok(None));
        for (list, is_direct) in [
            ("*", true),
            ("b.test, a.test", true),
            (".a.test", true),
            ("*.A.test", true),
            ("api.a.test:443", true),
            ("api.a.test:80", false),
            ("i.a.test", false),
            ("test", true),
            ("", false),
            ("10.0.0.0/8", false),
        ] {
            assert_eq!(of(url, &[https, ("NO_PROXY", list)]) == Ok(None), is_direct, "{list}");
        }
        assert_eq!(of("https://10.1.2.3/", &[https, ("no_proxy", "10.0.0.0/8")]), Ok(None));
        for wrong in ["socks5://me:secret@p.test", "http://me:secret@p.test/path"] {
            let said = of(url, &[("HTTPS_PROXY", wrong)]).unwrap_err();
            assert!(said.text().contains("HTTPS_PROXY") && !said.text().contains("secret"), "{said:?}");
        }
    }

    /// Result of a download from a server that answers with `words`, and then with `more` until it cannot.
    fn downloaded(words: &'static str, more: &'static [u8]) -> Result<Vec<u8>, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let mut sent = stream.write_all(words.as_bytes());
            while sent.is_ok() && !more.is_empty() {
                sent = stream.write_all(more);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let found = download_within(&format!("http://{at}/"), None, (1 << 20, Duration::from_millis(400)), &none);
        server.join().unwrap();
        found
    }

    #[test]
    fn document_is_complete_bounded_and_in_time() {
        static BLOCK: [u8; 64 << 10] = [b' '; 64 << 10];
        let said = |words, more| downloaded(words, more).unwrap_err().text();
        assert_eq!(downloaded("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", b""), Ok(b"{}".to_vec()));
        assert_eq!(downloaded("HTTP/1.0 200 OK\r\n\r\n{}", b""), Ok(b"{}".to_vec()));
        let large = "HTTP/1.1 200 OK\r\ncontent-length: 1048577\r\n\r\n";
        assert!(said(large, b"").contains("it has more than 1 MiB"));
        assert!(said("HTTP/1.1 200 OK\r\n\r\n", &BLOCK).contains("it has more than 1 MiB"));
        assert!(said("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", b"").contains("it ended too early"));
        assert!(said("HTTP/1.1 200 OK\r\n\r\n", b" ").contains("took too long"));
        assert!(said("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", b"").contains("status 404"));
        assert!(said("HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n", b"").contains("status 302"));
        assert!(said("220 mail\r\n", b"").contains("no answer in HTTP"));
    }
}
