//! Tracks which partitions a scan of several lanes has shown while partitions move between lanes.

use crate::engine::partitions::Partitions;
use crate::reads::Charge;
use larder_log::Budget;
use larder_log::format::PARTITIONS;
use std::ops::Range;
use std::sync::Arc;

/// The state of all partitions in a scan. A partition is done if it belonged to one lane during the
/// whole walk of that lane. Partitions that are not done are walked again.
#[derive(Debug)]
pub(super) struct ShownPartitions {
    done: Vec<bool>,
    /// For each partition: true if it belonged to the walked lane when the walk of that lane began.
    here: Vec<bool>,
    /// The engine's count of partition closings when the walk of the present lane began.
    closings: u32,
    _charge: Charge,
}

impl ShownPartitions {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        let none = vec![false; PARTITIONS];
        let _charge = Charge::needed(budget, 2 * PARTITIONS as u64);
        ShownPartitions { done: none.clone(), here: none, closings: 0, _charge }
    }

    /// Begins the walk of a lane. Returns true if there is anything to show.
    pub(super) fn begin_lane(&mut self, owners: &Partitions, position: usize) -> bool {
        self.closings = owners.closings();
        for (at, here) in self.here.iter_mut().enumerate() {
            *here = owners.owner(at) == position;
        }
        self.wants(0..PARTITIONS)
    }

    /// Ends the walk of a lane. Partitions that stayed in the lane meanwhile are done.
    pub(super) fn end_lane(&mut self, owners: &Partitions, position: usize) {
        for (at, done) in self.done.iter_mut().enumerate() {
            *done |= self.here[at]
                && owners.owner(at) == position
                && owners.has_stayed(at, self.closings);
        }
    }

    /// Returns true if the walk of this lane should show the partition.
    pub(super) fn wants_one(&self, partition: usize) -> bool {
        self.here[partition] && !self.done[partition]
    }

    /// Returns true if the walk of this lane should show any of these partitions.
    pub(super) fn wants(&self, mut partitions: Range<usize>) -> bool {
        partitions.any(|partition| self.wants_one(partition))
    }

    /// Returns the partitions that are not done.
    pub(super) fn left(&self) -> impl Iterator<Item = usize> {
        self.done.iter().enumerate().filter(|(_, done)| !**done).map(|(at, _)| at)
    }
}
