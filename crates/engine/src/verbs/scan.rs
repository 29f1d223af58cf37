//! A walk over all items, a few at a time, for dumps.

use crate::index::slot::TAG_BITS;
use crate::{Item, Outcome, Session};
use larder_log::record::Kind;

/// A stripe is walked in this many steps, each over a range of tags: a key's tag never changes, so
/// growth and displacement between two steps neither hide an item nor show it twice.
const STEPS: u32 = 16;

/// Where a scan of all items stands. `ScanCursor::default()` is the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanCursor {
    stripe: usize,
    step: u32,
}

impl Session {
    /// Calls `visit` for some live items (a few hundred at most, usually) and moves the cursor on;
    /// the answer is false when the scan has ended. Every item that exists, and is in memory, during the
    /// whole scan is visited once. What is visited counts as answered: see [`Outcome::AfterCommit`].
    pub fn scan(&self, cursor: &mut ScanCursor, visit: &mut dyn FnMut(Item<'_>)) -> Outcome<bool> {
        let index = &self.engine.index;
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
            if let Some(record) = unsafe { self.engine.log.record(slot.address()) } {
                self.depends_on(slot.address(), &record);
                let item = self.item(slot, record);
                if record.kind() == Kind::Item && !item.expiry().is_past(self.now()) {
                    visit(item);
                }
            }
        }
        cursor.step += 1;
        if cursor.step == STEPS {
            *cursor = ScanCursor { stripe: cursor.stripe + 1, step: 0 };
        }
        self.answer(cursor.stripe < index.stripe_count())
    }
}
