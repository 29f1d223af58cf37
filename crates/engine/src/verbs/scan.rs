//! A walk over all items, a few at a time, for dumps.
//!
//! A lane is walked twice. The first walk reads the segments that are only on a device, except
//! jumbos, one after another, each from start to end. It shows each record that the index leads to.
//! The second walk goes over the index. It shows the items that the first walk did not come to:
//! those in memory, jumbos, and those written or moved during the walks. It skips every record that
//! the first walk has come to: if the index leads to this record in the second walk, it also did so
//! in the first walk, which then showed the record. So no item is missed. An item is shown twice
//! only if its address changed during the walks, or if a failed commit was undone.
//!
//! Records are read through the session's [fetched records](crate::reads), whose memory is limited.
//! Such reads create no copies and do not count as reads of the items.

mod index;
mod partitions;
mod segments;

use crate::index::slot::Slot;
use crate::lane::session::LaneSession;
use crate::{Listed, Outcome, Refusal, Session};
use index::InIndex;
use larder_log::Record;
use larder_log::format::partition;
use partitions::ShownPartitions;
use segments::{InSegments, Shown};

/// The position of a scan of all items. `ScanCursor::default()` is the beginning.
#[derive(Debug, Default)]
pub struct ScanCursor {
    /// The number of the lanes that were walked, which is the index of the next one.
    lane: usize,
    /// How far the walk of this lane has come; `None` before it has begun.
    at: Option<LaneScan>,
    /// With several lanes: the partitions shown so far.
    partitions: Option<Box<ShownPartitions>>,
    /// True once all lanes were walked. Only partitions that moved during the scan are left then.
    again: bool,
    unreadable: u64,
}

impl ScanCursor {
    /// Returns the number of items omitted so far because they cannot be read.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }
}

/// How far the scan has come in a lane.
#[derive(Debug)]
struct LaneScan {
    /// How far the first walk has come; `None` if only the walk over the index is left.
    segments: Option<InSegments>,
    shown: Shown,
    index: InIndex,
}

impl Session {
    /// Shows some live items to `visit` (a few hundred at most) and advances the cursor. Returns
    /// false when the scan has ended. Every item that exists during the whole scan is shown at
    /// least once. It is shown again only if it was rewritten or moved, if its partition was in
    /// motion, or if a failed commit was undone meanwhile. An item that is deleted, expired,
    /// evicted or flushed before the scan reaches it is not shown. Showing an item may make the
    /// answer wait for a commit, as for any answer (see [`Outcome::AfterCommit`]). Showing an item
    /// does not count as a read.
    ///
    /// Items that are only on a device are read in device order. A call that returns
    /// [`NeedsRead`](Outcome::NeedsRead) or [`NeedsSpace`](Outcome::NeedsSpace) has shown nothing.
    /// `NeedsSpace` means that the remaining items are moving between lanes.
    ///
    /// A cursor in use takes 8 bytes of memory per segment of a lane until it is dropped. Callers
    /// that scan for clients must bound the number of scans.
    ///
    /// Items that cannot be read are omitted and [counted](ScanCursor::unreadable). If there were
    /// any, some scans are refused at their end with [`Refusal::StoreFailed`]: those with
    /// [`WhenFull::Refuse`](crate::WhenFull::Refuse) and a store that does not accept damage. A
    /// scan is also refused if its remaining items are stuck between lanes, for example because a
    /// device fails.
    pub fn scan(
        &self,
        cursor: &mut ScanCursor,
        visit: &mut dyn FnMut(Listed<'_>),
    ) -> Outcome<bool> {
        let Some(lane) = self.lanes.get(cursor.lane) else { return self.end_round(cursor) };
        let more = if self.engine.partitions.never_move() {
            let at = cursor.at.get_or_insert_with(|| lane.begin_scan(true));
            lane.scan(at, &mut cursor.unreadable, &|_| true, visit)
        } else {
            let position = cursor.lane;
            let begin = || Box::new(ShownPartitions::new(&lane.lane.budget));
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

    /// Ends a walk of all lanes. Partitions that moved during the walk are walked again.
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
    /// Begins a walk of the lane. Unless `whole` is true, only the index is walked.
    fn begin_scan(&self, whole: bool) -> LaneScan {
        LaneScan {
            segments: (whole && self.lane.has_store()).then(InSegments::default),
            shown: Shown::new(&self.lane),
            index: InIndex::default(),
        }
    }

    /// Shows some items of the lane in the stripes that are `wanted`. Returns false when there are
    /// no more.
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

    /// Shows the item that a slot leads to, if it is live.
    pub(super) fn show(&self, slot: Slot, record: Record<'_>, visit: &mut dyn FnMut(Listed<'_>)) {
        self.depends_on(slot.address(), &record);
        let Some(record) = self.visible(record) else { return };
        let item = self.item(slot, record);
        if !item.expiry().is_past(self.now()) {
            visit(Listed::new(item));
        }
    }
}
