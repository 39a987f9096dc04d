//! Tests of whole connections in one piece, byte by byte and split anywhere; of bounds; and that all storage is
//! returned.

use super::*;
use crate::wire::head::Method;

const HEADER: usize = 16 * 1024;
const BODY: u64 = 1000;

fn pool() -> Pool {
    Pool::new(usize::MAX)
}

/// Returns the requests of a connection: `METHOD path body` each, or the refusal, after which there is nothing.
fn serve(parts: &[&[u8]], discard: impl Fn(&[u8]) -> bool) -> Vec<String> {
    let (mut pool, mut inbound, mut said) = (pool(), Inbound::new(), Vec::new());
    let mut current: Option<RequestHead> = None;
    let mut dropping = false;
    for part in parts {
        match inbound.push(&mut pool, part) {
            Ok(()) => {}
            Err(PushError::Body(BodyRefusal::TooLarge)) => {
                said.push("413".into());
                inbound.begin_discard(&mut pool).unwrap();
                (current, dropping) = (None, true);
            }
            Err(error) => {
                said.push(format!("{error:?}"));
                return said;
            }
        }
        loop {
            if dropping {
                if !inbound.discarded() {
                    break;
                }
                dropping = false;
            }
            if current.is_none() {
                match inbound.head(&mut pool, HEADER) {
                    Ok(None) => break,
                    Err(error) => {
                        said.push(error.status.to_string());
                        return said;
                    }
                    Ok(Some(head)) if discard(head.path.of(inbound.message().0)) => {
                        said.push("refused".into());
                        if let Err(error) = inbound.begin_discard(&mut pool) {
                            said.push(format!("{:?}", PushError::Body(BodyRefusal::Bad(error))));
                            return said;
                        }
                        dropping = true;
                        continue;
                    }
                    Ok(Some(head)) => match inbound.begin_body(&head, BODY) {
                        Ok(_) => current = Some(head),
                        Err(BodyRefusal::TooLarge) => {
                            said.push("413".into());
                            inbound.begin_discard(&mut pool).unwrap();
                            dropping = true;
                            continue;
                        }
                        Err(error) => {
                            said.push(format!("{:?}", PushError::Body(error)));
                            return said;
                        }
                    },
                }
            }
            let Some(head) = current else { break };
            if !inbound.body_progress().1 {
                break;
            }
            let (bytes, body) = inbound.message();
            let path = String::from_utf8_lossy(head.path.of(bytes)).into_owned();
            let body = String::from_utf8_lossy(body).into_owned();
            said.push(format!("{:?} {path} {body}", head.method));
            inbound.release(&mut pool);
            current = None;
        }
    }
    if inbound.is_idle() {
        assert_eq!(pool.lent(), 0, "an idle connection must use no storage");
    }
    inbound.clear(&mut pool);
    assert_eq!(pool.lent(), 0);
    said
}

/// Checks that the result is the same however the bytes are split. "refused" is for paths that begin with `/no`.
fn all_ways(input: &[u8]) -> Vec<String> {
    let discard = |path: &[u8]| path.starts_with(b"/no");
    let whole = serve(&[input], discard);
    let bytes: Vec<&[u8]> = input.chunks(1).collect();
    assert_eq!(serve(&bytes, discard), whole, "byte by byte");
    for at in 1..input.len() {
        let (front, back) = input.split_at(at);
        assert_eq!(serve(&[front, back], discard), whole, "split at {at}");
    }
    whole
}

#[test]
fn requests_are_complete_and_in_order() {
    let input = b"\r\nPOST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc\
        GET /b HTTP/1.1\r\nHost: h\r\n\r\n\r\n\
        POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n1;x\r\nf\r\n0\r\nt: u\r\n\r\n\
        HEAD /d HTTP/1.0\r\n\r\n";
    assert_eq!(all_ways(input), ["Post /a abc", "Get /b ", "Post /c def", "Head /d "]);
}

#[test]
fn refused_body_is_dropped_before_the_next_request() {
    let input = b"POST /no HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nGETGET /b HTTP/1.1\r\nHost: h\r\n\r\n\
        POST /no HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n0\r\n\r\n\
        GET /no HTTP/1.1\r\nHost: h\r\n\r\nGET /c HTTP/1.1\r\nHost: h\r\n\r\n";
    assert_eq!(all_ways(input), ["refused", "Get /b ", "refused", "refused", "Get /c "]);
}

#[test]
fn body_over_the_bound_is_refused_before_the_next_request() {
    let declared = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n".to_vec();
    let next = b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n";
    assert_eq!(all_ways(&[&declared, &vec![b'x'; 1001][..], next].concat()), ["413", "Get /b "]);
    let chunked = b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n".to_vec();
    let filled = [&chunked, &vec![b'x'; 1000][..], b"\r\n"].concat();
    assert_eq!(all_ways(&[&filled, &b"1\r\ny\r\n2\r\nyy\r\n0\r\n\r\n"[..], next].concat()), ["413", "Get /b "]);
    assert_eq!(all_ways(&[&filled, &b"0\r\n\r\n"[..], next].concat())[1], "Get /b ");
}

#[test]
fn a_chunk_that_cannot_fit_is_refused_when_its_size_is_known() {
    let head = b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    let half = format!("1f4\r\n{}\r\n", "x".repeat(500));
    for (before, line, refused) in [
        ("", "3e8;x\r\n", false),
        ("", "3e9\r\n", true),
        ("", "ffffffffffffffff\r\n", true),
        ("", "ffffffffffffffff0\r\n", true),
        (&half, "1f4\r\n", false),
        (&half, "1f5\r\n", true),
    ] {
        let said = all_ways(&[head, before.as_bytes(), line.as_bytes()].concat());
        assert_eq!(said, ["413"; 1][..usize::from(refused)], "{line}");
    }
    let (mut pool, mut inbound) = (pool(), Inbound::new());
    inbound.push(&mut pool, head).unwrap();
    let parsed = inbound.head(&mut pool, HEADER).unwrap().unwrap();
    assert_eq!(inbound.begin_body(&parsed, BODY), Ok(false));
    assert_eq!(inbound.push(&mut pool, b"3e8\r\nxx"), Ok(()));
    assert_eq!(inbound.body_progress(), (2, false));
    assert_eq!(inbound.push(&mut pool, &[b'x'; 998]), Ok(()));
    assert_eq!(inbound.push(&mut pool, b"\r\n1\r"), Ok(()));
    assert_eq!(inbound.push(&mut pool, b"\n"), Err(PushError::Body(BodyRefusal::TooLarge)));
    // The following bytes are dropped up to the next message.
    inbound.begin_discard(&mut pool).unwrap();
    inbound.push(&mut pool, b"y\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert!(inbound.discarded() && inbound.head(&mut pool, HEADER).unwrap().is_some());
}

#[test]
fn empty_lines_before_a_request_are_skipped_up_to_their_bound() {
    let next = b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n";
    let most = b"\r\n".repeat(usize::from(EMPTY_LINES_MAX));
    assert_eq!(all_ways(&[&most, &next[..], &most, &next[..]].concat()), ["Get /b ", "Get /b "]);
    assert_eq!(all_ways(&[b"\r\n", &most[..], &next[..]].concat()), ["400"]);
    assert_eq!(all_ways(&[&b"\r\n\rX"[..], next].concat()), ["400"]);
    assert_eq!(all_ways(&most), [""; 0]);
}

#[test]
fn broken_messages_end_the_connection() {
    assert_eq!(all_ways(b"GET / HTTP/1.1\r\n\r\n"), ["400"]);
    let bad = "Body(Bad(BadChunk))";
    let chunked = "HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\naXGET / HTTP/1.1\r\nHost: h\r\n\r\n";
    assert_eq!(all_ways(format!("POST /a {chunked}").as_bytes()), [bad]);
    assert_eq!(all_ways(format!("POST /no {chunked}").as_bytes()), ["refused", bad]);
}

#[test]
fn after_a_broken_body_nothing_is_read_as_a_message() {
    let (mut pool, mut inbound) = (pool(), Inbound::new());
    inbound.push(&mut pool, b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    let head = inbound.head(&mut pool, HEADER).unwrap().unwrap();
    assert_eq!(inbound.begin_body(&head, BODY), Ok(false));
    let smuggled = b"X\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n";
    assert_eq!(inbound.push(&mut pool, smuggled), Err(PushError::Body(BodyRefusal::Bad(BodyError::BadChunk))));
    assert_eq!(inbound.push(&mut pool, smuggled), Ok(()));
    inbound.release(&mut pool);
    assert_eq!(inbound.push(&mut pool, smuggled), Ok(()));
    assert_eq!((inbound.head(&mut pool, HEADER), inbound.discarded()), (Ok(None), false));
    assert_eq!(pool.lent(), 0);
}

#[test]
fn head_is_returned_once_and_stays_valid_while_the_body_grows() {
    let (mut pool, mut inbound) = (pool(), Inbound::new());
    assert!(inbound.is_idle());
    inbound.push(&mut pool, b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab").unwrap();
    let head = inbound.head(&mut pool, HEADER).unwrap().unwrap();
    assert_eq!(inbound.head(&mut pool, HEADER), Ok(None));
    assert_eq!((head.method, inbound.begin_body(&head, BODY)), (Method::Post, Ok(false)));
    assert_eq!(inbound.body_progress(), (2, false));
    inbound.push(&mut pool, b"cdefghiGET").unwrap();
    assert_eq!((inbound.body_progress(), inbound.backlog()), ((9, true), 3));
    let (bytes, body) = inbound.message();
    assert_eq!((head.path.of(bytes), bytes.len(), body), (&b"/x"[..], head.len as usize, &b"abcdefghi"[..]));
    inbound.release(&mut pool);
    assert!(inbound.has_pending() && !inbound.is_idle());
    assert_eq!(inbound.message(), (&b""[..], &b""[..]));
}

#[test]
fn an_incomplete_message_released_early_is_dropped_to_its_end() {
    let (mut pool, mut inbound) = (pool(), Inbound::new());
    inbound.push(&mut pool, b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nab").unwrap();
    let head = inbound.head(&mut pool, HEADER).unwrap().unwrap();
    assert_eq!(inbound.begin_body(&head, BODY), Ok(false));
    inbound.release(&mut pool);
    assert_eq!((inbound.discarded(), pool.lent()), (false, 0));
    inbound.push(&mut pool, b"c").unwrap();
    assert_eq!((inbound.discarded(), inbound.dropped()), (false, 1));
    inbound.push(&mut pool, b"dGET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert!(inbound.discarded());
    assert!(inbound.head(&mut pool, HEADER).unwrap().is_some());
}

#[test]
fn declared_size_takes_no_memory_until_bytes_arrive() {
    let (mut pool, mut inbound) = (pool(), Inbound::new());
    let declared = 8 << 20;
    let text = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {declared}\r\n\r\n");
    inbound.push(&mut pool, text.as_bytes()).unwrap();
    let head = inbound.head(&mut pool, HEADER).unwrap().unwrap();
    assert_eq!(inbound.begin_body(&head, 32 << 20), Ok(false));
    assert!(pool.lent() <= BLOCK);
    let slice = vec![b'x'; IO_SLICE];
    for step in 1..=declared / IO_SLICE {
        inbound.push(&mut pool, &slice).unwrap();
        let come = step * IO_SLICE;
        // Once one step has arrived, the whole length is reserved: a large block is not grown repeatedly.
        let bound = if come <= BODY_STEP_MAX { 2 * come } else { declared };
        assert!(pool.lent() <= bound + BLOCK, "step {step}");
    }
    assert!(inbound.body_progress().1);
    assert!(pool.lent() <= declared + BLOCK);
    inbound.push(&mut pool, b"GET").unwrap();
    inbound.release(&mut pool);
    // A large block counts until it has been returned to the system.
    assert!(pool.lent() >= declared);
    pool.discard(Vec::new());
    assert_eq!((pool.lent(), inbound.backlog()), (BLOCK, 3));
}

#[test]
fn refused_bodies_of_any_size_are_not_stored() {
    let (mut pool, mut inbound) = (pool(), Inbound::new());
    inbound.push(&mut pool, b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 33554432\r\n\r\nxx").unwrap();
    inbound.head(&mut pool, HEADER).unwrap().unwrap();
    inbound.begin_discard(&mut pool).unwrap();
    for _ in 0..10 {
        inbound.push(&mut pool, &[0; IO_SLICE]).unwrap();
        assert_eq!(pool.lent(), 0);
    }
    assert_eq!(inbound.dropped(), 2 + 10 * IO_SLICE as u64);
}

#[test]
fn backlog_after_a_message_is_bounded() {
    let (mut pool, mut inbound) = (pool(), Inbound::new());
    inbound.push(&mut pool, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let head = inbound.head(&mut pool, HEADER).unwrap().unwrap();
    assert_eq!(inbound.begin_body(&head, BODY), Ok(true));
    inbound.push(&mut pool, &vec![b'x'; PIPELINE_BYTES_MAX + IO_SLICE]).unwrap();
    assert_eq!(inbound.push(&mut pool, b"x"), Err(PushError::Overflow));
    inbound.clear(&mut pool);
    assert_eq!(pool.lent(), 0);
}

#[test]
fn many_small_pipelined_requests_are_all_read() {
    let one = b"POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok";
    let all = one.repeat(1000);
    let slices: Vec<&[u8]> = all.chunks(IO_SLICE).collect();
    let said = serve(&slices, |_| false);
    assert_eq!(said.len(), 1000);
    assert!(said.iter().all(|line| line == "Post /p ok"));
}

#[test]
fn an_idle_reader_is_small() {
    assert!(size_of::<Inbound>() <= 80, "{}", size_of::<Inbound>());
}
