//! Owns the log thread, the only writer of the program's log. A slow or dead stderr never blocks the event loop, nor
//! the end of the program: lines without room are dropped, and their number is logged when there is room again.
//!
//! Called by the outbox of the loop with whole lines; never filters.

use super::batch_queue::{BatchQueue, IdlePolicy, Polled};
use super::channel::{Receiver, channel};
use super::clock;
use crate::base::limits;
use crate::policy::window;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of log lines for which the queue of the log thread has room from the start. The system provides memory only as
/// it fills, and growing would leave the former storage behind.
const LOG_ROOM: usize = 256 * 1024;
/// Bytes of waiting log lines at which the busy log thread is woken before its pause ends.
const LOG_ENOUGH: usize = 48 * 1024;
/// Pause of the busy log thread between two polls of its queue, so that the loop seldom has to wake it.
const LOG_TICK: Duration = Duration::from_millis(10);

/// Writing end for the event loop. Dropping it waits until the thread has written the remaining lines, but only for a
/// limited time.
pub struct LogWriter {
    lines: LogLines,
    /// Closed when the thread ends.
    ended: Receiver<()>,
}

/// Writing end for a helper thread. Lines written after the [`LogWriter`] is gone are lost.
#[derive(Clone)]
pub struct LogLines {
    queue: BatchQueue<Vec<u8>>,
    most: usize,
    dropped: Arc<AtomicU64>,
}

impl LogWriter {
    /// Starts the thread that writes to `sink`. At most `most` bytes wait for it.
    pub fn start(sink: Box<dyn Write + Send>, most: usize) -> io::Result<LogWriter> {
        let queue = BatchQueue::new(Vec::with_capacity(LOG_ROOM));
        let lines = LogLines { queue, most, dropped: Arc::default() };
        let (theirs, (alive, ended)) = (lines.clone(), channel());
        let thread = std::thread::Builder::new().name("log".into()).stack_size(256 * 1024);
        thread.spawn(move || {
            serve(&theirs.queue, &theirs.dropped, sink);
            drop(alive);
        })?;
        Ok(LogWriter { lines, ended })
    }

    /// Hands over `batch`, see [`LogLines::write`].
    pub fn write(&self, batch: Vec<u8>) -> Vec<u8> {
        self.lines.write(batch)
    }

    /// Returns a writing end for another thread.
    pub fn lines(&self) -> LogLines {
        self.lines.clone()
    }
}

impl LogLines {
    /// Hands over `batch`, whole lines each with its line feed, and returns it empty for reuse. While the thread is
    /// busy this is a copy under a lock, without a system call.
    pub fn write(&self, mut batch: Vec<u8>) -> Vec<u8> {
        if !batch.is_empty() {
            let enough = |waiting: &Vec<u8>| waiting.len() >= LOG_ENOUGH;
            let fits = self.queue.put_until(enough, |waiting| {
                let fits = waiting.len() + batch.len() <= self.most;
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
        batch.shrink_to(LOG_ENOUGH);
        batch
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.lines.queue.close();
        // If stderr is not read, the thread is blocked in a write until the process ends.
        let _ = self.ended.recv_timeout(limits::LOG_PARTING);
    }
}

fn serve(queue: &BatchQueue<Vec<u8>>, dropped: &AtomicU64, mut sink: Box<dyn Write + Send>) {
    let mut idle = IdlePolicy::new(LOG_TICK);
    let mut lines = Vec::with_capacity(LOG_ROOM);
    loop {
        let polled = queue.poll(&mut lines, &mut idle, Duration::from_secs(3600), Vec::is_empty);
        let (mut unwritten, is_cut) = write_all(&mut *sink, &lines);
        unwritten += dropped.swap(0, Ordering::Relaxed);
        if unwritten > 0 {
            // A line of which only the beginning was written must not spoil the next one.
            let (before, line) = (if is_cut { "\n" } else { "" }, gap(unwritten));
            if write_all(&mut *sink, format!("{before}{line}").as_bytes()).0 > 0 {
                dropped.fetch_add(unwritten, Ordering::Relaxed);
            }
        }
        if matches!(polled, Polled::Closed) {
            return;
        }
        lines.clear();
        if lines.capacity() > LOG_ROOM {
            lines = Vec::with_capacity(LOG_ROOM);
        }
    }
}

/// Writes lines. Returns the number of lines that could not be written, and true if one of them was begun. Another
/// program may have set O_NONBLOCK on the same terminal or pipe.
fn write_all(sink: &mut dyn Write, lines: &[u8]) -> (u64, bool) {
    let mut rest = lines;
    while !rest.is_empty() {
        match sink.write(rest) {
            Ok(written) if written > 0 => rest = &rest[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(LOG_TICK),
            // A failure to write the log could only be reported in the log.
            _ => break,
        }
    }
    let _ = sink.flush();
    let (written, unwritten) = lines.split_at(lines.len() - rest.len());
    let count = unwritten.iter().filter(|byte| **byte == b'\n').count();
    (count as u64, count > 0 && !written.is_empty() && !written.ends_with(b"\n"))
}

/// Line that replaces dropped lines.
fn gap(lines: u64) -> String {
    format!("{{\"time\":\"{}\",\"event\":\"log\",\"lines_dropped\":{lines}}}\n", window::iso(clock::unix()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

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

    /// A sink that first waits for `Stuck` and then writes to `Page`.
    struct Both(Stuck, Page);
    impl Write for Both {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.write(bytes)?;
            self.1.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_in_order_and_all_before_the_end() {
        let (page, written) = channel();
        let log = LogWriter::start(Box::new(Page(page)), limits::LOG_BYTES_MAX).unwrap();
        let mut batch = log.write(b"one\n".to_vec());
        batch.extend_from_slice(b"two\nthree\n");
        assert!(log.write(batch).is_empty());
        drop(log);
        assert_eq!(written.iter().flatten().collect::<Vec<u8>>(), b"one\ntwo\nthree\n");
    }

    /// Sends eight batches of one line each, of which at most two fit at a time.
    fn overwhelm(log: &LogWriter) {
        let line = [vec![b'x'; limits::LOG_BYTES_MAX / 2 - 1], b"\n".to_vec()].concat();
        for _ in 0..8 {
            assert!(log.write(line.clone()).is_empty());
        }
    }

    #[test]
    fn blocked_sink_drops_lines_without_waiting() {
        let (release, stuck) = channel();
        let log = LogWriter::start(Box::new(Stuck(stuck)), limits::LOG_BYTES_MAX).unwrap();
        overwhelm(&log);
        let began = Instant::now();
        drop(log);
        assert!(began.elapsed() >= limits::LOG_PARTING, "the end must wait for the remaining lines");
        // The sink was blocked until now, and dropping the writer did not depend on it.
        drop(release);
    }

    /// Accepts a few bytes, then is full for a while, as a pipe with O_NONBLOCK; fails once in the middle of a line.
    struct Odd(Sender<Vec<u8>>, u32);
    impl Write for Odd {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 += 1;
            match self.1 {
                1 | 2 | 4 => Err(ErrorKind::WouldBlock.into()),
                3 => Err(ErrorKind::Interrupted.into()),
                6 => Err(ErrorKind::StorageFull.into()),
                _ => {
                    let bytes = &bytes[..bytes.len().min(6)];
                    self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
                    Ok(bytes.len())
                }
            }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn full_sink_is_waited_for_and_unwritten_lines_are_counted() {
        let (page, written) = channel();
        let log = LogWriter::start(Box::new(Odd(page, 0)), limits::LOG_BYTES_MAX).unwrap();
        log.write(b"first\nsecond\nthird\n".to_vec());
        drop(log);
        let written = String::from_utf8(written.iter().flatten().collect()).unwrap();
        let lines: Vec<&str> = written.lines().collect();
        assert_eq!((lines.len(), lines[0]), (2, "first"), "{written}");
        assert!(lines[1].ends_with("\"event\":\"log\",\"lines_dropped\":2}"), "{written}");
        let (page, written) = channel();
        let log = LogWriter::start(Box::new(Odd(page, 0)), limits::LOG_BYTES_MAX).unwrap();
        log.write(b"one long line\nsecond\n".to_vec());
        drop(log);
        let written = String::from_utf8(written.iter().flatten().collect()).unwrap();
        let lines: Vec<&str> = written.lines().collect();
        assert_eq!((lines.len(), lines[0]), (2, "one lo"), "{written}");
        assert!(lines[1].ends_with("\"lines_dropped\":2}"), "{written}");
    }

    #[test]
    fn dropped_lines_are_counted_in_their_place() {
        let (release, stuck) = channel();
        let (page, written) = channel();
        let log = LogWriter::start(Box::new(Both(Stuck(stuck), Page(page))), limits::LOG_BYTES_MAX).unwrap();
        overwhelm(&log);
        drop(release);
        drop(log);
        let written = written.iter().flatten().collect::<Vec<u8>>();
        let lines: Vec<&[u8]> = written.split_inclusive(|byte| *byte == b'\n').collect();
        let is_gap = |line: &&&[u8]| line.starts_with(b"{\"time\":\"");
        let gap: serde_json::Value = serde_json::from_slice(lines.iter().find(is_gap).unwrap()).unwrap();
        let kept = lines.iter().filter(|line| line.starts_with(b"x")).count();
        assert_eq!((gap["event"].as_str(), gap["lines_dropped"].as_u64()), (Some("log"), Some(8 - kept as u64)));
        assert!(kept < 8);
    }
}
