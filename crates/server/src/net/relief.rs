//! What happens when connections keep more than all of them may. Whoever needs memory gets it, and those
//! go that keep most for longest: a client with half a line never pays for those that do not read, and
//! one that waits for the server pays last.
//!
//! Each worker may always use its part of the limit, and more while the others use less. So a worker closes
//! its own connections as long as it is above its part, and asks the others to look if it is not.

use super::connection::Core;
use super::{Flow, Service};
use std::sync::atomic::Ordering;

/// Of the limit, so many parts in [`PARTS`] are left in use when connections had to go: to look for them
/// costs a look at all.
const LEFT: u64 = 7;
const PARTS: u64 = 8;

/// Silence counts up to so many milliseconds.
const SILENCE_MS: u64 = 5_000;

/// A busy client may pause for so many milliseconds. After that it must move [`LEAST_RATE`].
const PAUSE_MS: u64 = 500;

/// What a client that makes its connection keep something must send or read, in bytes a second.
const LEAST_RATE: u64 = 64 << 10;

/// Nobody is blamed for one byte in so many of an equal share.
const MODEST_SHARE: u64 = 4;

/// After a look that freed nothing, nobody looks for so many milliseconds.
const LOOK_MS: u64 = 2;

/// Who is to blame for what a connection keeps: the greater, the sooner it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Blame {
    /// The server, which has not answered yet.
    Server,
    /// A client that may only pause for a moment.
    Pause,
    /// The other clients whose values have places: it can be told that there is no room.
    Others,
    /// A client that reads its replies too slowly, or sends the rest of a command so.
    Client,
}

/// What a connection keeps.
#[derive(Clone, Copy, Debug)]
struct Holder {
    key: u32,
    bytes: u64,
    blame: Blame,
    /// How long it has moved no byte, in milliseconds, as far as that counts.
    silent: u64,
}

impl Holder {
    /// What orders those that have to go, where each may keep `share` bytes without being blamed. Silence counts
    /// twice; and of those that may only pause, nothing else tells which do.
    fn cost(&self, share: u64) -> (bool, Blame, u64, u64) {
        let silence = (self.silent + 1).pow(2);
        let blamed = self.bytes > share;
        match self.blame {
            Blame::Pause => (blamed, self.blame, silence, self.bytes),
            _ => (blamed, self.blame, self.bytes * silence, 0),
        }
    }
}

/// Those that have to go so that `excess` bytes less are kept of `limit`.
fn victims(mut holders: Vec<Holder>, limit: u64, mut excess: u64) -> impl Iterator<Item = Holder> {
    // If more is kept than the limit, somebody keeps more than this.
    let share = limit / holders.len().max(1) as u64 / MODEST_SHARE;
    holders.sort_unstable_by_key(|holder| std::cmp::Reverse(holder.cost(share)));
    holders.into_iter().take_while(move |holder| {
        let goes = excess > 0;
        excess = excess.saturating_sub(holder.bytes);
        goes
    })
}

impl<S: Service, I> Core<S, I> {
    /// The connections that have to go now because too much is kept. Of those that keep more than others, first
    /// the connections of clients that are to blame, and among them those that keep most and have moved
    /// no byte for longest.
    pub(super) fn relieve(&mut self) -> Vec<u32> {
        if self.now() < self.look_after {
            return Vec::new();
        }
        self.look_at_budget = false;
        let (held, limit) = self.shared.options.budget.held();
        if held <= limit {
            return Vec::new();
        }
        let gone = self.choose(held, limit);
        // What goes on now may keep more than there is all the same.
        self.look_at_budget = true;
        if gone.is_empty() {
            self.look_after = self.now() + LOOK_MS;
        }
        self.counters.refused_buffers.add(gone.len() as u64);
        gone
    }

    fn choose(&mut self, held: u64, limit: u64) -> Vec<u32> {
        let (holders, moving) = self.holders();
        // What goes on without an event keeps less then. It counts then, if it does not.
        let held = held.saturating_sub(moving);
        if held <= limit {
            return Vec::new();
        }
        let own: u64 = holders.iter().map(|holder| holder.bytes).sum();
        let part = limit / self.shared.desks.len() as u64;
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
            match victim.blame {
                Blame::Others => self.give_up(victim.key),
                _ => gone.push(victim.key),
            }
        }
        gone
    }

    /// The connection goes on with less before long: it gives up its place in a queue, unless its turn has come
    /// meanwhile.
    fn give_up(&mut self, key: u32) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(state) = &mut connection.service else { return };
        if self.service.gives_up(state) {
            connection.flow = Flow::Drain;
            self.queue(key);
        }
    }

    /// The connections that keep something, but for those that go on without an event; and the bytes
    /// that those keep.
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
            // A reply may be on its way to the socket before the service sees the rest of the input.
            let goes_on = connection.unseen && reads && connection.flow.reads();
            let silent = now.saturating_sub(connection.stamp).min(SILENCE_MS);
            let age = now.saturating_sub(connection.empty_at);
            let slow = age > PAUSE_MS && connection.moved < (age - PAUSE_MS) * LEAST_RATE / 1000;
            // One that has sent much that takes long would go on for as long as it likes.
            if (connection.queued || goes_on) && !(connection.postponed && slow) {
                moving += bytes;
                continue;
            }
            let blame = match connection.flow {
                Flow::Park if reads && self.service.can_give_up(state) => Blame::Others,
                flow if reads && flow.waits() => Blame::Server,
                _ if silent >= PAUSE_MS || slow => Blame::Client,
                _ => Blame::Pause,
            };
            holders.push(Holder { key, bytes, blame, silent });
        }
        (holders, moving)
    }

    /// Whether connections keep more than half of what they may: then none should receive what it cannot
    /// process at once.
    pub(super) fn is_short_of_memory(&self) -> bool {
        let (held, limit) = self.shared.options.budget.held();
        held > limit / 2
    }

    /// Another worker asks this one to look; called when the alarm has rung.
    pub(super) fn note_relief_wanted(&mut self) {
        let asked = &self.shared.desks[self.index].relief_wanted;
        self.look_at_budget |= asked.swap(false, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of those that go, in order.
    fn order(holders: &[Holder], limit: u64, excess: u64) -> Vec<u32> {
        victims(holders.to_vec(), limit, excess).map(|holder| holder.key).collect()
    }

    #[test]
    fn who_behaves_goes_last() {
        let of = |key, bytes, blame, silent| Holder { key, bytes, blame, silent };
        let holders = [
            of(7, 500, Blame::Client, 5_000),
            of(6, 280_000, Blame::Server, 3_000),
            of(5, 340_000, Blame::Pause, 40),
            of(4, 57_000, Blame::Pause, 400),
            of(3, 280_000, Blame::Others, 3_000),
            of(2, 16_000, Blame::Client, 4_000),
            of(1, 57_000, Blame::Client, 5_000),
        ];
        assert_eq!(order(&holders, 70_000, u64::MAX), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(order(&holders, 70_000, 57_001), [1, 2]);
        assert_eq!(order(&holders, 70_000, 57_000), [1]);
        assert!(order(&holders, 70_000, 0).is_empty());
    }

    #[test]
    fn of_clients_to_blame_the_largest_and_the_most_silent_go() {
        let of = |key, bytes, silent| Holder { key, bytes, blame: Blame::Client, silent };
        let holders = [of(1, 2_000, 5_000), of(2, 50_000, 900), of(3, 50_000, 5_000)];
        assert_eq!(order(&holders, 3_000, u64::MAX), [3, 1, 2]);
    }

    #[test]
    fn who_keeps_little_does_not_pay_for_those_that_the_server_lets_wait() {
        let little = |key| Holder { key, bytes: 2_000, blame: Blame::Client, silent: 5_000 };
        let much = |key| Holder { key, bytes: 300_000, blame: Blame::Server, silent: 0 };
        let holders = [little(1), much(2), little(3), much(4)];
        let mut gone = order(&holders, 400_000, 300_001);
        gone.sort_unstable();
        assert_eq!(gone, [2, 4]);
    }

    #[test]
    fn many_that_keep_little_are_much() {
        let holders: Vec<_> = (0..5_000)
            .map(|key| Holder { key, bytes: 960, blame: Blame::Client, silent: 5_000 })
            .collect();
        assert_eq!(order(&holders, 4 << 20, 960 * 10).len(), 10);
    }
}
