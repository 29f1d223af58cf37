//! Built-in traces. Popularity follows Zipf's law. Some traces also have scans through keys that
//! are requested only once, or items that live only for seconds.

use super::{Access, Trace};
use crate::workload::Lengths;
use crate::workload::distribution::{Distribution, Sampler};
use crate::workload::random::{Random, mix};
use crate::{Error, Result};

/// The size of a built-in trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Synthetic {
    /// Number of different keys, not counting those of scans.
    pub(crate) keys: u64,
    pub(crate) requests: u64,
    /// Range of value lengths in bytes; each key has its own length.
    pub(crate) sizes: Lengths,
    pub(crate) seed: u64,
}

/// Average number of requests between two scans.
const SCAN_EVERY: u64 = 20_000;
/// Number of consecutive keys in a scan. It equals [`SCAN_EVERY`], so half of all requests belong
/// to scans.
const SCAN_LENGTH: u64 = 20_000;

impl Synthetic {
    /// Returns the trace with this name: `zipf:THETA`, `scan:THETA` or `ttl:THETA`.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if `name` is not one of these. The caller has checked that it is
    /// not a file.
    pub(crate) fn named(&self, name: &str) -> Result<Box<dyn Trace>> {
        let unknown = || {
            Error::usage(format!(
                "{name:?} is neither a file nor a built-in trace: zipf:THETA, scan:THETA, ttl:THETA"
            ))
        };
        let (kind, theta) = name.split_once(':').ok_or_else(unknown)?;
        if !["zipf", "scan", "ttl"].contains(&kind) {
            return Err(unknown());
        }
        if self.keys == 0 {
            return Err(Error::usage("a trace needs at least one key"));
        }
        let distribution: Distribution = format!("zipf:{theta}").parse()?;
        Ok(Box::new(Generated {
            options: *self,
            sampler: Sampler::new(distribution, self.keys),
            random: Random::new(self.seed),
            left: self.requests,
            scans: kind == "scan",
            short_lived: kind == "ttl",
            scanning: 0,
            next_scanned: self.keys,
        }))
    }
}

struct Generated {
    options: Synthetic,
    sampler: Sampler,
    random: Random,
    left: u64,
    scans: bool,
    short_lived: bool,
    /// Number of requests that the current scan has left.
    scanning: u64,
    next_scanned: u64,
}

impl Trace for Generated {
    fn next(&mut self, access: &mut Access) -> Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        if self.scans && self.scanning == 0 && self.random.below(SCAN_EVERY) == 0 {
            self.scanning = SCAN_LENGTH;
        }
        let number = if self.scanning > 0 {
            self.scanning -= 1;
            self.next_scanned += 1;
            self.next_scanned
        } else {
            self.sampler.sample(&mut self.random)
        };
        access.key.clear();
        access.key.extend_from_slice(format!("object-{number:012}").as_bytes());
        let hash = mix(number);
        access.size = self.options.sizes.of(hash);
        access.ttl = match hash % 4 {
            // Half of the keys live for seconds, a quarter for a minute, and a quarter without
            // limit.
            0 if self.short_lived => 2,
            1 if self.short_lived => 5,
            2 if self.short_lived => 60,
            _ => 0,
        };
        Ok(true)
    }

    fn has_fixed_sizes(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::all;
    use super::*;

    fn trace(name: &str) -> Vec<Access> {
        let sizes = Lengths { min: 100, max: 300 };
        let synthetic = Synthetic { keys: 1000, requests: 100_000, sizes, seed: 3 };
        all(&mut *synthetic.named(name).unwrap()).unwrap()
    }

    #[test]
    fn zipf_is_skewed_repeatable_and_gives_each_key_one_size() {
        let accesses = trace("zipf:0.99");
        assert_eq!(accesses.len(), 100_000);
        assert_eq!(accesses, trace("zipf:0.99"));
        let mut counts: HashMap<&[u8], (u64, usize)> = HashMap::new();
        for access in &accesses {
            let entry = counts.entry(&access.key).or_insert((0, access.size));
            assert_eq!(entry.1, access.size);
            assert_eq!(access.ttl, 0);
            entry.0 += 1;
        }
        let most = counts.values().map(|entry| entry.0).max().unwrap();
        // The most popular of 1000 keys gets 1/7.73 of the requests at theta = 0.99.
        assert!((12_000..14_500).contains(&most), "{most}");
    }

    #[test]
    fn scans_are_half_and_never_come_again() {
        let accesses = trace("scan:0.8");
        let scanned: Vec<&[u8]> = accesses
            .iter()
            .map(|access| access.key.as_slice())
            .filter(|&key| key > b"object-000000000999".as_slice())
            .collect();
        let distinct: std::collections::HashSet<&&[u8]> = scanned.iter().collect();
        assert_eq!(distinct.len(), scanned.len());
        assert!((20_000..80_000).contains(&scanned.len()), "{}", scanned.len());
    }

    #[test]
    fn a_mix_of_times_to_live() {
        let ttls: std::collections::BTreeSet<u32> =
            trace("ttl:0.8").iter().map(|access| access.ttl).collect();
        assert_eq!(ttls, [0, 2, 5, 60].into());
    }

    #[test]
    fn unknown_names() {
        let synthetic =
            Synthetic { keys: 10, requests: 1, sizes: Lengths { min: 1, max: 1 }, seed: 1 };
        for name in ["zipf", "lru:1", "zipf:x", "missing.csv"] {
            assert!(synthetic.named(name).is_err(), "{name}");
        }
    }
}
