//! Base64 of binary keys in meta commands. As in memcached, decoding skips bytes outside the
//! alphabet and requires complete, padded groups of four.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Marks a byte outside the alphabet in [`VALUES`].
const NONE: u8 = 0x80;

const VALUES: [u8; 256] = {
    let mut values = [NONE; 256];
    let mut i = 0;
    while i < 64 {
        values[ALPHABET[i] as usize] = i as u8;
        i += 1;
    }
    values[b'=' as usize] = 0;
    values
};

/// The longest decoded key, in bytes. The encoded key has at most
/// [`KEY_LEN_MAX`](crate::KEY_LEN_MAX) bytes.
pub const DECODED_KEY_MAX: usize = crate::KEY_LEN_MAX / 4 * 3;

/// Decodes `encoded` into the beginning of `out` and returns the decoded bytes. Returns `None` if
/// `encoded` is not base64 or is empty, or if the result does not fit.
pub fn decode<'o>(encoded: &[u8], out: &'o mut [u8]) -> Option<&'o [u8]> {
    let symbols = encoded.iter().filter(|&&byte| VALUES[usize::from(byte)] != NONE).count();
    if symbols == 0 || !symbols.is_multiple_of(4) || symbols / 4 * 3 > out.len() {
        return None;
    }
    let (mut group, mut filled, mut padding, mut len) = (0u32, 0, 0, 0);
    for &byte in encoded {
        let value = VALUES[usize::from(byte)];
        if value == NONE {
            continue;
        }
        padding += usize::from(byte == b'=');
        group = group << 6 | u32::from(value);
        filled += 1;
        if filled == 4 {
            out[len..len + 3].copy_from_slice(&group.to_be_bytes()[1..]);
            len += 3;
            (group, filled) = (0, 0);
            if padding > 2 {
                return None;
            }
            if padding > 0 {
                len -= padding;
                break;
            }
        }
    }
    Some(&out[..len])
}

/// Returns the length of the base64 form of `len` bytes.
pub fn encoded_len(len: usize) -> usize {
    len.div_ceil(3) * 4
}

/// Encodes `bytes`, padded, into the beginning of `out` and returns the length, which is
/// [`encoded_len`]. `out` must have at least that length.
pub fn encode(bytes: &[u8], out: &mut [u8]) -> usize {
    let mut len = 0;
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            out[len + i] = if i > chunk.len() {
                b'='
            } else {
                ALPHABET[(group >> (18 - 6 * i) & 0x3f) as usize]
            };
        }
        len += 4;
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(encoded: &[u8]) -> Option<Vec<u8>> {
        let mut out = [0; 256];
        decode(encoded, &mut out).map(<[u8]>::to_vec)
    }

    #[test]
    fn decode_skips_foreign_bytes_and_needs_whole_groups() {
        assert_eq!(decoded(b"Zm9vYg=="), Some(b"foob".to_vec()));
        assert_eq!(decoded(b"Zm9vYmE="), Some(b"fooba".to_vec()));
        assert_eq!(decoded(b"Zm9v"), Some(b"foo".to_vec()));
        assert_eq!(decoded(b"Zm!9v"), Some(b"foo".to_vec()));
        assert_eq!(decoded(b"Zm9"), None);
        assert_eq!(decoded(b"===="), None);
        assert_eq!(decoded(b"!!"), None);
        assert_eq!(decoded(b""), None);
        assert_eq!(decode(b"Zm9v", &mut [0; 2]), None);
    }

    proptest! {
        #[test]
        fn encoded_bytes_decode_back(bytes in proptest::collection::vec(any::<u8>(), 1..188)) {
            let mut out = [0; 256];
            let len = encode(&bytes, &mut out);
            prop_assert_eq!(len, encoded_len(bytes.len()));
            prop_assert_eq!(decoded(&out[..len]), Some(bytes));
        }

        #[test]
        fn decode_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut out = [0; DECODED_KEY_MAX];
            let _ = decode(&bytes, &mut out);
        }
    }
}
