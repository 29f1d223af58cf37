//! The threads that ask the servers.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use larder_client::{Address, Client, Error, Options};

use super::sample::{Sample, printable};

/// The longest wait for one connect, write or read of a server's socket.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// An answer, or the reason why there is none.
pub(super) type Answer = Result<Sample, String>;

/// The threads that ask the servers, one for each server. When this value is dropped, each thread
/// ends after the answer that it is waiting for, or at once if it waits for none.
#[derive(Debug)]
pub(super) struct Pollers {
    answers: Receiver<(usize, Answer)>,
    /// Each thread ends when its sender is dropped.
    _running: Vec<Sender<()>>,
}

impl Pollers {
    /// Starts a thread for each server. The thread asks its server now, and then once per interval.
    pub(super) fn start(addresses: Vec<Address>, interval: Duration) -> Pollers {
        let (sender, answers) = channel();
        let running = addresses.into_iter().enumerate().map(|(number, address)| {
            let (stop, stopped) = channel::<()>();
            let sender = sender.clone();
            thread::spawn(move || {
                poll(&address, interval, &stopped, |answer| sender.send((number, answer)).is_ok())
            });
            stop
        });
        let running = running.collect();
        Pollers { answers, _running: running }
    }

    /// Returns the answers since the last call, each with the number of its server.
    pub(super) fn answers(&self) -> impl Iterator<Item = (usize, Answer)> + '_ {
        self.answers.try_iter()
    }

    /// Returns the next answer, with the number of its server. Returns `None` if none arrives
    /// before `end`.
    pub(super) fn next_until(&self, end: Instant) -> Option<(usize, Answer)> {
        self.answers.recv_timeout(end.saturating_duration_since(Instant::now())).ok()
    }
}

/// Asks a server once per interval. Ends when `answer` returns false, because no one receives the
/// answers, or when the sender of `stopped` is dropped.
fn poll(
    address: &Address,
    interval: Duration,
    stopped: &Receiver<()>,
    answer: impl Fn(Answer) -> bool,
) {
    let mut client = None;
    let mut next = Instant::now();
    loop {
        let asked = ask(address, &mut client);
        if asked.is_err() {
            client = None;
        }
        if !answer(asked.map_err(|error| printable(&error.to_string()))) {
            return;
        }
        next = (next + interval).max(Instant::now());
        let wait = next.saturating_duration_since(Instant::now());
        if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn ask(address: &Address, client: &mut Option<Client>) -> Result<Sample, Error> {
    let client = match client {
        Some(client) => client,
        None => {
            let options = Options { timeout: Some(PATIENCE) };
            client.insert(Client::connect_to(address, options)?)
        }
    };
    let rows = client.stats(None)?;
    let sample = Sample::new(Instant::now(), rows);
    // Only Larder has `stats buckets`. Some other servers close the connection on such a request.
    if !sample.is_larder() {
        return Ok(sample);
    }
    match client.stats(Some("buckets")) {
        Ok(buckets) => Ok(sample.with_buckets(&buckets)),
        // An older Larder does not have `stats buckets`.
        Err(error) if error.is_recoverable() => Ok(sample),
        Err(error) => Err(error),
    }
}
