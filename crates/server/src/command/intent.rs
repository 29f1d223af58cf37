//! What clients want, whatever the protocol: the protocols put their requests into these words, and word
//! the answers.

use super::{Execution, Unready};
use larder_engine::{
    Delete, Expiry, Get, Item, Key, ReadCount, Store, Stored, UnixSeconds, WhenFull,
};

/// What a refused write leaves of the item that it was to replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfRefused {
    /// The item stays as it was.
    Keep,
    /// Nothing, as in memcached: the client believes that the old value is gone, and nobody should read it
    /// any more.
    Remove,
}

impl<'e> Execution<'e, '_> {
    /// Reads an item, and gives it another expiry if `exptime` says one.
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

    /// Gives an item another expiry.
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

    /// Stores a value.
    #[inline(always)]
    pub(super) fn put(
        &mut self,
        key: &Key<'_>,
        store: Store<'_>,
        if_refused: IfRefused,
    ) -> Result<Stored, Unready> {
        let stored = self.settle(self.session.store(key, store));
        if let Ok(Stored::TooLarge) | Err(Unready::Refused(_)) = stored {
            self.leave(key, if_refused)?;
        }
        stored
    }

    /// Refuses a value that has not arrived if it is too large: whether it is.
    pub(super) fn refuse_large(
        &mut self,
        key: &Key<'_>,
        len: usize,
        if_refused: IfRefused,
    ) -> Result<bool, Unready> {
        let too_large = len > self.context.engine().max_value_len(key.bytes().len());
        if too_large {
            self.leave(key, if_refused)?;
            self.session.count_too_large();
        }
        Ok(too_large)
    }

    /// Does what a refused write does to the item; `Err` if that must be tried again. A store that never evicts
    /// keeps what it has acknowledged until it has something newer. Elsewhere the item stays only if the
    /// device fails, so that a removal would not last either.
    pub(super) fn leave(&mut self, key: &Key<'_>, if_refused: IfRefused) -> Result<(), Unready> {
        let options = self.context.engine().options();
        let keeps = options.store.is_some() && options.when_full == WhenFull::Refuse;
        if keeps || if_refused == IfRefused::Keep {
            return Ok(());
        }
        let delete = Delete { uncounted: true, ..Delete::default() };
        match self.settle(self.session.delete(key, &delete)) {
            Err(Unready::Again) => Err(Unready::Again),
            Ok(_) | Err(Unready::Refused(_)) => Ok(()),
        }
    }

    /// Forgets every item, now or at the time that `exptime` means. No item is older than the server, so a time
    /// before its start forgets none; as every flush it takes the place of one that is not due yet.
    pub(super) fn flush(&mut self, exptime: i64) -> Result<(), Unready> {
        let at = match self.expiry(exptime).seconds() {
            _ if exptime <= 0 => None,
            Some(at) if at <= self.context.started => Some(UnixSeconds::MAX),
            at => at,
        };
        self.flush_all(at)
    }
}
