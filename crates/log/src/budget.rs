//! The memory budget: one number that everything large is charged to.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of RAM charged against a limit. The counts are relaxed: the budget is exact in sum, and no
/// other memory is published through it.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
    buffers: AtomicU64,
    wanted: AtomicU64,
    /// For simulations: the number of the request that is refused, and requests so far.
    refused: AtomicU64,
    requests: AtomicU64,
}

/// Connection buffers may take this share of the limit: one in so many.
const BUFFER_SHARE: u64 = 4;
/// Of that, bodies that are being received leave one in so many to everybody's short requests and
/// replies: clients that announce values and stall starve only each other.
const BODY_RESERVE: u64 = 4;

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Budget {
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            buffers: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        }
    }

    /// For simulations: refuses the `nth` request for memory from now on, of those that may be
    /// refused, whatever there is; 0 for none.
    pub fn refuse(&self, nth: u64) {
        self.requests.store(0, Relaxed);
        self.refused.store(nth, Relaxed);
    }

    /// Requests since [`Budget::refuse`] was called with one to be refused.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Whoever may be refused memory asks this first.
    #[inline]
    pub fn grants(&self) -> bool {
        let refused = self.refused.load(Relaxed);
        refused == 0 || self.requests.fetch_add(1, Relaxed) + 1 != refused
    }

    /// The limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Changes the limit; what is over it must be reclaimed by whoever holds it.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// Bytes charged.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Bytes of connection buffers among them.
    pub fn buffers(&self) -> u64 {
        self.buffers.load(Relaxed)
    }

    /// Charges `bytes` if they fit beside what is wanted by somebody who waits.
    pub fn try_charge(&self, bytes: u64) -> bool {
        let room = self.limit().saturating_sub(self.wanted.load(Relaxed));
        self.grants() && self.charge_within(bytes, room)
    }

    /// Charges `bytes` for the one who waited for them.
    pub fn try_charge_wanted(&self, bytes: u64) -> bool {
        let charged = self.grants() && self.charge_within(bytes, self.limit());
        if charged {
            self.wanted.store(0, Relaxed);
        }
        charged
    }

    fn charge_within(&self, bytes: u64, most: u64) -> bool {
        self.used
            .fetch_update(Relaxed, Relaxed, |used| (used + bytes <= most).then_some(used + bytes))
            .is_ok()
    }

    /// Somebody waits for this many bytes: frames must go until they fit.
    pub fn want(&self, bytes: u64) {
        self.wanted.fetch_max(bytes, Relaxed);
    }

    /// The bytes that somebody waits for.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Relaxed)
    }

    /// Nobody waits any more.
    pub fn unwant(&self) {
        self.wanted.store(0, Relaxed);
    }

    /// Charges `bytes` that are needed now; the budget may be over its limit until frames have been
    /// given back.
    pub fn charge(&self, bytes: u64) {
        self.used.fetch_add(bytes, Relaxed);
    }

    /// Gives `bytes` back.
    pub fn release(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes);
    }

    /// Charges connection buffers; false when they would take more than their share.
    pub fn charge_buffers(&self, bytes: u64) -> bool {
        self.charge_up_to(bytes, self.limit() / BUFFER_SHARE)
    }

    /// Charges the buffer of a body that is being received; false when bodies would take what is
    /// reserved for everything else.
    pub fn charge_body(&self, bytes: u64) -> bool {
        let share = self.limit() / BUFFER_SHARE;
        self.charge_up_to(bytes, share - share / BODY_RESERVE)
    }

    fn charge_up_to(&self, bytes: u64, share: u64) -> bool {
        let more = |held| (held + bytes <= share).then_some(held + bytes);
        let fits = self.grants() && self.buffers.fetch_update(Relaxed, Relaxed, more).is_ok();
        if fits {
            self.charge(bytes);
        }
        fits
    }

    /// Gives connection buffers back.
    pub fn release_buffers(&self, bytes: u64) {
        let before = self.buffers.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes);
        self.release(bytes);
    }

    /// How far the budget is over its limit, counting what somebody waits for.
    pub fn excess(&self) -> u64 {
        (self.used() + self.wanted()).saturating_sub(self.limit())
    }
}
