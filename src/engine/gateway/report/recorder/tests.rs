use super::lists::LINE_MAX;
use super::*;

fn line(number: u64, length: usize) -> Vec<u8> {
    format!("{number:0length$}\n").into_bytes()
}

fn now(second: u64) -> Now {
    Now { mono: Mono(second * 1_000_000), unix: Unix(second * 1000) }
}

fn recorder() -> Recorder {
    Recorder::new(true, now(0))
}

/// Records a request with this line; false if it is not kept.
fn ends(recorder: &mut Recorder, line: &[u8], failed: Option<FailedRequest>, second: u64) -> bool {
    let keep = recorder.keeps(failed, now(second).unix);
    keep.inspect(|keep| recorder.push(*keep, line, &Passed::default(), now(second).unix)).is_some()
}

fn kept(recorder: &Recorder) -> Vec<u64> {
    let (_, rows) = recorder.from(0);
    rows.map(|row| std::str::from_utf8(row.line).unwrap().parse().unwrap()).collect()
}

fn failed(status: u16, kind: u64) -> Option<FailedRequest> {
    Some(FailedRequest { status, key: 0, reason: kind, kind })
}

/// A failed request of this key, each of another kind.
fn failed_of(key: u32, status: u16, number: u64) -> Option<FailedRequest> {
    Some(FailedRequest { status, key, reason: number, kind: number })
}

fn errors_of(recorder: &Recorder, text: &str) -> usize {
    recorder.rows().iter().filter(|row| row.line.windows(text.len()).any(|bytes| bytes == text.as_bytes())).count()
}

#[test]
fn clients_that_left_and_one_key_displace_no_failures_of_others() {
    let padded = |text: &str| format!("{{\"{text}\":\"{}\"}}\n", "x".repeat(400)).into_bytes();
    let mut recorder = recorder();
    ends(&mut recorder, &padded("alice 500"), failed_of(1, 500, 0), 1);
    ends(&mut recorder, &padded("alice 499"), failed_of(1, 499, 1), 1);
    ends(&mut recorder, &padded("alice 400"), failed_of(1, 400, 2), 1);
    ends(&mut recorder, &padded("mallory 500"), failed_of(2, 500, 3), 2);
    for number in 10..500 {
        ends(&mut recorder, &padded("mallory 499"), failed_of(2, 499, number), number);
    }
    assert_eq!(
        (errors_of(&recorder, "alice 500"), errors_of(&recorder, "mallory 500")),
        (1, 1),
        "499 is another class"
    );
    for number in 500..1000 {
        ends(&mut recorder, &padded("mallory 5xx"), failed_of(2, 500, number), number);
        ends(&mut recorder, &padded("mallory 4xx"), failed_of(2, 429, number), number);
    }
    assert_eq!(["alice 500", "alice 499", "alice 400"].map(|text| errors_of(&recorder, text)), [1; 3]);
    assert!(["mallory 5xx", "mallory 499"].iter().all(|text| errors_of(&recorder, text) > 5));
}

#[test]
fn client_that_leaves_again_and_again_is_counted() {
    let mut recorder = recorder();
    for second in 0..100 {
        ends(&mut recorder, b"{\"l\":1}\n", failed(499, 7), 1000 + second / 2);
    }
    let rows = recorder.rows();
    assert_eq!(rows.iter().map(|row| row.count).collect::<Vec<_>>(), [100]);
    assert_eq!(recorder.since()[0], Unix(0), "not a failure");
}

#[test]
fn requests_are_failing_from_the_first_failure_until_half_a_minute_after_the_last() {
    let mut recorder = recorder();
    let mut end = |status: u16, second: u64| {
        let keep = recorder.keeps(failed(status, 1), now(second).unix).unwrap();
        recorder.push(keep, b"{}\n", &Passed { status, ..Passed::default() }, now(second).unix);
        recorder.failing_since(now(second).unix).map(Unix::secs)
    };
    let ends = [(200, 5), (499, 6), (500, 70), (504, 99), (200, 128), (200, 129), (500, 200)];
    let since = ends.map(|(status, second)| end(status, second));
    let expected = [None, None, Some(70), Some(70), Some(70), None, Some(200)];
    assert_eq!(since, expected, "answered requests with a failed attempt do not count");
}

#[test]
fn failures_before_the_first_reader_stay_until_the_newest_requests_exceed_their_list() {
    let mut recorder = recorder();
    for _ in 0..10 {
        ends(&mut recorder, b"{\"early\":1}\n", failed(500, 0), 10);
    }
    recorder.open(Unix(20_000));
    for _ in 0..REQUESTS_MAX {
        ends(&mut recorder, b"{\"late\":1}\n", failed(500, 0), 30);
    }
    assert_eq!([errors_of(&recorder, "early"), errors_of(&recorder, "late")], [10, REQUESTS_MAX]);
    for _ in 0..REQUESTS_MAX {
        ends(&mut recorder, b"{\"ok\":1}\n", None, 40);
    }
    assert_eq!([errors_of(&recorder, "early"), errors_of(&recorder, "late")], [0, ERRORS.0]);
}

#[test]
fn last_lines_are_kept_within_the_byte_limit() {
    let mut recorder = recorder();
    recorder.start(Unix(0));
    for number in 0..5000u64 {
        ends(&mut recorder, &line(number, 20 + (number * 7919 % 997) as usize), None, 0);
        let kept = kept(&recorder);
        assert_eq!(kept.last(), Some(&number));
        assert!(kept.windows(2).all(|two| two[0] + 1 == two[1]), "without gaps");
        let bytes: usize = recorder.from(0).1.map(|row| row.line.len()).sum();
        assert!(bytes <= BYTES[0] && (number < 200 || bytes > BYTES[0] - 2 * 1024), "{bytes}");
    }
    let before = kept(&recorder);
    recorder.open(Unix(0));
    assert_eq!(kept(&recorder), before);
    for number in 5000..9000u64 {
        ends(&mut recorder, &line(number, 20 + (number * 7919 % 997) as usize), None, 0);
    }
    assert!(before.len() < 200);
    assert_eq!(kept(&recorder), (8000..9000).collect::<Vec<u64>>());
    assert_eq!(recorder.from(1).0, 8000, "the missing ones are counted");
}

#[test]
fn refused_key_has_its_first_refusal_before_the_first_reader() {
    let mut recorder = recorder();
    let passed = Passed { callers: [Some(1), None], status: 429, ..Passed::default() };
    for second in [100, 200, 201, 202, 203, 204, 205, 206, 207, 208, 209, 210] {
        let line = br#"{"status":429,"key":"AAAAAAAAAAAA","name":"ci","limit":"requests"}"#;
        let keep = recorder.keeps(failed(429, 1), now(second).unix);
        keep.iter().for_each(|keep| recorder.push(*keep, &[line, &b"\n"[..]].concat(), &passed, now(second).unix));
        recorder.start(now(150).unix);
    }
    let refused = recorder.refused(now(210).unix);
    assert_eq!(refused.iter().map(|one| (one.name, one.since)).collect::<Vec<_>>(), [("ci", Unix(100_000))]);
}

/// Maximum bytes of the recorder before the first reader.
const UNREAD_BYTES_MAX: usize = 32 << 10;

#[test]
fn recorder_is_small_before_the_first_reader() {
    let mut recorder = recorder();
    for number in 0..3000 {
        // The shortest possible lines.
        ends(&mut recorder, &line(number, 160), failed([500, 429, 499][number as usize % 3], number), 0);
    }
    let failures = recorder.failures.as_ref().unwrap();
    let own = size_of::<Recorder>() + size_of::<Minutes>() + size_of::<Failures>();
    let lists = [&failures.errors, &failures.left.lines, &failures.refusals.lines];
    let all = lists.map(lists::LineRing::reserved).iter().sum::<usize>() + own;
    println!("{all} bytes before the first reader");
    assert!(recorder.all.is_none() && all <= UNREAD_BYTES_MAX, "{all}");
}

#[test]
fn success_is_recorded_only_after_the_first_read() {
    let mut recorder = recorder();
    assert!(!ends(&mut recorder, b"{}\n", None, 0));
    recorder.start(Unix(0));
    assert!(ends(&mut recorder, b"{}\n", None, 0));
    let mut unread = Recorder::new(false, now(0));
    assert!(!ends(&mut unread, b"{}\n", failed(500, 1), 0), "nobody could read it");
}

#[test]
fn refusals_do_not_displace_errors_and_repetitions_are_counted() {
    let mut recorder = recorder();
    for number in 0..20 {
        assert!(ends(&mut recorder, format!("{{\"e\":{number}}}\n").as_bytes(), failed(500, 7), number));
    }
    for number in 0..5000u64 {
        ends(&mut recorder, b"{\"r\":1}\n", failed(429, number % 3), 30);
    }
    for _ in 0..7 {
        ends(&mut recorder, b"{\"r\":2}\n", failed(429, 0), 100);
    }
    let text = |row: &RecordedRow<'_>| {
        let mut out = Vec::new();
        row.write(&mut out);
        String::from_utf8(out).unwrap()
    };
    let rows: Vec<String> = recorder.rows().iter().map(text).collect();
    let refusals =
        ["{\"r\":2,\"count\":7}", "{\"r\":1,\"count\":1666}", "{\"r\":1,\"count\":1667}", "{\"r\":1,\"count\":1667}"];
    assert_eq!(&rows[..4], refusals, "the newest first");
    assert_eq!(rows.len(), 24);
    assert_eq!((&*rows[4], &*rows[23]), ("{\"e\":19}", "{\"e\":0}"));
}

#[test]
fn the_count_of_refusals_excludes_those_that_are_listed() {
    let mut recorder = recorder();
    recorder.start(Unix(0));
    for number in 0..1500u64 {
        let failed = if number % 2 == 0 { failed(429, 7) } else { None };
        ends(&mut recorder, b"{\"r\":1}\n", failed, 30);
    }
    let counts = recorder.rows().iter().filter(|row| row.number() % 2 == 1).map(|row| row.count).sum::<u32>();
    assert_eq!(counts, 750);
}

#[test]
fn a_failure_of_both_lists_is_listed_once() {
    let mut recorder = recorder();
    ends(&mut recorder, b"{\"n\":1}\n", failed(500, 0), 0);
    recorder.open(Unix(0));
    ends(&mut recorder, b"{\"n\":2}\n", failed(500, 0), 0);
    ends(&mut recorder, b"{\"n\":3}\n", None, 0);
    let numbers: Vec<u64> = recorder.rows().iter().map(RecordedRow::number).collect();
    assert_eq!(numbers, [3, 2, 1]);
}

#[test]
fn line_that_is_too_long_is_omitted_and_counted() {
    let mut recorder = recorder();
    recorder.start(Unix(0));
    ends(&mut recorder, &line(0, 10), None, 0);
    // The line feed takes a further byte.
    ends(&mut recorder, &[b'x'; LINE_MAX + 2], None, 0);
    ends(&mut recorder, &line(2, 10), None, 0);
    assert_eq!((kept(&recorder), recorder.next()), (vec![0, 2], 4));
}

#[test]
fn a_request_is_found_by_its_id_only() {
    let mut recorder = recorder();
    recorder.start(Unix(0));
    ends(&mut recorder, b"{\"time\":\"t\",\"id\":\"abc\",\"name\":\"x\"}\n", None, 0);
    let row = recorder.rows()[0];
    assert_eq!(["abc", "ab", "abcd", "x", ""].map(|id| row.is(id)), [true, false, false, false, false]);
}

#[test]
fn first_bytes_are_of_one_target_and_the_last_minutes() {
    let mut recorder = recorder();
    recorder.start(Unix(0));
    let push = |recorder: &mut Recorder, target, micros, second: u64| {
        let first = Some(FirstByte { target, streams: true, micros });
        let passed = Passed { first, ..Passed::default() };
        let keep = recorder.keeps(None, Unix(0)).unwrap();
        recorder.push(keep, b"{}\n", &passed, Unix(second * 1000));
    };
    let about = |recorder: &mut Recorder, target, second: u64| {
        let found = recorder.first_bytes(Some(target), Unix(second * 1000))?;
        Some([found.median, found.p95].map(|micros| (f64::from(micros) / 5e3).round() as u64 * 5))
    };
    push(&mut recorder, 1, 9_000_000, 100);
    (1..=100).for_each(|ms| push(&mut recorder, 1, ms * 1000, 1000));
    push(&mut recorder, 2, 70_000, 1000);
    assert_eq!(about(&mut recorder, 1, 1000), Some([50, 95]));
    assert_eq!(about(&mut recorder, 2, 1000), Some([70, 70]));
    assert_eq!(about(&mut recorder, 2, 1301), None);
}

#[test]
fn successor_continues_with_the_reasons_and_the_usual_times() {
    let line = br#"{"id":"req_1","status":500,"key":"AAAA","name":"ann","target":"a/m","cause":"status 503"}"#;
    let mut before = recorder();
    before.start(now(0).unix);
    let first = FirstByte { target: 7, streams: true, micros: 200_000 };
    for minute in 0..60 {
        for _ in 0..10 {
            let keep = before.keeps(None, now(60 * minute).unix).unwrap();
            before.push(keep, b"{}\n", &Passed { first: Some(first), ..Passed::default() }, now(60 * minute).unix);
        }
    }
    assert!(ends(&mut before, &[line, &b"\n"[..]].concat(), failed(500, 1), 3600));
    let text = serde_json::to_string(&before.recorded()).unwrap();
    let mut after = Recorder::new(true, now(3700));
    after.inherit(serde_json::from_str(&text).unwrap(), now(3700).unix);
    assert!(after.recorded() == before.recorded() && after.rows().is_empty(), "no single requests");
    // The numbers of kinds are others in another process.
    ends(&mut after, &[line, &b"\n"[..]].concat(), failed(500, 9), 3700);
    let mut out = Vec::new();
    after.write_reasons(&mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("\"failed\":2") && text.contains("\"first\":\"1970-01-01T01:00:00Z"), "{text}");
    let slow = Passed { first: Some(FirstByte { micros: 900_000, ..first }), ..Passed::default() };
    for _ in 0..20 {
        let keep = after.keeps(None, now(3900).unix).unwrap();
        after.push(keep, b"{}\n", &slow, now(3900).unix);
    }
    assert_eq!(after.first_bytes(Some(7), now(3900).unix).unwrap().slow_since, Some(now(3900).unix));
    let mut unread = Recorder::new(false, now(3700));
    unread.inherit(before.recorded(), now(3700).unix);
    assert!(unread.recorded() == RecorderSums::default(), "nobody can read it");
}

#[test]
fn times_from_which_all_are_kept_move_when_lines_are_dropped() {
    let mut recorder = recorder();
    let since = |recorder: &Recorder| recorder.since().map(Unix::secs);
    for second in 10..10 + ERRORS.0 as u64 {
        ends(&mut recorder, b"{}\n", failed(500, 0), second);
    }
    assert_eq!(since(&recorder)[0], 0, "none was dropped");
    ends(&mut recorder, b"{}\n", failed(500, 0), 100);
    assert_eq!(since(&recorder)[0], 11, "others of second 10 may have been dropped, too");
    recorder.open(Unix(200_000));
    assert_eq!(since(&recorder), [11, 200]);
    for number in 0..REQUESTS_MAX as u64 {
        ends(&mut recorder, b"{}\n", None, 300 + number / 4);
    }
    assert_eq!(since(&recorder), [11, 200]);
    ends(&mut recorder, b"{}\n", None, 600);
    assert_eq!(since(&recorder), [11, 301]);
    for _ in 0..=ERRORS.0 {
        ends(&mut recorder, b"{}\n", failed(500, 0), 700);
    }
    // The list of all requests has them all.
    assert_eq!(since(&recorder)[0], 11);
    for _ in 0..REQUESTS_MAX {
        ends(&mut recorder, b"{}\n", None, 750);
    }
    assert_eq!(since(&recorder), [701, 701]);
    ends(&mut recorder, &[b'x'; LINE_MAX + 2], None, 800);
    assert_eq!(since(&recorder), [701, 801], "a line that is too long is not kept");
}
