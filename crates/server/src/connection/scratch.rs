//! The keys and requests of a batch, and the vectors that a worker reuses for them.

use crate::command::Dialect;
use crate::command::text::PREFETCH_WINDOW;
use larder_engine::{Key, Session};
use larder_protocol::KeySink;

/// Vectors that a worker reuses for its batches. The vectors are empty between batches.
pub(super) struct Scratch<D: Dialect> {
    keys: Vec<Key<'static>>,
    entries: Vec<Entry<'static, D>>,
}

impl<D: Dialect> Default for Scratch<D> {
    fn default() -> Self {
        Scratch { keys: Vec::new(), entries: Vec::new() }
    }
}

impl<D: Dialect> Scratch<D> {
    pub(super) fn take_keys<'a>(&mut self) -> Vec<Key<'a>> {
        recycle(std::mem::take(&mut self.keys))
    }

    pub(super) fn give_keys(&mut self, keys: Vec<Key<'_>>) {
        self.keys = recycle(keys);
    }

    pub(super) fn take_entries<'a>(&mut self) -> Vec<Entry<'a, D>> {
        recycle(std::mem::take(&mut self.entries))
    }

    pub(super) fn give_entries(&mut self, entries: Vec<Entry<'_, D>>) {
        self.entries = recycle(entries);
    }
}

/// Empties a vector and returns it with the lifetime of its elements changed. The new vector has
/// the same allocation: the standard library reuses it when `into_iter` is collected into a vector.
fn recycle<A, B>(mut elements: Vec<A>) -> Vec<B> {
    elements.clear();
    elements.into_iter().map(|_| unreachable!("the vector was cleared")).collect()
}

/// A request of a batch, or the refusal of a request.
pub(super) struct Entry<'a, D: Dialect> {
    pub(super) action: Action<'a, D>,
    /// Index just after the request's last key, among the keys of the batch.
    pub(super) keys_end: usize,
    /// Offset in the input at which the request ends.
    pub(super) end: usize,
}

pub(super) enum Action<'a, D: Dialect> {
    Execute(D::Request<'a>),
    Refuse(D::Refusal),
}

/// The keys of a batch. Hashes each key that the parser finds, and prefetches the index buckets of
/// the first [`PREFETCH_WINDOW`] keys.
pub(super) struct KeyBatch<'s, 'a> {
    session: &'s Session,
    keys: Vec<Key<'a>>,
}

impl<'a> KeySink<'a> for KeyBatch<'_, 'a> {
    #[inline]
    fn push(&mut self, bytes: &'a [u8]) {
        let key = self.session.key(bytes);
        if self.keys.len() < PREFETCH_WINDOW {
            self.session.prefetch_buckets(&key);
        }
        self.keys.push(key);
    }

    #[inline]
    fn len(&self) -> usize {
        self.keys.len()
    }

    #[inline]
    fn truncate(&mut self, len: usize) {
        self.keys.truncate(len);
    }
}

impl<'s, 'a> KeyBatch<'s, 'a> {
    pub(super) fn new(session: &'s Session, keys: Vec<Key<'a>>) -> Self {
        KeyBatch { session, keys }
    }

    pub(super) fn all(&self) -> &[Key<'a>] {
        &self.keys
    }

    pub(super) fn into_inner(self) -> Vec<Key<'a>> {
        self.keys
    }

    /// Fetches the records of the first [`PREFETCH_WINDOW`] keys, also from the device. This is the
    /// second stage of prefetching, after the index buckets. For a single key, it would save
    /// nothing.
    #[inline]
    pub(super) fn fetch_records(&mut self) {
        if self.keys.len() > 1 {
            for key in self.keys.iter_mut().take(PREFETCH_WINDOW) {
                self.session.fetch_record(key);
            }
        }
    }

    /// Fetches the records of the requests in `entries`, as [`fetch_records`](Self::fetch_records)
    /// does. A storage request whose value has not arrived may follow them; the record of its key
    /// is fetched too. `overwrites` is true if that request is an unconditional set. For the key of
    /// an unconditional set, nothing is read from the device while sets may replace records unread.
    #[inline]
    pub(super) fn fetch_records_of<D: Dialect>(
        &mut self,
        entries: &[Entry<'_, D>],
        overwrites: bool,
    ) {
        let window = self.keys.len().min(PREFETCH_WINDOW);
        if window <= 1 {
            return;
        }
        let mut from = 0;
        let ends = entries.iter().map(|entry| {
            let overwrites =
                matches!(&entry.action, Action::Execute(it) if D::properties(it).overwrites());
            (entry.keys_end, overwrites)
        });
        for (end, overwrites) in ends.chain([(window, overwrites)]) {
            let keys = &mut self.keys[from..end.clamp(from, window)];
            for key in keys.iter_mut() {
                match overwrites {
                    true => self.session.fetch_overwritten(key),
                    false => self.session.fetch_record(key),
                }
            }
            from += keys.len();
        }
    }

    /// Prefetches the records of keys that were guessed from unparsed input. Does not read records
    /// from a device, because the guesses may be wrong.
    #[inline]
    pub(super) fn prefetch_records(&mut self) {
        for key in self.keys.iter_mut().take(PREFETCH_WINDOW) {
            self.session.prefetch_record(key);
        }
    }
}
