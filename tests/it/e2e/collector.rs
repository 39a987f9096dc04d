//! An OTLP/HTTP collector for tests. It checks the format of the spans that it receives and keeps them as plain values.
//! It can be slow, reject requests in part or completely, or use TLS.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, mpsc};

/// A span as received.
#[derive(Clone, Debug)]
pub struct Span {
    /// Id of the process that sent the span.
    pub instance: String,
    pub trace: String,
    pub id: String,
    /// Empty if there is no parent.
    pub parent: String,
    pub state: String,
    pub name: String,
    pub kind: u64,
    pub flags: u64,
    /// Nanoseconds since 1970.
    pub start: u64,
    pub end: u64,
    /// Numbers and strings by name.
    pub attributes: BTreeMap<String, Value>,
    /// Names and times of the events, with their attributes.
    pub events: Vec<(String, u64, BTreeMap<String, Value>)>,
    /// 2: failed; 0: unset.
    pub status: u64,
}

impl Span {
    /// Returns a string attribute; empty if it is missing.
    pub fn text(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", |value| value.as_str().unwrap())
    }

    /// Returns an integer attribute.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.attributes.get(name).map(|value| value.as_u64().unwrap())
    }
}

/// Returns the collector's answer to the request with this number and body; `None` for no answer. After an answer whose
/// last byte is 0 the connection stays open.
pub type Answer = Arc<dyn Fn(usize, &Value) -> Option<String> + Send + Sync>;

/// A running collector.
pub struct Collector {
    pub at: SocketAddr,
    /// Heads and bodies of the requests, in order of arrival.
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

/// Returns an answer with a body.
pub fn answer(status: &str, more: &str, body: &str) -> Option<String> {
    Some(format!("HTTP/1.1 {status}\r\n{more}content-length: {}\r\n\r\n{body}", body.len()))
}

impl Collector {
    /// Starts a collector that accepts everything.
    pub fn start() -> Collector {
        Collector::that(Arc::new(|_, _| answer("200 OK", "", "{}")))
    }

    /// Starts a collector whose answer depends on the request and its number, counted from 0; `None` means no answer.
    pub fn that(says: Answer) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = asked.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (kept, says) = (kept.clone(), says.clone());
                std::thread::spawn(move || serve(socket, &kept, &says));
            }
        });
        Collector { at, asked }
    }

    /// Starts a collector that accepts everything over TLS, as `localhost`. Returns it and the CA certificate as PEM.
    pub fn secured() -> (Collector, String) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let secret = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let config = builder.with_no_client_auth().with_single_cert(vec![own.der().clone()], secret).unwrap();
        let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
        let (at, asked) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let kept = asked.clone();
        let accepts: Answer = Arc::new(|_, _| answer("200 OK", "", "{}"));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let tls = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), socket);
                serve(tls, &kept, &accepts);
            }
        });
        (Collector { at, asked }, issuer.pem())
    }

    /// Returns the heads (in lower case) and bodies of the requests so far.
    pub fn asked(&self) -> Vec<(String, Value)> {
        self.asked.lock().unwrap().clone()
    }

    /// Returns all spans so far.
    pub fn spans(&self) -> Vec<Span> {
        self.asked().iter().flat_map(|(_, body)| spans(body)).collect()
    }

    /// Returns the spans of a trace, in order of arrival: the request's own first, then the attempts.
    pub fn trace(&self, trace: &str) -> Vec<Span> {
        self.spans().into_iter().filter(|span| span.trace == trace).collect()
    }
}

fn serve(socket: impl Read + Write, kept: &Mutex<Vec<(String, Value)>>, says: &Answer) {
    let mut reader = BufReader::new(socket);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        if line == "\r\n" {
            break;
        }
        let line = line.to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let body: Value = serde_json::from_slice(&body).expect("the body must be JSON");
    let number = {
        let mut kept = kept.lock().unwrap();
        kept.push((head, body.clone()));
        kept.len() - 1
    };
    let answer = says(number, &body);
    let whole = answer.as_deref().filter(|answer| !answer.ends_with('\0'));
    let sent = whole.or(answer.as_deref().map(|answer| &answer[..answer.len() - 1]));
    drop(reader.get_mut().write_all(sent.unwrap_or_default().as_bytes()));
    if whole.is_none() {
        // The sender must stay: otherwise the wait ends at once.
        let (_open, never) = mpsc::channel::<()>();
        let _ = never.recv_timeout(std::time::Duration::from_secs(600));
    }
}

/// Parses a 64-bit integer, which OTLP/JSON encodes as a string.
fn long(value: &Value) -> u64 {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a string")).parse().unwrap()
}

fn attributes(list: &Value) -> BTreeMap<String, Value> {
    let pairs = list.as_array().into_iter().flatten().map(|pair| {
        let value = &pair["value"];
        // The strings of a list are joined with commas.
        let texts = value["arrayValue"]["values"].as_array().map(|array| {
            let texts: Vec<&str> = array.iter().map(|text| text["stringValue"].as_str().unwrap()).collect();
            json!({"stringValue": texts.join(",")})
        });
        let value = texts.as_ref().unwrap_or(value);
        let plain = match (&value["stringValue"], &value["intValue"], &value["doubleValue"]) {
            (Value::String(text), Value::Null, Value::Null) => json!(text),
            (Value::Null, number @ Value::String(_), Value::Null) => json!(long(number)),
            (Value::Null, Value::Null, Value::Number(number)) => json!(number),
            _ => panic!("{pair} is not an attribute"),
        };
        (pair["key"].as_str().unwrap().to_string(), plain)
    });
    let (count, all) = (list.as_array().map_or(0, Vec::len), pairs.collect::<BTreeMap<_, _>>());
    assert_eq!(all.len(), count, "an attribute occurs twice: {list}");
    all
}

fn spans(body: &Value) -> Vec<Span> {
    let [resource] = body["resourceSpans"].as_array().unwrap().as_slice() else { panic!("{body}") };
    let of = attributes(&resource["resource"]["attributes"]);
    assert_eq!((of["service.name"].as_str(), of["service.version"].as_str()), (Some("tollgate"), Some("0.1.0")));
    let instance = of["service.instance.id"].as_str().unwrap();
    let [scope] = resource["scopeSpans"].as_array().unwrap().as_slice() else { panic!("{body}") };
    let text = |span: &Value, name: &str| span[name].as_str().unwrap_or_default().to_string();
    let read = |span: &Value| Span {
        instance: instance.to_string(),
        trace: text(span, "traceId"),
        id: text(span, "spanId"),
        parent: text(span, "parentSpanId"),
        state: text(span, "traceState"),
        name: text(span, "name"),
        kind: span["kind"].as_u64().unwrap(),
        flags: span["flags"].as_u64().unwrap(),
        start: long(&span["startTimeUnixNano"]),
        end: long(&span["endTimeUnixNano"]),
        attributes: attributes(&span["attributes"]),
        events: span["events"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|event| (text(event, "name"), long(&event["timeUnixNano"]), attributes(&event["attributes"])))
            .collect(),
        status: span["status"]["code"].as_u64().unwrap_or_default(),
    };
    let spans: Vec<Span> = scope["spans"].as_array().unwrap().iter().map(read).collect();
    for span in &spans {
        let hex = |text: &str, len| text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        assert!(hex(&span.trace, 32) && hex(&span.id, 16), "{span:?}");
        assert!(span.parent.is_empty() || hex(&span.parent, 16), "{span:?}");
        assert!(span.start <= span.end, "{span:?}");
    }
    spans
}
