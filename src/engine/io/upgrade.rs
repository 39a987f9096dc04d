//! Sockets that outlive a process: inherited from systemd or from our predecessor, or handed to our successor, with a
//! channel between the two. Independent of the messages on the channel. Called by the command line.
//!
//! Both work alike: descriptors from 3 on, their number in `LISTEN_FDS`, their names in `LISTEN_FDNAMES`
//! (sd_listen_fds(3)). The channel is the last of them, named `CHANNEL`; a listener named `ADMIN` serves health.

use command_fds::{CommandFdExt, FdMapping};
use listenfd::ListenFd;
use nix::unistd::close;
use rustix::net::sockopt::socket_acceptconn;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Child, Command};
use std::{env, fs};

/// Name of the channel among inherited descriptors.
const CHANNEL: &str = "tollgate-channel";
/// Name of the listener for health and metrics.
const ADMIN: &str = "admin";
/// Name of a listener for clients. systemd names a socket without `FileDescriptorName` after its unit.
const CLIENTS: &str = "clients";
const UNIT: &str = ".socket";
/// Variables that concern only this process: no program that it runs gets them.
pub const PRIVATE_VARIABLES: [&str; 6] =
    ["LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"];
/// Linux's numbers of the address family and the type of the channel's socket.
const UNIX: i32 = 1;
const STREAM: i32 = 1;
/// Number of the first inherited descriptor.
const FIRST: i32 = 3;

/// Inherited sockets.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Listeners for clients.
    pub clients: Vec<TcpListener>,
    /// Listener for health and metrics.
    pub admin: Option<TcpListener>,
    /// Channel to the predecessor, if there is one.
    pub channel: Option<UnixStream>,
}

impl Inherited {
    /// Takes the inherited sockets, and closes all other descriptors that the caller has left open. The process must do
    /// this before it opens anything: no program that it starts afterwards gets any of them.
    pub fn take() -> io::Result<Inherited> {
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut fds = ListenFd::from_env();
        close_from(FIRST.saturating_add(fds.len() as i32));
        let mut all = Inherited::default();
        for index in 0..fds.len() {
            match names.next().unwrap_or_default() {
                CHANNEL => all.channel = fds.take_custom(index, UNIX, STREAM, "unix stream")?,
                ADMIN if all.admin.is_some() => return Err(io::Error::other("two of them are named \"admin\"")),
                ADMIN => {
                    let tcp = fds.take_tcp_listener(index);
                    all.admin = tcp.or_else(|_| fds.take_custom(index, UNIX, STREAM, "unix stream"))?;
                }
                "" | CLIENTS => all.clients.extend(fds.take_tcp_listener(index)?),
                unit if unit.ends_with(UNIT) => all.clients.extend(fds.take_tcp_listener(index)?),
                // A misspelt name would give the admin socket to clients.
                other => {
                    return Err(io::Error::other(format!("\"{other}\" is neither \"{CLIENTS}\" nor \"{ADMIN}\"")));
                }
            }
        }
        match all.clients.iter().chain(&all.admin).all(|socket| socket_acceptconn(socket.as_fd()) == Ok(true)) {
            true => Ok(all),
            false => Err(io::Error::other("one of them does not listen")),
        }
    }
}

/// Closes all descriptors from number `first` on.
fn close_from(first: i32) {
    let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<i32>().ok();
    // One of the numbers is that of the list itself, which is closed before.
    let open: Vec<i32> = fs::read_dir("/proc/self/fd").into_iter().flatten().filter_map(name).collect();
    for number in open.into_iter().filter(|number| *number >= first) {
        let _ = close(number);
    }
}

/// Starts `command` with `listeners`; if `admin`, the last of them is the admin listener. Returns the process and our
/// end of the channel to it.
pub fn start(mut command: Command, listeners: Vec<OwnedFd>, admin: bool) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let count = listeners.len();
    let name = |index: usize| if admin && index + 1 == count { ADMIN } else { CLIENTS };
    let mut names: Vec<&str> = (0..count).map(name).collect();
    names.push(CHANNEL);
    let fds = listeners.into_iter().chain([theirs.into()]);
    let mappings = fds.zip(FIRST..).map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd }).collect();
    command.fd_mappings(mappings).map_err(|error| io::Error::other(error.to_string()))?;
    command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
    // That variable is for the process that systemd started, which is not the new one.
    command.env_remove("LISTEN_PID");
    Ok((command.spawn()?, ours))
}

/// sd_notify(3): notifies the service manager. Does nothing without a manager.
pub fn notify(text: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    let sent = UnixDatagram::unbound().and_then(|socket| {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::ffi::OsStrExt;
        match path.as_bytes().strip_prefix(b"@") {
            None => socket.send_to(text.as_bytes(), &path),
            Some(name) => {
                let addr = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
                socket.send_to_addr(text.as_bytes(), &addr)
            }
        }
    });
    // If this fails, the manager notices by its own timeout.
    drop(sent);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn child_process_finds_its_sockets_by_name() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fds = vec![OwnedFd::from(listener.try_clone().unwrap()), OwnedFd::from(listener)];
        let mut command = Command::new("sh");
        command.args(["-c", "echo $LISTEN_FDS $LISTEN_FDNAMES ${LISTEN_PID-none} >&5; test -S /proc/self/fd/4"]);
        let (mut child, mut channel) = start(command, fds, true).unwrap();
        let mut said = String::new();
        channel.read_to_string(&mut said).unwrap();
        assert_eq!(said, "3 clients:admin:tollgate-channel none\n");
        assert!(child.wait().unwrap().success());
    }
}
