//! A walk over all items, a few at a time, for dumps.
//!
//! A lane is walked twice. First its segments that are on a device only, one after another, each read
//! from one end to the other: a record is shown if the index leads to it. Then the index, for what was not
//! shown: what is in memory, and what has been written or has moved meanwhile. A record that the index
//! leads to in the end lay where it lies when its segment was read, so nothing is missed, and nothing is
//! shown twice but what got another address in between.
//!
//! What is read goes through the session's [fetched records](crate::fetch), which bound it; nothing of it
//! becomes a copy or counts as a read of the item.

mod index;
mod partitions;
mod segments;

use crate::index::slot::Slot;
use crate::lane::session::LaneSession;
use crate::{Listed, Outcome, Refusal, Session};
use index::InIndex;
use larder_log::Record;
use larder_log::format::partition;
use larder_log::record::Kind;
use partitions::Partitions;
use segments::{InSegments, Shown};

/// Where a scan of all items stands. `ScanCursor::default()` is the beginning.
#[derive(Debug, Default)]
pub struct ScanCursor {
    /// The position of the lane.
    lane: usize,
    /// Where the walk of it stands, when it has begun.
    at: Option<LaneScan>,
    /// With several lanes: which partitions were shown.
    partitions: Option<Box<Partitions>>,
    /// All lanes were walked before.
    again: bool,
    unreadable: u64,
}

impl ScanCursor {
    /// Items that were left out so far because they cannot be read.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }
}

/// Where a scan stands in a lane.
#[derive(Debug)]
struct LaneScan {
    /// `None`: only the index is walked.
    segments: Option<InSegments>,
    shown: Shown,
    index: InIndex,
}

impl Session {
    /// Shows some live items to `visit` (a few hundred at most) and moves the cursor on; the answer is false
    /// when the scan has ended. Every item that exists during the whole scan is shown at least once,
    /// wherever it lies, and exactly once if nothing has rewritten or moved it meanwhile. One that is
    /// deleted, expired, evicted or flushed before its turn is not shown. What is shown counts as answered
    /// (see [`Outcome::AfterCommit`]), but not as read.
    ///
    /// What is on a device only is read in the order in which it lies there. With
    /// [`NeedsRead`](Outcome::NeedsRead) nothing was shown by this call, nor with
    /// [`NeedsSpace`](Outcome::NeedsSpace): what is left to show is on its way from one lane to another.
    ///
    /// A cursor that has begun takes memory until it is dropped: 8 bytes per segment of a lane. Whoever scans for
    /// clients bounds how many there are.
    ///
    /// Items that cannot be read are left out and [counted](ScanCursor::unreadable). Where nothing may be
    /// lost the scan is refused at its end then, with [`Refusal::StoreFailed`]; and so it is if what is left
    /// to show does not arrive because a device fails.
    pub fn scan(
        &self,
        cursor: &mut ScanCursor,
        visit: &mut dyn FnMut(Listed<'_>),
    ) -> Outcome<bool> {
        let Some(lane) = self.lanes.get(cursor.lane) else { return self.end_round(cursor) };
        let more = if self.engine.partitions.are_settled() {
            let at = cursor.at.get_or_insert_with(|| lane.begin_scan(true));
            lane.scan(at, &mut cursor.unreadable, &|_| true, visit)
        } else {
            let position = cursor.lane;
            let begin = || Box::new(Partitions::new(&lane.lane.budget));
            let partitions = cursor.partitions.get_or_insert_with(begin);
            let at = cursor.at.get_or_insert_with(|| {
                let any = partitions.begin_lane(&self.engine.partitions, position);
                lane.begin_scan(any && !cursor.again)
            });
            let wanted = |stripe| partitions.wants(lane.lane.partitions_in(stripe));
            lane.scan(at, &mut cursor.unreadable, &wanted, &mut |item| {
                let key = self.key(item.key());
                if partitions.wants_one(partition(key.lo))
                    && self.engine.partitions.lane_of(&key) == position
                {
                    visit(item);
                }
            })
        };
        match more {
            Outcome::Ready(false) => {
                if let Some(partitions) = &mut cursor.partitions {
                    partitions.end_lane(&self.engine.partitions, cursor.lane);
                }
                cursor.lane += 1;
                cursor.at = None;
                Outcome::Ready(true)
            }
            other => other,
        }
    }

    /// All lanes were walked; what was on its way meanwhile is looked for again.
    fn end_round(&self, cursor: &mut ScanCursor) -> Outcome<bool> {
        if let Some(partitions) = &cursor.partitions {
            let left = || partitions.left();
            if left().any(|partition| self.engine.partitions.is_closed(partition)) {
                return self.on_its_way();
            }
            if left().next().is_some() {
                (cursor.lane, cursor.again) = (0, true);
                return Outcome::Ready(true);
            }
        }
        if cursor.unreadable > 0 && self.engine.lanes.iter().any(|lane| lane.may_lose_nothing()) {
            return Outcome::Refused(Refusal::StoreFailed);
        }
        Outcome::Ready(false)
    }
}

impl LaneSession {
    /// Begins to walk the lane; `whole`: not its index alone.
    fn begin_scan(&self, whole: bool) -> LaneScan {
        LaneScan {
            segments: (whole && self.lane.log.store().is_some()).then(InSegments::default),
            shown: Shown::new(&self.lane),
            index: InIndex::default(),
        }
    }

    /// Shows some items of the lane in the stripes that are `wanted`; false when there are no more.
    fn scan(
        &self,
        at: &mut LaneScan,
        unreadable: &mut u64,
        wanted: &dyn Fn(usize) -> bool,
        visit: &mut dyn FnMut(Listed<'_>),
    ) -> Outcome<bool> {
        let Some(segments) = &mut at.segments else {
            return self.scan_index(&mut at.index, &mut at.shown, unreadable, wanted, visit);
        };
        self.scan_segments(segments, &mut at.shown, visit).map(|more| {
            if !more {
                at.segments = None;
            }
            true
        })
    }

    /// Shows what a slot leads to.
    fn show(&self, slot: Slot, record: Record<'_>, visit: &mut dyn FnMut(Listed<'_>)) {
        self.depends_on(slot.address(), &record);
        let item = self.item(slot, record);
        if record.kind() == Kind::Item && !item.expiry().is_past(self.now()) {
            visit(Listed::new(item));
        }
    }
}
