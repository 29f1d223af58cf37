//! The inner loops of the text parser: finding separators and reading numbers. Tokens are short (a
//! key has about twenty bytes), so an inlined search of eight bytes at a time is faster than
//! `memchr`. Most line ends are further away, so the parser finds them with `memchr`, except where
//! a line may end right behind a key.

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Returns the position of the first `needle` in `haystack`, or the length of `haystack`.
#[inline]
pub fn find(haystack: &[u8], needle: u8) -> usize {
    let pattern = LOW * u64::from(needle);
    let mut at = 0;
    while let Some(chunk) = haystack.get(at..at + 8) {
        let Ok(bytes) = <[u8; 8]>::try_from(chunk) else { break };
        let difference = u64::from_le_bytes(bytes) ^ pattern;
        // `zeros` marks the bytes of `difference` that are 0. A borrow of the subtraction may mark
        // a byte falsely, but only above a true match. So the lowest marked byte is a true match.
        let zeros = difference.wrapping_sub(LOW) & !difference & HIGH;
        if zeros != 0 {
            return at + zeros.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while at < haystack.len() && haystack[at] != needle {
        at += 1;
    }
    at
}

/// Returns the position of the first space or line feed in `haystack`, or the length of `haystack`.
#[inline]
pub fn find_separator(haystack: &[u8]) -> usize {
    let mut at = 0;
    while let Some(chunk) = haystack.get(at..at + 8) {
        let Ok(bytes) = <[u8; 8]>::try_from(chunk) else { break };
        let chunk = u64::from_le_bytes(bytes);
        let zeros = |difference: u64| difference.wrapping_sub(LOW) & !difference & HIGH;
        let spaces = zeros(chunk ^ (LOW * b' ' as u64));
        let line_feeds = zeros(chunk ^ (LOW * b'\n' as u64));
        // In each mask, the lowest marked byte is a true match. So the lowest byte that either mask
        // marks is a true match too.
        let found = spaces | line_feeds;
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while at < haystack.len() && !matches!(haystack[at], b' ' | b'\n') {
        at += 1;
    }
    at
}

/// The tokens of a line. Only runs of spaces separate tokens.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    rest: &'a [u8],
}

impl<'a> Tokens<'a> {
    /// Returns the tokens of `line`, from which the line end is already removed.
    #[inline]
    pub fn new(line: &'a [u8]) -> Self {
        Tokens { rest: line }
    }

    /// Returns the part of the line after the token that `next` has returned last, with the leading
    /// spaces of this part. Before the first `next`, returns the whole line.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let mut rest = self.rest;
        while let [b' ', tail @ ..] = rest {
            rest = tail;
        }
        if rest.is_empty() {
            self.rest = rest;
            return None;
        }
        let (token, tail) = rest.split_at(find(rest, b' '));
        self.rest = tail;
        Some(token)
    }
}

/// Returns the last token of a line.
#[inline]
pub fn last_token(line: &[u8]) -> &[u8] {
    let end = line.iter().rposition(|&byte| byte != b' ').map_or(0, |at| at + 1);
    let start = memchr::memrchr(b' ', &line[..end]).map_or(0, |at| at + 1);
    &line[start..end]
}

/// Returns true if `token` is `name` or a prefix of it. memcached accepts abbreviated admin
/// sub-commands.
pub fn abbreviates(token: &[u8], name: &[u8]) -> bool {
    !token.is_empty() && name.starts_with(token)
}

/// The longest text that memcached accepts as a 64-bit or a 32-bit number, in bytes, including
/// leading zeros.
const U64_LEN_MAX: usize = 22;
const U32_LEN_MAX: usize = 11;

/// Parses a decimal number below 2^64. Only digits are allowed.
#[inline]
pub fn parse_u64(token: &[u8]) -> Option<u64> {
    if token.is_empty() || token.len() > U64_LEN_MAX {
        return None;
    }
    digits(token)
}

/// Parses a decimal number below 2^32. Only digits are allowed.
#[inline]
pub fn parse_u32(token: &[u8]) -> Option<u32> {
    if token.len() > U32_LEN_MAX {
        return None;
    }
    parse_u64(token)?.try_into().ok()
}

/// Parses a decimal number that fits in an `i32`, with an optional minus sign. As in memcached, a
/// lone minus sign is 0.
#[inline]
pub fn parse_i32(token: &[u8]) -> Option<i32> {
    if token.is_empty() || token.len() > U32_LEN_MAX {
        return None;
    }
    let number = match token {
        [b'-', rest @ ..] => 0i64.checked_sub_unsigned(digits(rest)?)?,
        _ => digits(token)?.try_into().ok()?,
    };
    number.try_into().ok()
}

/// Parses a number as memcached does with C's `strtol` and `strtoul`: white space, a sign, any
/// number of digits. After the digits, the token must end or continue with white space or a NUL;
/// the rest is ignored. Returns whether there is a minus sign, and the number without it.
pub fn parse_c_number(token: &[u8]) -> Option<(bool, u64)> {
    let is_space = |byte: &u8| *byte == b' ' || (b'\t'..=b'\r').contains(byte);
    let start = token.iter().position(|byte| !is_space(byte))?;
    let (negative, rest) = match &token[start..] {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] | rest => (false, rest),
    };
    let end = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    if end == 0 || rest.get(end).is_some_and(|byte| *byte != 0 && !is_space(byte)) {
        return None;
    }
    Some((negative, digits(&rest[..end])?))
}

/// Parses any number of digits; returns 0 if there are none.
#[inline]
fn digits(token: &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for &byte in token {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parsed_numbers_have_memcacheds_limits() {
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u64(b"0000000000000000000007"), Some(7));
        assert_eq!(parse_u64(b"00000000000000000000007"), None);
        assert_eq!(parse_u64(b""), None);
        assert_eq!(parse_u64(b"+1"), None);
        assert_eq!(parse_u64(b"1a"), None);
        assert_eq!(parse_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(parse_u32(b"4294967296"), None);
        assert_eq!(parse_u32(b"00000000007"), Some(7));
        assert_eq!(parse_u32(b"000000000007"), None);
        assert_eq!(parse_i32(b"-2147483648"), Some(i32::MIN));
        assert_eq!(parse_i32(b"-2147483649"), None);
        assert_eq!(parse_i32(b"2147483647"), Some(i32::MAX));
        assert_eq!(parse_i32(b"2147483648"), None);
        assert_eq!(parse_i32(b"-"), Some(0));
        assert_eq!(parse_i32(b"--1"), None);
        assert_eq!(parse_i32(b"+1"), None);
        assert_eq!(parse_i32(b""), None);
        assert_eq!(parse_i32(b"00000000007"), Some(7));
        assert_eq!(parse_i32(b"000000000007"), None);
    }

    #[test]
    fn parse_c_number_agrees_with_c() {
        let zeros = [[b'0'; 40].as_slice(), b"7"].concat();
        for (token, number) in [
            (&b"7"[..], Some((false, 7))),
            (b"+7", Some((false, 7))),
            (b"-7", Some((true, 7))),
            (b"\t\x0b-7\r", Some((true, 7))),
            (b"7\tx", Some((false, 7))),
            (b"7\0x", Some((false, 7))),
            (&zeros, Some((false, 7))),
            (b"18446744073709551615", Some((false, u64::MAX))),
            (b"18446744073709551616", None),
            (b"7x", None),
            (b"+-7", None),
            (b"-", None),
            (b"\t", None),
            (b"", None),
        ] {
            assert_eq!(parse_c_number(token), number, "{token:?}");
        }
    }

    #[test]
    fn last_token_ignores_trailing_spaces() {
        assert_eq!(last_token(b"a bc  "), b"bc");
        assert_eq!(last_token(b"abc"), b"abc");
        assert_eq!(last_token(b"   "), b"");
        assert_eq!(last_token(b""), b"");
    }

    proptest! {
        #[test]
        fn find_agrees_with_position(
            haystack in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b' '), Just(b'!'), Just(b'\n'), Just(0x0b)], 0..40),
            needle in prop_oneof![any::<u8>(), Just(b' ')],
        ) {
            let expected =
                haystack.iter().position(|&byte| byte == needle).unwrap_or(haystack.len());
            prop_assert_eq!(find(&haystack, needle), expected);
            let expected = haystack.iter().position(|&byte| byte == b' ' || byte == b'\n');
            prop_assert_eq!(find_separator(&haystack), expected.unwrap_or(haystack.len()));
        }

        #[test]
        fn tokens_agree_with_split(line in "[a-c ]{0,40}") {
            let tokens: Vec<&[u8]> = Tokens::new(line.as_bytes()).collect();
            let expected: Vec<&[u8]> =
                line.split(' ').filter(|token| !token.is_empty()).map(str::as_bytes).collect();
            prop_assert_eq!(last_token(line.as_bytes()), *expected.last().unwrap_or(&&b""[..]));
            prop_assert_eq!(tokens, expected);
        }

        #[test]
        fn numbers_agree_with_the_standard_library(number in any::<i32>(), token in "-?[0-9]{1,21}") {
            prop_assert_eq!(parse_i32(number.to_string().as_bytes()), Some(number));
            prop_assert_eq!(parse_u64(token.as_bytes()), token.parse().ok());
            if token.len() <= 11 {
                prop_assert_eq!(parse_i32(token.as_bytes()), token.parse().ok());
                prop_assert_eq!(parse_u32(token.as_bytes()), token.parse().ok());
            }
        }
    }
}
