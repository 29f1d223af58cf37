//! Values that can be checked. A key and a salt determine a value, so the load generator need not
//! remember which values it stored. The check detects a value that belongs to another key or salt,
//! has a wrong length, or is a mixture of two values.

use super::keys::Lengths;
use super::random::{Random, hash, mix};

/// Number of hexadecimal digits of the key's hash at the beginning of a value. A value with fewer
/// bytes consists of the first digits only.
const CHECK: usize = 16;
/// The number of offsets in `Values::filler` from which the rest of a value may be taken. The key's
/// hash and the salt choose the offset.
const STARTS: usize = 4096;

/// The hash is combined with `SALT` × the salt modulo 2⁶⁴. So even small salts change most digits
/// at the beginning of a value. `SALT` is odd, so different salts have different products.
const SALT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Writes and checks values.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    lengths: Lengths,
    filler: Vec<u8>,
    salt: u64,
}

/// The expected value of one key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Expected {
    digits: [u8; CHECK],
    start: usize,
    /// The length of the whole value in bytes.
    pub(crate) length: usize,
}

impl Values {
    pub(crate) fn new(lengths: Lengths) -> Values {
        let mut random = Random::new(0x1a2d_e200);
        let length = STARTS + lengths.max;
        // The filler is printable, so that a value does no harm in a log or a terminal.
        let filler = (0..length).map(|_| b' ' + random.below(95) as u8).collect();
        Values { lengths, filler, salt: 0 }
    }

    /// Sets the salt. Values with different salts differ in their bytes, but not in their lengths.
    pub(crate) fn with_salt(self, salt: u64) -> Values {
        Values { salt, ..self }
    }

    #[inline]
    pub(crate) fn expected(&self, key: &[u8]) -> Expected {
        self.expected_with(key, |hash| self.lengths.of(mix(hash)))
    }

    /// Returns the expected value of a key. `length` maps the key's hash to the value's length. In
    /// a replay, the length comes from the trace and does not depend on the hash.
    #[inline]
    pub(crate) fn expected_with(&self, key: &[u8], length: impl Fn(u64) -> usize) -> Expected {
        let hash = hash(key);
        let length = length(hash).min(self.lengths.max);
        // A salt of 0 leaves the hash unchanged.
        let hash = hash ^ self.salt.wrapping_mul(SALT);
        let mut digits = [0; CHECK];
        for (index, digit) in digits.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(hash >> (60 - 4 * index) & 15) as usize];
        }
        Expected { digits, start: (hash as usize) % STARTS, length }
    }

    #[inline]
    pub(crate) fn push(&self, buffer: &mut Vec<u8>, expected: &Expected) {
        let check = expected.length.min(CHECK);
        buffer.extend_from_slice(&expected.digits[..check]);
        let start = expected.start;
        buffer.extend_from_slice(&self.filler[start..start + expected.length - check]);
    }

    /// Returns true if `piece` equals the expected value at `offset`. A value may arrive in pieces.
    #[inline]
    pub(crate) fn matches(&self, expected: &Expected, offset: usize, piece: &[u8]) -> bool {
        if offset + piece.len() > expected.length {
            return false;
        }
        let (digits, filler) = piece.split_at(CHECK.saturating_sub(offset).min(piece.len()));
        let from = expected.start + (offset + digits.len()).saturating_sub(CHECK);
        (digits.is_empty() || digits == &expected.digits[offset..offset + digits.len()])
            && filler == &self.filler[from..from + filler.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_matches_in_any_two_pieces_and_nowhere_else() {
        for length in [0, 1, 15, 16, 17, 50, 5000] {
            let values = Values::new(Lengths { min: length, max: length });
            let expected = values.expected(b"key-1");
            let mut value = Vec::new();
            values.push(&mut value, &expected);
            assert_eq!(value.len(), length);
            for cut in 0..=length {
                let (left, right) = value.split_at(cut);
                assert!(values.matches(&expected, 0, left), "{length} {cut}");
                assert!(values.matches(&expected, cut, right), "{length} {cut}");
            }
            assert!(!values.matches(&expected, 1, &value) || length == 0, "shifted {length}");
            if length > 1 {
                let other = values.expected(b"key-2");
                assert!(!values.matches(&other, 0, &value), "another key's value of {length}");
                let mut torn = value.clone();
                torn[length - 1] ^= 1;
                assert!(!values.matches(&expected, 0, &torn), "torn {length}");
            }
        }
    }

    #[test]
    fn a_value_with_another_salt_does_not_match() {
        for length in [1, 16, 50] {
            let lengths = Lengths { min: length, max: length };
            let values = |salt| Values::new(lengths).with_salt(salt);
            let mut old = Vec::new();
            values(0).push(&mut old, &values(0).expected(b"key-1"));
            assert!(values(0).matches(&values(0).expected(b"key-1"), 0, &old));
            assert!(!values(1).matches(&values(1).expected(b"key-1"), 0, &old), "{length}");
        }
        let values = Values::new(Lengths { min: 40, max: 60 });
        let length = |salt| values.clone().with_salt(salt).expected(b"key-7").length;
        assert_eq!(length(0), length(9));
    }

    #[test]
    fn lengths_follow_the_key() {
        let values = Values::new(Lengths { min: 40, max: 60 });
        let lengths: std::collections::BTreeSet<usize> =
            (0..1000).map(|n| values.expected(format!("k{n}").as_bytes()).length).collect();
        assert_eq!(lengths, (40..=60).collect());
    }
}
