//! Forms that are passed on while they arrive, to the simulated provider.

use super::client::{Answer, post};
use super::harness::{Harness, Setup, bearer, part, post_form};
use super::process::wait_for;
use serde_json::json;
use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::time::Duration;

const MODELS: &str = r#"
[[models]]
id = "media"
context = "8K"
serves = ["transcriptions"]
targets = [{ provider = "sim-chat", model = "media" }]
[[models]]
id = "pictures"
context = "8K"
serves = ["images"]
price_per_image = 0.04
targets = [{ provider = "sim-chat", model = "media" }]
"#;

fn start() -> Harness {
    Harness::start(&Setup { more: MODELS.to_owned(), ..Setup::default() })
}

fn send(h: &Harness, key: &str, path: &str, parts: &[(&str, &str)]) -> Answer {
    let part = |(name, content): &(&str, &str)| part(name, matches!(*name, "file" | "image").then_some("a"), content);
    h.client().ask(&post_form(path, key, &parts.iter().map(part).collect::<String>(), false))
}

/// Bytes that are left out wake no provider.
#[test]
fn field_of_any_size_that_is_left_out_does_not_stop_a_form() {
    let (h, sound) = (start(), "x".repeat(160_000));
    let key = h.key();
    for size in [60_000, 100_000, 3_000_000] {
        let unknown = "x".repeat(size);
        for parts in [
            [("model", "media"), ("file", &*sound), ("unknown", &*unknown)],
            [("model", "media"), ("unknown", &*unknown), ("file", "RIFF")],
            [("model", "media"), ("file", "RIFF"), ("unknown", &*unknown)],
        ] {
            let answer = send(&h, &key, "/v1/audio/transcriptions", &parts);
            assert_eq!(answer.status(), 200, "{size}: {}", answer.text());
        }
    }
    let many: Vec<(&str, &str)> =
        [("model", "media"), ("file", "RIFF")].into_iter().chain([("unknown", "x"); 3000]).collect();
    assert_eq!(send(&h, &key, "/v1/audio/transcriptions", &many).status(), 200);
}

#[test]
fn client_that_leaves_an_upload_is_noticed_while_the_provider_reads_nothing() {
    let provider = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let more = format!(
        "[[providers]]\nname = \"blocked\"\nshape = \"chat\"\nbase_url = \"http://{}/v1\"\n[[models]]\nid = \"blocked\"\n\
         context = \"8K\"\nserves = [\"transcriptions\"]\ntargets = [{{ provider = \"blocked\", model = \"m\" }}]\n",
        provider.local_addr().unwrap()
    );
    let h = Harness::start(&Setup { more, ..Setup::default() });
    let key = h.key();
    let request = post_form("/v1/audio/transcriptions", &key, &part("model", None, "blocked"), false);
    let head = String::from_utf8(request).unwrap();
    let head = head.replacen("content-length: ", "content-length: 90000", 1).replace("--b--\r\n", "");
    let mut client = h.client();
    client.send((head + "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n").as_bytes());
    client.send(&[b'x'; 1 << 20]);
    let (mut taken, _) = provider.accept().unwrap();
    drop(client);
    let left = wait_for("the log line", || h.log().into_iter().find(|line| line["status"] == 499));
    assert_eq!(left["cause"], "client left");
    // The connection to the provider ends, too.
    taken.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let ended = taken.read_to_end(&mut Vec::new());
    assert!(ended.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true), "{ended:?}");
}

#[test]
fn images_are_reserved_as_many_as_a_provider_may_read() {
    let h = start();
    let key = h.key_with(&["--budget", "1"]);
    for (count, status) in [
        (r#""\u0031\u0030\u0030""#, 429),
        ("\"+1000\"", 429),
        ("1000.5", 400),
        ("1e3", 429),
        ("[1000]", 400),
        ("true", 400),
        ("-1", 400),
    ] {
        let body = format!(r#"{{"model":"pictures","prompt":"a fox","n":{count}}}"#);
        let answer = h.client().ask(&post("/v1/images/generations", &[("authorization", &*bearer(&key))], &body));
        assert_eq!(answer.status(), status, "{count}: {}", answer.text());
    }
    let edit = [("model", "pictures"), ("prompt", "a fox"), ("image", "PNG"), ("n", "1"), ("n[]", "1000")];
    for parts in [edit, [edit[0], edit[1], edit[4], edit[3], edit[2]]] {
        let answer = send(&h, &key, "/v1/images/edits", &parts);
        assert_eq!((answer.status(), &answer.json()["error"]["message"]), (400, &json!("n: expected it only once")));
    }
}
