//! What lies between a write and the medium: an operating system's page cache and a disk's write
//! cache, taken together.
//!
//! Each sector has the content that the medium holds and, on top of it, one version per write since
//! the last sync that covered it. A version is the sector's *whole* content after that write, as a
//! page cache has it: a sector comes to lie on the medium as it stood after some write, never as a
//! mixture of a later write and the lack of an earlier one. Which of its versions a sector ends up
//! with is independent of all other sectors: that is reordering. It never ends up with one older
//! than what a sync that succeeded left there.

use super::image::Image;
use super::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What a disk writes as a whole, usually; a small part of the torn ones are cut inside.
pub(super) const SECTOR: usize = 512;

#[derive(Clone)]
struct Version {
    write: u64,
    bytes: Box<[u8; SECTOR]>,
}

/// What becomes of one write in a power loss.
#[derive(Clone, Copy)]
enum Fate {
    Kept,
    Lost,
    Torn,
}

/// The medium, what reads see, and what lies between.
#[derive(Clone)]
pub(super) struct Cache {
    medium: Image,
    visible: Image,
    /// Sector number to its versions, oldest first; never an empty list.
    pending: BTreeMap<u64, Vec<Version>>,
    /// The number of the next write.
    next_write: u64,
}

impl Cache {
    /// `medium` with nothing un-synced.
    pub(super) fn new(medium: Image) -> Cache {
        Cache { visible: medium.clone(), medium, pending: BTreeMap::new(), next_write: 0 }
    }

    pub(super) fn size(&self) -> u64 {
        self.visible.size()
    }

    /// Adds zeros at the end.
    pub(super) fn grow(&mut self, size: u64) {
        self.medium.grow(size);
        self.visible.grow(size);
    }

    /// The number that the next write will have: a sync called now covers those below it.
    pub(super) fn next_write(&self) -> u64 {
        self.next_write
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) {
        self.visible.read(offset, buffer);
    }

    /// Writes un-synced, as one write.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.visible.write(offset, bytes);
        let sectors = offset / SECTOR as u64..(offset + bytes.len() as u64).div_ceil(SECTOR as u64);
        for sector in sectors {
            let mut content = Box::new([0; SECTOR]);
            self.visible.read(sector * SECTOR as u64, &mut *content);
            let version = Version { write: self.next_write, bytes: content };
            self.pending.entry(sector).or_default().push(version);
        }
        self.next_write += 1;
    }

    /// Writes any part of `bytes`: a beginning, or any of its sectors.
    pub(super) fn write_part(&mut self, offset: u64, bytes: &[u8], random: &mut Random) {
        if random.chance(50) {
            let length = random.below(bytes.len() as u64 + 1) as usize;
            return self.write(offset, &bytes[..length]);
        }
        let mut at = 0;
        while at < bytes.len() {
            let sector_left = SECTOR - (offset as usize + at) % SECTOR;
            let length = sector_left.min(bytes.len() - at);
            if random.chance(50) {
                self.write(offset + at as u64, &bytes[at..at + length]);
            }
            at += length;
        }
    }

    /// A sync that succeeds: writes with numbers below `covered` reach the medium.
    pub(super) fn sync(&mut self, covered: u64) {
        self.settle(covered, |_| Settled::Written);
    }

    /// A sync that fails: of every sector it would have covered, the content reached the medium, or
    /// was dropped and will never reach it, or still waits for a later sync.
    pub(super) fn fail_sync(&mut self, covered: u64, random: &mut Random) {
        let all = random.below(4);
        self.settle(covered, |_| match if all < 3 { all } else { random.below(3) } {
            0 => Settled::Written,
            1 => Settled::Dropped,
            _ => Settled::Waiting,
        });
    }

    fn settle(&mut self, covered: u64, mut how: impl FnMut(u64) -> Settled) {
        let medium = &mut self.medium;
        self.pending.retain(|&sector, versions| {
            let count = versions.partition_point(|version| version.write < covered);
            if count == 0 {
                return true;
            }
            match how(sector) {
                Settled::Written => {
                    medium.write(sector * SECTOR as u64, &*versions[count - 1].bytes);
                    versions.drain(..count);
                }
                Settled::Dropped => drop(versions.drain(..count)),
                Settled::Waiting => {}
            }
            !versions.is_empty()
        });
    }

    /// The operating system gives up cached pages that it believes are on the medium: what a failed
    /// sync dropped now reads as it was before.
    pub(super) fn drop_clean(&mut self) {
        self.visible = self.medium.clone();
        for (&sector, versions) in &self.pending {
            if let Some(newest) = versions.last() {
                self.visible.write(sector * SECTOR as u64, &*newest.bytes);
            }
        }
    }

    /// The medium after a power loss.
    pub(super) fn crash(&self, random: &mut Random) -> Image {
        let mut medium = self.medium.clone();
        let fates = self.fates(random);
        for (&sector, versions) in &self.pending {
            let mut content = [0; SECTOR];
            medium.read(sector * SECTOR as u64, &mut content);
            for Version { write, bytes } in versions {
                match fates.get(write).copied().unwrap_or(Fate::Lost) {
                    Fate::Kept => content = **bytes,
                    Fate::Lost => {}
                    Fate::Torn => match random.below(16) {
                        0 => {
                            // The power went while it was being written: nothing follows.
                            let cut = random.below(SECTOR as u64) as usize;
                            content[..cut].copy_from_slice(&bytes[..cut]);
                            break;
                        }
                        1..8 => content = **bytes,
                        _ => {}
                    },
                }
            }
            medium.write(sector * SECTOR as u64, &content);
        }
        medium
    }

    /// Decides for whole writes first. Sectors that are all independent would hardly ever leave a
    /// long write whole, or the beginning of a sequence of writes and nothing behind it, which is
    /// what a disk that keeps the order does.
    fn fates(&self, random: &mut Random) -> BTreeMap<u64, Fate> {
        let writes: BTreeSet<u64> =
            self.pending.values().flatten().map(|version| version.write).collect();
        let in_order = random.chance(25);
        let torn_at = random.below(writes.len() as u64 + 1) as usize;
        let kept_percent = random.below(5) * 25;
        let torn_percent = random.below(3) * 20;
        writes
            .into_iter()
            .enumerate()
            .map(|(position, write)| {
                let fate = if in_order {
                    match position.cmp(&torn_at) {
                        std::cmp::Ordering::Less => Fate::Kept,
                        std::cmp::Ordering::Equal => Fate::Torn,
                        std::cmp::Ordering::Greater => Fate::Lost,
                    }
                } else if random.chance(torn_percent) {
                    Fate::Torn
                } else if random.chance(kept_percent) {
                    Fate::Kept
                } else {
                    Fate::Lost
                };
                (write, fate)
            })
            .collect()
    }

    /// Inverts a bit on the medium; reads see it unless the sector has un-synced content.
    pub(super) fn flip(&mut self, offset: u64, bit: u32) {
        self.medium.flip(offset, bit);
        if !self.pending.contains_key(&(offset / SECTOR as u64)) {
            self.visible.flip(offset, bit);
        }
    }

    /// How many sectors have content that a power loss may take.
    pub(super) fn unsynced_sectors(&self) -> usize {
        self.pending.len()
    }
}

/// What a sync did with the covered content of a sector.
enum Settled {
    Written,
    Dropped,
    Waiting,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("size", &self.size())
            .field("unsynced_sectors", &self.pending.len())
            .finish_non_exhaustive()
    }
}
