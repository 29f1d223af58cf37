//! Decimal numbers as memcached reads them.

/// Parses the number at the beginning of `text`, by the rules of C's `strtoull` as memcached
/// applies them. White space and a plus sign may precede the digits. After the digits, the text
/// must end or continue with white space or a NUL. The rest of the text is ignored.
#[inline]
pub(crate) fn parse_number(text: &[u8]) -> Option<u64> {
    match parse_digits(text) {
        Some(number) => Some(number),
        None => parse_c_number(text),
    }
}

/// Parses a text of digits only that is too short to overflow. Most numbers that Larder writes have
/// this form. The exceptions have 20 digits, or spaces after the digits, as memcached adds to a
/// number that became shorter.
#[inline]
fn parse_digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > NEVER_OVERFLOWS {
        return None;
    }
    let mut number = 0;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number * 10 + u64::from(digit);
    }
    Some(number)
}

fn parse_c_number(text: &[u8]) -> Option<u64> {
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

/// Every number with this many digits fits into a u64.
const NEVER_OVERFLOWS: usize = 19;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_parsed_as_in_memcached() {
        let good: &[(&[u8], u64)] = &[
            (b"0", 0),
            (b"9999999999999999999", 9_999_999_999_999_999_999),
            (b"18446744073709551615", u64::MAX),
            (b"00000000000000000000005", 5),
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
}
