//! What is written for people, held against what the program does: the OpenAPI document, the configuration reference,
//! the operations guide's tables, the systemd units, completions and man pages.

mod docs {
    mod configuration;
    mod openapi;
    #[path = "../e2e/process.rs"]
    #[allow(dead_code)]
    mod process;
    mod reference;
    #[path = "../edge/rig.rs"]
    #[allow(dead_code)]
    mod rig;
    mod units;
    mod walk;
}
