//! The values of keys in a compact form: a number, or a list of chunks that are generated from
//! seeds. In this form, the history of a value of megabytes takes only a few words.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use larder_disk::Random;

/// Bytes generated from a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chunk {
    pub(crate) seed: u64,
    pub(crate) length: u32,
}

impl Chunk {
    /// Appends the chunk's bytes.
    pub(crate) fn render(self, into: &mut Vec<u8>) {
        let mut random = Random::new(self.seed);
        let end = into.len() + self.length as usize;
        while into.len() < end {
            let word = random.bits().to_le_bytes();
            let part = word.len().min(end - into.len());
            into.extend_from_slice(&word[..part]);
        }
    }
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Content {
    Chunks(Vec<Chunk>),
    Number(u64),
}

impl Content {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Content::Number(number) => number.to_string().into_bytes(),
            Content::Chunks(chunks) => {
                let mut bytes = Vec::new();
                chunks.iter().for_each(|chunk| chunk.render(&mut bytes));
                bytes
            }
        }
    }

    pub(crate) fn print(&self) -> Print {
        match self {
            Content::Number(number) => Print::of(number.to_string().as_bytes()),
            Content::Chunks(_) => Print::of(&self.bytes()),
        }
    }
}

/// The facts that are recorded about a value. They suffice to recognise the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Print {
    pub(crate) length: u32,
    pub(crate) hash: u64,
    /// The value as a number; `None` if it is not one.
    pub(crate) number: Option<u64>,
}

impl Print {
    pub(crate) fn of(bytes: &[u8]) -> Print {
        let digits = (1..=20).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_digit);
        let number = digits.then(|| std::str::from_utf8(bytes).ok()?.parse().ok()).flatten();
        Print { length: bytes.len() as u32, hash: xxh3_64(bytes), number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_the_same_each_time_and_differs_with_seed_and_length() {
        let chunk = |seed, length| Chunk { seed, length };
        let value = Content::Chunks(vec![chunk(1, 13), chunk(2, 3)]);
        assert_eq!(value.bytes().len(), 16);
        assert_eq!(value.print(), Print::of(&value.bytes()));
        let other = Content::Chunks(vec![chunk(2, 13), chunk(1, 3)]);
        assert_ne!(value.print(), other.print());
        assert_eq!(Content::Number(17).print(), Print::of(b"17"));
        assert_eq!(Print::of(b"18446744073709551615").number, Some(u64::MAX));
        assert_eq!(Print::of(b"18446744073709551616").number, None);
        assert_eq!(Print::of(b"x1").number, None);
    }
}
