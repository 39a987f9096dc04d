//! Hostile clients against the real binary. Each attack has a bound that must hold while honest clients are served;
//! the table of attack, bound and what was seen is printed (`cargo test --test hostile -- --nocapture`).

mod hostile {
    mod descriptors;
    mod floods;
    mod heads;
    #[path = "../edge/rig.rs"]
    #[allow(dead_code)]
    mod rig;
    mod slow;
    mod smuggling;
    mod table;
    mod words;
}
