//! Delete and meta delete.

use crate::index::Guard;
use crate::lane::session::LaneSession;
use crate::stats::bump;
use crate::verbs::store::is_version;
use crate::verbs::version::{Body, Manner, NotWritten, OldReads, Part};
use crate::{Delete, Deleted, Key, Outcome};
use larder_log::record::Kind;
use larder_log::{Claim, Fields};

impl LaneSession {
    /// Deletes an item, or marks it stale, or empties it.
    pub(crate) fn delete(&self, key: &Key<'_>, delete: &Delete) -> Outcome<Deleted> {
        self.update(key, |guard| {
            let deleted = self.delete_locked(guard, key, delete)?;
            self.count_delete(delete, deleted);
            Ok(deleted)
        })
    }

    fn delete_locked<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        delete: &Delete,
    ) -> Result<Deleted, NotWritten> {
        let keeps_value = delete.invalidate && !delete.clear_value;
        let part = if keeps_value { Part::Whole } else { Part::Head };
        let mut found = None;
        let existing = self.existing(guard, key, part, &mut found)?;
        let Some(old) = existing.filter(|old| !old.gone) else {
            // An evicted item may come back after a crash until its eviction is durable. So the
            // delete writes a tombstone although there is no item.
            if existing.is_none() && self.lane.log.is_evicting() {
                self.write_tombstone(guard, key, None)?;
            }
            return Ok(Deleted::NotFound);
        };
        if !is_version(old, delete.compare) {
            return Ok(Deleted::Exists);
        }
        if !delete.invalidate && !delete.clear_value {
            self.remove(guard, key, old)?;
            return Ok(Deleted::Deleted);
        }
        // The item stays. If it is a limiter, it becomes a plain item whose value is the number of
        // its used units.
        let old_item = self.visible_locked(old.record);
        let kept = old_item.fields();
        let (kind, flags, old_expiry, value) = if delete.clear_value {
            (Kind::Item, 0, 0, &[][..])
        } else {
            (kept.kind, kept.flags, kept.expiry, old_item.value())
        };
        let reads = if delete.clear_value { OldReads::Inherit } else { OldReads::Keep };
        let fields = Fields {
            kind,
            cas: delete.cas,
            expiry: delete.expiry.map_or(old_expiry, |expiry| expiry.raw()),
            flags,
            stale: delete.invalidate || kept.stale && !delete.clear_value,
            ..kept
        };
        let body = Body::Pieces(value, &[]);
        let manner = Manner { claim: Claim::Update, reads };
        self.write_as(guard, key, Some(old), manner, fields, body)?;
        Ok(Deleted::Deleted)
    }

    /// Counts the delete as memcached does: marking an item stale is no delete.
    fn count_delete(&self, delete: &Delete, deleted: Deleted) {
        let counter = match deleted {
            _ if delete.uncounted => None,
            Deleted::Deleted if delete.invalidate => None,
            Deleted::Deleted => Some(&self.counters.delete_hits),
            Deleted::NotFound | Deleted::Exists => Some(&self.counters.delete_misses),
        };
        if let Some(counter) = counter {
            bump(counter, 1);
        }
    }
}
