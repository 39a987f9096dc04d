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
