//! Owns a thread that does what would hold the loop too long. Takes jobs in order, one at a time; knows nothing of what
//! a job is.

use super::channel::{Receiver, Sender, channel};
use std::io;
use std::thread::JoinHandle;

/// Something to be done, its end told to whoever wants to know.
pub type Job = Box<dyn FnOnce() + Send>;

/// The giving end. Dropping it lets the thread finish what it has, and waits for it.
pub struct Worker {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread.
    pub fn start() -> io::Result<Worker> {
        let (jobs, theirs) = channel();
        let thread = std::thread::Builder::new().name("worker".into());
        let thread = thread.spawn(move || serve(&theirs))?;
        Ok(Worker { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Hands a job over; never waits. How many are under way is bounded by the caller: one per request.
    pub fn give(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The thread ends only after this sender does.
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        job();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn jobs_are_done_in_order_and_all_of_them_before_the_end() {
        let (tell, told) = channel();
        let worker = Worker::start().unwrap();
        for n in 0..100u32 {
            let tell = tell.clone();
            worker.give(Box::new(move || tell.send(n * 2).unwrap()));
        }
        drop((worker, tell));
        assert_eq!(told.iter().collect::<Vec<u32>>(), (0..100).map(|n| n * 2).collect::<Vec<u32>>());
    }
}
