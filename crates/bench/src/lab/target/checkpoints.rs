//! The times at which a server writes checkpoints. Many databases keep a log of changes. A
//! checkpoint makes the older part of the log unnecessary, and takes processor time and writes of
//! the device, so clients may wait longer meanwhile.

use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::Server;
use crate::Result;

/// Interval between two questions to the server. A shorter checkpoint may be missed.
const INTERVAL: Duration = Duration::from_millis(250);

impl Server {
    /// Calls `run`. Meanwhile asks the server at intervals whether it is writing a checkpoint.
    /// Returns the times at which it was.
    pub(crate) fn watch_checkpoints<T>(&self, run: impl FnOnce() -> T) -> (T, Vec<Range<Instant>>) {
        thread::scope(|scope| {
            let (ended, end) = channel::<()>();
            let watch = scope.spawn(move || watched(|| self.writes_checkpoint(), &end));
            let result = run();
            drop(ended);
            (result, watch.join().unwrap_or_default())
        })
    }
}

/// Asks `writes` at intervals until the sender of `end` is dropped or the answer is `None`. Returns
/// the times between successive answers `true`. If the server does not answer, it may be too busy,
/// so its state counts as unchanged.
fn watched(writes: impl Fn() -> Result<Option<bool>>, end: &Receiver<()>) -> Vec<Range<Instant>> {
    let mut checkpoints: Vec<Range<Instant>> = Vec::new();
    let mut is_open = false;
    loop {
        let asked = Instant::now();
        match writes() {
            Ok(Some(true)) => {
                if !is_open {
                    checkpoints.push(asked..asked);
                }
                if let Some(last) = checkpoints.last_mut() {
                    last.end = Instant::now();
                }
                is_open = true;
            }
            Ok(Some(false)) => is_open = false,
            Ok(None) => return checkpoints,
            Err(_) => {}
        }
        if end.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
            return checkpoints;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::Error;

    #[test]
    fn successive_answers_are_one_checkpoint() {
        let answers = [Some(false), Some(true), None, Some(true), Some(false), Some(true)];
        let at = Cell::new(0);
        let (ended, end) = channel();
        let ended = Cell::new(Some(ended));
        let answer = || {
            let now = at.replace(at.get() + 1);
            if now + 1 == answers.len() {
                ended.take();
            }
            // `None` stands for a question that the server did not answer.
            answers[now].map(Some).ok_or_else(|| Error::server("busy"))
        };
        let began = Instant::now();
        let checkpoints = watched(answer, &end);
        assert_eq!(checkpoints.len(), 2);
        let first = checkpoints[0].clone();
        assert!(first.start - began >= INTERVAL && first.end - first.start >= INTERVAL * 2);
        assert!(checkpoints[1].start - first.end >= INTERVAL);
        assert_eq!(at.get(), answers.len());
    }

    #[test]
    fn a_system_without_checkpoints_is_asked_once() {
        let asked = Cell::new(0);
        let (_ended, end) = channel();
        let answer = || {
            asked.set(asked.get() + 1);
            Ok(None)
        };
        assert!(watched(answer, &end).is_empty());
        assert_eq!(asked.get(), 1);
    }
}
