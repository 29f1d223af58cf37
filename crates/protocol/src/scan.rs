//! The inner loops of the text parser: finding separators and reading numbers. Tokens are short
//! (a key has some twenty bytes), so eight bytes at a time without a call beats `memchr` here;
//! line ends are further away and are left to it.

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Where `needle` first stands in `haystack`, or the length of `haystack`.
#[inline]
pub fn find(haystack: &[u8], needle: u8) -> usize {
    let pattern = LOW * u64::from(needle);
    let mut at = 0;
    while let Some(chunk) = haystack.get(at..at + 8) {
        let Ok(bytes) = <[u8; 8]>::try_from(chunk) else { break };
        let difference = u64::from_le_bytes(bytes) ^ pattern;
        // The lowest zero byte is exact; only bytes above it can be marked wrongly.
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

/// Where a space or a line feed first stands in `haystack`, or the length of `haystack`.
#[inline]
pub fn find_separator(haystack: &[u8]) -> usize {
    let mut at = 0;
    while let Some(chunk) = haystack.get(at..at + 8) {
        let Ok(bytes) = <[u8; 8]>::try_from(chunk) else { break };
        let chunk = u64::from_le_bytes(bytes);
        let zeros = |difference: u64| difference.wrapping_sub(LOW) & !difference & HIGH;
        let spaces = zeros(chunk ^ (LOW * b' ' as u64));
        let line_feeds = zeros(chunk ^ (LOW * b'\n' as u64));
        // Whichever is the lowest of both is exact.
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

/// The tokens of a line: runs of spaces separate, nothing else does.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    rest: &'a [u8],
}

impl<'a> Tokens<'a> {
    /// The tokens of `line`, which has no line end any more.
    #[inline]
    pub fn new(line: &'a [u8]) -> Self {
        Tokens { rest: line }
    }

    /// What the tokens not taken yet are made of, leading spaces included.
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

/// The last token of a line.
#[inline]
pub fn last_token(line: &[u8]) -> &[u8] {
    let end = line.iter().rposition(|&byte| byte != b' ').map_or(0, |at| at + 1);
    let start = memchr::memrchr(b' ', &line[..end]).map_or(0, |at| at + 1);
    &line[start..end]
}

/// A decimal number: digits only.
#[inline]
pub fn parse_u64(token: &[u8]) -> Option<u64> {
    if token.is_empty() || token.len() > 20 {
        return None;
    }
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

/// A decimal number below 2^32: digits only.
#[inline]
pub fn parse_u32(token: &[u8]) -> Option<u32> {
    parse_u64(token)?.try_into().ok()
}

/// A decimal number with an optional minus sign.
#[inline]
pub fn parse_i64(token: &[u8]) -> Option<i64> {
    match token {
        [b'-', digits @ ..] => 0i64.checked_sub_unsigned(parse_u64(digits)?),
        digits => parse_u64(digits)?.try_into().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_at_their_limits() {
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u64(b"00000000000000000007"), Some(7));
        assert_eq!(parse_u64(b"000000000000000000007"), None);
        assert_eq!(parse_u64(b""), None);
        assert_eq!(parse_u64(b"+1"), None);
        assert_eq!(parse_u64(b"1a"), None);
        assert_eq!(parse_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(parse_u32(b"4294967296"), None);
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_i64(b"-9223372036854775809"), None);
        assert_eq!(parse_i64(b"9223372036854775808"), None);
        assert_eq!(parse_i64(b"-"), None);
        assert_eq!(parse_i64(b"--1"), None);
    }

    #[test]
    fn last_tokens() {
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
        fn numbers_agree_with_the_standard_library(number in any::<i64>(), token in "[0-9]{1,21}") {
            prop_assert_eq!(parse_i64(number.to_string().as_bytes()), Some(number));
            if token.len() <= 20 {
                prop_assert_eq!(parse_u64(token.as_bytes()), token.parse().ok());
            }
        }
    }
}
