//! What happens when connections keep more than all of them may. Whoever needs memory gets it, and those
//! go that keep most for longest: a client with half a line never pays for those that do not read.
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

/// Silence counts up to so many milliseconds: whoever keeps little is not to blame for keeping it for long.
const SILENCE_MS: u64 = 5_000;

/// The same for those that wait for the server.
const WAITING_MS: u64 = 100;

/// Bytes that nobody is blamed for.
const LITTLE: u64 = 1024;

/// What a connection keeps.
struct Holder {
    key: u32,
    bytes: u64,
    /// How long it has moved no byte, in milliseconds, as far as that counts.
    silent: u64,
    /// It goes on in this turn or the next, and may keep less then.
    runs: bool,
}

impl Holder {
    /// What orders those that have to go: who keeps little goes last, whatever else. Silence counts twice, for a
    /// busy client may be kept from reading for a moment.
    fn cost(&self) -> (bool, u64) {
        (self.bytes > LITTLE, self.bytes * (self.silent + 1).pow(2))
    }
}

impl<S: Service, I> Core<S, I> {
    /// The connections that have to go now because too much is kept: those that keep most, and have moved
    /// no byte for longest.
    pub(super) fn relieve(&mut self) -> Vec<u32> {
        self.look_at_budget = false;
        let (held, limit) = self.shared.options.budget.held();
        if held <= limit {
            return Vec::new();
        }
        let mut holders = self.holders();
        let own: u64 = holders.iter().map(|holder| holder.bytes).sum();
        let part = limit / self.shared.desks.len() as u64;
        if own <= part {
            self.shared.ask_for_relief(self.index);
            return Vec::new();
        }
        holders.retain(|holder| !holder.runs);
        holders.sort_unstable_by_key(|holder| std::cmp::Reverse(holder.cost()));
        let mut excess = (held - limit * LEFT / PARTS).min(own - part * LEFT / PARTS);
        if held - excess > limit {
            self.shared.ask_for_relief(self.index);
        }
        let gone = holders.iter().map_while(|holder| {
            let goes = excess > 0;
            excess = excess.saturating_sub(holder.bytes);
            goes.then_some(holder.key)
        });
        let mut gone: Vec<u32> = gone.collect();
        gone.retain(|&key| !self.gives_up(key));
        self.counters.refused_buffers.add(gone.len() as u64);
        gone
    }

    /// Whether the connection can go on with less: then it does so before long.
    fn gives_up(&mut self, key: u32) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return false };
        let waits = connection.flow == Flow::Park;
        let Some(state) = connection.service.as_mut().filter(|_| waits) else { return false };
        let gives_up = self.service.gives_up(state);
        if gives_up {
            connection.flow = Flow::Drain;
            self.queue(key);
        }
        gives_up
    }

    fn holders(&mut self) -> Vec<Holder> {
        let (now, mut holders) = (self.now(), Vec::new());
        for key in 0..self.connections.bound() {
            let Some(connection) = self.connections.get_mut(key) else { continue };
            let Some(state) = &connection.service else { continue };
            let buffers = connection.input.capacity() + connection.output.capacity();
            let bytes = (buffers + self.service.keeps(state)) as u64;
            if bytes > 0 {
                let most = if connection.flow == Flow::Park { WAITING_MS } else { SILENCE_MS };
                let silent = now.saturating_sub(connection.stamp).min(most);
                holders.push(Holder { key, bytes, silent, runs: connection.queued });
            }
        }
        holders
    }

    /// Another worker asks this one to look; called when the alarm has rung.
    pub(super) fn note_relief_wanted(&mut self) {
        let asked = &self.shared.desks[self.index].relief_wanted;
        self.look_at_budget |= asked.swap(false, Ordering::AcqRel);
    }
}
