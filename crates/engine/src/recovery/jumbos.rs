//! Recovery of jumbos: values with a segment to themselves. They are read first, while there is
//! memory. A jumbo that does not fit into memory is only checked and stays on the device.

use super::newest::{Newest, Version};
use super::segments::Scan;
use crate::error::StoreError;
use crate::key::Key;
use crate::lane::DurableLane;
use crate::recovery::parallel::{Shared, is_marked};
use larder_log::format::KeyHash;
use larder_log::recover::{Found, LoadedJumbo, Survey};
use larder_log::{Address, SegmentNumber, format};
use std::collections::HashMap;
use std::io::{self, ErrorKind};

/// The jumbos of a lane.
#[derive(Default)]
pub(super) struct Jumbos {
    /// The newest version of each key among the jumbos. Versions that a flush_all hides are left
    /// out.
    versions: HashMap<KeyHash, Version>,
    /// Jumbos that are not in memory, and whether each is the newest version of its key.
    unread: HashMap<SegmentNumber, bool>,
}

impl Jumbos {
    pub(super) fn is_unread(&self, number: SegmentNumber) -> bool {
        self.unread.contains_key(&number)
    }

    /// Marks these unread jumbos as the newest versions of their keys.
    pub(super) fn choose(&mut self, numbers: Vec<SegmentNumber>) {
        self.unread.extend(numbers.into_iter().map(|number| (number, true)));
    }

    /// Adds a version. Returns false if a newer version of its key is known. Notes in `newest` that
    /// the older of two versions is superseded: a later pass gets only the newest version and could
    /// not find this out.
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

    /// Enters the newest versions among the jumbos into `newest`, at the start of a further pass.
    pub(super) fn enter(&self, newest: &Newest) {
        for (key, version) in &self.versions {
            newest.enter(*key, *version);
        }
    }
}

impl DurableLane<'_> {
    /// Reads the jumbos for which there is memory, and checks the others.
    pub(super) fn read_jumbos(
        self,
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

    /// Reads one jumbo. Returns `None` if it is damaged or its commit did not complete.
    fn read_jumbo(
        self,
        shared: &Shared<'_>,
        found: &Found,
        jumbos: &mut Jumbos,
    ) -> Result<Option<Scan>, StoreError> {
        let Some((key, seq)) = self.log.look_at_jumbo(found)? else { return Ok(None) };
        let marked = is_marked(found, format::jumbo::RECORD_AT);
        // A jumbo marked dead only hides older versions; its value is not needed.
        let loaded = if marked { LoadedJumbo::NoMemory } else { self.log.load_jumbo(found)? };
        let (scan, resident) = match loaded {
            LoadedJumbo::Damaged => return Ok(None),
            LoadedJumbo::Loaded(trailer) => (Scan::of_jumbo(&trailer), true),
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

    /// Enters the jumbos that are not in memory into the segment table and the index. Those that
    /// are not the newest versions of their keys, or that a dead map marks, become dead segments.
    pub(super) fn settle_unread(self, survey: &Survey, jumbos: &Jumbos) -> Result<(), StoreError> {
        for found in &survey.segments {
            let Some(&newest) = jumbos.unread.get(&found.number) else { continue };
            let marked = is_marked(found, format::jumbo::RECORD_AT);
            if !newest || marked {
                self.log.enter_dead(found, newest);
                continue;
            }
            if !self.log.enter_absent_jumbo(found)? {
                // The jumbo was intact when it was checked, so the device has failed since.
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

    /// Later passes enter only the newest version. So the first pass must note the segment whose
    /// value is superseded, in whichever order it reads the two segments.
    #[test]
    fn a_superseded_value_is_noted_in_either_order() {
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
