//! Descriptors running out.

use super::rig::{Gate, PATIENCE, Rig, chat, get, read_until, rest};
use super::table::{Attack, status, work_at_rest};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

pub const ATTACKS: fn() -> Vec<Attack> = || {
    vec![Attack {
        name: "200 connections where 64 descriptors are all there is",
        bound: "accepting rests 100 ms at a time without spinning; who waits is served when there is room",
        server: "",
        run: exhausted,
    }]
};

/// A second gateway, started with a low limit that it cannot raise.
fn exhausted(rig: &Rig, _: &mut Gate) -> String {
    let text = std::fs::read_to_string(rig.path("tollgate.toml")).unwrap().replace("ledger.db", "second.db");
    std::fs::write(rig.path("tollgate.toml"), text).unwrap();
    let key = rig.issue("");
    let gate = rig.start_with(|command| {
        let program = command.get_program().to_owned();
        let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]).arg0("sh").arg(program).args(args);
        // The newest log is this gateway's.
        let logs = (0..).map(|number| rig.path(&format!("log-{number}"))).take_while(|path| path.exists());
        limited.stderr(std::fs::File::create(logs.last().unwrap()).unwrap());
        *command = limited;
    });
    let mut clients: Vec<TcpStream> = (0..200).map(|_| gate.connect()).collect();
    let mut stream = clients.remove(0);
    stream.write_all(get(&key, "/v1/models").replacen("connection: close\r\n", "", 1).as_bytes()).unwrap();
    read_until(&mut stream, "\"small\"");
    // No descriptor is left for a provider: an error, not a hang, and the key is not charged tokens.
    stream.write_all(chat(&key, "small", false, "hello").as_bytes()).unwrap();
    assert_eq!(status(&read_until(&mut stream, "}}")), 500);
    let work = work_at_rest(&gate);
    assert!(work < 20, "{work} hundredths of a second of work in a second while nothing can be done");
    // Room is made from the front; those behind are let in and answered.
    let mut answered = 0;
    for mut client in clients.drain(..) {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(get(&key, "/v1/models").as_bytes()).unwrap();
        assert_eq!(status(&rest(&mut client)), 200);
        answered += 1;
    }
    stream.write_all(chat(&key, "small", false, "hello").as_bytes()).unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    format!(
        "{} ms of work in a second of rest; all {answered} answered in the end, the provider reached again",
        work * 10
    )
}
