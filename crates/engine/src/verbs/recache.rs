//! The winners of recaching. One client per version of an item wins, so that a thousand clients
//! that miss together do not all recompute the value. A table has the winner of a version as a
//! token at a place that the key's hash chooses. Another key's token may overwrite it, and then a
//! second client can win. The memcached protocol allows that.

use crate::key::Key;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const TOKENS: usize = 8192;

#[derive(Debug)]
pub(crate) struct RecacheWinners {
    tokens: Box<[AtomicU64]>,
    /// False until the first win. Until then, no read loads a token.
    used: AtomicBool,
}

impl Default for RecacheWinners {
    fn default() -> Self {
        let tokens = (0..TOKENS).map(|_| AtomicU64::new(0)).collect();
        RecacheWinners { tokens, used: AtomicBool::new(false) }
    }
}

impl RecacheWinners {
    fn place(&self, key: &Key<'_>) -> &AtomicU64 {
        &self.tokens[(key.hi >> 32) as usize % TOKENS]
    }

    /// Makes the caller the winner of this version of the key. Returns false if there already is a
    /// winner.
    pub(crate) fn claim(&self, key: &Key<'_>, cas: u64) -> bool {
        self.used.store(true, Relaxed);
        let token = key.fingerprint(cas);
        self.place(key).swap(token, Relaxed) != token
    }

    /// Forgets the winner of a version, so that a new version starts without one even if its
    /// explicit cas id was used before.
    pub(crate) fn forget(&self, key: &Key<'_>, cas: u64) {
        if self.claimed(key, cas) {
            self.place(key).store(0, Relaxed);
        }
    }

    /// Returns true if a client has claimed this version of the key.
    pub(crate) fn claimed(&self, key: &Key<'_>, cas: u64) -> bool {
        self.used.load(Relaxed) && self.place(key).load(Relaxed) == key.fingerprint(cas)
    }
}
