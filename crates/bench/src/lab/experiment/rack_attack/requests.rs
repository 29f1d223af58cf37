//! Clients that send requests to the two processes of the application alternately.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::application::{Application, Process};
use super::http::Http;
use crate::generator::{is_bound, thread_cpu};
use crate::interrupt::is_interrupted;
use crate::lab::record::Figures;
use crate::{Error, Result};

/// The requests to send. Each client waits for an answer before its next request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requests<'a> {
    pub(super) clients: usize,
    pub(super) path: &'a str,
    /// Time at the beginning in which latencies are not recorded.
    pub(super) warm_up: Duration,
    /// The longest time, after the warm-up, for which the clients send requests.
    pub(super) time: Duration,
    /// The largest number of requests of all clients together, including the warm-up.
    pub(super) most: u64,
}

/// The answers to all requests. The counts of requests include the warm-up.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdicts {
    /// Requests that Rack::Attack admitted, so that the application answered with 200.
    pub(super) admitted: u64,
    /// Requests that Rack::Attack refused, with 429.
    pub(super) refused: u64,
    /// Latencies after the warm-up, in nanoseconds, ascending.
    latencies: Vec<u64>,
    /// Number of clients, each of which is a thread.
    clients: usize,
    /// Length of the measurement, without the warm-up, in seconds.
    seconds: f64,
    /// Processor time of the clients, in nanoseconds.
    cpu: u64,
    /// Length of the whole run with the warm-up.
    whole: Duration,
}

/// The state that the clients share: the times of the run, and how many requests are left to send.
struct Drive<'a> {
    requests: Requests<'a>,
    begin: Instant,
    end: Instant,
    left: AtomicU64,
}

impl Verdicts {
    /// Sends requests to both processes until the time is over or all are sent.
    ///
    /// # Errors
    /// Returns [`Error::Void`] for an answer that is neither 200 nor 429.
    pub(super) fn send(application: &Application, requests: Requests<'_>) -> Result<Verdicts> {
        let started = Instant::now();
        let begin = started + requests.warm_up;
        let drive =
            Drive { requests, begin, end: begin + requests.time, left: requests.most.into() };
        let parts: Vec<Result<Verdicts>> = thread::scope(|scope| {
            let client = |number| {
                let drive = &drive;
                scope.spawn(move || drive.client(&application.processes, number))
            };
            let clients: Vec<_> = (0..requests.clients).map(client).collect();
            let lost = |_| Err(Error::server("a client of the application panicked"));
            clients.into_iter().map(|client| client.join().unwrap_or_else(lost)).collect()
        });
        let whole = started.elapsed();
        let seconds = whole.saturating_sub(requests.warm_up).min(requests.time).as_secs_f64();
        let clients = requests.clients;
        let mut sum = Verdicts { clients, seconds, whole, ..Verdicts::default() };
        for part in parts {
            let part = part?;
            sum.admitted += part.admitted;
            sum.refused += part.refused;
            sum.latencies.extend(part.latencies);
            sum.cpu += part.cpu;
        }
        sum.latencies.sort_unstable();
        Ok(sum)
    }

    /// Returns the number of all answered requests.
    pub(super) fn requests(&self) -> u64 {
        self.admitted + self.refused
    }

    /// Returns the figures that the clients have measured. A latency counts from the sending of a
    /// request to the end of its answer. `processors` is the number of processors that the clients
    /// may use.
    pub(super) fn figures(&self, processors: usize) -> Figures {
        let at = |share: f64| {
            let rank = (self.latencies.len() as f64 * share).ceil() as usize;
            let time = self.latencies.get(rank.saturating_sub(1));
            time.map_or(0.0, |&time| time as f64 / 1000.0)
        };
        let count = self.latencies.len().max(1) as f64;
        let busy = self.cpu as f64 / self.whole.as_nanos().max(1) as f64;
        Figures {
            rate: self.latencies.len() as f64 / self.seconds.max(0.001),
            mean_us: self.latencies.iter().sum::<u64>() as f64 / count / 1000.0,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            p99999_us: at(0.99999),
            max_us: at(1.0),
            generator_busy: busy,
            // Client threads that wait for answers use almost no processor time. So clients that
            // are busy most of the time may have limited the rate.
            generator_bound: is_bound(busy, self.clients, processors),
            ..Figures::default()
        }
    }
}

impl Drive<'_> {
    /// Sends the requests of one client, alternately to the two processes.
    fn client(&self, processes: &[Process; 2], number: usize) -> Result<Verdicts> {
        let mut connections = Vec::new();
        for process in processes {
            connections.push(Http::connect(&process.address)?);
        }
        // Clients begin at different processes.
        connections.rotate_left(number % 2);
        let mut part = Verdicts::default();
        while let Some(http) = connections.first_mut() {
            let sent = Instant::now();
            if sent >= self.end || is_interrupted() || !self.take() {
                break;
            }
            let answer = http.get(self.requests.path)?;
            let answered = Instant::now();
            match answer.status {
                200 => part.admitted += 1,
                429 => part.refused += 1,
                status => {
                    let text = answer.body.lines().next().unwrap_or_default();
                    return Err(Error::Void(format!("the application answered {status}: {text}")));
                }
            }
            if sent >= self.begin && answered < self.end {
                part.latencies.push((answered - sent).as_nanos() as u64);
            }
            connections.rotate_left(1);
        }
        part.cpu = thread_cpu();
        Ok(part)
    }

    /// Takes one of the requests that are left to send. Returns false if none is left.
    fn take(&self) -> bool {
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use larder_client::Address;

    use super::*;

    /// Sends `requests` to an application without a server. Returns `None` if Ruby or a gem that
    /// the application needs is missing.
    fn send(store: &str, limit: u64, requests: u64) -> Option<Verdicts> {
        let nowhere = Address::Tcp("127.0.0.1:1".into());
        let application = match Application::start(store, &nowhere, limit, 2) {
            Ok(application) => application,
            Err(error) if error.to_string().contains("to install") => {
                eprintln!("skipped: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(application.versions.contains("sinatra"), "{}", application.versions);
        assert!(application.sample().unwrap().rss > 0);
        let requests = Requests {
            clients: 2,
            path: "/admission",
            warm_up: Duration::ZERO,
            time: Duration::from_secs(60),
            most: requests,
        };
        Some(Verdicts::send(&application, requests).unwrap())
    }

    #[test]
    fn a_store_in_each_process_admits_the_limit_twice() {
        let Some(verdicts) = send("memory", 100, 400) else { return };
        // If two threads of a process create its counter at the same time, one increment may be
        // lost. So each process may admit one request more.
        assert!((200..=202).contains(&verdicts.admitted), "{verdicts:?}");
        assert_eq!(verdicts.requests(), 400);
        let figures = verdicts.figures(2);
        assert!(figures.rate > 0.0 && figures.p50_us <= figures.p99_us, "{figures:?}");
    }

    #[test]
    fn nothing_is_refused_without_a_throttle() {
        let Some(verdicts) = send("none", 1, 20) else { return };
        assert_eq!((verdicts.admitted, verdicts.refused), (20, 0));
    }

    #[test]
    fn an_application_that_cannot_start_says_why() {
        let nowhere = Address::Tcp("127.0.0.1:1".into());
        let error = Application::start("nothing", &nowhere, 1, 1).unwrap_err().to_string();
        let expected = ["to install", "no store is called nothing"];
        assert!(expected.iter().any(|text| error.contains(text)), "{error}");
    }

    #[test]
    fn figures_are_those_of_the_sorted_latencies() {
        let latencies = (1..=100).map(|count| count * 1000).collect();
        let verdicts = Verdicts { latencies, seconds: 2.0, ..Verdicts::default() };
        let figures = verdicts.figures(2);
        assert_eq!((figures.rate, figures.mean_us), (50.0, 50.5));
        assert_eq!((figures.p50_us, figures.p99_us, figures.max_us), (50.0, 99.0, 100.0));
        assert_eq!(Verdicts::default().figures(2).max_us, 0.0);
    }

    #[test]
    fn clients_bound_the_rate_if_most_of_them_are_busy() {
        let whole = Duration::from_secs(1);
        let bound = |cpu, processors| {
            let verdicts = Verdicts { clients: 4, cpu, whole, ..Verdicts::default() };
            verdicts.figures(processors).generator_bound
        };
        assert!(!bound(3_000_000_000, 8) && bound(3_500_000_000, 8));
        // Two processors cannot run four clients at the same time.
        assert!(!bound(1_500_000_000, 2) && bound(1_900_000_000, 2));
    }
}
