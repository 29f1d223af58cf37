//! Decimal numbers as memcached reads and writes them.

/// The largest number of decimal digits of a u64.
pub(crate) const DIGITS: usize = 20;
/// Parses the number at the beginning of `text`, by the rules of C's `strtoull` as memcached
/// applies them. White space and a plus sign may precede the digits. After the digits, the text
/// must end or continue with white space or a NUL. The rest of the text is ignored.
pub(crate) fn parse_number(text: &[u8]) -> Option<u64> {
    let is_space = |b: u8| b == b' ' || (b'\t'..=b'\r').contains(&b);
    let start = text.iter().position(|&b| !is_space(b))?;
    let text = &text[start..];
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let end = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    if end == 0 || text.get(end).is_some_and(|&b| b != 0 && !is_space(b)) {
        return None;
    }
    text[..end].iter().try_fold(0u64, |number, digit| {
        number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })
}

pub(crate) fn format_number(mut value: u64, digits: &mut [u8; DIGITS]) -> &[u8] {
    let mut at = DIGITS;
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_parsed_as_in_memcached() {
        let good: &[(&[u8], u64)] = &[
            (b"0", 0),
            (b"18446744073709551615", u64::MAX),
            (b"007", 7),
            (b"  12", 12),
            (b"\t+5", 5),
            (b"12 34", 12),
            (b"9   ", 9),
            (b"7\nabc", 7),
            (b"7\0abc", 7),
        ];
        for &(text, number) in good {
            assert_eq!(parse_number(text), Some(number), "{text:?}");
        }
        let bad: &[&[u8]] =
            &[b"", b" ", b"+", b"abc", b"12abc", b"-5", b"18446744073709551616", b"1e3", b"++1"];
        for &text in bad {
            assert_eq!(parse_number(text), None, "{text:?}");
        }
    }

    #[test]
    fn numbers_are_written_without_padding() {
        for value in [0, 9, 10, 12345, u64::MAX] {
            assert_eq!(format_number(value, &mut [0; DIGITS]), value.to_string().as_bytes());
        }
    }
}
