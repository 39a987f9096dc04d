//! Owns the path from a signal to the event loop: the handler writes one byte into a socket pair that the poll watches.
//! Signals are caught before there is a loop, and wait: a request to reload must not end a process that is starting.
//!
//! Called by the command line, and by the reactor. Never acts on a signal itself.

use crate::base::seam::Signal;
use mio::net::UnixStream;
use mio::{Interest, Registry, Token};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2, SIGXFSZ};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Number of meanings of signals.
pub const KINDS: usize = 3;

/// Reading ends, one for each meaning.
pub struct Signals {
    pipes: Vec<(UnixStream, Signal)>,
}

impl Signals {
    /// Catches TERM, INT, HUP and USR2 for the rest of the process's life. They are kept until they are read.
    pub fn catch() -> io::Result<Signals> {
        let meanings: [(&[i32], Signal); KINDS] =
            [(&[SIGTERM, SIGINT], Signal::Terminate), (&[SIGHUP], Signal::Reload), (&[SIGUSR2], Signal::Upgrade)];
        let pipes = meanings.into_iter().map(|(signals, meaning)| Ok((caught(signals)?, meaning)));
        Ok(Signals { pipes: pipes.collect::<io::Result<_>>()? })
    }

    /// Registers them with a poll. Events have `tokens` in the order of [`Signals::read`]'s `which`.
    pub fn watch(&mut self, registry: &Registry, tokens: [Token; KINDS]) -> io::Result<()> {
        let mut pipes = self.pipes.iter_mut().zip(tokens);
        pipes.try_for_each(|((pipe, _), token)| registry.register(pipe, token, Interest::READABLE))
    }

    /// Empties pipe number `which`. Returns the signal if one was received. Several of a kind count as one.
    pub fn read(&mut self, which: usize) -> Option<Signal> {
        let (pipe, signal) = self.pipes.get_mut(which)?;
        let (mut bytes, mut came) = ([0u8; 64], false);
        while matches!(pipe.read(&mut bytes), Ok(count) if count > 0) {
            came = true;
        }
        came.then_some(*signal)
    }
}

/// Makes a write beyond the limit on a file's size fail like any other write (EFBIG): the kernel's signal for it would
/// end the process. The flag that the handler sets is not read.
pub fn outlive_file_limit() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::<AtomicBool>::default()).map(drop)
}

fn caught(signals: &[i32]) -> io::Result<UnixStream> {
    let (writer, reader) = std::os::unix::net::UnixStream::pair()?;
    writer.set_nonblocking(true)?;
    reader.set_nonblocking(true)?;
    for signal in signals {
        signal_hook::low_level::pipe::register(*signal, writer.try_clone()?)?;
    }
    Ok(UnixStream::from_std(reader))
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::{SIGUSR1, SIGUSR2};
    use std::time::Duration;

    #[test]
    fn signals_wake_the_poll_and_equal_ones_count_once() {
        let mut poll = mio::Poll::new().unwrap();
        // Signals other than the real ones, which would keep a stuck test run from being stopped.
        let pipes =
            vec![(caught(&[SIGUSR1]).unwrap(), Signal::Terminate), (caught(&[SIGUSR2]).unwrap(), Signal::Reload)];
        let mut signals = Signals { pipes };
        // Sent before the poll watches: such signals are not lost.
        for _ in 0..3 {
            signal_hook::low_level::raise(SIGUSR2).unwrap();
        }
        signals.watch(poll.registry(), [Token(0), Token(1), Token(2)]).unwrap();
        let mut events = mio::Events::with_capacity(8);
        poll.poll(&mut events, Some(Duration::from_secs(5))).unwrap();
        assert_eq!(events.iter().map(|event| event.token()).collect::<Vec<_>>(), [Token(1)]);
        assert_eq!((signals.read(0), signals.read(1), signals.read(1)), (None, Some(Signal::Reload), None));
        assert_eq!(signals.read(2), None);
    }
}
