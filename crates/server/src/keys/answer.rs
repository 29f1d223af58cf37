//! Parses a reply to learn whether a key was found, and how long its part of the reply is. Workers
//! parse only the replies to sampled requests.

/// What a reply says about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOutcome {
    /// The key was found. The number is the length of the part of the reply that belongs to the
    /// key, in bytes.
    Found(usize),
    Missing,
    /// The reply is an error, or has an unknown form.
    Nothing,
}

/// Length of the header of a reply of the binary protocol, in bytes.
const HEADER: usize = 24;

/// Returns what the reply to a retrieval says about `key`, one of the keys that the reply answers.
/// If the reply ends inside a long value, the worker sends the rest of the value later. The
/// returned length includes the rest, because it is computed from the header of the value.
pub(super) fn key_outcome(reply: &[u8], key: &[u8]) -> KeyOutcome {
    match reply {
        [0x81, ..] => of_header(reply).unwrap_or(KeyOutcome::Nothing),
        [b'H', b'D', ..] | [b'M', b'E', b' ', ..] => KeyOutcome::Found(reply.len()),
        _ => of_lines(reply, key).unwrap_or(KeyOutcome::Nothing),
    }
}

/// Does the same as [`key_outcome`] for a reply of the binary protocol.
fn of_header(reply: &[u8]) -> Option<KeyOutcome> {
    let header = reply.get(..HEADER)?;
    let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
    Some(match header[6..8] {
        [0, 0] => KeyOutcome::Found(HEADER.saturating_add(body as usize)),
        [0, 1] => KeyOutcome::Missing,
        _ => KeyOutcome::Nothing,
    })
}

/// Does the same as [`key_outcome`] for the lines and values of a text or meta reply.
fn of_lines(reply: &[u8], key: &[u8]) -> Option<KeyOutcome> {
    let mut at = 0_usize;
    loop {
        // If `reply` ends here, the key was not found. The last line of the reply may be absent:
        // the worker sends the `END` of a text reply later, and a quiet meta request gets no `EN`.
        let Some(rest) = reply.get(at..).filter(|rest| !rest.is_empty()) else {
            return Some(KeyOutcome::Missing);
        };
        let line = &rest[..memchr::memchr(b'\n', rest)?];
        let mut words = line.trim_ascii_end().split(|byte| *byte == b' ');
        let (name, value) = match words.next()? {
            b"VA" => (None, words.next()?),
            b"VALUE" => (Some(words.next()?), words.nth(1)?),
            b"END" | b"EN" => return Some(KeyOutcome::Missing),
            _ => return None,
        };
        let value: usize = std::str::from_utf8(value).ok()?.parse().ok()?;
        let len = value.checked_add(line.len() + b"\n\r\n".len())?;
        if name.is_none_or(|name| name == key) {
            return Some(KeyOutcome::Found(len));
        }
        at = at.checked_add(len)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_reply_tells_whether_a_key_was_found() {
        let text = b"VALUE a 0 3\r\nVAL\r\nVALUE b 7 5 99\r\nabcde\r\nEND\r\n";
        assert_eq!(key_outcome(text, b"a"), KeyOutcome::Found("VALUE a 0 3\r\nVAL\r\n".len()));
        assert_eq!(key_outcome(text, b"b"), KeyOutcome::Found("VALUE b 7 5 99\r\nabcde\r\n".len()));
        assert_eq!(key_outcome(text, b"c"), KeyOutcome::Missing);
        // The value of `a` looks like the line of `c`, but must not count as one.
        let twisted = b"VALUE a 0 17\r\nVALUE c 0 100000\n\r\nEND\r\n";
        assert_eq!(key_outcome(twisted, b"c"), KeyOutcome::Missing);
        assert_eq!(key_outcome(b"END\r\n", b"a"), KeyOutcome::Missing);
        assert_eq!(key_outcome(b"", b"a"), KeyOutcome::Missing);
        // Only the beginning of a long value was sent, but the result must have the whole length.
        let long = b"VALUE a 0 1000000\r\nxxxx";
        assert_eq!(key_outcome(long, b"a"), KeyOutcome::Found(19 + 1_000_000 + 2));
        assert_eq!(key_outcome(long, b"b"), KeyOutcome::Missing);
        assert_eq!(key_outcome(b"VA 2 f0\r\nhi\r\n", b"a"), KeyOutcome::Found(13));
        assert_eq!(key_outcome(b"HD t30\r\n", b"a"), KeyOutcome::Found(8));
        assert_eq!(key_outcome(b"EN\r\n", b"a"), KeyOutcome::Missing);
        assert_eq!(key_outcome(b"ME a exp=-1\r\n", b"a"), KeyOutcome::Found(13));
        let mut binary = [0; 24];
        (binary[0], binary[11]) = (0x81, 9);
        assert_eq!(key_outcome(&binary, b"a"), KeyOutcome::Found(33));
        binary[7] = 1;
        assert_eq!(key_outcome(&binary, b"a"), KeyOutcome::Missing);
    }

    #[test]
    fn an_error_tells_nothing() {
        assert_eq!(key_outcome(b"SERVER_ERROR out of memory\r\n", b"a"), KeyOutcome::Nothing);
        let after_value = b"VALUE a 0 1\r\nx\r\nSERVER_ERROR out of memory\r\n";
        assert_eq!(key_outcome(after_value, b"a"), KeyOutcome::Found(16));
        assert_eq!(key_outcome(after_value, b"b"), KeyOutcome::Nothing);
        assert_eq!(key_outcome(b"CLIENT_ERROR bad\r\n", b"a"), KeyOutcome::Nothing);
        assert_eq!(key_outcome(b"VALUE a 0 99999999999999999999\r\n", b"a"), KeyOutcome::Nothing);
        let mut binary = [0; 24];
        // The status 0x82 means "out of memory".
        (binary[0], binary[7]) = (0x81, 0x82);
        assert_eq!(key_outcome(&binary, b"a"), KeyOutcome::Nothing);
        assert_eq!(key_outcome(&binary[..9], b"a"), KeyOutcome::Nothing);
    }

    proptest! {
        #[test]
        fn no_reply_panics(reply in prop::collection::vec(any::<u8>(), 0..80), number: u64) {
            let _ = key_outcome(&reply, b"a");
            let line = [&b"VALUE a 0 "[..], number.to_string().as_bytes(), b"\r\n", &reply].concat();
            let _ = key_outcome(&line, b"b");
        }
    }
}
