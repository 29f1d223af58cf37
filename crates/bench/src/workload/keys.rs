//! Keys by number. A key consists of the prefix, zeros, and its number in decimal; the number also
//! determines its length. [`Lengths::NATURAL`] describes an exception. So a number gives the same
//! key in every run, and no two numbers give the same key.

use std::fmt;
use std::str::FromStr;

use super::random::mix;
use crate::{Error, Result};

/// A fixed length or an inclusive range of lengths, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// The shortest length.
    pub min: usize,
    /// The longest length.
    pub max: usize,
}

impl Lengths {
    /// A special value: keys have no zeros as padding, so their lengths differ. A key is the prefix
    /// and its number plus 1, as memtier_benchmark writes keys.
    pub(crate) const NATURAL: Lengths = Lengths { min: 0, max: 0 };

    /// Returns the length for a hash. Hashes are spread evenly over the range of lengths.
    #[inline]
    pub(crate) fn of(&self, hash: u64) -> usize {
        let span = (self.max - self.min) as u64 + 1;
        self.min + ((u128::from(hash) * u128::from(span)) >> 64) as usize
    }
}

impl FromStr for Lengths {
    type Err = Error;

    /// Parses `50`, `40-60`, `4k`, `1k-1m`.
    fn from_str(text: &str) -> Result<Lengths> {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        let lengths = Lengths { min: parse_size(min)? as usize, max: parse_size(max)? as usize };
        if lengths.min > lengths.max {
            return Err(Error::usage(format!("the range {text} is upside down")));
        }
        Ok(lengths)
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            lengths if *lengths == Lengths::NATURAL => f.write_str("natural length"),
            Lengths { min, max } if min == max => write!(f, "{min}"),
            Lengths { min, max } => write!(f, "{min}-{max}"),
        }
    }
}

/// Parses a number with an optional suffix `k`, `m` or `g`, which stand for powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64> {
    let lower = text.trim().to_ascii_lowercase();
    let (digits, shift) = match lower.as_bytes().last() {
        Some(b'k') => (&lower[..lower.len() - 1], 10),
        Some(b'm') => (&lower[..lower.len() - 1], 20),
        Some(b'g') => (&lower[..lower.len() - 1], 30),
        _ => (lower.as_str(), 0),
    };
    match digits.parse::<u64>() {
        Ok(number) if number.leading_zeros() >= shift => Ok(number << shift),
        _ => Err(Error::usage(format!("{text:?} is not a size"))),
    }
}

/// Writes keys into request buffers.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: Vec<u8>,
    lengths: Lengths,
}

/// The longest key of the memcached protocol, in bytes.
const KEY_MAX: usize = 250;

impl Keys {
    /// Creates a writer of the keys with the numbers below `count`. Returns an error if the prefix
    /// has spaces or control bytes, or if `lengths` are too short or too long for these keys.
    pub(crate) fn new(prefix: &str, lengths: Lengths, count: u64) -> Result<Keys> {
        let digits = count.saturating_sub(1).max(1).ilog10() as usize + 1;
        if prefix.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return Err(Error::usage("a key prefix must not hold spaces or control bytes"));
        }
        if lengths != Lengths::NATURAL && lengths.min < prefix.len() + digits {
            return Err(Error::usage(format!(
                "keys of {} bytes are too short for the prefix {prefix:?} and {digits} digits",
                lengths.min
            )));
        }
        if lengths.max > KEY_MAX {
            return Err(Error::usage(format!("keys are at most {KEY_MAX} bytes")));
        }
        Ok(Keys { prefix: prefix.as_bytes().to_vec(), lengths })
    }

    /// Returns the keys of the counters: keys for the same numbers with another prefix.
    pub(crate) fn counters(&self) -> Keys {
        let mut keys = self.clone();
        // No counter's key equals a key with the old prefix.
        match keys.prefix.last_mut() {
            // The prefix keeps its length, so the keys still fit into `lengths`.
            Some(last) => *last = if *last == b'#' { b'+' } else { b'#' },
            // The prefix gets one byte, so the keys need one more. Keys of `KEY_MAX` bytes always
            // have room for it, because numbers have at most 20 digits.
            None => {
                keys.prefix.push(b'#');
                if keys.lengths != Lengths::NATURAL {
                    keys.lengths.min = KEY_MAX.min(keys.lengths.min + 1);
                    keys.lengths.max = KEY_MAX.min(keys.lengths.max + 1);
                }
            }
        }
        keys
    }

    #[inline]
    pub(crate) fn push(&self, buffer: &mut Vec<u8>, number: u64) {
        if self.lengths == Lengths::NATURAL {
            buffer.extend_from_slice(&self.prefix);
            return push_number(buffer, number + 1);
        }
        let length = if self.lengths.min == self.lengths.max {
            self.lengths.min
        } else {
            self.lengths.of(mix(number))
        };
        buffer.extend_from_slice(&self.prefix);
        push_padded(buffer, number, length - self.prefix.len());
    }
}

const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + number as u8 / 10, b'0' + number as u8 % 10];
        number += 1;
    }
    pairs
};

/// Appends a number in decimal, padded with zeros to `width`.
#[inline]
fn push_padded(buffer: &mut Vec<u8>, mut number: u64, width: usize) {
    let start = buffer.len();
    buffer.resize(start + width, b'0');
    let mut rest = &mut buffer[start..];
    while number >= 10 && rest.len() >= 2 {
        let at = rest.len() - 2;
        rest[at..].copy_from_slice(&PAIRS[(number % 100) as usize]);
        number /= 100;
        rest = &mut rest[..at];
    }
    if let (Some(last), 1..) = (rest.last_mut(), number) {
        *last = b'0' + (number % 10) as u8;
    }
}

/// Appends a number in decimal.
#[inline]
pub(crate) fn push_number(buffer: &mut Vec<u8>, number: u64) {
    let width = number.checked_ilog10().unwrap_or(0) as usize + 1;
    push_padded(buffer, number, width);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn key(keys: &Keys, number: u64) -> String {
        let mut buffer = Vec::new();
        keys.push(&mut buffer, number);
        String::from_utf8(buffer).unwrap()
    }

    #[test]
    fn fixed_lengths() {
        let keys = Keys::new("key-", Lengths { min: 15, max: 15 }, 1_000_000).unwrap();
        assert_eq!(key(&keys, 0), "key-00000000000");
        assert_eq!(key(&keys, 7), "key-00000000007");
        assert_eq!(key(&keys, 110), "key-00000000110");
        assert_eq!(key(&keys, 999_999), "key-00000999999");
        assert_eq!(key(&keys.counters(), 5), "key#00000000005");
    }

    #[test]
    fn ranges_keep_keys_distinct_and_reach_both_ends() {
        let keys = Keys::new("k", Lengths { min: 10, max: 20 }, 5000).unwrap();
        let all: HashSet<String> = (0..5000).map(|number| key(&keys, number)).collect();
        assert_eq!(all.len(), 5000);
        let lengths: HashSet<usize> = all.iter().map(String::len).collect();
        assert_eq!(lengths, (10..=20).collect());
    }

    #[test]
    fn counters_differ_even_if_keys_have_no_room_for_a_prefix() {
        let keys = Keys::new("", Lengths { min: 4, max: 4 }, 10_000).unwrap();
        let counters: HashSet<String> = (0..10_000).map(|n| key(&keys.counters(), n)).collect();
        assert_eq!(counters.len(), 10_000);
    }

    #[test]
    fn natural_keys_count_from_one_without_zeros() {
        let keys = Keys::new("memtier-", Lengths::NATURAL, 50_000_000).unwrap();
        assert_eq!(key(&keys, 0), "memtier-1");
        assert_eq!(key(&keys, 49_999_999), "memtier-50000000");
    }

    #[test]
    fn keys_that_do_not_fit_are_refused() {
        let lengths = |min, max| Lengths { min, max };
        assert!(Keys::new("k", lengths(7, 7), 1_000_000).is_ok());
        assert!(Keys::new("k", lengths(7, 7), 1_000_001).is_err());
        assert!(Keys::new("k", lengths(7, 251), 10).is_err());
        assert!(Keys::new("a b", lengths(20, 20), 10).is_err());
    }

    #[test]
    fn numbers_and_sizes() {
        let mut buffer = Vec::new();
        for number in [0, 9, 10, 99, 100, 12345, u64::MAX] {
            buffer.clear();
            push_number(&mut buffer, number);
            assert_eq!(buffer, number.to_string().as_bytes());
        }
        assert_eq!("40-60".parse::<Lengths>().unwrap(), Lengths { min: 40, max: 60 });
        assert_eq!("1k-2M".parse::<Lengths>().unwrap(), Lengths { min: 1024, max: 2 << 20 });
        assert!("60-40".parse::<Lengths>().is_err());
        assert!("x".parse::<Lengths>().is_err());
        assert!("999999999999999999g".parse::<Lengths>().is_err());
    }
}
