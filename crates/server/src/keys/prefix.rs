//! The prefixes of a key: the leading parts that end at a delimiter, as `user:` and `user:7:` of
//! `user:7:name`.

/// The largest number of delimiters in a prefix. Longer leading parts of a key do not count as
/// prefixes.
const DEPTH: usize = 4;

/// Finds the prefixes of keys, which end at a delimiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefixes {
    pub(crate) delimiter: u8,
}

impl Default for Prefixes {
    fn default() -> Self {
        Prefixes { delimiter: b':' }
    }
}

impl Prefixes {
    /// Returns the longest prefix of a key. It ends with a delimiter and has at most [`DEPTH`]
    /// delimiters. It is empty if the key has no delimiter.
    pub(super) fn of<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        &key[..self.ends(key).last().unwrap_or(0)]
    }

    /// Returns the lengths of all prefixes of a key, the shortest first.
    pub(super) fn ends(&self, key: &[u8]) -> impl Iterator<Item = usize> {
        memchr::memchr_iter(self.delimiter, key).map(|at| at + 1).take(DEPTH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_at_a_delimiter() {
        let prefixes = Prefixes { delimiter: b':' };
        let of = |key| String::from_utf8_lossy(prefixes.of(key)).into_owned();
        assert_eq!(of(b"user:7:name"), "user:7:");
        assert_eq!(of(b"user"), "");
        assert_eq!(of(b":"), ":");
        assert_eq!(of(b""), "");
        assert_eq!(of(b"a:b:c:d:e:f"), "a:b:c:d:");
        assert_eq!(prefixes.ends(b"ab:c::d").collect::<Vec<_>>(), [3, 5, 6]);
        assert_eq!(Prefixes { delimiter: b'/' }.of(b"a:b/c"), b"a:b/");
    }
}
