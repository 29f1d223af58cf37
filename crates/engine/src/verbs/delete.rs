//! Delete and meta delete.

use crate::lane::session::LaneSession;
use crate::stats::bump;
use crate::verbs::store::is_version;
use crate::write::{Body, Manner, Reads};
use crate::{Delete, Deleted, Key, Outcome};
use larder_log::{Claim, Fields};

impl LaneSession {
    /// Deletes an item, or marks it stale, or empties it.
    pub(crate) fn delete(&self, key: &Key<'_>, delete: &Delete) -> Outcome<Deleted> {
        let guard = self.lane.index.lock(key);
        let existing = match delete.invalidate && !delete.clear_value {
            true => self.existing(&guard, key),
            false => self.existing_head(&guard, key),
        };
        let old = match existing {
            Ok(Some(old)) if !old.gone => old,
            Ok(existing) => {
                // An evicted item may come back after a crash until its eviction is durable, so a
                // delete needs a tombstone.
                if existing.is_none()
                    && self.lane.log.is_evicting()
                    && let Err(why) = self.write_tombstone(&guard, key, None)
                {
                    drop(guard);
                    return self.not_written(key, why);
                }
                return self.end_delete(delete, Deleted::NotFound);
            }
            Err(why) => {
                drop(guard);
                return self.not_written(key, why);
            }
        };
        if !is_version(&old, delete.compare) {
            return self.end_delete(delete, Deleted::Exists);
        }
        if !delete.invalidate && !delete.clear_value {
            return match self.remove(&guard, key, &old) {
                Ok(()) => self.end_delete(delete, Deleted::Deleted),
                Err(why) => {
                    drop(guard);
                    self.not_written(key, why)
                }
            };
        }
        let kept = old.record.fields();
        let (flags, old_expiry, value) = if delete.clear_value {
            (0, 0, &[][..])
        } else {
            (kept.flags, kept.expiry, old.record.value())
        };
        let reads = if delete.clear_value { Reads::Inherit } else { Reads::Keep };
        let fields = Fields {
            cas: delete.cas,
            expiry: delete.expiry.map_or(old_expiry, |expiry| expiry.raw()),
            flags,
            stale: delete.invalidate || kept.stale && !delete.clear_value,
            ..kept
        };
        let body = Body::Pieces(value, &[]);
        let manner = Manner { claim: Claim::Update, reads };
        match self.write_as(&guard, key, Some(&old), manner, fields, body) {
            Ok(_) => self.end_delete(delete, Deleted::Deleted),
            Err(why) => {
                drop(guard);
                self.not_written(key, why)
            }
        }
    }

    /// Counts the delete as memcached does: marking an item stale is no delete.
    fn end_delete(&self, delete: &Delete, deleted: Deleted) -> Outcome<Deleted> {
        let counter = match deleted {
            _ if delete.uncounted => None,
            Deleted::Deleted if delete.invalidate => None,
            Deleted::Deleted => Some(&self.counters.delete_hits),
            Deleted::NotFound | Deleted::Exists => Some(&self.counters.delete_misses),
        };
        if let Some(counter) = counter {
            bump(counter, 1);
        }
        self.answer(deleted)
    }
}
