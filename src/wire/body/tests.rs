//! Tests of bodies in one piece, byte by byte, split once anywhere, and followed by the next message.

use super::*;
use crate::base::limits::CHUNK_LINE_MAX;

/// Feeds `parts` one after another. Returns the payload, the remaining bytes, and whether the body is complete.
fn feed(framing: Framing, parts: &[&[u8]]) -> Result<(Vec<u8>, Vec<u8>, bool), BodyError> {
    let mut reader = BodyReader::new(framing);
    let (mut payload, mut rest) = (Vec::new(), Vec::new());
    for part in parts {
        let mut input = *part;
        while !reader.is_done() {
            let piece = reader.next(input)?;
            assert!(piece.data.end <= piece.consumed && piece.consumed <= input.len());
            payload.extend_from_slice(&input[piece.data.clone()]);
            input = &input[piece.consumed..];
            if piece.consumed == 0 {
                break;
            }
        }
        assert!(reader.is_done() || input.is_empty(), "an unfinished body must consume all bytes");
        rest.extend_from_slice(input);
    }
    Ok((payload, rest, reader.is_done()))
}

/// Checks that all splits of the input give the same result. Returns the payload, the bytes after the body, and whether
/// it is complete.
fn read(framing: Framing, input: &[u8]) -> Result<(Vec<u8>, Vec<u8>, bool), BodyError> {
    let whole = feed(framing, &[input]);
    let bytes: Vec<&[u8]> = input.chunks(1).collect();
    assert_eq!(feed(framing, &bytes), whole);
    for at in 0..=input.len() {
        let (front, back) = input.split_at(at);
        assert_eq!(feed(framing, &[front, back]), whole);
    }
    whole
}

fn chunked(input: &[u8]) -> Result<(Vec<u8>, Vec<u8>, bool), BodyError> {
    read(Framing::Chunked, input)
}

#[test]
fn body_of_declared_length_leaves_the_rest() {
    assert_eq!(read(Framing::Length(3), b"abc"), Ok((b"abc".into(), b"".into(), true)));
    assert_eq!(read(Framing::Length(3), b"abcGET /"), Ok((b"abc".into(), b"GET /".into(), true)));
    assert_eq!(read(Framing::Length(3), b"ab"), Ok((b"ab".into(), b"".into(), false)));
    assert_eq!(read(Framing::Length(0), b"GET /"), Ok((b"".into(), b"GET /".into(), true)));
    assert_eq!(read(Framing::None, b"GET /"), Ok((b"".into(), b"GET /".into(), true)));
    assert_eq!(read(Framing::Length(u64::MAX), b"ab"), Ok((b"ab".into(), b"".into(), false)));
}

#[test]
fn body_without_length_ends_with_the_connection() {
    assert_eq!(read(Framing::ToEnd, b"abc"), Ok((b"abc".into(), b"".into(), false)));
    let mut reader = BodyReader::new(Framing::ToEnd);
    assert_eq!((reader.end(), reader.is_done()), (Ok(()), true));
}

#[test]
fn chunks_are_joined_and_leave_the_rest() {
    let cases: [(&[u8], &[u8]); 8] = [
        (b"0\r\n\r\n", b""),
        (b"3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n", b"abc0123456789"),
        (b"00a\r\n0123456789\r\n000\r\n\r\n", b"0123456789"),
        (b"3;a=b;c=\"d\"\r\nabc\r\n0;x\r\n\r\n", b"abc"),
        (b"2\r\n\r\n\r\n0\r\n\r\n", b"\r\n"),
        (b"1\r\na\r\n0\r\nX: y\r\nZ:\r\n\r\n", b"a"),
        (b"1\r\n\0\r\n0\r\n\r\n", b"\0"),
    ];
    for (input, payload) in cases {
        assert_eq!(chunked(input), Ok((payload.into(), b"".into(), true)));
        let tailed = [input, b"GET / HTTP/1.1\r\n"].concat();
        assert_eq!(chunked(&tailed), Ok((payload.into(), b"GET / HTTP/1.1\r\n".into(), true)));
        let (_, _, done) = chunked(&input[..input.len() - 1]).unwrap();
        assert!(!done);
    }
}

#[test]
fn malformed_chunks_are_refused() {
    let cases: [&[u8]; 24] = [
        b"\r\n",
        b"g\r\n",
        b"-1\r\n",
        b"+1\r\na\r\n",
        b"0x1\r\na\r\n",
        b" 1\r\na\r\n",
        b"1 \r\na\r\n",
        b"1 ;a\r\na\r\n",
        b"1\na\r\n",
        b"1\rXa\r\n",
        b"1;a\nb\r\na\r\n",
        b"1;a\x00\r\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n0\r\n\r\n",
        b"1\r\na\rX",
        b"1\r\na0\r\n\r\n",
        b"10000000000000000x\r\n",
        b"ffffffffffffffff0 \r\n",
        b"0\r\n\n",
        b"0\r\n\rX",
        b"0\r\n a: b\r\n\r\n",
        b"0\r\na: b\n\r\n",
        b"0\r\na: b\rX",
        b"0\r\na: \x01\r\n\r\n",
    ];
    for case in cases {
        assert_eq!(chunked(case), Err(BodyError::BadChunk), "{:?}", String::from_utf8_lossy(case));
    }
}

#[test]
fn size_lines_and_trailers_are_bounded() {
    let line = |count: usize| [b"1;".as_slice(), &vec![b'x'; count - 2], b"\r\na\r\n0\r\n\r\n"].concat();
    assert!(feed(Framing::Chunked, &[&line(CHUNK_LINE_MAX)]).is_ok());
    assert_eq!(feed(Framing::Chunked, &[&line(CHUNK_LINE_MAX + 1)]), Err(BodyError::TooLong));
    let zeros = [vec![b'0'; CHUNK_LINE_MAX + 1], b"\r\n\r\n".to_vec()].concat();
    assert_eq!(feed(Framing::Chunked, &[&zeros]), Err(BodyError::TooLong));
    let trailers = [b"0\r\n".to_vec(), b"a: b\r\n".repeat(CHUNK_LINE_MAX / 4 + 1), b"\r\n".to_vec()].concat();
    for bad in [&b"0\r\nx a\r\n\r\n"[..], b"0\r\n: a\r\n\r\n", b"0\r\na b: c\r\n\r\n", b"0\r\nx\r\n\r\n"] {
        assert_eq!(feed(Framing::Chunked, &[bad]), Err(BodyError::BadChunk), "{}", String::from_utf8_lossy(bad));
    }
    assert_eq!(feed(Framing::Chunked, &[&trailers]), Err(BodyError::TooLong));
}

#[test]
fn an_early_end_truncates() {
    for framing in [Framing::Length(2), Framing::Chunked] {
        assert_eq!(BodyReader::new(framing).end(), Err(BodyError::Truncated));
    }
    assert_eq!(BodyReader::new(Framing::None).end(), Ok(()));
}

#[test]
fn written_chunks_are_read_back() {
    let mut out = Vec::new();
    let parts: [&[u8]; 5] = [b"a", b"", &[7; 15], &[8; 16], &[9; 70_000]];
    for part in parts {
        write_chunk(&mut out, part);
    }
    out.extend_from_slice(LAST_CHUNK);
    assert!(out.starts_with(b"1\r\na\r\nf\r\n"));
    assert_eq!(feed(Framing::Chunked, &[&out]), Ok((parts.concat(), Vec::new(), true)));
}

#[test]
fn a_reader_is_small() {
    assert!(size_of::<BodyReader>() <= 16);
}

#[test]
fn chunk_size_may_have_any_number_of_digits() {
    for line in ["10000000000000000", "ffffffffffffffff0", "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF;x=y"] {
        let mut reader = BodyReader::new(Framing::Chunked);
        let line = format!("{line}\r\n");
        let piece = reader.next(line.as_bytes()).unwrap();
        assert_eq!((piece.consumed, reader.promised()), (line.len(), u64::MAX), "{line}");
    }
}
