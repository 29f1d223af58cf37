//! Operations on items that all protocols share. Each protocol translates its requests into these
//! calls and formats the results.

use super::{Execution, Unready};
use larder_engine::{Delete, Expiry, Get, Item, Key, ReadCount, Store, Stored, UnixSeconds};

/// What happens to the existing item when a write to its key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnRefusal {
    /// The item stays as it was.
    Keep,
    /// The item is removed, as in memcached. The client of the refused write assumes that the old
    /// value is gone, so no client should read it any more.
    Remove,
}

impl<'e> Execution<'e, '_> {
    /// Reads an item, and sets its expiry if `exptime` is given.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        key: &Key<'_>,
        exptime: Option<impl Into<i64>>,
    ) -> Result<Option<Item<'e>>, Unready> {
        match exptime {
            None => self.settle(self.session.get(key)),
            Some(exptime) => self.touch(key, self.expiry(exptime)),
        }
    }

    /// Sets the expiry of an item and returns the item.
    pub(super) fn touch(
        &mut self,
        key: &Key<'_>,
        expiry: Expiry,
    ) -> Result<Option<Item<'e>>, Unready> {
        let counted_as = ReadCount::Touch;
        let get = Get { touch: Some(expiry), counted_as, ..Get::default() };
        let found = self.session.get_with(key, &get);
        Ok(self.settle(found)?.map(|got| got.item))
    }

    /// Stores a value. If the write is refused, treats the existing item as `on_refusal` says.
    #[inline(always)]
    pub(super) fn put(
        &mut self,
        key: &Key<'_>,
        store: Store<'_>,
        on_refusal: OnRefusal,
    ) -> Result<Stored, Unready> {
        let stored = self.settle(self.session.store(key, store));
        if let Ok(Stored::TooLarge) | Err(Unready::Refused(_)) = stored {
            self.leave(key, on_refusal)?;
        }
        stored
    }

    /// Returns true if a value that has not arrived yet is too large. If the value is too large,
    /// treats the existing item as `on_refusal` says.
    pub(super) fn refuse_large(
        &mut self,
        key: &Key<'_>,
        len: usize,
        on_refusal: OnRefusal,
    ) -> Result<bool, Unready> {
        let too_large = len > self.context.engine().max_value_len(key.bytes().len());
        if too_large {
            self.leave(key, on_refusal)?;
            self.session.count_too_large();
        }
        Ok(too_large)
    }

    /// Removes or keeps the existing item after a refused write. Returns `Err` if the caller must
    /// repeat this call later.
    ///
    /// A store that never evicts keeps the item in any case, because an acknowledged item must stay
    /// until a newer version exists. In other stores and in caches, [`OnRefusal::Remove`] removes
    /// the item. If the device has failed, the item stays in spite of `Remove`, because its removal
    /// would not be durable.
    pub(super) fn leave(&mut self, key: &Key<'_>, on_refusal: OnRefusal) -> Result<(), Unready> {
        if self.context.engine().keeps_all() || on_refusal == OnRefusal::Keep {
            return Ok(());
        }
        let delete = Delete { uncounted: true, ..Delete::default() };
        match self.settle(self.session.delete(key, &delete)) {
            Err(Unready::Again) => Err(Unready::Again),
            Ok(_) | Err(Unready::Refused(_)) => Ok(()),
        }
    }

    /// Flushes all items, now or at the time that `exptime` means. A time before the server's start
    /// flushes nothing, as in memcached, where no item is older than the server. A flush replaces
    /// an earlier flush that is not due yet.
    pub(super) fn flush(&mut self, exptime: i64) -> Result<(), Unready> {
        let at = match self.expiry(exptime).seconds() {
            _ if exptime <= 0 => None,
            Some(at) if at <= self.context.started => Some(UnixSeconds::MAX),
            at => at,
        };
        self.flush_all(at)
    }
}
