//! Owns threads for work that would block the event loop too long. Takes jobs in lanes, one for each key. Lanes are
//! served in turn; a lane keeps its order and has one thread at a time. So the work of one key delays no other key's
//! while another thread is free. Independent of the contents of jobs.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Job, which reports its own end.
pub type Job = Box<dyn FnOnce() + Send>;

/// Key that a job belongs to.
pub type LaneKey = u64;

/// Starts a thread of its own for `job`. All threads that are started seldom are started here: for each type that the
/// library's function is compiled for it adds two kilobytes to the binary.
pub fn start_thread(name: &str, job: Job) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_string()).spawn(job)
}

/// Runs `job` and returns its result; an error if it panics. For threads whose result somebody waits for.
pub fn unless_panicked<T>(job: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(job)).map_err(|_| "an internal error; the log has a line `panic`".to_string())
}

/// Waiting jobs of one key, in order.
struct Lane {
    key: LaneKey,
    jobs: VecDeque<Job>,
    /// True while a thread does one of its jobs.
    busy: bool,
}

/// All lanes, the next one to be served first; and true if no more jobs will be added.
#[derive(Default)]
struct Lanes {
    lanes: VecDeque<Lane>,
    closed: bool,
}

impl Lanes {
    fn add(&mut self, key: LaneKey, job: Job) {
        match self.lanes.iter_mut().find(|lane| lane.key == key) {
            Some(lane) => lane.jobs.push_back(job),
            None => self.lanes.push_back(Lane { key, jobs: VecDeque::from([job]), busy: false }),
        }
    }

    /// Returns the next job; its lane is busy from now on.
    fn next(&mut self) -> Option<(LaneKey, Job)> {
        let at = self.lanes.iter().position(|lane| !lane.busy)?;
        let mut lane = self.lanes.remove(at)?;
        let (key, job) = (lane.key, lane.jobs.pop_front()?);
        lane.busy = true;
        self.lanes.push_back(lane);
        Some((key, job))
    }

    /// Marks a lane's job as done, and moves the lane behind all others. A lane without jobs is removed.
    fn done(&mut self, key: LaneKey) {
        let Some(at) = self.lanes.iter().position(|lane| lane.key == key) else { return };
        let Some(lane) = self.lanes.remove(at).filter(|lane| !lane.jobs.is_empty()) else { return };
        self.lanes.push_back(Lane { busy: false, ..lane });
    }
}

#[derive(Default)]
struct WorkerState {
    lanes: Mutex<Lanes>,
    wake: Condvar,
}

impl WorkerState {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut lanes = self.lanes();
        loop {
            if let Some((key, job)) = lanes.next() {
                drop(lanes);
                job();
                lanes = self.lanes();
                lanes.done(key);
                // Another job of that key may have a thread now.
                self.wake.notify_one();
            } else if lanes.closed {
                return;
            } else {
                lanes = self.wake.wait(lanes).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// Handle of the threads. Dropping it lets the threads finish all jobs, and waits for them, unless they are of the idle
/// class.
pub struct Worker {
    shared: Arc<WorkerState>,
    threads: Vec<JoinHandle<()>>,
    /// If true, jobs that have not begun are dropped at the end, and no thread is waited for.
    is_idle: bool,
}

impl Worker {
    /// Starts `threads` threads.
    pub fn start(threads: usize) -> io::Result<Worker> {
        Worker::start_with(threads, || {})
    }

    /// Starts one thread of the scheduler's idle class, for jobs that no client waits for. On a single core such a job
    /// would otherwise block the event loop for a time slice. Dropping this handle drops the jobs that have not begun,
    /// and waits for none: a job may take minutes if other threads leave no time.
    pub fn start_idle() -> io::Result<Worker> {
        let mut worker = Worker::start_with(1, yield_to_all)?;
        worker.is_idle = true;
        Ok(worker)
    }

    fn start_with(threads: usize, begin: fn()) -> io::Result<Worker> {
        let mut worker = Worker { shared: Arc::default(), threads: Vec::new(), is_idle: false };
        for _ in 0..threads {
            let shared = worker.shared.clone();
            let serve = move || {
                begin();
                shared.serve();
            };
            worker.threads.push(start_thread("worker", Box::new(serve))?);
        }
        Ok(worker)
    }

    /// Hands a job of a key over; never waits. The caller bounds the number of jobs: one per request, and all their
    /// data counts as buffered.
    pub fn give(&self, key: LaneKey, job: Job) {
        self.shared.lanes().add(key, job);
        self.shared.wake.notify_one();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut lanes = self.shared.lanes();
        lanes.closed = true;
        if self.is_idle {
            lanes.lanes.clear();
            self.threads.clear();
        }
        drop(lanes);
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Puts this thread into the scheduler's idle class (sched(7), `SCHED_IDLE`). A nice value would not be enough: it
/// makes the share small, but a waking thread still waits for the end of the slice. If the system does not permit it,
/// the thread is unchanged.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn panic_of_a_job_is_an_error() {
        assert_eq!(unless_panicked(|| 7), Ok(7));
        assert!(unless_panicked(|| assert_eq!(1, 2, "a bug")).is_err());
    }

    #[test]
    fn jobs_of_a_key_keep_their_order_and_all_are_done() {
        let (sender, results) = channel();
        let worker = Worker::start(2).unwrap();
        for n in 0..100u32 {
            let sender = sender.clone();
            worker.give(7, Box::new(move || sender.send(n * 2).unwrap()));
        }
        drop((worker, sender));
        assert_eq!(results.iter().collect::<Vec<u32>>(), (0..100).map(|n| n * 2).collect::<Vec<u32>>());
    }

    #[test]
    fn idle_worker_drops_pending_jobs() {
        let (sender, results) = channel();
        let (let_go, held) = channel::<()>();
        let worker = Worker::start_idle().unwrap();
        let running = sender.clone();
        worker.give(
            0,
            Box::new(move || {
                running.send("begun").unwrap();
                let _ = held.recv();
            }),
        );
        assert_eq!(results.recv(), Ok("begun"));
        worker.give(0, Box::new(move || sender.send("never").unwrap()));
        drop(worker);
        // Dropping the handle has not waited: only now the first job can end. The second job has been dropped with its
        // end of the channel.
        let_go.send(()).unwrap();
        assert!(results.recv().is_err());
    }

    /// Returns a job that waits until it is released, and the channel that releases it.
    fn blocked() -> (Job, std::sync::mpsc::Sender<()>) {
        let (go, gone) = channel();
        (
            Box::new(move || {
                let _ = gone.recv();
            }),
            go,
        )
    }

    #[test]
    fn keys_alternate_on_one_thread() {
        let (sender, results) = channel();
        let worker = Worker::start(1).unwrap();
        let (first, go) = blocked();
        worker.give(1, first);
        for (key, n) in [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (2, 21)] {
            let sender = sender.clone();
            worker.give(key, Box::new(move || sender.send(n).unwrap()));
        }
        drop(go);
        drop((worker, sender));
        assert_eq!(results.iter().collect::<Vec<u32>>(), [20, 30, 10, 21, 11, 12]);
    }

    #[test]
    fn one_key_leaves_threads_to_others() {
        let worker = Worker::start(2).unwrap();
        let jobs: Vec<_> = (0..3).map(|_| blocked()).collect();
        let gates: Vec<_> = jobs.into_iter().map(|(job, go)| (worker.give(1, job), go)).collect();
        let (sender, results) = channel();
        worker.give(2, Box::new(move || sender.send(()).unwrap()));
        // The job has run although no job of the other key has ended.
        results.recv().unwrap();
        drop(gates);
    }

    /// The class is the 41st field in the kernel's data about a thread (proc_pid_stat(5)); 0 is the ordinary one, 5 is
    /// the idle one.
    #[test]
    #[cfg(target_os = "linux")]
    fn worker_has_its_scheduling_class() {
        let class = |worker: io::Result<Worker>| {
            let (worker, (sender, results)) = (worker.unwrap(), channel());
            worker.give(
                0,
                Box::new(move || {
                    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
                    let after_name = stat.rsplit_once(')').unwrap().1;
                    sender.send(after_name.split_whitespace().nth(38).unwrap().to_owned()).unwrap();
                }),
            );
            results.recv().unwrap()
        };
        assert_eq!(class(Worker::start(1)), "0");
        assert_eq!(class(Worker::start_idle()), "5");
    }
}
