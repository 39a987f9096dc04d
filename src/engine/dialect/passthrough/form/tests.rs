use super::*;
use crate::dialect::RequestScan;
use crate::wire::Shape;

/// Blanks that are written at once.
const ROOM: usize = 10;

fn part(name: &str, more: &str, content: &str) -> String {
    format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"{more}\r\n\r\n{content}\r\n")
}

fn file(name: &str, content: &str) -> String {
    part(name, "; filename=\"a b.wav\"; filename*=UTF-8''%e2%82%ac.wav\r\nContent-Type: audio/wav", content)
}

fn form(parts: &[String]) -> String {
    format!("{}--b--\r\n", parts.concat())
}

/// Result of sending a form: the form, and its announced length.
type Sent = Result<(String, u64), String>;

/// Sends a form that arrives cut at `cuts`, as the gateway does.
fn sent(passthrough: Passthrough, body: &str, cuts: &[usize], takes: &Capabilities) -> Sent {
    let body = body.as_bytes();
    let mut scan = RequestScan::new();
    scan.reset_form(passthrough, b"b", Some(body.len() as u64), 1 << 20);
    let with = RequestTarget { model: "up", shape: Shape::Chat, capabilities: takes, cache_key: None };
    let (mut writer, mut length, mut out, mut used): (Option<FormWriter>, u64, Vec<u8>, usize) =
        (None, 0, Vec::new(), 0);
    for end in cuts.iter().copied().chain([body.len()]) {
        let complete = end == body.len();
        if writer.is_none() {
            let scanned = if complete { scan.finish(&body[..end]) } else { scan.feed(&body[..end]) };
            scanned.map_err(|Invalid(why)| why)?;
            if scan.form().unwrap().may_be_sent {
                let mut own = FormWriter::new(scan.form().unwrap(), scan.fields(), &with);
                length = own.announce(&body[..end], complete, body.len() as u64).map_err(|Invalid(why)| why)?;
                writer = Some(own);
            }
        }
        if let Some(writer) = &mut writer {
            let before = out.len();
            used += writer.write(&body[used..end], complete, ROOM, &mut out).map_err(|Invalid(why)| why)?;
            assert!(
                out.len() - before <= end + ROOM + 100,
                "{} bytes are put into the queue at once",
                out.len() - before
            );
            while complete && writer.missing() > 0 {
                let before = out.len();
                assert_eq!(writer.write(&[], complete, ROOM, &mut out), Ok(0));
                assert!((1..=ROOM).contains(&(out.len() - before)));
            }
        }
    }
    Ok((String::from_utf8(out).unwrap(), length))
}

fn whole(passthrough: Passthrough, body: &str) -> Sent {
    sent(passthrough, body, &[], &Capabilities::default())
}

const WORDS: Passthrough = Passthrough::Transcriptions;

#[test]
fn every_cut_sends_the_same_form_of_the_announced_length() {
    let audio = format!("RIFF\r\n--\r\n--a{}\r", "x".repeat(100));
    let takes = Capabilities { drop_params: vec!["temperature".to_string()], ..Capabilities::default() };
    let body = form(&[
        part("api_base", "", "http://x"),
        part("language", "", "de"),
        part("model", "", "small"),
        file("file", &audio),
        part("timestamp_granularities[]", "", "word"),
        part("temperature", "", "0"),
        part("mystery", "", "1"),
    ]);
    let expected = form(&[
        part("language", "", "de"),
        part("model", "", "up"),
        file("file", &audio),
        part("timestamp_granularities[]", "", "word"),
    ]);
    for one in 1..body.len() {
        let (form, length) = sent(WORDS, &body, &[one], &takes).unwrap();
        assert_eq!((form.trim_end_matches(' '), form.len() as u64), (&*expected, length), "{one}");
        let (form, length) = sent(WORDS, &body, &[one, one + (body.len() - one) / 2], &takes).unwrap();
        assert_eq!((form.trim_end_matches(' '), form.len() as u64), (&*expected, length), "{one}");
    }
    let each: Vec<usize> = (1..body.len()).collect();
    let (form, length) = sent(WORDS, &body, &each, &takes).unwrap();
    assert_eq!((form.trim_end_matches(' '), form.len() as u64), (&*expected, length));
}

#[test]
fn model_is_found_behind_a_small_file_and_required_before_a_large_one() {
    let large = "x".repeat(UPLOAD_HOLD);
    let (model, small) = (part("model", "", "small"), file("file", "RIFF"));
    let (sent_form, length) = whole(WORDS, &form(&[small.clone(), model.clone()])).unwrap();
    assert_eq!((sent_form.len() as u64, sent_form), (length, form(&[small.clone(), part("model", "", "up")])));
    let late = form(&[file("file", &large), model.clone()]);
    let refused = sent(WORDS, &late, &[UPLOAD_HOLD], &Capabilities::default());
    assert_eq!(refused, Err("model: expected it before the file, or within the first 248 KiB".to_string()));
    // Without a model the default one is added.
    let (sent_form, length) = whole(WORDS, &form(&[small])).unwrap();
    assert!(
        sent_form.starts_with("--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nup\r\n--b\r\n"),
        "{sent_form}"
    );
    assert_eq!(sent_form.len() as u64, length);
}

#[test]
fn fields_that_are_read_are_validated() {
    let with =
        |parts: &[String]| whole(Passthrough::ImageEdits, &form(&[&[part("model", "", "small")], parts].concat()));
    let image = file("image[]", "PNG");
    assert!(
        with(&[image.clone(), part("n", "", "3"), part("stream", "", "true"), part("prompt", "", "a fox")]).is_ok()
    );
    for (field, why) in [
        (part("n", "", "0"), "n: expected an integer of at least 1"),
        ([part("n", "", "1"), part("n[]", "", "1000")].concat(), "n: expected it only once"),
        (part("n", "", "many"), "n: expected an integer of at least 1"),
        (part("stream", "", "maybe"), "stream: expected true or false"),
        (part("model", "", "large"), "model: expected it only once"),
    ] {
        assert_eq!(with(&[field, image.clone()]), Err(why.to_string()));
    }
    let file_as_model = form(&[file("model", "small"), image]);
    assert_eq!(whole(WORDS, &file_as_model), Err("model: expected a text".to_string()));
}

/// A missing model would be the default model.
#[test]
fn model_that_is_not_utf8_is_not_missing() {
    let mut body = form(&[part("model", "", "sm|all"), file("file", "a")]).into_bytes();
    body.iter_mut().filter(|byte| **byte == b'|').for_each(|byte| *byte = 0xff);
    let mut scan = RequestScan::new();
    scan.reset_form(WORDS, b"b", Some(body.len() as u64), 1 << 20);
    assert_eq!(scan.finish(&body).unwrap_err().0, "model: expected UTF-8");
}

#[test]
fn length_in_the_head_of_the_model_is_not_sent() {
    let model = part("model", "\r\nContent-Length: 5", "small");
    let (sent_form, _) = whole(WORDS, &form(&[model, file("file", "a")])).unwrap();
    assert_eq!(sent_form, form(&[part("model", "", "up"), file("file", "a")]));
}

#[test]
fn fields_behind_the_file_are_checked_while_it_is_sent() {
    let of = |image: &str| [part("model", "", "small"), part("prompt", "", "fox"), file("image", image)].concat();
    let before = of(&"x".repeat(UPLOAD_HOLD));
    let cut = before.len() - 2;
    let edits =
        |more: &str| sent(Passthrough::ImageEdits, &format!("{before}{more}"), &[cut], &Capabilities::default());
    let late = "n: expected it within the first 248 KiB".to_string();
    assert_eq!(edits(&form(&[part("n", "", "2")])), Err(late.clone()));
    assert_eq!(edits(&form(&[part("n[]", "", "2")])), Err(late));
    let counted = format!("{}{before}", part("n", "", "1"));
    let cut = counted.len() - 2;
    for again in ["n", "n[]"] {
        let twice = format!("{counted}{}", form(&[part(again, "", "10")]));
        let once = Err("n: expected it only once".to_string());
        assert_eq!(sent(Passthrough::ImageEdits, &twice, &[cut], &Capabilities::default()), once);
    }
    let small = format!("{}{}", of("PNG"), form(&[part("n", "", "2")]));
    let each: Vec<usize> = (1..small.len()).collect();
    assert!(sent(Passthrough::ImageEdits, &small, &each, &Capabilities::default()).is_ok(), "in any pieces");
    assert_eq!(edits(&form(&[part("model", "", "b")])), Err("model: expected it only once".to_string()));
    assert_eq!(edits("--b"), Err("the body: ended before its closing boundary".to_string()));
    let (form, length) = edits(&form(&[part("store", "", "true"), part("size", "", "1x1")])).unwrap();
    assert!(form.contains("size") && !form.contains("store"), "{form}");
    assert_eq!(form.len() as u64, length);
}

#[test]
fn unknown_fields_follow_the_provider() {
    let takes = |unknown| Capabilities { unknown, ..Capabilities::default() };
    let body = form(&[
        part("model", "", "s"),
        part("hotwords", "", "x"),
        part("api_key", "", "x"),
        part("top_k", "", "1"),
        file("file", "a"),
    ]);
    let has = |unknown, name: &str| sent(WORDS, &body, &[], &takes(unknown)).unwrap().0.contains(name);
    for (unknown, hotwords, top_k) in [
        (UnknownMembers::Drop, false, false),
        (UnknownMembers::Local, false, true),
        (UnknownMembers::Forward, true, true),
    ] {
        assert_eq!(
            (has(unknown, "hotwords"), has(unknown, "top_k"), has(unknown, "api_key")),
            (hotwords, top_k, false)
        );
    }
}

#[test]
fn fields_that_are_read_occur_once_and_required_ones_occur() {
    let words = |more: &[String]| whole(WORDS, &form(&[&[part("model", "", "small")], more].concat()));
    let edits =
        |more: &[String]| whole(Passthrough::ImageEdits, &form(&[&[part("model", "", "small")], more].concat()));
    let once = |name: &str| Err(format!("{name}: expected it only once"));
    let missing = |name: &str| Err(format!("{name}: missing"));
    let sound = || file("file", "a");
    for name in ["stream", "response_format"] {
        let twice = [part(name, "", "false"), part(name, "", "false")];
        assert_eq!(words(&[&twice[..], &[sound()]].concat()), once(name));
        // A field behind the file is read while the form is sent.
        assert_eq!(words(&[twice[0].clone(), sound(), twice[1].clone()]), once(name));
        assert_eq!(words(&[&[sound()][..], &twice[..]].concat()), once(name));
    }
    assert_eq!((words(&[]), words(&[part("language", "", "de")])), (missing("file"), missing("file")));
    assert_eq!(edits(&[part("prompt", "", "fox")]), missing("image"));
    assert_eq!(edits(&[file("image", "PNG")]), missing("prompt"));
    for image in ["image", "image[]"] {
        assert!(edits(&[file(image, "PNG"), part("prompt", "", "fox")]).is_ok());
    }
    let late = format!("{}{}", part("model", "", "small"), part("language", "", &"x".repeat(UPLOAD_HOLD)));
    let cut = [late.len() - 2];
    assert_eq!(sent(WORDS, &format!("{late}--b--\r\n"), &cut, &Capabilities::default()), missing("file"));
}

#[test]
fn empty_model_counts_as_missing() {
    let body = form(&[part("model", "", ""), file("file", "a")]);
    let (sent_form, _) = whole(WORDS, &body).unwrap();
    assert_eq!(sent_form, form(&[part("model", "", "up"), file("file", "a")]));
    let list = form(&[part("model", "", "small"), part("model[]", "", "large"), file("file", "a")]);
    assert!(!whole(WORDS, &list).unwrap().0.contains("model[]"), "only one model is sent");
    assert_eq!(whole(WORDS, &list).unwrap().0.matches("name=\"model").count(), 1);
    let twice = form(&[part("model", "", ""), part("model", "", "small"), file("file", "a")]);
    assert_eq!(whole(WORDS, &twice), Err("model: expected it only once".to_string()));
}
