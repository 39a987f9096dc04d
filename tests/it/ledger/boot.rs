//! The real binary on a host whose clock is wrong: it boots in 1970, or with a date from before a provider's
//! certificate, and the clock is set while the gateway runs. A library that the test compiles shifts the wall clock of
//! the gateway and of all commands.

use super::client::{get, post};
use super::harness::{CREDENTIAL, Harness, Setup, bearer, chat, with};
use super::process::{Done, Folder, Process, binary, free_port, run, wait_for};
use crate::e2e::tls::{authority_from, start_proxy};
use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use tollgate::io::clock::unix;
use tollgate::policy::window::parse_moment;

/// Adds the seconds in the file `WALL_SHIFT` to the wall clock. The file is mapped, so a change has effect immediately.
const SHIFT: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *shift;

__attribute__((constructor)) static void map(void) {
    const char *path = getenv("WALL_SHIFT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = file < 0 ? MAP_FAILED : mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) shift = at;
    if (file >= 0) close(file);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int result = syscall(SYS_clock_gettime, id, at);
    if (result == 0 && id == CLOCK_REALTIME && shift) at->tv_sec += *shift;
    return result;
}
"#;

/// All dates are later than any build date.
const PRESENT: &str = "2037-03-10T12:00:00Z";

/// A gateway and commands with a shifted wall clock.
struct Host {
    h: Harness,
    library: String,
    file: String,
    _folder: Folder,
}

impl Host {
    /// Starts a gateway in the present, with a provider by TLS whose certificate is valid from 2037 on. Returns `None`
    /// for a static binary, whose clock cannot be shifted.
    fn start() -> Option<Host> {
        let folder = Folder::new();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (source, library, file) = (path("shift.c"), path("shift.so"), path("shift"));
        fs::write(&source, SHIFT).unwrap();
        let compiled = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o", &library, &source]).status().unwrap();
        assert!(compiled.success());
        fs::write(&file, [0; 8]).unwrap();
        let (pem, config) = authority_from(2037);
        fs::write(path("ca.pem"), pem).unwrap();
        let upstream = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let proxy = start_proxy(config, upstream).port();
        let more = format!(
            "[[providers]]\nname = \"tls\"\nshape = \"chat\"\nbase_url = \"https://localhost:{proxy}/v1\"\n\
             ca_file = \"{}\"\naddresses = [\"127.0.0.1\"]\napi_key = {{ env = \"{}\" }}\n\
             [[models]]\nid = \"secure\"\ncontext = \"1M\"\ntargets = [{{ provider = \"tls\" }}]\n",
            path("ca.pem"),
            CREDENTIAL.0
        );
        let server = "admin_write_token = { env = \"SIM_KEY\" }\nadmin_hosts = [\"gateway.test\"]";
        let mut h = Harness::start_at(&Setup { server, more, ..Setup::default() }, upstream);
        h.gateway.stop("TERM");
        let mut host = Host { h, library, file, _folder: folder };
        host.set_clock(PRESENT);
        if !host.command(&["ledger", "clock"]).out.contains(" 2037-03-10T12:00:") {
            assert!(
                std::env::var_os("TOLLGATE_BIN").is_some(),
                "the clock of {} cannot be shifted",
                binary().display()
            );
            return None;
        }
        host.boot(PRESENT);
        host.wait_until_ready();
        Some(host)
    }

    fn env(&self) -> [(&str, &str); 3] {
        [CREDENTIAL, ("LD_PRELOAD", &self.library), ("WALL_SHIFT", &self.file)]
    }

    /// Sets the clock of the host while the gateway runs.
    fn set_clock(&self, moment: &str) {
        let shift = parse_moment(moment).unwrap().secs() as i64 - unix().secs() as i64;
        // In place: a file of another length or number would not be the mapped one.
        let file = fs::File::options().write(true).open(&self.file).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &shift.to_ne_bytes(), 0).unwrap();
    }

    /// Restarts the gateway at this time, and waits until it answers.
    fn boot(&mut self, moment: &str) {
        if !self.h.gateway.has_ended() {
            assert!(self.h.gateway.stop("TERM").success());
        }
        self.set_clock(moment);
        self.h.gateway = Process::start(self.h.folder.path(), "gateway", &["serve"], &self.env());
        wait_for("an answer", || get(self.h.admin, "/healthz").ok());
    }

    fn wait_until_ready(&self) {
        wait_for("readiness", || (get(self.h.admin, "/readyz").ok()?.status() == 200).then_some(()));
    }

    fn command(&self, args: &[&str]) -> Done {
        run(self.h.folder.path(), args, &self.env())
    }

    fn done(&self, args: &[&str]) -> String {
        let done = self.command(args);
        assert_eq!(done.code, 0, "{args:?}: {}{}", done.out, done.err);
        done.out
    }

    /// Issues a key and waits until the running gateway knows it.
    fn key(&self, args: &[&str]) -> String {
        let key = self.done(&[&["keys", "issue", "--name", "test"], args].concat()).trim_end().to_owned();
        wait_for("the gateway to know the key", || (self.h.status_of(&key) != 401).then_some(()));
        key
    }

    fn statuses(&self, keys: &[&String]) -> Vec<u16> {
        keys.iter().map(|key| self.h.chat(key, &chat("x\n#sim tokens=1")).status()).collect()
    }

    /// A gateway with a wrong clock refuses every key, and each answer names the clock.
    fn assert_refused(&self, keys: &[&String]) {
        let ready = get(self.h.admin, "/readyz").unwrap();
        assert_eq!((ready.status(), ready.text()), (503, "not ready: clock\n"));
        for key in keys {
            let answer = self.h.chat(key, &chat("x"));
            assert!(answer.status() == 503 && answer.text().contains("clock"), "{}", answer.text());
        }
    }
}

#[test]
fn a_host_that_boots_in_1970_admits_no_expired_and_no_spent_key_before_or_after_its_clock_is_set() {
    let Some(mut host) = Host::start() else { return };
    let (good, expired) = (host.key(&[]), host.key(&["--expires", "1d"]));
    let (spent, revoked) = (host.key(&["--plan", "allowance"]), host.key(&[]));
    assert_eq!(host.statuses(&[&good, &expired]), [200, 200]);
    wait_for("the allowance to be spent", || (host.statuses(&[&spent]) == [429]).then_some(()));
    host.done(&["keys", "revoke", &revoked[8..20]]);
    let keys = [&good, &expired, &spent, &revoked];
    host.set_clock("2037-03-11T12:01:00Z");
    let after = [200, 401, 429, 401];
    wait_for("the new time", || (host.statuses(&keys) == after).then_some(()));
    host.h.ledger(1);

    for _ in 0..2 {
        host.boot("1970-01-01T00:00:10Z");
        host.assert_refused(&[&good, &expired, &spent]);
        assert_eq!(host.h.chat(&revoked, &chat("x")).status(), 401);
        host.set_clock("2037-03-11T12:02:00Z");
        host.wait_until_ready();
        assert_eq!(host.statuses(&keys), after);
    }
    assert!(host.h.gateway.stop("TERM").success());
    assert!(host.done(&["ledger", "verify"]).starts_with("ok:"));
    let days = host.done(&["usage", "--by", "day", "--json"]);
    assert!(!days.contains("1970-"), "{days}");
}

/// Issued in 1970, it would expire before the present.
#[test]
fn a_key_of_30_days_lives_for_30_days_of_the_present_on_a_host_that_boots_in_1970() {
    let Some(mut host) = Host::start() else { return };
    host.boot("1970-01-01T00:00:10Z");
    let issue = ["keys", "issue", "--name", "x", "--expires", "30d"];
    let refused = host.command(&issue);
    assert!(refused.code == 1 && refused.out.is_empty(), "{}{}", refused.out, refused.err);
    assert!(refused.err.contains("the clock says 1970-01-01") && refused.err.contains("nothing was changed"));
    let asked = post("/admin/v1/keys", &[("authorization", &bearer(CREDENTIAL.1))], r#"{"name":"x","expires":"30d"}"#);
    let refused = super::client::Client::connect(host.h.admin).ask(&asked);
    assert!(refused.status() == 503 && refused.text().contains("clock"), "{}", refused.text());

    host.set_clock("2037-03-11T12:00:00Z");
    host.wait_until_ready();
    let key = host.key(&["--expires", "30d"]);
    for (moment, status) in [("2037-04-10T11:58:00Z", 200), ("2037-04-10T12:02:00Z", 401)] {
        host.set_clock(moment);
        wait_for(moment, || (host.statuses(&[&key]) == [status]).then_some(()));
    }
    host.boot("1970-01-01T00:00:10Z");
    let answer = host.h.chat(&key, &chat("x"));
    assert!(answer.status() == 503 && answer.text().contains("clock"), "{}", answer.text());
}

#[test]
fn a_providers_certificate_that_is_not_yet_valid_names_the_clock() {
    let Some(mut host) = Host::start() else { return };
    let key = host.key(&[]);
    let secure = with(chat("x\n#sim tokens=1"), "model", "secure");
    // No request has been recorded, so this clock is plausible: it is later than the build date.
    host.boot("2036-12-31T23:50:00Z");
    host.wait_until_ready();
    let answer = host.h.chat(&key, &secure);
    let line = host.h.log_of(&answer.id());
    assert_eq!(line["cause"], "tls: NotValidYet by this host's clock", "{line}");
    assert_eq!(answer.status(), 500, "{}", answer.text());
    let checked = host.command(&["check", "--connect"]);
    let said = checked.out + &checked.err;
    assert!(said.contains("is not valid yet") && said.contains("set the clock here"), "{said}");
    host.set_clock(PRESENT);
    wait_for("an answer by TLS", || (host.h.chat(&key, &secure).status() == 200).then_some(()));
}
