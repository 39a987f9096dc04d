//! Owns a thread that does what would hold the loop too long. Takes jobs in order, one at a time; knows nothing of what
//! a job is.

use super::channel::{Receiver, Sender, channel};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Something to be done, its end told to whoever wants to know.
pub type Job = Box<dyn FnOnce() + Send>;

/// The giving end. Dropping it lets the thread finish what it has, and waits for it; unless the thread is of the idle
/// class.
pub struct Worker {
    jobs: Option<Sender<Job>>,
    /// `None`: nobody waits for it.
    thread: Option<JoinHandle<()>>,
    /// What has not begun is dropped.
    is_over: Arc<AtomicBool>,
}

impl Worker {
    /// Starts the thread.
    pub fn start() -> io::Result<Worker> {
        Worker::start_with(|| {})
    }

    /// Starts the thread so that it has what time others leave: for jobs that nobody who is served waits for. On a
    /// single core such a job would otherwise keep the loop waiting for as long as the scheduler's slice. Dropping this
    /// end drops the jobs that have not begun and waits for none: one may take minutes where others leave no time.
    pub fn start_idle() -> io::Result<Worker> {
        let mut worker = Worker::start_with(yield_to_all)?;
        worker.thread = None;
        Ok(worker)
    }

    fn start_with(begin: fn()) -> io::Result<Worker> {
        let (jobs, theirs) = channel();
        let is_over = Arc::<AtomicBool>::default();
        let (thread, stops) = (std::thread::Builder::new().name("worker".into()), is_over.clone());
        let thread = thread.spawn(move || {
            begin();
            serve(&theirs, &stops);
        })?;
        Ok(Worker { jobs: Some(jobs), thread: Some(thread), is_over })
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
        self.is_over.store(self.thread.is_none(), Ordering::Relaxed);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Puts this thread into the scheduler's class for what is to run when nothing else wants to (sched(7), `SCHED_IDLE`).
/// A niceness would not do: it makes the share small, but whoever wakes still waits for the end of the slice. Where a
/// system does not let it, the thread stays as it is.
fn yield_to_all() {
    #[cfg(target_os = "linux")]
    {
        use thread_priority::{
            NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
            thread_native_id,
        };
        let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle);
    }
}

fn serve(jobs: &Receiver<Job>, is_over: &AtomicBool) {
    while let Ok(job) = jobs.recv()
        && !is_over.load(Ordering::Relaxed)
    {
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

    #[test]
    fn an_idle_worker_drops_what_has_not_begun() {
        let (tell, told) = channel();
        let (let_go, held) = channel::<()>();
        let worker = Worker::start_idle().unwrap();
        let running = tell.clone();
        worker.give(Box::new(move || {
            running.send("begun").unwrap();
            let _ = held.recv();
        }));
        assert_eq!(told.recv(), Ok("begun"));
        worker.give(Box::new(move || tell.send("never").unwrap()));
        drop(worker);
        // Dropping it has not waited: only now the first job can end. The second one's end of the channel goes unused.
        let_go.send(()).unwrap();
        assert!(told.recv().is_err());
    }

    /// The class is the 41st field of what the kernel tells of a thread (proc_pid_stat(5)); 0 is the ordinary one, 5 is
    /// the idle one.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_worker_has_its_class() {
        let class = |worker: io::Result<Worker>| {
            let (tell, told) = channel();
            worker.unwrap().give(Box::new(move || {
                let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
                let after_name = stat.rsplit_once(')').unwrap().1;
                tell.send(after_name.split_whitespace().nth(38).unwrap().to_owned()).unwrap();
            }));
            told.recv().unwrap()
        };
        assert_eq!(class(Worker::start()), "0");
        assert_eq!(class(Worker::start_idle()), "5");
    }
}
