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

/// Silence counts up to so many milliseconds: a client that keeps little is not to blame for keeping it for long.
const SILENCE_MS: u64 = 5_000;

/// A client that has been silent for so many milliseconds is to blame: a busy one may pause for a moment.
const PAUSE_MS: u64 = 500;

/// Bytes that nobody is blamed for.
const LITTLE: u64 = 1024;

/// Who is to blame for what a connection keeps, and goes sooner for it: the greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Blame {
    /// It keeps next to nothing.
    Little,
    /// The server, which has not answered yet.
    Server,
    /// A client that may only pause for a moment.
    Pause,
    /// The other clients whose values have places: it can be told that there is no room.
    Others,
    /// A client that does not read its replies, or does not send the rest of a command.
    Client,
}

impl Blame {
    fn of(bytes: u64, silent: u64, reads: bool, flow: Flow, can_give_up: bool) -> Blame {
        match flow {
            _ if bytes <= LITTLE => Blame::Little,
            Flow::Park if reads && can_give_up => Blame::Others,
            flow if reads && flow.waits() => Blame::Server,
            _ if silent < PAUSE_MS => Blame::Pause,
            _ => Blame::Client,
        }
    }
}

/// What a connection keeps.
#[derive(Clone, Copy)]
struct Holder {
    key: u32,
    bytes: u64,
    blame: Blame,
    /// How long it has moved no byte, in milliseconds, as far as that counts.
    silent: u64,
}

impl Holder {
    /// What orders those that have to go. Silence counts twice; and of those that may only pause, nothing else
    /// tells which do.
    fn cost(&self) -> (Blame, u64, u64) {
        let silence = (self.silent + 1).pow(2);
        match self.blame {
            Blame::Pause => (self.blame, silence, self.bytes),
            _ => (self.blame, self.bytes * silence, 0),
        }
    }
}

/// Those that have to go so that `excess` bytes less are kept.
fn victims(mut holders: Vec<Holder>, mut excess: u64) -> impl Iterator<Item = Holder> {
    holders.sort_unstable_by_key(|holder| std::cmp::Reverse(holder.cost()));
    holders.into_iter().take_while(move |holder| {
        let goes = excess > 0;
        excess = excess.saturating_sub(holder.bytes);
        goes
    })
}

impl<S: Service, I> Core<S, I> {
    /// The connections that have to go now because too much is kept: first those of clients that are to
    /// blame, and among them those that keep most and have moved no byte for longest.
    pub(super) fn relieve(&mut self) -> Vec<u32> {
        self.look_at_budget = false;
        let (held, limit) = self.shared.options.budget.held();
        if held <= limit {
            return Vec::new();
        }
        let (holders, moving) = self.holders();
        // What goes on in this turn or the next keeps less then. It counts then, if it does not.
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
        for victim in victims(holders, excess) {
            match victim.blame {
                Blame::Others => self.give_up(victim.key),
                _ => gone.push(victim.key),
            }
        }
        self.counters.refused_buffers.add(gone.len() as u64);
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

    /// The connections that keep something, but for those that go on in this turn or the next; and the bytes
    /// that those keep.
    fn holders(&mut self) -> (Vec<Holder>, u64) {
        let (now, mut holders, mut moving) = (self.now(), Vec::new(), 0);
        for key in 0..self.connections.bound() {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            let Some(state) = &connection.service else { continue };
            let buffers = connection.input.capacity() + connection.output.capacity();
            let bytes = (buffers + self.service.keeps(state)) as u64;
            let reads = connection.output.is_empty();
            // A reply may be on its way to the socket before the service sees the rest of the input.
            let goes_on = connection.unseen && reads && connection.flow.reads();
            if connection.queued || goes_on {
                moving += bytes;
                continue;
            }
            if bytes == 0 {
                continue;
            }
            let silent = now.saturating_sub(connection.stamp).min(SILENCE_MS);
            let can_give_up = self.service.can_give_up(state);
            let blame = Blame::of(bytes, silent, reads, connection.flow, can_give_up);
            holders.push(Holder { key, bytes, blame, silent });
        }
        (holders, moving)
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

    fn holder(key: u32, bytes: u64, silent: u64, reads: bool, flow: Flow, waits: bool) -> Holder {
        let blame = Blame::of(bytes, silent, reads, flow, waits);
        Holder { key, bytes, blame, silent }
    }

    #[test]
    fn who_behaves_goes_last() {
        let deaf = holder(1, 57_000, 5_000, false, Flow::Drain, false);
        let half_a_command = holder(2, 16_000, 4_000, true, Flow::Read, false);
        let waits_for_a_place = holder(3, 280_000, 3_000, true, Flow::Park, true);
        let new_and_deaf = holder(4, 57_000, 400, false, Flow::Drain, false);
        let pauses = holder(5, 340_000, 40, false, Flow::Drain, false);
        let waits_for_memory = holder(6, 280_000, 3_000, true, Flow::Park, false);
        let withheld = holder(7, 2_000, 3_000, true, Flow::Hold, false);
        let half_a_line = holder(8, 500, 5_000, true, Flow::Read, false);
        let all = [
            half_a_line,
            withheld,
            waits_for_memory,
            pauses,
            new_and_deaf,
            waits_for_a_place,
            half_a_command,
            deaf,
        ];
        let order = |excess, holders: &[Holder]| -> Vec<u32> {
            victims(holders.to_vec(), excess).map(|holder| holder.key).collect()
        };
        assert_eq!(order(u64::MAX, &all), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(order(57_001, &all), [1, 2]);
        assert_eq!(order(57_000, &all), [1]);
        assert!(order(0, &all).is_empty());
    }

    #[test]
    fn of_clients_to_blame_the_largest_and_the_most_silent_go() {
        let of = |key, bytes, silent| holder(key, bytes, silent, false, Flow::Drain, false);
        let holders = vec![of(1, 2_000, 5_000), of(2, 50_000, 900), of(3, 50_000, 5_000)];
        let order: Vec<u32> = victims(holders, u64::MAX).map(|holder| holder.key).collect();
        assert_eq!(order, [3, 1, 2]);
    }
}
