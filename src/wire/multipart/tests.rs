use super::*;

/// A piece with its bytes.
type Seen = (String, Vec<u8>);

/// Reads a body that arrives cut at `cuts`. Consecutive pieces of content are joined.
fn read(body: &[u8], cuts: &[usize]) -> Result<Vec<Seen>, Malformed> {
    let mut reader = Multipart::new(b"b0");
    let (mut seen, mut used): (Vec<Seen>, usize) = (Vec::new(), 0);
    for end in cuts.iter().copied().chain([body.len()]) {
        while let Some((piece, length)) = reader.next(&body[used..end], end == body.len())? {
            let bytes = &body[used..used + length];
            let word = match piece {
                FormPiece::Part { name, is_file } => {
                    format!("{}{}", String::from_utf8_lossy(name.of(bytes)), if is_file { "*" } else { "" })
                }
                FormPiece::Data => "data".to_string(),
                FormPiece::End => "end".to_string(),
                FormPiece::Rest => "rest".to_string(),
            };
            used += length;
            match seen.last_mut() {
                Some((last, known)) if *last == word && matches!(piece, FormPiece::Data | FormPiece::Rest) => {
                    known.extend(bytes)
                }
                _ => seen.push((word, bytes.to_vec())),
            }
        }
    }
    assert!(reader.is_over() && used == body.len(), "{used}");
    Ok(seen)
}

fn words(body: &str) -> Result<Vec<String>, Malformed> {
    let seen = read(body.as_bytes(), &[])?;
    let data =
        |(word, bytes): Seen| if word == "data" { format!("={}", String::from_utf8_lossy(&bytes)) } else { word };
    Ok(seen.into_iter().map(data).collect())
}

const FILE: &str = "--b0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a \\\"b\\\"; name=x.wav\"; \
                    filename*=UTF-8''%e2%82%ac.wav\r\nContent-Type: audio/wav\r\n\r\nRI\rFF\r\n--b\n\r\n-\r\n--b0 \t\r\n\
                    content-disposition:form-data;name=model\r\n\r\nm\r\n--b0\r\nContent-Disposition: form-data; name=\"n\"\r\n\
                    \r\n\r\n--b0--\r\n";

#[test]
fn every_cut_gives_the_same_pieces() {
    let body = FILE.as_bytes();
    let whole = read(body, &[]).unwrap();
    let kinds: Vec<&str> = whole.iter().map(|(word, _)| word.as_str()).collect();
    assert_eq!(kinds, ["file*", "data", "model", "data", "n", "end", "rest"]);
    assert_eq!((&*whole[1].1, &*whole[3].1), (&b"RI\rFF\r\n--b\n\r\n-"[..], &b"m"[..]));
    assert_eq!(whole.iter().flat_map(|(_, bytes)| bytes.clone()).collect::<Vec<u8>>(), body);
    for one in 0..=body.len() {
        assert_eq!(read(body, &[one]).unwrap(), whole, "{one}");
        for two in (one..=body.len()).step_by(7) {
            assert_eq!(read(body, &[one, two]).unwrap(), whole, "{one} {two}");
        }
    }
    assert_eq!(read(body, &(0..body.len()).collect::<Vec<_>>()).unwrap(), whole);
}

#[test]
fn boundaries_have_1_to_70_characters() {
    let of = |text: &str| boundary(text.as_bytes()).map(|found| String::from_utf8_lossy(found).into_owned());
    assert_eq!(of("multipart/form-data; boundary=a"), Some("a".into()));
    assert_eq!(of("Multipart/Form-Data ;charset=utf-8; BOUNDARY=\"a (b)/c\""), Some("a (b)/c".into()));
    let long = "x".repeat(70);
    assert_eq!(of(&format!("multipart/form-data; boundary={long}")), Some(long.clone()));
    for wrong in [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"a \"",
        "multipart/form-data; boundary=\"a",
        "multipart/form-data; boundary=a; boundary=b",
        "multipart/form-data; boundary=\"a\\\"b\"",
        "multipart/mixed; boundary=a",
        "application/json",
        &format!("multipart/form-data; boundary={long}x"),
    ] {
        assert_eq!(of(wrong), None, "{wrong}");
    }
}

#[test]
fn forms_that_two_readers_could_understand_differently_are_errors() {
    let part = |head: &str| format!("--b0\r\n{head}\r\n\r\nv\r\n--b0--");
    let named = "Content-Disposition: form-data; name=\"a\"";
    assert_eq!(words(&part(named)).unwrap(), ["a", "=v", "end"]);
    assert_eq!(words(&format!("\r\n{}", part(named))).unwrap(), ["a", "=v", "end"]);
    for (head, why) in [
        ("", NO_NAME),
        ("Content-Type: text/plain", NO_NAME),
        ("Content-Disposition: form-data", NO_NAME),
        ("Content-Disposition: attachment; name=\"a\"", NO_NAME),
        ("Content-Disposition: form-data; name=\"a\"; name=\"b\"", NO_NAME),
        ("Content-Disposition: form-data; name=\"a\"; NAME*=UTF-8''b", NO_NAME),
        ("Content-Disposition: form-data; name=\"a\\\"b\"", NO_NAME),
        ("Content-Disposition: form-data; name=\"\"", NO_NAME),
        ("Content-Disposition: form-data; name=\"a", BAD_HEAD),
        ("Content-Disposition: form-data; name=\"a\" x", BAD_HEAD),
        ("Content-Disposition: form-data; name", BAD_HEAD),
        ("Content-Disposition : form-data; name=\"a\"", BAD_HEAD),
        ("Content-Disposition: form-data;\r\n name=\"a\"", NO_NAME),
        ("Content-Disposition: form-data; name=\"a\"\r\n x: y", BAD_HEAD),
        ("Content-Disposition: form-data; name=\"a\"\rX: y", BAD_HEAD),
        ("Content-Disposition: form-data; name=\"a\"\nX: y\0", BAD_HEAD),
        ("Content-Disposition: form-data; name=\"a\"\r\nContent-Disposition: form-data; name=\"b\"", NO_NAME),
        ("Content-Disposition: form-data; name=\"a\"\r\nContent-Transfer-Encoding: base64", ENCODED),
        // A second name in pieces, with a language, and names that some readers decode.
        ("Content-Disposition: form-data; name=\"a\"; name*0=\"mo\"; name*1=\"del\"", NO_NAME),
        ("Content-Disposition: form-data; name=\"a\"; name*0*=utf-8''b", NO_NAME),
        ("Content-Disposition: form-data; name=\"=?utf-8?B?bW9kZWw=?=\"", NO_NAME),
        ("Content-Disposition: form-data; name=\"a;name=b\"", NO_NAME),
        ("Content-Disposition: form-data; name=\"a \"", NO_NAME),
        ("Content-Disposition: form-data; name=a\"b", NO_NAME),
        ("Content-Disposition: form-data; name=a b", NO_NAME),
        ("Content-Disposition: form-data; name='a'", NO_NAME),
        ("Content-Disposition: form-data; name=a; x=y", NO_NAME),
        ("Content-Disposition: form-data; name=a; filename=b; filename=c", NO_NAME),
        ("Content-Disposition: form-data; name=a; filename*=utf-8''b; FileName*=utf-8''c", NO_NAME),
        ("Content-Disposition: form-data; name=a; filename=b name=c", NO_NAME),
        ("Content-Disposition: form-data; name=a; filename=b\"; name=\"c", NO_NAME),
        ("Content-Disposition: form-data; name=a; filename*0=\"b\"; filename*1=\"c\"", NO_NAME),
        ("Content-Disposition: form-data; name=a\r\nContent-Type: multipart/mixed; boundary=c", BAD_HEAD),
        ("Content-Disposition: form-data; name=a\r\nContent-Type: text/plain\r\ncontent-type: text/html", BAD_HEAD),
    ] {
        assert_eq!(words(&part(head)), Err(why), "{head:?}");
    }
    let longest = format!("{named}\r\nx: {}", "y".repeat(PART_HEAD_MAX));
    for (body, why) in [
        ("", NO_DELIMITER),
        ("preamble\r\n--b0--", NO_DELIMITER),
        ("--b1\r\n", NO_DELIMITER),
        ("--b0\nContent-Disposition: form-data; name=\"a\"\n\nv\n--b0--", NO_DELIMITER),
        ("--b0", CUT_OFF),
        ("--b0\r\n", CUT_OFF),
        (&format!("--b0\r\n{named}\r\n\r\nv"), CUT_OFF),
        (&format!("--b0\r\n{named}\r\n\r\nv\r\n--b0"), CUT_OFF),
        (&format!("--b0\r\n{named}\r\n\r\nv\r\n--b0x\r\n"), NO_DELIMITER),
        (&format!("--b0\r\n{named}\r\n\r\nv\n--b0\r\n{named}\r\n\r\n\r\n--b0--"), BARE),
        (&format!("--b0\r\n{named}\r\n\r\n--b0\r\n{named}\r\n\r\n\r\n--b0--"), BARE),
        (&format!("--b0\r\n{named}\r\n\r\nv\r\n--b0--\r\n--b0\r\n{named}\r\n\r\nv\r\n--b0--"), TRAILING),
        (&part(&longest), LONG_HEAD),
    ] {
        assert_eq!(words(body), Err(why), "{body:?}");
    }
}

/// The first parameter `name` in pieces of a `content-disposition`.
fn first_name<'a>(mut pieces: impl Iterator<Item = &'a str>) -> String {
    let found = pieces.find_map(|piece| piece.trim().strip_prefix("name="));
    found.unwrap_or_default().trim_matches('"').to_owned()
}

/// Splits at each semicolon that is not between the quotes that `ends` finds: it is given the text before a quote.
fn split(line: &str, ends: fn(&str) -> bool) -> Vec<&str> {
    let (mut pieces, mut from, mut is_quoted) = (Vec::new(), 0, false);
    for (at, mark) in line.match_indices(['"', ';']) {
        match mark {
            "\"" => is_quoted ^= !is_quoted || ends(&line[..at]),
            _ if is_quoted => {}
            _ => {
                pieces.push(&line[from..at]);
                from = at + 1;
            }
        }
    }
    pieces.push(&line[from..]);
    pieces
}

/// Reads the name of a part from its head.
type PartReader = fn(&str) -> String;

/// Readers of other servers, by the rule in which they differ.
const READERS: [(&str, PartReader); 5] = [
    ("splits at each semicolon", |line| first_name(line.split(';'))),
    ("knows no escapes", |line| first_name(split(line, |_| true).into_iter())),
    ("knows escapes", |line| {
        first_name(
            split(line, |text| text.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0).into_iter(),
        )
    }),
    ("takes any quote behind a backslash for escaped", |line| {
        first_name(split(line, |text| !text.ends_with('\\')).into_iter())
    }),
    ("takes the first `name=`, even in quotes", |line| {
        let begins = |at: &usize| !line[..*at].ends_with(|before: char| before.is_ascii_alphanumeric());
        let at = line.match_indices("name=").map(|(at, _)| at).find(begins).unwrap();
        first_name([line[at..].split([';', ' ']).next().unwrap()].into_iter())
    }),
];

#[test]
fn head_that_is_written_has_one_name_for_every_reader() {
    for (head, written) in [
        ("form-data; name=\"a\"", "form-data; name=\"a\""),
        ("form-data;name=a", "form-data;name=a"),
        ("form-data; name=\"a[]\"; filename=\"x.wav\"", "form-data; name=\"a[]\"; filename=\"x.wav\""),
        ("form-data; filename=\"; name=b; x=\"; name=a", "form-data; filename=\"_ name_b_ x_\"; name=a"),
        ("form-data; filename=\"x name=b y\"; name=\"a\"", "form-data; filename=\"x name_b y\"; name=\"a\""),
        ("form-data; filename=\"\\\"; name=b; x=\\\"\"; name=a", "form-data; filename=\"___ name_b_ x___\"; name=a"),
        ("form-data; filename=\"\\\\\"; name=a", "form-data; filename=\"__\"; name=a"),
        ("form-data; filename=\"C:\\d\\x.wav\"; name=a", "form-data; filename=\"C:_d_x.wav\"; name=a"),
        ("form-data; name=a; filename*=UTF-8''%3Bname%3Db", "form-data; name=a; filename*=UTF-8''%3Bname%3Db"),
    ] {
        let body =
            format!("--b0\r\nX-Name: name=b\r\nContent-Type: a/b\r\nContent-Disposition: {head}\r\n\r\nv\r\n--b0--");
        let (seen, mut out) = (read(body.as_bytes(), &[]).unwrap(), Vec::new());
        assert_eq!(seen[0].0.trim_end_matches('*').trim_end_matches("[]"), "a", "{head}");
        write_head(&seen[0].1, &mut out);
        let expected = format!("\r\nContent-Disposition: {written}\r\nContent-Type: a/b\r\n\r\n");
        assert_eq!(String::from_utf8(out).unwrap(), expected, "{head}");
        for (rule, reader) in READERS {
            assert_eq!(reader(written).trim_end_matches("[]"), "a", "{written}: a reader that {rule}");
        }
    }
}
