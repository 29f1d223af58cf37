//! The load generator: threads with one event loop each, which send one workload in a closed or
//! open loop.

mod connection;
mod pacing;
mod poll;
mod record;
mod stamps;
mod summary;
mod worker;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Barrier, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use larder_client::{Address, Stream};

pub use pacing::Pacing;
pub(crate) use poll::thread_cpu;
pub use record::VerbCount;
pub(crate) use summary::is_bound;
pub use summary::{Latencies, Second, SecondUse, ServerUse, Summary};

use crate::process::{Probe, Sample};
use crate::wire::Wire;
use crate::workload::{Mix, Shape, Verb, Workload};
use crate::{Error, Result, complain};
use connection::Connection;
use record::Tally;
use worker::{Worker, WorkerReport};

/// The longest time that a server may take to accept and greet a connection.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

/// The options of one run of the generator.
#[derive(Clone, Debug)]
pub struct Load {
    /// The server to load.
    pub server: Address,
    /// The server's protocol; `None` is memcached's.
    pub(crate) wire: Option<Arc<dyn Wire>>,
    /// Number of connections of all threads together; at least one per thread.
    pub connections: usize,
    /// Number of generator threads.
    pub threads: usize,
    /// The largest number of unanswered requests per connection. The closed loop sends this many as
    /// one batch, and the next batch once all are answered.
    pub pipeline: usize,
    /// Closed or open loop.
    pub pacing: Pacing,
    /// Length of the measurement, after the warm-up. If it is `None`, the run ends when `requests`
    /// are answered.
    pub duration: Option<Duration>,
    /// Number of requests to send. If it is `None`, the generator sends requests until `duration`
    /// is over.
    pub requests: Option<u64>,
    /// Time at the beginning of the run that is not measured.
    pub warm_up: Duration,
    /// The longest time to wait for outstanding answers once `duration` is over.
    pub grace: Duration,
    /// Measure each request from its sending until the kernel has received its answer. The time for
    /// which the generator waits for a processor is excluded. The time for which a request waits
    /// for the previous answer on its connection is included. Only in the open loop, without
    /// pipelines, over TCP.
    pub wire_times: bool,
    /// Serve each connection by a separate thread that waits for every reply, as the clients of
    /// most libraries do. Only in the closed loop; `threads` must equal `connections`.
    pub blocking: bool,
    /// Check every value against its key.
    pub verify: bool,
    /// Keep every number that a counter returns.
    pub collect_numbers: bool,
    /// Keep the start and the latency of every request.
    pub keep_samples: bool,
    /// Seed of the stream of requests.
    pub seed: u64,
    /// The processor to pin the generator's threads to. In the closed loop they then poll for a
    /// moment before they sleep.
    pub cpu: Option<usize>,
    /// The server's processes, whose processor time and memory are measured.
    pub probe: Option<Probe>,
    /// Print one line per second to the standard error output.
    pub progress: bool,
}

impl Load {
    /// Returns a load with 50 connections, one thread, a closed loop without pipelines, and 5
    /// measured seconds after a warm-up of 1 second.
    pub fn new(server: Address) -> Load {
        Load {
            server,
            wire: None,
            connections: 50,
            threads: 1,
            pipeline: 1,
            pacing: Pacing::Closed,
            duration: Some(Duration::from_secs(5)),
            requests: None,
            warm_up: Duration::from_secs(1),
            grace: Duration::from_secs(10),
            wire_times: false,
            blocking: false,
            verify: false,
            collect_numbers: false,
            keep_samples: false,
            seed: 1,
            cpu: None,
            probe: None,
            progress: false,
        }
    }

    /// Returns this load, changed so that it requests each key of the shape once, in order to fill
    /// the server.
    fn once_through(&self, shape: &Shape) -> Load {
        let keys = shape.keys.div_ceil(shape.keys_per_get as u64);
        Load {
            pacing: Pacing::Closed,
            duration: None,
            // Each thread requests a share of the keys. The size of a share need not be a multiple
            // of the keys per request, so the threads together may need more requests. The two more
            // requests per thread are for this rounding.
            requests: Some(keys.saturating_add(self.threads as u64 * 2)),
            warm_up: Duration::ZERO,
            wire_times: false,
            ..self.clone()
        }
    }

    /// Sends `verb` once for every key of the shape, in order. Refusals are no error: the summary
    /// has their number.
    ///
    /// # Errors
    /// As [`Load::run`].
    pub(crate) fn run_once_through(&self, shape: &Shape, verb: Verb) -> Result<Summary> {
        let shape =
            Shape { mix: Mix::only(verb), keys_per_get: 1, in_order: true, ..shape.clone() };
        self.once_through(&shape).run(shape)
    }

    fn check(&self, shape: &Shape) -> Result<()> {
        let reason = if self.threads == 0 || self.pipeline == 0 {
            "threads and pipeline depth must be at least 1"
        } else if self.connections < self.threads {
            "there must be at least one connection per thread"
        } else if self.duration.is_some() == self.requests.is_some() {
            "a run ends after a duration or after a number of requests"
        } else if self.pacing.rate().is_some_and(|rate| !(rate > 0.0 && rate <= 1e9)) {
            "the rate must be above 0 and at most 10⁹ per second"
        } else if shape.in_order && self.pacing != Pacing::Closed {
            "going through the keys in order needs the closed loop"
        } else if self.wire_times && (self.pacing == Pacing::Closed || self.pipeline > 1) {
            "times between the sockets need the open loop and no pipelines"
        } else if self.blocking
            && (self.pacing != Pacing::Closed || self.threads != self.connections)
        {
            "blocking clients need the closed loop and a thread per connection"
        } else if self.pipeline > 1 && self.wire.as_ref().is_some_and(|wire| !wire.keeps_order()) {
            "the server may answer in another order, so pipelines are not possible"
        } else if let Some(verb) = self.unknown_verb(shape) {
            let verb = verb.name();
            return Err(Error::usage(format!("the server's protocol has no request for {verb}")));
        } else {
            return Ok(());
        };
        Err(Error::usage(reason))
    }

    fn unknown_verb(&self, shape: &Shape) -> Option<Verb> {
        let wire = self.wire.as_ref()?;
        shape.mix.verbs().find(|&verb| !wire.speaks(verb))
    }

    /// Runs the load to its end.
    ///
    /// # Errors
    /// Returns [`Error::Void`] if any answer was wrong, [`Error::Server`] or [`Error::Io`] if the
    /// server went away, and [`Error::Usage`] if the options contradict each other.
    pub fn run(&self, shape: Shape) -> Result<Summary> {
        self.check(&shape)?;
        let workload = Workload::new(shape)?;
        crate::machine::allow_many_files();
        let shared = Shared::new(self.threads);
        let mut workers = Vec::new();
        for index in 0..self.threads {
            let share = (self.connections + self.threads - 1 - index) / self.threads;
            let connections = (0..share).map(|_| self.connect()).collect::<Result<Vec<_>>>()?;
            workers.push(Worker::new(self, &workload, &shared, index, connections)?);
        }
        let (reports, moments) = thread::scope(|scope| {
            let threads: Vec<_> =
                workers.into_iter().map(|worker| scope.spawn(move || worker.run())).collect();
            shared.ready.wait();
            let moments = self.observe(&shared);
            let reports = threads
                .into_iter()
                .map(|thread| {
                    thread.join().unwrap_or_else(|_| Err(Error::server("a thread panicked")))
                })
                .collect::<Result<Vec<WorkerReport>>>();
            (reports, moments)
        });
        let began = shared.clock.get().map(|&start| start + self.warm_up);
        let seconds = shared.into_seconds();
        Summary::build(self, &workload.shape, reports?, moments?, seconds, began)
    }

    fn connect(&self) -> Result<Connection> {
        let failed = |error| Error::io("cannot set up a connection", error);
        let stream = Stream::connect(&self.server, PATIENCE)?;
        if let Some(wire) = &self.wire {
            // A server that accepts and then stalls must not hold up the lab for ever.
            stream.set_timeout(PATIENCE).map_err(failed)?;
            wire.greet(&stream)?;
            stream.set_timeout(None).map_err(failed)?;
        }
        let set = match self.blocking {
            true => stream.set_read_timeout(Some(worker::WAIT_MAX)),
            false => stream.set_nonblocking(true),
        };
        set.map_err(failed)?;
        Ok(Connection::new(stream, self.wire.as_deref()))
    }

    /// Samples the server at the start and end of each measured second, and prints the progress.
    fn observe(&self, shared: &Shared) -> Result<Vec<Moment>> {
        let warm = self.warm_up;
        let end = self.duration.map(|duration| warm + duration);
        self.sleep_until(shared, warm);
        let mut moments = vec![self.moment(shared)?];
        let mut second = 0;
        loop {
            let next = warm + Duration::from_secs(second + 1);
            let until = end.map_or(next, |end| end.min(next));
            if self.sleep_until(shared, until) || end == Some(until) {
                break;
            }
            moments.push(self.moment(shared)?);
            if self.progress {
                // Each thread hands over a second's results shortly after that second ends, so this
                // thread waits a little longer.
                self.sleep_until(shared, next + Duration::from_millis(120));
                shared.print_second(second as usize);
            }
            second += 1;
        }
        moments.push(self.moment(shared)?);
        Ok(moments)
    }

    /// Sleeps until `until` and returns false. Returns true as soon as all threads have finished or
    /// one has failed.
    fn sleep_until(&self, shared: &Shared, until: Duration) -> bool {
        loop {
            if shared.failed.load(Relaxed) || shared.finished.load(Relaxed) == self.threads {
                return true;
            }
            let left = until.saturating_sub(Duration::from_nanos(shared.now()));
            if left.is_zero() {
                return false;
            }
            thread::sleep(left.min(Duration::from_millis(5)));
        }
    }

    fn moment(&self, shared: &Shared) -> Result<Moment> {
        let server = self.probe.as_ref().map(Probe::sample).transpose()?;
        let sum = |counter: fn(&AnswerCounts) -> &AtomicU64| {
            shared.progress.iter().map(|progress| counter(progress).load(Relaxed)).sum()
        };
        Ok(Moment {
            time: shared.now(),
            requests: sum(|progress| &progress.requests),
            keys: sum(|progress| &progress.keys),
            server,
        })
    }
}

/// The counts at the start or end of a measured second, as the observing thread saw them.
#[derive(Clone, Copy, Debug)]
struct Moment {
    time: u64,
    requests: u64,
    keys: u64,
    server: Option<Sample>,
}

/// State that the threads of a run share. Only one thread writes each counter of `progress`.
#[derive(Debug)]
struct Shared {
    ready: Barrier,
    clock: OnceLock<Instant>,
    failed: AtomicBool,
    finished: AtomicUsize,
    progress: Vec<AnswerCounts>,
    seconds: Mutex<Vec<Tally>>,
}

/// One thread's counts of answers since the start of the run. The thread publishes them once per
/// turn of its event loop. The alignment keeps the counts of different threads in different cache
/// lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct AnswerCounts {
    requests: AtomicU64,
    keys: AtomicU64,
}

impl Shared {
    fn new(threads: usize) -> Shared {
        Shared {
            ready: Barrier::new(threads + 1),
            clock: OnceLock::new(),
            failed: AtomicBool::new(false),
            finished: AtomicUsize::new(0),
            progress: (0..threads).map(|_| AnswerCounts::default()).collect(),
            seconds: Mutex::new(Vec::new()),
        }
    }

    /// Returns the nanoseconds since the first call of this function. All threads are ready before
    /// the first call, so this is the time since the start of the run.
    #[inline]
    fn now(&self) -> u64 {
        self.clock.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    fn add_second(&self, second: usize, tally: Tally) {
        let mut seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        while seconds.len() < second {
            seconds.push(Tally::default());
        }
        match seconds.get_mut(second) {
            Some(sum) => sum.add(&tally),
            None => seconds.push(tally),
        }
    }

    fn print_second(&self, second: usize) {
        let seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tally) = seconds.get(second) {
            let row = Second::of(tally, 1.0, None);
            complain!(
                "{:>4} s {:>9.0} requests/s {:>9.0} keys/s   µs: p50 {:>8.1}  p99 {:>8.1}  p99.9 {:>8.1}",
                second + 1,
                row.requests_per_second,
                row.keys_per_second,
                row.p50_us,
                row.p99_us,
                row.p999_us
            );
        }
    }

    fn into_seconds(self) -> Vec<Tally> {
        self.seconds.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
