//! Owns the thread that does what would hold the loop too long. Takes jobs in order, one at a time; what it makes of
//! them goes where the starter says. Knows nothing of what a job is.

use super::channel::{Receiver, Sender, channel};
use std::io;
use std::thread::JoinHandle;

/// The giving end. Dropping it lets the thread finish what it has, and waits for it.
pub struct Worker<T> {
    jobs: Option<Sender<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts the thread: each job becomes `tell(run(job))`.
    pub fn start<U: 'static>(run: fn(T) -> U, tell: impl Fn(U) + Send + 'static) -> io::Result<Worker<T>> {
        let (jobs, theirs) = channel();
        let thread = std::thread::Builder::new().name("worker".into());
        let thread = thread.spawn(move || serve(&theirs, run, &tell))?;
        Ok(Worker { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Hands a job over; never waits. How many are under way is bounded by the caller: one per request.
    pub fn give(&self, job: T) {
        if let Some(jobs) = &self.jobs {
            // The thread ends only after this sender does.
            let _ = jobs.send(job);
        }
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve<T: 'static, U>(jobs: &Receiver<T>, run: fn(T) -> U, tell: &impl Fn(U)) {
    while let Ok(job) = jobs.recv() {
        tell(run(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn jobs_are_done_in_order_and_all_of_them_before_the_end() {
        let (tell, told) = channel();
        let worker = Worker::start(|n: u32| n * 2, move |n| tell.send(n).unwrap()).unwrap();
        (0..100).for_each(|n| worker.give(n));
        drop(worker);
        assert_eq!(told.iter().collect::<Vec<u32>>(), (0..100).map(|n| n * 2).collect::<Vec<u32>>());
    }
}
