//! The plain map with which an engine is compared: memcached's rules in their simplest form.

use std::collections::HashMap;

/// One item of the model.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) value: Vec<u8>,
    pub(crate) flags: u32,
    /// Unix seconds at which the item expires; `None` for never.
    pub(crate) expiry: Option<u32>,
    /// The cas id that the engine returned.
    pub(crate) cas: u64,
}

/// The map and its clock.
#[derive(Debug, Default)]
pub(crate) struct Model {
    entries: HashMap<Vec<u8>, Entry>,
    pub(crate) now: u32,
    pub(crate) flush_at: Option<u32>,
}

impl Model {
    /// Returns the item that a client would see.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Entry> {
        let entry = self.entries.get(key)?;
        entry.expiry.is_none_or(|at| at > self.now).then_some(entry)
    }

    pub(crate) fn put(&mut self, key: &[u8], entry: Entry) {
        self.entries.insert(key.to_vec(), entry);
    }

    pub(crate) fn get_mut(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let now = self.now;
        self.entries.get_mut(key).filter(|entry| entry.expiry.is_none_or(|at| at > now))
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        let was_live = self.get(key).is_some();
        self.entries.remove(key);
        was_live
    }

    pub(crate) fn flush(&mut self) {
        self.entries.clear();
    }

    /// Moves the clock forward and runs a delayed flush that is due.
    pub(crate) fn advance(&mut self, seconds: u32) {
        self.now += seconds;
        if self.flush_at.is_some_and(|at| at <= self.now) {
            self.flush_at = None;
            self.flush();
        }
    }

    /// Returns all items that clients would see, ordered by key.
    pub(crate) fn live(&self) -> Vec<(Vec<u8>, Entry)> {
        let live = |(key, entry): (&Vec<u8>, &Entry)| {
            self.get(key).is_some().then(|| (key.clone(), entry.clone()))
        };
        let mut all: Vec<_> = self.entries.iter().filter_map(live).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Returns the next value of a counter by memcached's rules, as a number and as text. Returns
    /// `None` if `text` is not a number.
    pub(crate) fn counted(text: &[u8], decrement: bool, delta: u64) -> Option<(u64, Vec<u8>)> {
        let number: u64 = std::str::from_utf8(text).ok()?.trim_end_matches(' ').parse().ok()?;
        let number =
            if decrement { number.saturating_sub(delta) } else { number.wrapping_add(delta) };
        let mut value = number.to_string().into_bytes();
        value.resize(value.len().max(text.len()), b' ');
        Some((number, value))
    }
}
