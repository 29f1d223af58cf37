//! The notation in which the admin page shows and accepts keys, values and replies, because all
//! three may contain any bytes. Printable text stands for itself. A backslash is `\\`. All other
//! bytes are `\xHH`: control characters, combining marks, characters that are invisible or change
//! the direction of text, and bytes that are not UTF-8.
//!
//! Invariant: different bytes have different texts, and [`unescape`] reverses [`escape`].

use std::fmt::Write;

/// Returns `bytes` in the notation of this module.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                _ if is_shown(letter) => text.push(letter),
                _ => escape_bytes(letter.encode_utf8(&mut [0; 4]).as_bytes(), &mut text),
            }
        }
        escape_bytes(chunk.invalid(), &mut text);
    }
    text
}

fn escape_bytes(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        // Writing to a string never fails.
        let _ = write!(text, "\\x{byte:02x}");
    }
}

/// Returns true if `escape` shows the character as itself.
fn is_shown(letter: char) -> bool {
    /// Letters and symbols that are displayed blank: the Hangul fillers, and the blank of Braille.
    const BLANK: [char; 5] = ['\u{115f}', '\u{1160}', '\u{2800}', '\u{3164}', '\u{ffa0}'];
    matches!(letter, '\'' | '"') || (letter.escape_debug().len() == 1 && !BLANK.contains(&letter))
}

/// Returns the bytes of a text; `None` if a backslash begins neither `\\` nor `\xHH`.
pub(super) fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('\\');
    bytes.extend(parts.next()?.as_bytes());
    while let Some(part) = parts.next() {
        if let Some(rest) = part.strip_prefix('x') {
            let digits =
                rest.get(..2).filter(|digits| digits.bytes().all(|d| d.is_ascii_hexdigit()));
            bytes.push(u8::from_str_radix(digits?, 16).ok()?);
            bytes.extend(&rest.as_bytes()[2..]);
        } else if part.is_empty() {
            // Two backslashes in a row stand for one. The next part follows the second backslash,
            // so it is not an escape.
            bytes.push(b'\\');
            bytes.extend(parts.next()?.as_bytes());
        } else {
            return None;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_and_the_rest_is_escaped() {
        for (bytes, text) in [
            (&b"user:1/a b"[..], "user:1/a b"),
            ("k\u{e9}y \u{43a}".as_bytes(), "k\u{e9}y \u{43a}"),
            (b"<b>\"&'", "<b>\"&'"),
            (b"a\\x41", "a\\\\x41"),
            (b"\\", "\\\\"),
            (b"\r\n\0\x7f\x1b", "\\x0d\\x0a\\x00\\x7f\\x1b"),
            (b"\xff\xc3", "\\xff\\xc3"),
            // Right-to-left override, zero-width space, line separator.
            ("\u{202e}".as_bytes(), "\\xe2\\x80\\xae"),
            ("\u{200b}\u{2028}".as_bytes(), "\\xe2\\x80\\x8b\\xe2\\x80\\xa8"),
            // The characters of `BLANK`.
            ("a\u{3164}\u{2800}".as_bytes(), "a\\xe3\\x85\\xa4\\xe2\\xa0\\x80"),
            ("\u{115f}\u{1160}".as_bytes(), "\\xe1\\x85\\x9f\\xe1\\x85\\xa0"),
            ("\u{ffa0}".as_bytes(), "\\xef\\xbe\\xa0"),
        ] {
            assert_eq!(escape(bytes), text);
            assert_eq!(unescape(text).as_deref(), Some(bytes), "{text}");
        }
    }

    #[test]
    fn other_backslashes_are_refused() {
        for text in ["\\", "a\\n", "\\x", "\\x4", "\\xg0", "\\x+1", "\\\\\\", "\\x\u{e9}", "\\X41"]
        {
            assert_eq!(unescape(text), None, "{text}");
        }
        assert_eq!(unescape("\\x4A\\x4a").unwrap(), b"JJ");
        assert_eq!(unescape("\\\\\\\\x").unwrap(), b"\\\\x");
        assert_eq!(unescape("").unwrap(), b"");
    }

    #[test]
    fn all_pairs_of_bytes_come_back() {
        for pair in 0..=u16::MAX {
            let [first, second] = pair.to_be_bytes();
            let bytes = [0xc3, first, b'\\', second, b'x', first, second];
            assert_eq!(unescape(&escape(&bytes)).as_deref(), Some(&bytes[..]));
        }
        for letter in '\0'..=char::MAX {
            let text = format!("{letter}\\{letter}");
            assert_eq!(unescape(&escape(text.as_bytes())).as_deref(), Some(text.as_bytes()));
        }
    }
}
