use super::super::meter::Whose;
use super::*;
use crate::policy::plan::caps::Cap;

#[test]
fn each_refusal_has_its_status_and_type() {
    let cap = Cap::parse("requests=2/1m").unwrap();
    let limit = Limit { cap, by: LimitReason::Spent, whose: Whose::Key, reset: Unix(60_000), retry_after: 60 };
    let rows = [
        (Refusal::invalid_body("x"), 400, "invalid_request_error"),
        (Refusal::bad_key("unknown"), 401, "authentication_error"),
        (Refusal::no_key(), 401, "authentication_error"),
        (Refusal::model_scope(Some("m")), 403, "permission_error"),
        (Refusal::endpoint_scope("chat"), 403, "permission_error"),
        (Refusal::unknown_model("m"), 404, "not_found_error"),
        (Refusal::no_path(), 404, "not_found_error"),
        (Refusal::limit(&limit), 429, "rate_limit_error"),
        (UpstreamRefusal::Failed(None, None).into(), 500, "upstream_error"),
        (UpstreamRefusal::Timeout("idle_timeout", Duration::from_secs(600)).into(), 504, "timeout_error"),
    ];
    for (refusal, status, kind) in rows {
        assert_eq!((refusal.status, refusal.kind.as_str()), (status, kind), "{}", refusal.message);
    }
    assert!(size_of::<Refusal>() < 128, "{} bytes are too many to return through many functions", size_of::<Refusal>());
}

#[test]
fn other_client_errors_are_invalid_requests_and_503_is_an_upstream_error() {
    let second = Duration::from_secs(10);
    let invalid = [
        (Refusal::method("POST"), 405),
        (Refusal::head_too_slow(second), 408),
        (Refusal::body_too_slow("body_timeout", second), 408),
        (Refusal::too_large(10), 413),
        (Refusal::bad_http(414, "long"), 414),
        (Refusal::expectation(), 417),
        (Refusal::bad_http(431, "long"), 431),
        (Refusal::bad_http(501, "coding"), 501),
        (Refusal::bad_http(505, "version"), 505),
    ];
    for (refusal, status) in invalid {
        assert_eq!((refusal.status, refusal.kind), (status, RefusalKind::InvalidRequest));
    }
    let all = [
        Refusal::draining(),
        Refusal::upgrading(),
        Refusal::no_connections(),
        Refusal::no_buffers(),
        Refusal::store(),
        Refusal::clock(),
    ];
    for refusal in all.into_iter().chain([Refusal::key_buffers()]) {
        assert_eq!((refusal.status, refusal.kind), (503, RefusalKind::Upstream));
        assert!(refusal.retry_after >= Some(1), "{}", refusal.message);
    }
}

#[test]
fn syntax_errors_and_slow_requests_close_the_connection_and_other_errors_keep_it() {
    assert!(Refusal::bad_http(400, "x").close && Refusal::head_too_slow(Duration::ZERO).close);
    assert!(!Refusal::bad_key("unknown").close && !Refusal::invalid_body("x").close && !Refusal::no_path().close);
    assert!(!Refusal::not_spoken().close);
}

#[test]
fn a_spent_period_forbids_retries_and_a_spent_window_says_when_to_retry() {
    let cap = Cap::parse("tokens=9/month").unwrap();
    let mut limit = Limit { cap, by: LimitReason::Spent, whose: Whose::Key, reset: Unix(0), retry_after: 61 };
    let refusal = Refusal::limit(&limit);
    assert_eq!((refusal.should_retry, refusal.retry_after), (Some(false), Some(61)));
    assert_eq!(refusal.word(), "insufficient_quota");
    limit.retry_after = 0;
    let refusal = Refusal::limit(&limit);
    assert_eq!((refusal.should_retry, refusal.retry_after), (None, Some(1)));
}

#[test]
fn a_refusal_by_reservations_permits_retries_and_an_oversized_request_does_not() {
    for text in ["tokens=9/month", "budget=9/month", "tokens=9/1m"] {
        let (cap, whose) = (Cap::parse(text).unwrap(), Whose::Group("a".into()));
        let limit = Limit { cap, by: LimitReason::Reserved, whose, reset: Unix(0), retry_after: 1 };
        let reserved = Refusal::limit(&limit);
        assert_eq!((reserved.should_retry, reserved.word()), (None, "rate_limit_exceeded"));
        assert!(reserved.message.contains("reserved by running requests") && !reserved.message.contains("spent"));
        let by = LimitReason::Share { need: 16_000_000_000, left: 420_000_000 };
        let share = Refusal::limit(&Limit { by, retry_after: 60, ..limit });
        assert_eq!((share.should_retry, share.retry_after), (Some(false), Some(60)));
        assert_eq!(share.word(), "insufficient_quota");
        assert!(share.message.starts_with("the request needs up to "), "{}", share.message);
    }
}

#[test]
fn amounts_of_money_needed_are_rounded_up_and_amounts_left_down() {
    let text = |need, left| {
        let by = LimitReason::Share { need, left };
        let (cap, whose) = (Cap::parse("budget=1/5h").unwrap(), Whose::Group("research".into()));
        Limit { cap, by, whose, reset: Unix(0), retry_after: 1 }.message()
    };
    let expected = |need, left| {
        format!(
            "the request needs up to ${need} of the budget of group `research` for 5 hours, of which ${left} is left"
        )
    };
    assert_eq!(text(16_000_000_000, 420_000_000), expected("16.00", "0.42"));
    assert_eq!(text(1_638_400_001, 1_000_001_999), expected("1.638401", "1.000001"));
    assert_eq!(text(1_000_000_001, 0), expected("1.000001", "0.00"));
}

#[test]
fn a_long_model_name_is_cut_in_the_message() {
    let refusal = Refusal::unknown_model(&"ü".repeat(5000));
    assert_eq!(refusal.message.matches('ü').count(), 64);
}

#[test]
fn a_missed_deadline_is_named_with_its_length() {
    let refusal = Refusal::from(UpstreamRefusal::Timeout("connect_timeout", Duration::from_millis(1500)));
    assert_eq!(refusal.message, "the model exceeded connect_timeout (1500 ms)");
}
