use super::*;
use crate::base::limits;
use crate::base::rng::Rng;

const NOW: Unix = Unix(1_000_000);

/// Fills buffers from a seeded generator, so that a failure can be reproduced.
fn filler(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut rng = Rng::from_u64(seed);
    move |out: &mut [u8]| out.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8)
}

fn record(issued: &Issued) -> KeyRecord {
    KeyRecord {
        id: issued.id,
        digest: issued.digest,
        name: "test".to_string(),
        plan: "default".to_string(),
        scope: Scope::default(),
        created: Unix(0),
        expires: None,
        revoked: None,
        disabled: false,
        limits: Caps::default(),
        group: None,
        labels: Vec::new(),
        former: Vec::new(),
        capture: None,
    }
}

fn table(records: Vec<KeyRecord>) -> Keys {
    let mut keys = Keys::new(1);
    keys.load(records);
    keys
}

#[test]
fn a_key_is_prefix_live_id_secret_and_checksum() {
    // A key consists of the prefix, `live_`, the id, the secret and the checksum.
    let issued = issue("tg_", filler(1));
    assert_eq!(issued.text.len(), 3 + 5 + 12 + 32 + 6);
    assert!(issued.text.starts_with("tg_live_"));
    assert_eq!(&issued.text[8..20], issued.id.as_str());
    assert!(issued.text[8..].bytes().all(|b| b.is_ascii_alphanumeric()));
    assert_eq!(issued.digest, sha256(issued.text.as_bytes()));
    assert_eq!(well_formed(issued.text.as_bytes(), "tg_"), Some(issued.id));
}

#[test]
fn the_checksum_is_the_crc32_of_everything_before_it_in_base62() {
    // CRC-32/ISO-HDLC of "123456789" is 0xcbf43926 = 3421780262, which has six digits in base 62.
    let mut value = 3_421_780_262u64;
    let mut digits = Vec::new();
    for _ in 0..6 {
        digits.push(ALPHABET[(value % 62) as usize]);
        value /= 62;
    }
    digits.reverse();
    assert_eq!(checksum(b"123456789").to_vec(), digits);
    assert_eq!(value, 0);
}

#[test]
fn two_keys_differ_and_all_62_characters_appear() {
    let mut fill = filler(2);
    let (a, b) = (issue("tg_", &mut fill), issue("tg_", &mut fill));
    assert_ne!((a.text, a.id), (b.text, b.id));
    let many: String = (0..200).map(|_| issue("tg_", &mut fill).text.split_off(8)).collect();
    assert!(ALPHABET.iter().all(|c| many.as_bytes().contains(c)));
}

#[test]
fn random_characters_are_equally_likely() {
    // Bytes 248..=255 would favour the first eight characters, so other bytes are drawn in their place.
    let (mut byte, mut counts) = (0u8, [0u32; 256]);
    let mut out = vec![0u8; 248 * 4];
    random_characters(&mut out, &mut |drawn: &mut [u8]| {
        for place in drawn {
            *place = byte;
            byte = byte.wrapping_add(1);
        }
    });
    for c in out {
        counts[usize::from(c)] += 1;
    }
    assert!(ALPHABET.iter().all(|c| counts[usize::from(*c)] == 16));
}

#[test]
fn a_key_with_one_mistyped_character_is_refused_without_a_lookup() {
    let issued = issue("tg_", filler(3));
    for at in 0..issued.text.len() {
        for wrong in [b'a', b'Z', b'0', b'_', b' ', 0xff] {
            let mut typed = issued.text.clone().into_bytes();
            if typed[at] != wrong {
                typed[at] = wrong;
                assert_eq!(well_formed(&typed, "tg_"), None, "byte {at} to {wrong}");
            }
        }
    }
}

#[test]
fn swapped_neighbours_and_wrong_lengths_are_refused() {
    let text = issue("tg_", filler(4)).text;
    for at in 8..text.len() - 1 {
        let mut typed = text.clone().into_bytes();
        typed.swap(at, at + 1);
        if typed != text.as_bytes() {
            assert_eq!(well_formed(&typed, "tg_"), None);
        }
    }
    for len in 0..text.len() {
        assert_eq!(well_formed(&text.as_bytes()[..len], "tg_"), None);
    }
    assert_eq!(well_formed(format!("{text}a").as_bytes(), "tg_"), None);
    assert_eq!(well_formed(format!(" {text}").as_bytes(), "tg_"), None);
    assert_eq!(well_formed(text.as_bytes(), "xy_"), None);
}

#[test]
fn only_a_known_live_key_is_identified() {
    let (known, other) = (issue("tg_", filler(5)), issue("tg_", filler(6)));
    let mut keys = table(vec![record(&known)]);
    let ix = keys.identify(known.text.as_bytes(), "tg_", NOW);
    assert_eq!(ix, keys.index_of(&known.id));
    assert!(ix.is_some());
    assert_eq!(keys.identify(other.text.as_bytes(), "tg_", NOW), None);
    assert_eq!(keys.identify(b"", "tg_", NOW), None);
    assert_eq!(keys.identify(known.text.as_bytes(), "ab_", NOW), None);
}

#[test]
fn a_key_with_the_right_id_and_another_secret_is_refused() {
    let known = issue("tg_", filler(7));
    let mut keys = table(vec![record(&known)]);
    let mut forged = known.text.clone().into_bytes();
    forged[30] = if forged[30] == b'x' { b'y' } else { b'x' };
    let end = forged.len() - CHECK_LEN;
    let check = checksum(&forged[..end]);
    forged[end..].copy_from_slice(&check);
    assert_eq!(well_formed(&forged, "tg_"), Some(known.id));
    assert_eq!(keys.identify(&forged, "tg_", NOW), None);
}

#[test]
fn tags_depend_on_the_seed_and_their_halves_differ() {
    let tag = |seed: u64| {
        let issued = issue("tg_", filler(7));
        let mut keys = Keys::new(seed);
        keys.load(vec![record(&issued)]);
        assert!(keys.identify(issued.text.as_bytes(), "tg_", NOW).is_some());
        keys.tag(KeyIx(0))
    };
    assert_eq!(tag(1), tag(1));
    assert_ne!(tag(1), tag(2));
    assert_ne!(tag(1)[0], tag(1)[1]);
}

#[test]
fn a_cached_identification_does_not_outlive_its_secret() {
    let issued = issue("tg_", filler(7));
    let renewed = reissue("tg_", issued.id, filler(8));
    let mut keys = table(vec![record(&issued)]);
    let opens = |keys: &mut Keys, key: &Issued| keys.identify(key.text.as_bytes(), "tg_", NOW).is_some();
    for _ in 0..2 {
        assert!(opens(&mut keys, &issued));
        assert!(!opens(&mut keys, &renewed));
    }
    let mut rotated = record(&issued);
    rotated.rotate(renewed.digest, Unix(NOW.0 + 1), NOW);
    keys.load(vec![rotated.clone()]);
    for _ in 0..2 {
        assert!(opens(&mut keys, &issued), "the grace period of the old secret has not ended");
        assert!(opens(&mut keys, &renewed));
    }
    rotated.rotate(renewed.digest, NOW, NOW);
    keys.load(vec![rotated.clone()]);
    assert!(!opens(&mut keys, &issued));
    assert!(opens(&mut keys, &renewed));
    keys.load(vec![KeyRecord { revoked: Some(NOW), ..rotated }]);
    assert!(!opens(&mut keys, &renewed));
    keys.load(Vec::new());
    assert!(!opens(&mut keys, &renewed));
}

#[test]
fn a_revoked_key_is_refused_at_any_clock_time() {
    let issued = issue("tg_", filler(8));
    for revoked in [Unix(0), NOW, Unix(NOW.0 * 2)] {
        let mut keys = table(vec![KeyRecord { revoked: Some(revoked), ..record(&issued) }]);
        assert_eq!(keys.identify(issued.text.as_bytes(), "tg_", NOW), None);
    }
}

#[test]
fn a_key_is_refused_from_the_moment_it_expires() {
    let issued = issue("tg_", filler(9));
    let mut keys = table(vec![KeyRecord { expires: Some(NOW), ..record(&issued) }]);
    assert!(keys.identify(issued.text.as_bytes(), "tg_", Unix(NOW.0 - 1)).is_some());
    assert_eq!(keys.identify(issued.text.as_bytes(), "tg_", NOW), None);
}

#[test]
fn ids_are_ordered_like_their_texts() {
    let texts = ["000000000000", "00000000000A", "00000001zzzz", "a00000000000", "abcdefABCDEF", "abcdefABCDEG"];
    let ids = texts.map(|text| KeyId::parse(text).unwrap());
    for (a, text) in ids.iter().zip(texts) {
        for (b, other) in ids.iter().zip(texts) {
            assert_eq!(a.cmp(b), text.cmp(other));
        }
    }
}

#[test]
fn a_key_keeps_its_index_while_others_are_added_and_removed() {
    let keys: Vec<Issued> = (10..13).map(|seed| issue("tg_", filler(seed))).collect();
    let mut known = table(vec![record(&keys[0]), record(&keys[1])]);
    let second = known.index_of(&keys[1].id).unwrap();
    known.load(vec![record(&keys[2]), record(&keys[1])]);
    assert_eq!(known.identify(keys[1].text.as_bytes(), "tg_", NOW), Some(second));
    assert_eq!(known.identify(keys[0].text.as_bytes(), "tg_", NOW), None);
    // Requests still running under the first key can read its record.
    let first = known.index_of(&keys[0].id).unwrap();
    assert_eq!(known.get(first).id(), keys[0].id);
    known.load(vec![record(&keys[0])]);
    assert_eq!(known.identify(keys[0].text.as_bytes(), "tg_", NOW), Some(first));
    assert_eq!(known.len(), 3);
}

#[test]
fn a_former_secret_identifies_the_same_key_until_it_expires() {
    let old = issue("tg_", filler(14));
    let new = reissue("tg_", old.id, filler(15));
    assert_eq!((new.id, well_formed(new.text.as_bytes(), "tg_")), (old.id, Some(old.id)));
    assert_ne!(new.text, old.text);
    let mut rotated = record(&old);
    rotated.rotate(new.digest, Unix(NOW.0 + 10), NOW);
    let mut keys = table(vec![rotated.clone()]);
    let opens = |keys: &mut Keys, issued: &Issued, after| {
        keys.identify(issued.text.as_bytes(), "tg_", Unix(NOW.0 + after)).is_some()
    };
    assert!(opens(&mut keys, &old, 9) && opens(&mut keys, &new, 9) && opens(&mut keys, &new, 11));
    assert!(!opens(&mut keys, &old, 10));
    rotated.revoked = Some(NOW);
    keys.load(vec![rotated]);
    assert!(!opens(&mut keys, &old, 0) && !opens(&mut keys, &new, 0), "revocation ends all secrets");
}

#[test]
fn a_rotation_that_would_end_a_former_secret_early_is_refused() {
    let first = issue("tg_", filler(16));
    let mut key = record(&first);
    let until = |n: u8| Unix(NOW.0 + 100 + u64::from(n));
    for n in 0..FORMER_MAX as u8 {
        assert!(key.rotate([n; 32], until(n), NOW));
    }
    let full = key.clone();
    assert!(!key.rotate([90; 32], until(90), NOW));
    assert_eq!(key, full, "a refused rotation changes nothing");
    assert!(key.former.iter().any(|former| former.digest == first.digest));
    // There is room once the first of them has ended. A rotation without grace always succeeds.
    assert!(key.rotate([91; 32], until(91), until(0)));
    assert_eq!(key.former.len(), FORMER_MAX);
    assert!(key.rotate([92; 32], NOW, NOW));
    assert_eq!(key.former, []);
}

#[test]
fn ids_are_twelve_base62_characters() {
    assert_eq!(KeyId::parse("0123456789Az").map(|id| id.to_string()).as_deref(), Some("0123456789Az"));
    for wrong in ["", "0123456789A", "0123456789Azz", "0123456789A_", "0123456789ä", "0123 456789A"] {
        assert_eq!(KeyId::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn a_fresh_key_shows_only_its_id_in_debug_output() {
    let issued = issue("tg_", filler(16));
    assert_eq!(format!("{issued:?}"), format!("Issued({})", issued.id));
}

fn scope(endpoints: &[&str], models: &[&str]) -> Result<Scope, String> {
    Scope::from_words(endpoints.iter().copied(), models.iter().copied())
}

#[test]
fn a_scope_without_words_permits_everything() {
    let all = scope(&[], &[]).unwrap();
    assert_eq!(all, Scope::default());
    assert!(ScopeEndpoint::all().all(|endpoint| all.allows(endpoint)));
    assert!(all.allows_model("anything"));
}

#[test]
fn a_scope_with_a_generation_endpoint_includes_models_and_quota() {
    assert_eq!(scope(&["chat"], &[]).unwrap().endpoints_text(), "chat,models,quota");
    assert_eq!(scope(&["messages"], &[]).unwrap().endpoints_text(), "messages,models,quota");
    assert_eq!(scope(&["models"], &[]).unwrap().endpoints_text(), "models");
    assert_eq!(scope(&["quota"], &[]).unwrap().endpoints_text(), "quota");
    assert_eq!(scope(&["rerank"], &[]).unwrap().endpoints_text(), "rerank,models,quota");
    assert_eq!(scope(&["images"], &[]).unwrap().endpoints_text(), "images,models,quota");
    assert_eq!(scope(&["chat", "videos"], &[]), Err("videos".to_string()));
}

#[test]
fn a_scope_permits_models_by_id_or_all_with_a_star() {
    let some = scope(&[], &["a", "b"]).unwrap();
    assert!(some.allows_model("a") && some.allows_model("b"));
    assert!(!some.allows_model("c") && !some.allows_model("A") && !some.allows_model(""));
    assert!(scope(&[], &["a", "*"]).unwrap().allows_model("c"));
}

#[test]
fn a_scope_reads_back_what_it_writes() {
    for words in [&["chat"][..], &["messages"], &["models"], &["quota"], &["models", "quota"], &[]] {
        let written = scope(words, &[]).unwrap();
        let text = written.endpoints_text();
        assert_eq!(Scope::from_words(text.split(','), []).unwrap(), written);
    }
}

#[test]
fn a_stored_scope_reads_back_and_all_endpoints_are_a_star() {
    let words: Vec<&str> = ScopeEndpoint::all().map(ScopeEndpoint::as_str).collect();
    for bits in 1..1 << words.len() {
        let some: Vec<&str> = (0..words.len()).filter(|at| bits & 1 << at != 0).map(|at| words[at]).collect();
        let written = scope(&some, &[]).unwrap();
        assert_eq!(Scope::from_stored(&written.stored_endpoints(), None), written, "{some:?}");
    }
    assert_eq!(Scope::default().stored_endpoints(), "*");
}

#[test]
fn a_learned_key_missing_from_the_next_list_is_unknown_again() {
    let issued = issue("tg_", filler(5));
    let mut keys = Keys::new(1);
    let known = |keys: &Keys| match keys.why_not(issued.text.as_bytes(), "tg_", Unix(1)).1 {
        RefusedKey::Unknown(shown) => Some(shown.id),
        _ => None,
    };
    assert_eq!(known(&keys), Some(issued.id));
    keys.learn(record(&issued));
    assert_eq!((known(&keys), keys.knows(&issued.id)), (None, true));
    let rotated = reissue("tg_", issued.id, filler(6)).text;
    let (why, key) = keys.why_not(rotated.as_bytes(), "tg_", Unix(1));
    assert!(why == "wrong secret" && matches!(key, RefusedKey::Unknown(shown) if shown.id == issued.id));
    keys.load(Vec::new());
    assert_eq!((known(&keys), keys.knows(&issued.id)), (Some(issued.id), false));
    assert_eq!(keys.identify(issued.text.as_bytes(), "tg_", Unix(1)), None);
}

#[test]
fn live_keys_have_several_owners_unless_all_belong_to_one_group() {
    let (now, many) = (Unix(1000), limits::LIVE_KEYS_SEARCHED as u64);
    let of = |groups: &[Option<&str>]| {
        let keys = groups.iter().enumerate().map(|(seed, group)| KeyRecord {
            group: group.map(str::to_owned),
            ..record(&issue("tg_", filler(seed as u64)))
        });
        table(keys.collect()).live(now)
    };
    assert_eq!([of(&[]), of(&[None]), of(&[Some("a")])], [LiveKeys::One; 3]);
    assert_eq!(of(&[Some("a"), Some("a"), Some("a")]), LiveKeys::OneOwner);
    for groups in [[None, None], [Some("a"), None], [None, Some("a")], [Some("a"), Some("b")]] {
        assert_eq!(of(&groups), LiveKeys::SeveralOwners);
    }
    let one = record(&issue("tg_", filler(1)));
    let mut keys = table(vec![one.clone(), one.clone()]);
    keys.learn(one.clone());
    assert_eq!(keys.live(now), LiveKeys::One, "both records are of one key, and an edit adds none");
    let ended = [
        KeyRecord { revoked: Some(Unix(900)), ..record(&issue("tg_", filler(2))) },
        KeyRecord { disabled: true, ..record(&issue("tg_", filler(3))) },
        KeyRecord { expires: Some(now), ..record(&issue("tg_", filler(4))) },
    ];
    let mut keys = table(ended.into_iter().chain([one]).collect());
    assert_eq!((keys.live(now), keys.live(Unix(999))), (LiveKeys::One, LiveKeys::SeveralOwners), "one expires");
    keys.learn(record(&issue("tg_", filler(3))));
    assert_eq!(keys.live(now), LiveKeys::SeveralOwners, "one is enabled again");
    let grouped = |seed| KeyRecord { group: Some("a".to_owned()), ..record(&issue("tg_", filler(seed))) };
    let mut keys = table((0..many).map(grouped).collect());
    assert_eq!(keys.live(now), LiveKeys::OneOwner);
    keys.learn(grouped(many));
    assert_eq!(keys.live(now), LiveKeys::SeveralOwners, "not all are searched");
}

#[test]
fn invisible_characters_are_unseen() {
    let unseen = "\u{7}\u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{17b4}\u{180e}\u{200b}\u{202e}\u{2066}\u{2800}\u{3164}\u{e000}\
                  \u{fe0f}\u{feff}\u{ffa0}\u{fff9}\u{110bd}\u{13430}\u{1bca0}\u{1d173}\u{e0001}\u{e0041}\u{e01ef}\u{10fffd}";
    let seen: Vec<char> = unseen.chars().filter(|c| !is_unseen(*c)).collect();
    assert_eq!(seen, []);
    assert!(!"Ann-é ü 中文 한국어 עברית عربي ไทย 🙂 \u{301}".chars().any(is_unseen));
    assert!(UNSEEN.is_sorted());
}
