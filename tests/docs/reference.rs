//! The operations guide against the program.

use super::rig::Rig;
use std::io::Write;

const OPERATIONS: &str = include_str!("../../src/docs/operations.md");

#[test]
fn the_operations_guide_lists_every_metric_and_every_field_of_the_log() {
    let rig = Rig::new("guide", "");
    let gate = rig.start();
    let request = super::rig::chat(&rig.key, "small", true, "hello");
    gate.ask(&request.replacen("host: h", "connection: close\r\nx-request-id: mine\r\nhost: h", 1));
    gate.ask(&super::rig::get("nothing", "/v1/models"));
    let mut stream = super::rig::connect(gate.admin);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").unwrap();
    let metrics = super::rig::rest(&mut stream);
    let known = |name: &str| OPERATIONS.contains(&format!("`{name}`")) || OPERATIONS.contains(&format!("`{name}{{"));
    for line in metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(known(name) || name == "tollgate_build_info", "{name} is not in the operations guide");
    }
    for name in OPERATIONS.split('`').filter(|word| word.starts_with("tollgate_")) {
        let name = name.split('{').next().unwrap();
        assert!(metrics.contains(&format!("# TYPE {name} ")), "{name} is no metric");
    }
    gate.until("two requests are logged", |gate| gate.log().lines().count() >= 3);
    for line in gate.log().lines().filter(|line| !line.contains("\"event\"")) {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        for field in value.as_object().unwrap().keys() {
            assert!(OPERATIONS.contains(&format!("`{field}`")), "{field} of the log is not in the operations guide");
        }
    }
}
