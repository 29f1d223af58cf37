//! Closes connections when their buffers together take more memory than the [budget] allows. A
//! connection *keeps* the bytes of its buffers: unconsumed input and unsent output. A charge to the
//! budget always succeeds. Afterwards, the workers close the connections that have kept the most
//! bytes for the longest time. Clients that are too slow are closed before clients that pause for a
//! moment, and clients that wait for the server after both. But connections that keep few bytes are
//! closed only after all others.
//!
//! Each worker may always use its equal part of the limit, and more while other workers use less.
//! So when the limit is exceeded, a worker closes its own connections only if they use more than
//! its part. Otherwise the worker asks the other workers to check their connections.
//!
//! [budget]: super::Budget

use super::connection::Core;
use super::{Flow, Service};
use std::sync::atomic::Ordering;

/// When the limit is exceeded, a check closes connections until only `LEFT`/`PARTS` of the limit,
/// or of the worker's part of it, is in use. Without this margin, checks would follow each other
/// closely, and each check scans all connections.
const LEFT: u64 = 7;
const PARTS: u64 = 8;

/// Upper bound of a connection's silence, in milliseconds: a longer silence counts as this long.
/// The silence is the time since the service was last called for the connection, or since the
/// socket last took held output.
const SILENCE_MS: u64 = 5_000;

/// A client counts as too slow if its connection is silent for this time, in milliseconds. It also
/// counts as too slow if its connection has kept bytes for longer than this time and moves them at
/// less than [`LEAST_RATE`]. A byte is moved when the service consumes it or the socket takes it.
const PAUSE_MS: u64 = 500;

/// The lowest rate, in bytes per second, at which a client must send or read while its connection
/// keeps bytes.
const LEAST_RATE: u64 = 64 << 10;

/// A connection is small if it keeps at most 1/`MODEST_SHARE` of its equal share of the worker's
/// part of the limit. Small connections are closed only after all larger connections.
const MODEST_SHARE: u64 = 4;

/// Interval between checks after a check that closed no connection, in milliseconds.
const CHECK_INTERVAL_MS: u64 = 2;

/// The reason why a connection keeps bytes. The order matters: of several large connections, and of
/// several small ones, those with a later variant are closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// The server has not answered yet.
    Server,
    /// The client may only be pausing for a moment.
    Pause,
    /// The values of other clients occupy the space that this connection waits for. Instead of
    /// closing the connection, the service can refuse its request with an error.
    Others,
    /// The client reads its replies, or sends the rest of a command, too slowly.
    Client,
}

/// A connection that keeps bytes.
#[derive(Clone, Copy, Debug)]
struct Holder {
    key: u32,
    bytes: u64,
    cause: Cause,
    /// The connection's silence, in milliseconds; at most [`SILENCE_MS`].
    silent: u64,
}

impl Holder {
    /// Returns the sort key of a connection. The connection with the greatest key is closed first.
    /// The key compares first whether a connection keeps more than `share` bytes, then its cause,
    /// then its bytes times the square of its silence. Connections with [`Cause::Pause`] are
    /// compared by silence before bytes, because only their silence shows which of them are stuck.
    fn cost(&self, share: u64) -> (bool, Cause, u64, u64) {
        let silence = (self.silent + 1).pow(2);
        let large = self.bytes > share;
        match self.cause {
            Cause::Pause => (large, self.cause, silence, self.bytes),
            _ => (large, self.cause, self.bytes * silence, 0),
        }
    }
}

/// Returns the connections to close so that `excess` bytes become free, in the order of closing.
fn victims(mut holders: Vec<Holder>, limit: u64, mut excess: u64) -> impl Iterator<Item = Holder> {
    // If all connections together keep more than the limit, at least one keeps more than `share`.
    // So a connection that keeps less is not closed while such a larger one is left.
    let share = limit / holders.len().max(1) as u64 / MODEST_SHARE;
    holders.sort_unstable_by_key(|holder| std::cmp::Reverse(holder.cost(share)));
    holders.into_iter().take_while(move |holder| {
        let goes = excess > 0;
        excess = excess.saturating_sub(holder.bytes);
        goes
    })
}

impl<S: Service, I> Core<S, I> {
    /// Returns the connections to close now, in the order of [`Holder::cost`]. Returns none if the
    /// connections of all workers together are within the limit.
    pub(super) fn relieve(&mut self) -> Vec<u32> {
        if self.now() < self.next_budget_check {
            return Vec::new();
        }
        self.budget_check_due = false;
        let (held, limit) = self.shared.options.budget.held();
        if held <= limit {
            return Vec::new();
        }
        let gone = self.choose(held, limit);
        // The check left out the connections of the ready list, which the next turns continue. They
        // may still keep many bytes after that, so a further check is needed.
        self.budget_check_due = true;
        if gone.is_empty() {
            self.next_budget_check = self.now() + CHECK_INTERVAL_MS;
        }
        self.counters.refused_buffers.add(gone.len() as u64);
        gone
    }

    fn choose(&mut self, held: u64, limit: u64) -> Vec<u32> {
        let (holders, moving) = self.holders();
        // Connections that continue without waiting for an event will probably keep fewer bytes
        // after that. So this check does not count their bytes. A later check counts what they
        // still keep when they wait for an event.
        let held = held.saturating_sub(moving);
        if held <= limit {
            return Vec::new();
        }
        let own: u64 = holders.iter().map(|holder| holder.bytes).sum();
        let part = limit / self.shared.workers.len() as u64;
        if own <= part {
            self.shared.ask_for_relief(self.index);
            return Vec::new();
        }
        let excess = (held - limit * LEFT / PARTS).min(own - part * LEFT / PARTS);
        if held - excess > limit {
            self.shared.ask_for_relief(self.index);
        }
        let mut gone = Vec::new();
        for victim in victims(holders, part, excess) {
            match victim.cause {
                Cause::Others => self.give_up(victim.key),
                _ => gone.push(victim.key),
            }
        }
        gone
    }

    /// Makes a connection give up waiting for space, so that it soon keeps less. Does nothing if
    /// the connection has received the space meanwhile.
    fn give_up(&mut self, key: u32) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(state) = &mut connection.service else { return };
        if self.service.gives_up(state) {
            connection.flow = Flow::Drain;
            self.queue(key);
        }
    }

    /// Returns two things: the connections that keep bytes and wait for an event, and the number of
    /// bytes that the other connections keep. The others continue without waiting for an event.
    fn holders(&mut self) -> (Vec<Holder>, u64) {
        let (now, mut holders, mut moving) = (self.now(), Vec::new(), 0);
        for key in 0..self.connections.bound() {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            let Some(state) = &connection.service else { continue };
            let buffers = connection.input.capacity() + connection.output.capacity();
            let bytes = (buffers + self.service.keeps(state)) as u64;
            if bytes == 0 {
                continue;
            }
            let reads = connection.output.is_empty();
            // With io_uring, a connection may have unseen input and yet be missing in the ready
            // list: it continues when its send in flight completes. So `queued` alone does not show
            // that it continues.
            let goes_on = connection.unseen && reads && connection.flow.reads();
            let silent = now.saturating_sub(connection.stamp).min(SILENCE_MS);
            let age = now.saturating_sub(connection.empty_at);
            let slow = age > PAUSE_MS && connection.moved < (age - PAUSE_MS) * LEAST_RATE / 1000;
            // Leave out connections that continue without waiting for an event, but not slow
            // clients whose input was postponed. Otherwise a client that sends many expensive
            // commands could occupy its buffers for any time.
            if (connection.queued || goes_on) && !(connection.postponed && slow) {
                moving += bytes;
                continue;
            }
            let cause = match connection.flow {
                Flow::Park if reads && self.service.can_give_up(state) => Cause::Others,
                flow if reads && flow.waits() => Cause::Server,
                _ if silent >= PAUSE_MS || slow => Cause::Client,
                _ => Cause::Pause,
            };
            holders.push(Holder { key, bytes, cause, silent });
        }
        (holders, moving)
    }

    /// Returns true if connections keep more than half of the limit. The event loops should then
    /// receive only input that can be processed at once.
    pub(super) fn is_short_of_memory(&self) -> bool {
        let (held, limit) = self.shared.options.budget.held();
        held > limit / 2
    }

    /// Schedules a check if another worker has asked for one. Called when this worker's alarm was
    /// rung.
    pub(super) fn note_relief_wanted(&mut self) {
        let asked = &self.shared.workers[self.index].relief_wanted;
        self.budget_check_due |= asked.swap(false, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the keys of the connections to close, in the order of closing.
    fn order(holders: &[Holder], limit: u64, excess: u64) -> Vec<u32> {
        victims(holders.to_vec(), limit, excess).map(|holder| holder.key).collect()
    }

    #[test]
    fn slow_clients_are_closed_before_pausing_and_waiting_ones() {
        let of = |key, bytes, cause, silent| Holder { key, bytes, cause, silent };
        let holders = [
            of(7, 500, Cause::Client, 5_000),
            of(6, 280_000, Cause::Server, 3_000),
            of(5, 340_000, Cause::Pause, 40),
            of(4, 57_000, Cause::Pause, 400),
            of(3, 280_000, Cause::Others, 3_000),
            of(2, 16_000, Cause::Client, 4_000),
            of(1, 57_000, Cause::Client, 5_000),
        ];
        assert_eq!(order(&holders, 70_000, u64::MAX), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(order(&holders, 70_000, 57_001), [1, 2]);
        assert_eq!(order(&holders, 70_000, 57_000), [1]);
        assert!(order(&holders, 70_000, 0).is_empty());
    }

    #[test]
    fn the_largest_and_most_silent_slow_clients_are_closed_first() {
        let of = |key, bytes, silent| Holder { key, bytes, cause: Cause::Client, silent };
        let holders = [of(1, 2_000, 5_000), of(2, 50_000, 900), of(3, 50_000, 5_000)];
        assert_eq!(order(&holders, 3_000, u64::MAX), [3, 1, 2]);
    }

    #[test]
    fn small_connections_do_not_pay_for_large_ones_that_wait_for_the_server() {
        let little = |key| Holder { key, bytes: 2_000, cause: Cause::Client, silent: 5_000 };
        let much = |key| Holder { key, bytes: 300_000, cause: Cause::Server, silent: 0 };
        let holders = [little(1), much(2), little(3), much(4)];
        let mut gone = order(&holders, 400_000, 300_001);
        gone.sort_unstable();
        assert_eq!(gone, [2, 4]);
    }

    #[test]
    fn small_connections_are_closed_when_they_are_many() {
        let holders: Vec<_> = (0..5_000)
            .map(|key| Holder { key, bytes: 960, cause: Cause::Client, silent: 5_000 })
            .collect();
        assert_eq!(order(&holders, 4 << 20, 960 * 10).len(), 10);
    }
}
