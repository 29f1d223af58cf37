//! A guess at the key of a request that has not been parsed yet.

use crate::scan::find_separator;
use crate::{BINARY_MAGIC, KEY_LEN_MAX};

/// The number of bytes of a text line that are searched: the longest key, and 16 bytes for what
/// precedes it, such as `gats` and an expiry time of ten digits.
const SEEN: usize = 16 + KEY_LEN_MAX;

/// Returns the probable key of the first request in the input. The guess may be wrong. So the
/// caller may use it for prefetching, but must not execute a request with it.
#[inline]
pub fn guess_key(input: &[u8]) -> Option<&[u8]> {
    let key = match *input {
        [BINARY_MAGIC, _, high, low, extras, ..] => {
            let start = 24 + usize::from(extras);
            input.get(start..start + usize::from(u16::from_be_bytes([high, low])))?
        }
        _ => {
            let line = &input[..input.len().min(SEEN)];
            // In `gat` and `gats` the key follows the expiry time.
            let before = if line.starts_with(b"ga") { after_word(line)? } else { line };
            let rest = after_word(before)?;
            let word = &rest[..find_separator(rest)];
            word.strip_suffix(b"\r").unwrap_or(word)
        }
    };
    (1..=KEY_LEN_MAX).contains(&key.len()).then_some(key)
}

/// Returns the bytes after the first space.
#[inline]
fn after_word(line: &[u8]) -> Option<&[u8]> {
    let end = find_separator(line);
    (line.get(end) == Some(&b' ')).then(|| &line[end + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binary;
    use proptest::prelude::*;

    #[test]
    fn guess_key_finds_the_key_of_a_text_request() {
        for (input, key) in [
            ("get key\r\n", Some("key")),
            ("get key other\r\n", Some("key")),
            ("get key\n", Some("key")),
            ("gat 100 key\r\n", Some("key")),
            ("gats 100 key other\r\n", Some("key")),
            ("set key 0 0 5\r\nvalue\r\n", Some("key")),
            ("incr key 1\r\nincr other 1\r\n", Some("key")),
            ("mg key v\r\n", Some("key")),
            ("mn\r\nmg key v\r\n", None),
            ("get ke", Some("ke")),
            ("get ", None),
            ("quit\r\n", None),
            ("", None),
        ] {
            let guessed = guess_key(input.as_bytes());
            assert_eq!(guessed, key.map(str::as_bytes), "{input:?}");
        }
        let long = [b"get ", [b'k'; KEY_LEN_MAX].as_slice(), b"\r\n"].concat();
        assert_eq!(guess_key(&long), Some([b'k'; KEY_LEN_MAX].as_slice()));
        let longer = [b"get ", [b'k'; KEY_LEN_MAX + 1].as_slice(), b"\r\n"].concat();
        assert_eq!(guess_key(&longer), None);
    }

    #[test]
    fn guess_key_finds_the_key_of_a_binary_request() {
        let mut keys: Vec<&[u8]> = Vec::new();
        let mut request = vec![0; 24 + 8];
        (request[0], request[1], request[3], request[4]) = (BINARY_MAGIC, 1, 3, 8);
        request[11] = 8 + 3 + 2;
        request.extend_from_slice(b"keyva");
        let parsed = binary::parse(&request, &mut keys);
        assert!(matches!(parsed, crate::Parse::Request { .. }), "{parsed:?}");
        assert_eq!(guess_key(&request), Some(keys[0]));
    }

    proptest! {
        #[test]
        fn a_guessed_key_has_a_legal_length(input in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Some(key) = guess_key(&input) {
                prop_assert!((1..=KEY_LEN_MAX).contains(&key.len()));
            }
        }
    }
}
