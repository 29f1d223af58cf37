//! Checks that a scan returns exactly the keys that the model has, wherever their records are. In
//! sync mode, it must return nothing that a crash could take back.

use super::history::Item;
use super::verbs::short;
use super::{Check, DurableWorld};
use larder_engine::{CommitState, Health, Outcome, ScanCursor};
use std::collections::HashSet;

/// The largest number of consecutive times that a scan may wait for reads.
const MOST_WAITS: u32 = 100;

impl DurableWorld {
    /// Scans all items and compares them with the model. The world writes nothing during the scan,
    /// and the scan draws no random numbers.
    pub(super) fn check_scan(&mut self) -> Check {
        self.tick_all();
        let mut shown = HashSet::new();
        let mut cursor = ScanCursor::default();
        let mut waits_in_a_row = 0;
        let whole = loop {
            let mut now_shown = Vec::new();
            let visited = self.sessions[0].scan(&mut cursor, &mut |item| {
                let facts = (item.cas(), item.flags(), item.value_len());
                now_shown.push((item.key().to_vec(), facts));
            });
            let waits = matches!(visited, Outcome::AfterCommit(..));
            for (key, facts) in now_shown {
                self.check_shown(&key, facts, waits)?;
                if !shown.insert(key.clone()) {
                    return Err(format!("{} was shown twice", short(&key)));
                }
            }
            match visited {
                Outcome::Ready(true) | Outcome::AfterCommit(true, _) => waits_in_a_row = 0,
                Outcome::Ready(false) | Outcome::AfterCommit(false, _) => break true,
                Outcome::NeedsRead if waits_in_a_row == MOST_WAITS => {
                    return Err("a scan waits for ever".into());
                }
                Outcome::NeedsRead => {
                    waits_in_a_row += 1;
                    self.engine.serve_reads();
                    self.tick_all();
                }
                // Only items of moving partitions are left, and the scan waits for these moves.
                Outcome::NeedsSpace => break true,
                Outcome::Refused(_) => break false,
            }
            if self.machine.is_stopped() {
                return Ok(());
            }
        };
        if cursor.unreadable() > 0 || self.engine.health() != Health::Good {
            return Ok(());
        }
        if !whole && !self.is_anything_moving() {
            return Err("a scan was refused although everything can be read".into());
        }
        for key in self.model.keys() {
            let reachable = self.engine.lane_of(&key).is_some();
            if reachable && !shown.contains(&key) && self.model.current(&key, self.now).is_some() {
                self.check_gone(&key)?;
            }
        }
        Ok(())
    }

    /// Returns true if a partition is moving between lanes. The engine may then refuse a scan,
    /// because it does not know whether the partition has items.
    fn is_anything_moving(&self) -> bool {
        // For each of the 4096 partitions, the probability that none of these keys belongs to it is
        // one in six million.
        (0..64_000_u32).any(|number| self.engine.lane_of(&number.to_le_bytes()).is_none())
    }

    /// Checks an item that the scan returned. Its cas id, flags and length, given as `facts`, must
    /// be those of the item that was written last. In sync mode, the item must be durable unless
    /// the answer of the scan `waits` for a commit.
    fn check_shown(&self, key: &[u8], facts: (u64, u32, usize), waits: bool) -> Check {
        let current = self.model.current(key, self.now);
        let fits = |item: &Item| (item.cas, item.flags, item.value.len()) == facts;
        if !current.as_ref().is_some_and(fits) {
            return Err(format!("{} was shown as {facts:?}, should be {current:?}", short(key)));
        }
        let pending = |point| self.sessions[0].commit_state(point) == CommitState::Pending;
        let undurable = self.model.undurable(key, current.as_ref(), self.now).is_some_and(pending);
        if self.is_sync() && !waits && undurable {
            return Err(format!("{} was shown before it was durable", short(key)));
        }
        Ok(())
    }

    /// Checks that the engine has evicted an item. The model has the item, but the scan did not
    /// return it.
    fn check_gone(&mut self, key: &[u8]) -> Check {
        let asked = loop {
            let session = &self.sessions[0];
            match session.get(&session.key(key)) {
                Outcome::Ready(found) | Outcome::AfterCommit(found, _) => break found.is_some(),
                Outcome::NeedsRead => {}
                Outcome::NeedsSpace | Outcome::Refused(_) => return Ok(()),
            }
            self.engine.serve_reads();
            self.tick_all();
        };
        match asked || !self.evicts() {
            true => Err(format!("{} is there, but was not shown", short(key))),
            false => Ok(()),
        }
    }
}
