//! Stack use does not grow with the number of requests that a client pipelines. Each case runs in its own process,
//! since a stack overflow aborts the process.

use super::rig::{Rig, request};
use crate::support::world::Driver;
use std::process::Command;

/// Environment variable that names the case to run.
const RUN: &str = "TOLLGATE_STACK_RUN";
/// Stack size of the gateway's thread, in bytes.
const STACK: usize = 512 * 1024;
/// Number of pipelined requests.
const REQUESTS: usize = 300;

fn survives(name: &str, run: fn()) {
    if std::env::var(RUN).is_ok_and(|wanted| wanted == name) {
        return std::thread::Builder::new().stack_size(STACK).spawn(run).unwrap().join().unwrap();
    }
    let me = std::env::current_exe().unwrap();
    let test = format!("seam::stack::{name}");
    let output = Command::new(me).args(["--exact", &test, "--test-threads", "1"]).env(RUN, name).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{:?}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

/// Sends one request [`REQUESTS`] times in one piece. Each must be answered with `status`.
fn pipelined(rig: &mut Rig, request: &str, status: u16) {
    rig.send("c", request.repeat(REQUESTS));
    let answers = rig.got("c").matches(&format!("HTTP/1.1 {status} ")).count();
    assert_eq!(answers, REQUESTS, "{:.1000}", rig.got("c"));
}

fn no_address() {
    let mut rig = Rig::with(1, &[("provider up", "base_url = \"http://no.test/v1\"")]);
    rig.world.settle().unwrap();
    rig.world.resolve("no.test", &[]).unwrap();
    let (head, body) = request(&rig.keys.texts["k0"].clone(), 100, false);
    pipelined(&mut rig, &(head + &body), 500);
}

fn local_answers() {
    let mut rig = Rig::new(1);
    let key = rig.keys.texts["k0"].clone();
    pipelined(&mut rig, &format!("GET /v1/models HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\n\r\n"), 200);
}

fn refusals() {
    let mut rig = Rig::new(1);
    let (head, body) = request(&rig.keys.texts["k0"].clone(), 100, false);
    pipelined(&mut rig, &(head + &body.replace("small", "smell")), 404);
}

#[test]
fn pipelined_requests_that_fail_do_not_grow_the_stack() {
    survives("pipelined_requests_that_fail_do_not_grow_the_stack", no_address);
}

#[test]
fn pipelined_requests_that_are_answered_do_not_grow_the_stack() {
    survives("pipelined_requests_that_are_answered_do_not_grow_the_stack", local_answers);
}

#[test]
fn pipelined_requests_that_are_refused_do_not_grow_the_stack() {
    survives("pipelined_requests_that_are_refused_do_not_grow_the_stack", refusals);
}
