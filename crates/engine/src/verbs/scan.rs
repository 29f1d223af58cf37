//! A walk over all items, a few at a time, for dumps.

use crate::index::slot::TAG_BITS;
use crate::lane::session::LaneSession;
use crate::{Item, Outcome};
use larder_log::record::Kind;

/// A stripe is walked in this many steps, each over a range of tags: a key's tag never changes, so
/// growth and displacement between two steps neither hide an item nor show it twice.
const STEPS: u32 = 16;

/// Where a scan of all items stands. `ScanCursor::default()` is the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanCursor {
    /// The position of the lane.
    pub(crate) lane: usize,
    stripe: usize,
    step: u32,
}

impl ScanCursor {
    /// The beginning of a lane.
    pub(crate) fn of_lane(lane: usize) -> Self {
        ScanCursor { lane, ..ScanCursor::default() }
    }
}

impl LaneSession {
    /// See [`Session::scan`](crate::Session::scan).
    pub(crate) fn scan(
        &self,
        cursor: &mut ScanCursor,
        visit: &mut dyn FnMut(Item<'_>),
    ) -> Outcome<bool> {
        let index = &self.lane.index;
        if cursor.stripe >= index.stripe_count() {
            return Outcome::Ready(false);
        }
        let width = (1 << TAG_BITS) / STEPS;
        let tags = cursor.step * width..(cursor.step + 1) * width;
        let mut slots = Vec::new();
        index.visit_stripe(cursor.stripe, |slot| {
            if tags.contains(&slot.tag()) {
                slots.push(slot);
            }
        });
        for slot in slots {
            // SAFETY: the slot was read since the last tick.
            if let Some(record) = unsafe { self.lane.log.record(slot.address()) } {
                self.depends_on(slot.address(), &record);
                let item = self.item(slot, record);
                if record.kind() == Kind::Item && !item.expiry().is_past(self.now()) {
                    visit(item);
                }
            }
        }
        cursor.step += 1;
        if cursor.step == STEPS {
            *cursor = ScanCursor { lane: cursor.lane, stripe: cursor.stripe + 1, step: 0 };
        }
        self.answer(cursor.stripe < index.stripe_count())
    }
}
