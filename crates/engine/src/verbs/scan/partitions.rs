//! Which partitions a scan of several lanes has shown, while they move from one lane to another.

use crate::partitions::Partitions as Owners;
use crate::readers::Charge;
use larder_log::Budget;
use larder_log::format::PARTITIONS;
use std::ops::Range;
use std::sync::Arc;

/// What a scan knows of the partitions. One is done when it belonged to the same lane during the whole walk
/// of that lane; the others are walked again.
#[derive(Debug)]
pub(super) struct Partitions {
    done: Vec<bool>,
    /// It belonged to the lane when the walk of that began.
    here: Vec<bool>,
    /// How often partitions had been closed before.
    closings: u32,
    _charge: Charge,
}

impl Partitions {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        let none = vec![false; PARTITIONS];
        let _charge = Charge::needed(budget, 2 * PARTITIONS as u64);
        Partitions { done: none.clone(), here: none, closings: 0, _charge }
    }

    /// The walk of a lane begins. The answer is whether there is anything to show.
    pub(super) fn begin_lane(&mut self, owners: &Owners, position: usize) -> bool {
        self.closings = owners.closings();
        for (at, here) in self.here.iter_mut().enumerate() {
            *here = owners.owner(at) == position;
        }
        self.wants(0..PARTITIONS)
    }

    /// The walk of a lane has ended.
    pub(super) fn end_lane(&mut self, owners: &Owners, position: usize) {
        for (at, done) in self.done.iter_mut().enumerate() {
            *done |= self.here[at]
                && owners.owner(at) == position
                && owners.has_stayed(at, self.closings);
        }
    }

    /// Whether a partition is to be shown by the walk of this lane.
    pub(super) fn wants_one(&self, partition: usize) -> bool {
        self.here[partition] && !self.done[partition]
    }

    /// The same of any of these.
    pub(super) fn wants(&self, mut partitions: Range<usize>) -> bool {
        partitions.any(|partition| self.wants_one(partition))
    }

    /// Those that are not done.
    pub(super) fn left(&self) -> impl Iterator<Item = usize> {
        self.done.iter().enumerate().filter(|(_, done)| !**done).map(|(at, _)| at)
    }
}
