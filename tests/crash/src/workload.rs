//! The requests of a writer: every [`Operation`], on the writer's own keys, with values from one
//! byte to the largest item.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::clock;
use crate::operation::{Key, Operation, Store};
use crate::value::{Chunk, Content};
use larder_disk::Random;

/// The lengths of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sizes {
    /// From 1 to 100 bytes.
    Small,
    /// From 1 byte to the largest item, mostly small.
    #[default]
    Mixed,
    /// Close to the length of a block, of a buffer or of half a segment. Some servers lost values
    /// of such lengths.
    Borders,
    /// Tens of kilobytes up to the largest item.
    Large,
}

impl Sizes {
    /// Returns a length of at most `largest` bytes.
    fn length(self, random: &mut Random, largest: u32) -> u32 {
        let largest = u64::from(largest);
        let length = match self {
            Sizes::Small => random.between(1, 100),
            Sizes::Mixed => match random.below(200) {
                0..120 => random.between(1, 200),
                120..170 => random.between(200, 4096),
                170..194 => random.between(4096, 65_536),
                194..199 => random.between(65_536, 65_536.max(largest / 2)),
                _ => largest - random.below(8),
            },
            Sizes::Borders => {
                let border = random.pick(&[1, 512, 4096, 8192, 32_768, 65_536, 131_072, 524_288]);
                (border + random.below(128)).saturating_sub(random.below(256)).max(1)
            }
            Sizes::Large if random.chance(10) => largest - random.below(8),
            Sizes::Large => {
                let longest = random.pick(&[40_000, 300_000, largest]);
                random.between(10_000, longest)
            }
        };
        length.min(largest) as u32
    }
}

/// Chooses a writer's requests, one after the other.
#[derive(Debug)]
pub(crate) struct Workload {
    random: Random,
    writer: u16,
    keys: u16,
    sizes: Sizes,
    largest: u32,
    /// The request that must follow a quiet one: a get of the same key, which shows whether the
    /// write took effect.
    next: Option<(Key, Operation)>,
}

/// For each key, the cas ids that answers have revealed, newest last.
pub(crate) type CasIds = HashMap<Key, Vec<u64>>;

impl Workload {
    pub(crate) fn new(random: Random, writer: u16, keys: u16, sizes: Sizes, largest: u32) -> Self {
        Workload { random, writer, keys, sizes, largest, next: None }
    }

    /// Returns true if the last request was quiet. A get must then follow, which shows whether the
    /// write took effect. The writer may stop only after it has sent this get.
    pub(crate) fn owes(&self) -> bool {
        self.next.is_some()
    }

    /// Returns the next request. `cas_ids` are the cas ids known so far.
    pub(crate) fn next(&mut self, cas_ids: &CasIds) -> (Key, Operation) {
        if let Some(next) = self.next.take() {
            return next;
        }
        let index = self.random.below(u64::from(self.keys)) as u16;
        let key = Key { writer: self.writer, index };
        let operation = match key.is_counter() {
            true => self.counter(),
            false => self.plain(key, cas_ids),
        };
        if operation.is_quiet() {
            self.next = Some((key, Operation::Get));
        }
        (key, operation)
    }

    fn counter(&mut self) -> Operation {
        let by = self.random.between(1, 1000);
        match self.random.below(100) {
            0..15 => Operation::Get,
            15..55 => Operation::Count { by, initial: Some(by) },
            _ => Operation::Count { by, initial: None },
        }
    }

    fn plain(&mut self, key: Key, cas_ids: &CasIds) -> Operation {
        match self.random.below(100) {
            0..45 => self.store(Store::Set),
            45..50 => self.store(Store::Add),
            50..55 => self.store(Store::Replace),
            55..62 => {
                let length = self.random.between(1, 600) as u32;
                let mut append = self.store(Store::Append);
                if let Operation::Store { content, .. } = &mut append {
                    *content = self.chunk(length);
                }
                append
            }
            62..72 => match cas_ids.get(&key).filter(|known| !known.is_empty()) {
                // The writer sends a cas id that is usually an old one. If so, the server must
                // refuse the request.
                Some(known) if self.random.chance(25) => {
                    let cas = self.random.pick(known);
                    self.store(Store::Cas(cas))
                }
                Some(known) => self.store(Store::Cas(known[known.len() - 1])),
                None => Operation::Get,
            },
            72..82 => Operation::Delete { meta: self.random.chance(50) },
            82..88 => {
                let expires = self.expiry();
                Operation::Touch { expires, get: self.random.chance(50) }
            }
            _ => Operation::Get,
        }
    }

    fn store(&mut self, how: Store) -> Operation {
        let length = self.sizes.length(&mut self.random, self.largest);
        let meta = self.random.chance(30);
        Operation::Store {
            how,
            content: self.chunk(length),
            flags: self.random.bits() as u32 >> self.random.pick(&[0, 16, 31]),
            expires: if self.random.chance(80) { 0 } else { self.expiry() },
            quiet: !meta && self.random.chance(15),
            meta,
        }
    }

    fn chunk(&mut self, length: u32) -> Content {
        Content::Chunks(vec![Chunk { seed: self.random.bits(), length }])
    }

    /// Returns the Unix time in seconds at which an item expires: in a few seconds, or after
    /// minutes to days. Returns 0 for an item that never expires.
    fn expiry(&mut self) -> u64 {
        match self.random.below(10) {
            0..3 => 0,
            3..7 => clock::wall() + self.random.between(1000, 1_000_000),
            _ => clock::wall() + self.random.between(1, 4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_reach_from_one_byte_to_the_largest() {
        let largest = 1 << 20;
        for sizes in [Sizes::Small, Sizes::Mixed, Sizes::Borders, Sizes::Large] {
            let mut random = Random::new(1);
            let lengths: Vec<u32> =
                (0..20_000).map(|_| sizes.length(&mut random, largest)).collect();
            assert!(lengths.iter().all(|length| (1..=largest).contains(length)));
            match sizes {
                Sizes::Small => assert!(lengths.contains(&1)),
                Sizes::Mixed => assert!(lengths.contains(&1) && lengths.contains(&largest)),
                Sizes::Borders => assert!(lengths.contains(&4096) && lengths.contains(&32_768)),
                Sizes::Large => assert!(lengths.contains(&largest)),
            }
        }
    }

    #[test]
    fn a_request_without_answer_is_followed_by_its_check() {
        let mut workload = Workload::new(Random::new(3), 1, 20, Sizes::Small, 1000);
        let mut quiet = 0;
        for _ in 0..1000 {
            let (key, operation) = workload.next(&CasIds::new());
            if operation.is_quiet() {
                quiet += 1;
                assert!(workload.owes());
                assert_eq!(workload.next(&CasIds::new()), (key, Operation::Get));
            }
            assert!(!workload.owes());
        }
        assert!(quiet > 10);
    }
}
