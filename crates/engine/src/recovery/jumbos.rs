//! Values with a segment of their own. They are read before anything else, while there is memory for
//! them; one for which there is none is looked through, and stays on the device.

use super::newest::{Newest, Version};
use super::segments::Scan;
use super::{Shared, StoreError, is_marked};
use crate::key::Key;
use crate::lane::Lane;
use larder_log::format::KeyHash;
use larder_log::recover::{Found, LoadedJumbo, Survey};
use larder_log::{Address, SegmentNumber, format};
use std::collections::HashMap;
use std::io::{self, ErrorKind};

/// The values with a segment of their own.
#[derive(Default)]
pub(super) struct Jumbos {
    /// All that take part: the newest version of each key.
    versions: HashMap<KeyHash, Version>,
    /// Those that are not in memory, and whether they are the newest of their keys.
    unread: HashMap<SegmentNumber, bool>,
}

impl Jumbos {
    pub(super) fn is_unread(&self, number: SegmentNumber) -> bool {
        self.unread.contains_key(&number)
    }

    /// These are the newest versions of their keys.
    pub(super) fn choose(&mut self, numbers: Vec<SegmentNumber>) {
        self.unread.extend(numbers.into_iter().map(|number| (number, true)));
    }

    /// Adds a version; false if there is a newer one of its key. Later passes know the newest only, so what that
    /// supersedes is noted here.
    fn add(&mut self, key: KeyHash, version: Version, newest: &Newest) -> bool {
        let known = self.versions.entry(key).or_insert(version);
        if version.supersedes(known) {
            newest.note_superseded(known);
            *known = version;
        } else if *known != version {
            newest.note_superseded(&version);
        }
        *known == version
    }

    /// Enters all of them in another pass.
    pub(super) fn enter(&self, newest: &Newest) {
        for (key, version) in &self.versions {
            newest.enter(*key, *version);
        }
    }
}

impl Lane {
    /// Reads the values for which there is memory, and looks through the others.
    pub(super) fn read_jumbos(
        &self,
        shared: &Shared<'_>,
        scans: &mut [Option<Scan>],
    ) -> Result<Jumbos, StoreError> {
        let mut jumbos = Jumbos::default();
        for (found, scan) in shared.survey.segments.iter().zip(scans) {
            if found.header.jumbo.is_some() {
                *scan = self.read_jumbo(shared, found, &mut jumbos)?;
            }
        }
        Ok(jumbos)
    }

    /// `None`: it is damaged, or its commit did not complete.
    fn read_jumbo(
        &self,
        shared: &Shared<'_>,
        found: &Found,
        jumbos: &mut Jumbos,
    ) -> Result<Option<Scan>, StoreError> {
        let Some((key, seq)) = self.log.look_at_jumbo(found)? else { return Ok(None) };
        let marked = is_marked(found, format::jumbo::RECORD_AT);
        // Nobody needs a value that only hides older versions.
        let loaded = if marked { LoadedJumbo::NoMemory } else { self.log.load_jumbo(found)? };
        let (scan, resident) = match loaded {
            LoadedJumbo::Damaged => return Ok(None),
            LoadedJumbo::Loaded(trailer) => (Scan::of_jumbo(&trailer), true),
            // It was durable when it was marked.
            LoadedJumbo::NoMemory if marked && !found.unmarked => (Scan::of_unread(), false),
            LoadedJumbo::NoMemory => match self.log.check_jumbo(found)? {
                Some(facts) => (Scan::of_jumbo(&facts.trailer), false),
                None => return Ok(None),
            },
        };
        let key = KeyHash::of(&key, self.options.hash_seed);
        let address = Address::new(found.number, 0);
        let version = Version { seq, address, size: 0, shown: !marked };
        let counts = seq >= shared.fence;
        if counts {
            shared.newest.enter(key, version);
        }
        let newest = counts && jumbos.add(key, version, &shared.newest);
        if !newest && resident {
            self.log.enter_dead(found, false);
        } else if !resident {
            jumbos.unread.insert(found.number, false);
        }
        Ok(Some(scan))
    }

    /// Decides about the values that are not in memory.
    pub(super) fn settle_unread(&self, survey: &Survey, jumbos: &Jumbos) -> Result<(), StoreError> {
        for found in &survey.segments {
            let Some(&newest) = jumbos.unread.get(&found.number) else { continue };
            let marked = is_marked(found, format::jumbo::RECORD_AT);
            if !newest || marked {
                self.log.enter_dead(found, newest);
                continue;
            }
            if !self.log.enter_absent_jumbo(found)? {
                // It was whole when it was looked through.
                return Err(io::Error::from(ErrorKind::InvalidData).into());
            }
            let address = Address::new(found.number, 0);
            for (key, version) in jumbos.versions.iter().filter(|(_, it)| it.address == address) {
                self.show(&Key::of_hash(*key), *version)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_log::Budget;
    use std::sync::Arc;

    /// Later passes enter the newest version only, and a segment whose value is superseded must be known.
    #[test]
    fn a_superseded_value_is_noted_whatever_comes_first() {
        let key = KeyHash { lo: 1, hi: 2 };
        for segments in [[1, 2], [2, 1]] {
            let (mut jumbos, budget) = (Jumbos::default(), Arc::new(Budget::new(1 << 30)));
            let newest = Newest::new(1 << 20, 8, 1 << 20, &budget);
            for number in segments {
                let address = Address::new(number, 0);
                let version = Version { seq: number.into(), address, size: 0, shown: true };
                assert_eq!(jumbos.add(key, version, &newest), number == 2 || segments[0] == 1);
            }
            assert!(newest.is_superseded(1) && !newest.is_superseded(2));
        }
    }
}
