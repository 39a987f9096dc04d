//! Owns the log thread, the only writer of the program's log. A slow or dead stderr never blocks the loop: lines
//! that find no room are dropped and counted.
//!
//! Called by the outbox of the loop with whole lines; never formats and never filters.

use super::lane::{Lane, Look, Patience};
use crate::base::limits;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The writing end. Dropping it writes what is left and waits for the thread.
pub struct Scribe {
    lane: Lane<Vec<u8>>,
    dropped: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Scribe {
    /// Starts the thread that writes to `sink`.
    pub fn start(sink: Box<dyn Write + Send>) -> io::Result<Scribe> {
        let (lane, dropped) = (Lane::new(Vec::with_capacity(limits::LOG_ROOM)), Arc::new(AtomicU64::new(0)));
        let theirs = lane.clone();
        let thread = std::thread::Builder::new().name("scribe".into()).stack_size(256 * 1024);
        let thread = thread.spawn(move || serve(&theirs, sink))?;
        Ok(Scribe { lane, dropped, thread: Some(thread) })
    }

    /// Hands over `batch`, whole lines each with its line feed, and returns it empty for reuse. While the thread is
    /// busy this is a copy under a lock, without a system call.
    pub fn write(&self, mut batch: Vec<u8>) -> Vec<u8> {
        if !batch.is_empty() {
            let fits = self.lane.put(false, |waiting| {
                let fits = waiting.len() + batch.len() <= limits::LOG_BYTES_MAX;
                if fits {
                    waiting.extend_from_slice(&batch);
                }
                fits
            });
            if !fits {
                let lines = batch.iter().filter(|byte| **byte == b'\n').count();
                self.dropped.fetch_add(lines as u64, Ordering::Relaxed);
            }
        }
        batch.clear();
        batch
    }

    /// Lines dropped so far because the sink was too slow.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Scribe {
    fn drop(&mut self) {
        self.lane.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(lane: &Lane<Vec<u8>>, mut sink: Box<dyn Write + Send>) {
    let mut patience = Patience::new(limits::LOG_TICK);
    let mut lines = Vec::with_capacity(limits::LOG_ROOM);
    loop {
        match lane.look(&mut lines, &mut patience, Duration::from_secs(3600), Vec::is_empty) {
            // There is nobody to tell that the log cannot be written.
            Look::Found => drop(sink.write_all(&lines).and_then(|()| sink.flush())),
            Look::Nothing => {}
            Look::Closed => return,
        }
        lines.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    struct Page(Sender<Vec<u8>>);
    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Stuck(Receiver<()>);
    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_come_out_in_order_and_the_last_ones_before_the_end() {
        let (page, written) = channel();
        let scribe = Scribe::start(Box::new(Page(page))).unwrap();
        let mut batch = scribe.write(b"one\n".to_vec());
        batch.extend_from_slice(b"two\nthree\n");
        assert!(scribe.write(batch).is_empty());
        drop(scribe);
        assert_eq!(written.iter().flatten().collect::<Vec<u8>>(), b"one\ntwo\nthree\n");
    }

    #[test]
    fn a_stuck_sink_costs_lines_and_no_waiting() {
        let (release, stuck) = channel();
        let scribe = Scribe::start(Box::new(Stuck(stuck))).unwrap();
        let line = [vec![b'x'; limits::LOG_BYTES_MAX / 2 - 1], b"\n".to_vec()].concat();
        for _ in 0..8 {
            assert!(scribe.write(line.clone()).is_empty());
        }
        assert!(scribe.dropped() >= 4 && scribe.dropped() < 8, "{}", scribe.dropped());
        drop(release);
    }
}
