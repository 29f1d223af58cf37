//! A table of connections. Each connection has a 32-bit number as its key until it is removed. The
//! kernel's events and completions carry this key, which tells the loop which connection they are
//! for. Memory is allocated in blocks of [`STEP`] entries and reused, so a new connection never
//! moves existing ones.

/// Number of entries per allocated block.
const STEP: usize = 256;

/// A table of values. The key of a removed value is used again for a later value.
#[derive(Debug)]
pub(super) struct Slab<T> {
    steps: Vec<Box<[Option<T>]>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Slab { steps: Vec::new(), free: Vec::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns a number that is greater than all keys in use.
    pub(super) fn bound(&self) -> u32 {
        (self.steps.len() * STEP) as u32
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        let key = match self.free.pop() {
            Some(key) => key,
            None => self.step(),
        };
        *self.entry(key) = Some(value);
        self.len += 1;
        key
    }

    #[cold]
    fn step(&mut self) -> u32 {
        let first = self.bound();
        self.steps.push((0..STEP).map(|_| None).collect());
        // `pop` takes from the end, so in this order the smallest free keys are used first.
        self.free.extend((first + 1..first + STEP as u32).rev());
        first
    }

    #[inline]
    fn entry(&mut self, key: u32) -> &mut Option<T> {
        &mut self.steps[key as usize / STEP][key as usize % STEP]
    }

    #[inline]
    pub(super) fn get(&self, key: u32) -> Option<&T> {
        self.steps.get(key as usize / STEP)?[key as usize % STEP].as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.steps.get_mut(key as usize / STEP)?[key as usize % STEP].as_mut()
    }

    pub(super) fn remove(&mut self, key: u32) -> Option<T> {
        let value = self.entry(key).take()?;
        self.free.push(key);
        self.len -= 1;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_keys_and_free_keys_are_reused() {
        let mut slab = Slab::new();
        let keys: Vec<u32> = (0..1000).map(|n| slab.insert(n)).collect();
        assert_eq!(keys, (0..1000).collect::<Vec<u32>>());
        assert_eq!((slab.len(), slab.bound()), (1000, 1024));
        assert_eq!(slab.remove(500), Some(500));
        assert_eq!(slab.remove(500), None);
        assert!(slab.get_mut(500).is_none() && slab.get_mut(5000).is_none());
        assert_eq!(slab.insert(7), 500);
        assert_eq!(slab.get_mut(500), Some(&mut 7));
        assert_eq!(slab.get_mut(999), Some(&mut 999));
    }
}
