//! Who was told to recache an item: one winner per version, so that a thousand clients that miss
//! together do not all recompute. A bounded, lossy table: a token that is pushed out by another lets
//! a second winner through, which the protocol allows.

use crate::key::Key;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const TOKENS: usize = 8192;

#[derive(Debug)]
pub(crate) struct RecacheWinners {
    tokens: Box<[AtomicU64]>,
    /// False until the first win: most servers never look further.
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

    /// True for the first caller with this version of the key.
    pub(crate) fn claim(&self, key: &Key<'_>, cas: u64) -> bool {
        self.used.store(true, Relaxed);
        let token = key.fingerprint(cas);
        self.place(key).swap(token, Relaxed) != token
    }

    /// A new version begins without a winner, even if its explicit cas id was used before.
    pub(crate) fn forget(&self, key: &Key<'_>, cas: u64) {
        if self.claimed(key, cas) {
            self.place(key).store(0, Relaxed);
        }
    }

    /// Whether somebody has claimed this version of the key.
    pub(crate) fn claimed(&self, key: &Key<'_>, cas: u64) -> bool {
        self.used.load(Relaxed) && self.place(key).load(Relaxed) == key.fingerprint(cas)
    }
}
