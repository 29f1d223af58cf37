//! Pins: values that stay readable until their replies are sent, even if their segments are cleaned
//! before that. While the segment keeps its frame, a pin costs no memory: it only records how far
//! its reader has read. Before the frame is given back, the unread rest of the value is copied out.
//! The mapping of a jumbo holds no other value, so the pins take the mapping over instead. The copy
//! or mapping is charged to the budget, as memory that connections use.
//!
//! Pinned values have [a share of memory](Budget::pinned_limit). When they would exceed it, the
//! value read least recently is given up. So a client that goes on reading does not lose its value
//! to a client that does not.

use crate::Budget;
use crate::memory::mapping::Mapping;
use crate::sync::{Mutex, lock};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// All pins of a log.
#[derive(Debug)]
pub(crate) struct Pins {
    budget: Arc<Budget>,
    /// Pins of values whose segment still has its memory, keyed by the address of that memory.
    in_place: Mutex<HashMap<usize, Vec<Arc<Pinned>>>>,
    /// Pins that own memory.
    keeping: Mutex<Vec<Arc<Pinned>>>,
    /// Bytes of memory that the pins of this log own. The pins of each lane have their own limit,
    /// so a reader in one lane never causes the loss of a pinned value in another lane.
    kept: Arc<AtomicU64>,
    /// Number of reads so far. It tells which value was read least recently.
    reads: AtomicU64,
}

struct Pinned {
    /// Address of the segment's memory in which the value was pinned. 0 for a value that was pinned
    /// by [copying](Pins::copy) it.
    frame: usize,
    /// Number of the value's last read, from `Pins::reads`.
    read: AtomicU64,
    rest: Mutex<UnreadValue>,
}

/// The unread rest of a value.
enum UnreadValue {
    InPlace { at: *const u8, len: usize },
    Copied { bytes: KeptMemory<Box<[u8]>>, at: usize },
    Mapped { mapping: Arc<KeptMemory<Mapping>>, at: *const u8, len: usize },
    Lost,
}

// SAFETY: `at` leads into memory that stays valid. In `InPlace`, the segment keeps this memory
// until `Pins::unpin_frame` or `Pins::take_mapping` replaces the value. In `Mapped`, `mapping`
// keeps it. The mutex `Pinned::rest` guards the pointers.
unsafe impl Send for UnreadValue {}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("frame", &self.frame).finish_non_exhaustive()
    }
}

/// Memory that is charged while it is kept.
struct KeptMemory<T> {
    memory: T,
    bytes: u64,
    kept: Arc<AtomicU64>,
    budget: Arc<Budget>,
}

impl<T> KeptMemory<T> {
    fn new(memory: T, bytes: usize, pins: &Pins) -> Self {
        let bytes = bytes as u64;
        pins.budget.charge_pinned(bytes);
        pins.kept.fetch_add(bytes, Relaxed);
        let (kept, budget) = (Arc::clone(&pins.kept), Arc::clone(&pins.budget));
        KeptMemory { memory, bytes, kept, budget }
    }
}

impl<T> Drop for KeptMemory<T> {
    fn drop(&mut self) {
        self.kept.fetch_sub(self.bytes, Relaxed);
        self.budget.release_pinned(self.bytes);
    }
}

/// A value, or the rest of one, that stays readable even if its item is gone. It is given up only
/// if pinned values take too much memory: see [`Pin::read`].
#[derive(Debug)]
pub struct Pin {
    pins: Arc<Pins>,
    pinned: Arc<Pinned>,
}

impl Pins {
    pub(crate) fn new(budget: &Arc<Budget>) -> Arc<Self> {
        Arc::new(Pins {
            budget: Arc::clone(budget),
            in_place: Mutex::default(),
            keeping: Mutex::default(),
            kept: Arc::default(),
            reads: AtomicU64::new(0),
        })
    }

    /// Pins a part of a value that lies in `frame`.
    ///
    /// # Safety
    /// Before the memory of the part is reused, [`Pins::unpin_frame`] or [`Pins::take_mapping`]
    /// must be called for it. The memory must not be reused before the thread's next quiescent
    /// point.
    pub(crate) unsafe fn pin(self: &Arc<Self>, frame: *mut u8, part: &[u8]) -> Pin {
        let pinned = self
            .pinned(frame as usize, UnreadValue::InPlace { at: part.as_ptr(), len: part.len() });
        lock(&self.in_place).entry(frame as usize).or_default().push(Arc::clone(&pinned));
        Pin { pins: Arc::clone(self), pinned }
    }

    /// Pins a copy of a part of a value that lies in no frame.
    pub(crate) fn copy(self: &Arc<Self>, part: &[u8]) -> Pin {
        self.make_room(part.len());
        let bytes = KeptMemory::new(part.into(), part.len(), self);
        let pinned = self.pinned(0, UnreadValue::Copied { bytes, at: 0 });
        lock(&self.keeping).push(Arc::clone(&pinned));
        Pin { pins: Arc::clone(self), pinned }
    }

    fn pinned(&self, frame: usize, rest: UnreadValue) -> Arc<Pinned> {
        let read = AtomicU64::new(self.next_read());
        Arc::new(Pinned { frame, read, rest: Mutex::new(rest) })
    }

    fn next_read(&self) -> u64 {
        self.reads.fetch_add(1, Relaxed)
    }

    /// Copies the pinned values out of a frame that is about to be reused.
    pub(crate) fn unpin_frame(&self, frame: *mut u8) {
        for pinned in self.taken(frame) {
            let len = match &*lock(&pinned.rest) {
                UnreadValue::InPlace { len, .. } => *len,
                _ => continue,
            };
            self.make_room(len);
            let mut rest = lock(&pinned.rest);
            if let UnreadValue::InPlace { at, len } = *rest {
                // SAFETY: the frame still holds the bytes that it held when the value was pinned:
                // see `Pins::pin`.
                let bytes: Box<[u8]> = unsafe { std::slice::from_raw_parts(at, len) }.into();
                *rest = UnreadValue::Copied { bytes: KeptMemory::new(bytes, len, self), at: 0 };
            }
            drop(rest);
            self.note_keeping(pinned);
        }
    }

    /// Hands a jumbo's mapping to the pins of its value, instead of unmapping it. `frame` is the
    /// address of the jumbo's record. Returns true if there are pins. They then own the mapping,
    /// which this function gets by calling `mapping`.
    pub(crate) fn take_mapping(
        &self,
        frame: *mut u8,
        bytes: usize,
        mapping: impl FnOnce() -> Mapping,
    ) -> bool {
        let pinned = self.taken(frame);
        if pinned.is_empty() {
            return false;
        }
        self.make_room(bytes);
        let mapping = Arc::new(KeptMemory::new(mapping(), bytes, self));
        for pinned in pinned {
            let mut rest = lock(&pinned.rest);
            if let UnreadValue::InPlace { at, len } = *rest {
                *rest = UnreadValue::Mapped { mapping: Arc::clone(&mapping), at, len };
            }
            drop(rest);
            self.note_keeping(pinned);
        }
        true
    }

    /// Returns true if a value that lies in `frame` is pinned.
    pub(crate) fn are_in(&self, frame: *mut u8) -> bool {
        lock(&self.in_place).contains_key(&(frame as usize))
    }

    fn taken(&self, frame: *mut u8) -> Vec<Arc<Pinned>> {
        lock(&self.in_place).remove(&(frame as usize)).unwrap_or_default()
    }

    /// Adds a pin that now owns memory to `keeping`, unless the pin was dropped meanwhile. A drop
    /// sets `rest` to `Lost` before it removes the pin from `keeping`, so no dropped pin stays
    /// there.
    fn note_keeping(&self, pinned: Arc<Pinned>) {
        let mut keeping = lock(&self.keeping);
        if !matches!(*lock(&pinned.rest), UnreadValue::Lost) {
            keeping.push(pinned);
        }
    }

    /// Gives up the values read least recently until `bytes` more fit into the share. A single
    /// value may exceed the share.
    fn make_room(&self, bytes: usize) {
        let share = self.budget.pinned_limit();
        let mut keeping = lock(&self.keeping);
        while self.kept.load(Relaxed) + bytes as u64 > share {
            let oldest =
                keeping.iter().enumerate().min_by_key(|(_, pinned)| pinned.read.load(Relaxed));
            let Some((at, _)) = oldest else { return };
            let pinned = keeping.swap_remove(at);
            *lock(&pinned.rest) = UnreadValue::Lost;
        }
    }
}

impl Pin {
    /// Passes at most `most` unread bytes to `see`. Returns how many are left afterwards. Returns
    /// `None` if the value was given up: pinned values kept too much memory, and this one was read
    /// least recently.
    pub fn read(&mut self, most: usize, see: impl FnOnce(&[u8])) -> Option<usize> {
        self.pinned.read.store(self.pins.next_read(), Relaxed);
        match &mut *lock(&self.pinned.rest) {
            UnreadValue::InPlace { at, len } | UnreadValue::Mapped { at, len, .. } => {
                let now = most.min(*len);
                // SAFETY: the bytes are in the mapping that the pin keeps, or in memory that stays
                // until `Pins::unpin_frame` or `Pins::take_mapping` has replaced the rest. Both
                // take this lock to do so.
                see(unsafe { std::slice::from_raw_parts(*at, now) });
                *at = at.wrapping_add(now);
                *len -= now;
                Some(*len)
            }
            UnreadValue::Copied { bytes, at } => {
                let rest = &bytes.memory[*at..];
                let now = most.min(rest.len());
                see(&rest[..now]);
                *at += now;
                Some(rest.len() - now)
            }
            UnreadValue::Lost => None,
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let others = |other: &Arc<Pinned>| !Arc::ptr_eq(other, &self.pinned);
        let mut in_place = lock(&self.pins.in_place);
        if let Some(pinned) = in_place.get_mut(&self.pinned.frame) {
            pinned.retain(others);
            if pinned.is_empty() {
                in_place.remove(&self.pinned.frame);
            }
        }
        drop(in_place);
        let rest = std::mem::replace(&mut *lock(&self.pinned.rest), UnreadValue::Lost);
        lock(&self.pins.keeping).retain(others);
        // The memory in `rest` is freed when this function returns, outside the locks.
        if let UnreadValue::Mapped { mapping, .. } = rest {
            debug_assert!(mapping.memory.len() as u64 == mapping.bytes);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pins(limit: u64) -> (Arc<Pins>, Arc<Budget>) {
        let budget = Arc::new(Budget::new(limit));
        (Pins::new(&budget), budget)
    }

    fn all_of(pin: &mut Pin) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        while pin.read(3, |part| bytes.extend_from_slice(part))? > 0 {}
        Some(bytes)
    }

    #[test]
    fn the_rest_of_a_pinned_value_outlives_its_frame() {
        let (pins, budget) = pins(1 << 20);
        let mut frame = *b"one value and another value";
        let at = frame.as_mut_ptr();
        // SAFETY: the frame is not changed before it is unpinned.
        let (mut one, mut other) =
            unsafe { (pins.pin(at, &frame[..9]), pins.pin(at, &frame[14..])) };
        one.read(4, |part| assert_eq!(part, b"one ")).unwrap();
        assert_eq!(budget.used(), 0);
        pins.unpin_frame(at);
        frame.fill(b'x');
        assert_eq!(budget.pinned(), 5 + 13);
        assert_eq!(all_of(&mut one).unwrap(), b"value");
        assert_eq!(all_of(&mut other).unwrap(), b"another value");
        drop(one);
        assert_eq!(budget.used(), 13);
        drop(other);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_pinned_mapping_is_freed_after_its_last_reader() {
        let (pins, budget) = pins(1 << 20);
        let mapping = Mapping::new(100_000).unwrap();
        let (at, bytes) = (mapping.base(), mapping.len());
        // SAFETY: the mapping is this test's own until it is taken.
        let value = unsafe { std::slice::from_raw_parts(at.add(100), 90_000) };
        // SAFETY: as above.
        let pinned: Vec<Pin> = (0..3).map(|_| unsafe { pins.pin(at, value) }).collect();
        assert!(!pins.take_mapping(std::ptr::null_mut(), 0, || unreachable!()));
        assert!(pins.take_mapping(at, bytes, || mapping));
        for mut pin in pinned {
            assert_eq!(budget.pinned(), bytes as u64);
            assert_eq!(all_of(&mut pin).unwrap(), vec![0; 90_000]);
        }
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_pin_read_least_recently_is_given_up_first() {
        let (pins, budget) = pins(8 * 1000);
        let mut pinned: Vec<Pin> = (0..10).map(|_| pins.copy(&[b'v'; 100])).collect();
        pinned[0].read(1, |_| ()).unwrap();
        let mut large = pins.copy(&[b'l'; 200]);
        let lost: Vec<bool> = pinned.iter_mut().map(|pin| pin.read(1, |_| ()).is_none()).collect();
        assert_eq!(lost[..4], [false, true, true, false]);
        assert!(!lost[3..].contains(&true));
        assert_eq!(budget.pinned(), 1000);
        let mut larger = pins.copy(&[b'l'; 5000]);
        assert!(large.read(1, |_| ()).is_none());
        assert_eq!(all_of(&mut larger).unwrap().len(), 5000, "one alone is kept");
        drop((pinned, large, larger));
        assert_eq!(budget.used(), 0);
    }
}
