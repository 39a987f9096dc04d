//! Exhausted file descriptors.

use super::rig::{Gate, Rig, TIMEOUT, chat, get, read_to_end, read_until};
use super::table::{Attack, idle_ticks, status};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

pub const ATTACKS: fn() -> Vec<Attack> = || {
    vec![Attack {
        name: "200 connections with a limit of 64 descriptors",
        bound: "a warning at the start; health and a key are served immediately; no busy loop",
        server: "",
        run: exhausted,
    }]
};

/// Starts a second gateway with a low limit that it cannot raise.
fn exhausted(rig: &Rig, _: &mut Gate) -> String {
    let text = std::fs::read_to_string(rig.path("tollgate.toml")).unwrap().replace("ledger.db", "second.db");
    std::fs::write(rig.path("tollgate.toml"), text).unwrap();
    let key = rig.issue("");
    let mut gate = rig.start_with(|command| {
        let program = command.get_program().to_owned();
        let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]).arg0("sh").arg(program).args(args);
        // The newest log belongs to this gateway.
        let logs = (0..).map(|number| rig.path(&format!("log-{number}"))).take_while(|path| path.exists());
        limited.stderr(std::fs::File::create(logs.last().unwrap()).unwrap());
        *command = limited;
    });
    gate.logged("64 descriptors are enough for 12 clients");
    let strangers: Vec<TcpStream> = (0..200).map(|_| gate.connect()).collect();
    let began = Instant::now();
    // One more connection may be about to make room.
    assert!(gate.metric("tollgate_client_connections") <= 13, "some descriptors must be reserved");
    // A key is served next to the strangers, and its provider can be reached.
    let mut stream = gate.connect();
    stream.write_all(get(&key, "/v1/models").replacen("connection: close\r\n", "", 1).as_bytes()).unwrap();
    read_until(&mut stream, "\"small\"");
    stream.write_all(chat(&key, "small", false, "hello").as_bytes()).unwrap();
    assert_eq!(status(&read_until(&mut stream, "\"usage\"")), 200);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}: must be before header_timeout closes connections");
    let work = idle_ticks(&gate);
    assert!(work < 20, "{work} hundredths of a second of work in a second while no descriptor is free");
    // Strangers whose connections were closed to make room connect again.
    let mut answered = 0;
    for _ in 0..strangers.len() {
        let mut client = gate.connect();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        client.write_all(get(&key, "/v1/models").as_bytes()).unwrap();
        assert_eq!(status(&read_to_end(&mut client)), 200);
        answered += 1;
    }
    format!(
        "health and a key within {} ms; {work} hundredths of a second when idle; all {answered} answered",
        took.as_millis()
    )
}
