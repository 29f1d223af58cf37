//! What a reply says about a key: whether it was found, and how long the reply is. Only sampled
//! requests pay for this look.

/// Length of the header of a reply of the binary protocol, in bytes.
const HEADER: usize = 24;

/// Returns the length of the part of a retrieval's reply that is about `key`, in bytes; `None` if
/// the key was not found. A long value may be sent later: its length is in the part that is there.
pub(super) fn found(reply: &[u8], key: &[u8]) -> Option<usize> {
    if let [0x81, ..] = reply {
        let header = reply.get(..HEADER)?;
        let is_found = header[6..8] == [0, 0];
        let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        return is_found.then(|| HEADER.saturating_add(body as usize));
    }
    if reply.starts_with(b"HD") {
        return Some(reply.len());
    }
    let mut at = 0_usize;
    loop {
        let rest = reply.get(at..)?;
        let line = &rest[..memchr::memchr(b'\n', rest)?];
        let mut words = line.trim_ascii_end().split(|byte| *byte == b' ');
        let (name, value) = match words.next()? {
            b"VA" => (None, words.next()?),
            b"VALUE" => (Some(words.next()?), words.nth(1)?),
            _ => return None,
        };
        let value: usize = std::str::from_utf8(value).ok()?.parse().ok()?;
        let len = value.checked_add(line.len() + b"\n\r\n".len())?;
        if name.is_none_or(|name| name == key) {
            return Some(len);
        }
        at = at.checked_add(len)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_reply_tells_what_was_found() {
        let text = b"VALUE a 0 3\r\nVAL\r\nVALUE b 7 5 99\r\nabcde\r\nEND\r\n";
        assert_eq!(found(text, b"a"), Some("VALUE a 0 3\r\nVAL\r\n".len()));
        assert_eq!(found(text, b"b"), Some("VALUE b 7 5 99\r\nabcde\r\n".len()));
        assert_eq!(found(text, b"c"), None);
        // The value looks like the line of another key.
        assert_eq!(found(b"VALUE a 0 17\r\nVALUE c 0 100000\n\r\nEND\r\n", b"c"), None);
        assert_eq!(found(b"END\r\n", b"a"), None);
        assert_eq!(found(b"", b"a"), None);
        // Only the beginning of a long value has been sent.
        assert_eq!(found(b"VALUE a 0 1000000\r\nxxxx", b"a"), Some(19 + 1_000_000 + 2));
        assert_eq!(found(b"VALUE a 0 1000000\r\nxxxx", b"b"), None);
        assert_eq!(found(b"VA 2 f0\r\nhi\r\n", b"a"), Some(13));
        assert_eq!(found(b"HD t30\r\n", b"a"), Some(8));
        assert_eq!(found(b"EN\r\n", b"a"), None);
        assert_eq!(found(b"VALUE a 0 99999999999999999999\r\n", b"a"), None);
        let mut binary = [0; 24];
        (binary[0], binary[11]) = (0x81, 9);
        assert_eq!(found(&binary, b"a"), Some(33));
        binary[7] = 1;
        assert_eq!(found(&binary, b"a"), None);
        assert_eq!(found(&binary[..9], b"a"), None);
    }

    proptest! {
        #[test]
        fn no_reply_panics(reply in prop::collection::vec(any::<u8>(), 0..80), number: u64) {
            let _ = found(&reply, b"a");
            let line = [&b"VALUE a 0 "[..], number.to_string().as_bytes(), b"\r\n", &reply].concat();
            let _ = found(&line, b"b");
        }
    }
}
