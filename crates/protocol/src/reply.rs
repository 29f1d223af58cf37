//! Replies of the text protocol. They match memcached's byte for byte because clients compare them.

use crate::KEY_LEN_MAX;

macro_rules! lines {
    ($($(#[$doc:meta])* $name:ident = $line:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = concat!($line, "\r\n");)*
    };
}

lines! {
    /// An unknown command.
    ERROR = "ERROR";
    /// A line that cannot be parsed.
    BAD_FORMAT = "CLIENT_ERROR bad command line format";
    /// A line with too few arguments.
    BAD_LINE = "CLIENT_ERROR bad command line";
    /// A value that is not followed by a line end.
    BAD_CHUNK = "CLIENT_ERROR bad data chunk";
    /// An expiry time that is not a number.
    INVALID_EXPTIME = "CLIENT_ERROR invalid exptime argument";
    /// A delta that is not a number.
    INVALID_DELTA = "CLIENT_ERROR invalid numeric delta argument";
    /// incr or decr of a value that is not a number.
    NON_NUMERIC = "CLIENT_ERROR cannot increment or decrement non-numeric value";
    /// flush_all is disabled.
    FLUSH_NOT_ALLOWED = "CLIENT_ERROR flush_all not allowed";
    /// cache_memlimit is disabled.
    MEMLIMIT_NOT_ALLOWED = "CLIENT_ERROR cache_memlimit not allowed";
    /// store grow, store drain and store keep are disabled.
    STORE_NOT_ALLOWED = "CLIENT_ERROR store commands not allowed";
    /// A meta flag that does not exist.
    INVALID_FLAG = "CLIENT_ERROR invalid flag";
    /// A meta flag that occurs twice.
    DUPLICATE_FLAG = "CLIENT_ERROR duplicate flag";
    /// An error in the key or a flag of `ma`. A wrong mode, an opaque token that is too long, and
    /// errors of a limit have their own replies.
    INVALID_OR_DUPLICATE_FLAG = "CLIENT_ERROR invalid or duplicate flag";
    /// More meta flags than the limit.
    TOO_MANY_FLAGS = "CLIENT_ERROR options flags are too long";
    /// A meta flag whose token is not a number.
    BAD_TOKEN = "CLIENT_ERROR bad token in command line format";
    /// The token of flag `D` is not a number. `ma` replies `INVALID_OR_DUPLICATE_FLAG` instead.
    BAD_DELTA_TOKEN = "CLIENT_ERROR invalid numeric delta value";
    /// The token of flag `J` is not a number. `ma` replies `INVALID_OR_DUPLICATE_FLAG` instead.
    BAD_INITIAL_TOKEN = "CLIENT_ERROR invalid numeric initial value";
    /// An opaque token that is too long.
    OPAQUE_TOO_LONG = "CLIENT_ERROR opaque token too long";
    /// A key that is flagged as base64 but cannot be decoded.
    KEY_NOT_DECODED = "CLIENT_ERROR error decoding key";
    /// An unknown mode of ms.
    INVALID_SET_MODE = "CLIENT_ERROR invalid mode for ms M token";
    /// An unknown mode of ma.
    INVALID_ARITHMETIC_MODE = "CLIENT_ERROR invalid mode for ma M token";
    /// An `ma` that names a policy and also has a flag that defines a limit.
    POLICY_AND_LIMIT = "CLIENT_ERROR a policy (Q) takes no B, N, M or G";
    /// An ma with a policy that the server does not have.
    UNKNOWN_POLICY = "CLIENT_ERROR unknown policy";
    /// An `ma` in decrement mode that has a budget.
    BUDGET_AND_DECREMENT = "CLIENT_ERROR MD takes no budget (B)";
    /// A limit that needs a window and has none.
    LIMIT_NEEDS_WINDOW = "CLIENT_ERROR MW and MG need a window (N)";
    /// A burst without MG.
    BURST_NEEDS_GCRA = "CLIENT_ERROR a burst (G) needs MG";
    /// stats detail without on, off or dump.
    DETAIL_USAGE = "CLIENT_ERROR usage: stats detail on|off|dump";
    /// stats detail, while the settings disable all dumps.
    DETAIL_NOT_ALLOWED = "CLIENT_ERROR stats detail not allowed";
    /// stats cachedump, while the settings disable all dumps.
    CACHEDUMP_NOT_ALLOWED = "CLIENT_ERROR stats cachedump not allowed";
    /// lru_crawler metadump, while the settings disable all dumps.
    METADUMP_NOT_ALLOWED = "ERROR metadump not allowed";
    /// lru_crawler mgdump, while the settings disable all dumps.
    MGDUMP_NOT_ALLOWED = "ERROR key dump not allowed";
    /// A slab class that memcached does not have.
    ILLEGAL_SLAB = "CLIENT_ERROR Illegal slab id";
    /// watch is disabled.
    WATCH_NOT_ALLOWED = "CLIENT_ERROR watch commands not allowed";
    /// An unknown shutdown mode.
    INVALID_SHUTDOWN = "CLIENT_ERROR invalid shutdown mode";
    /// shutdown is disabled.
    SHUTDOWN_NOT_ENABLED = "SERVER_ERROR: shutdown not enabled";
    /// slabs reassign with the same class as source and destination.
    REASSIGN_SAME = "SAME src and dst class are identical";
    /// slabs reassign with a class that memcached refuses.
    REASSIGN_BADCLASS = "BADCLASS invalid src or dst class id";
    /// slabs reassign with valid classes: there are no slab pages to move.
    REASSIGN_NOSPARE = "NOSPARE source class has no spare pages";
    /// refresh_certs without TLS.
    TLS_NOT_ENABLED = "Error TLS not enabled";
    /// An automove window that memcached refuses.
    AUTOMOVE_WINDOW = "CLIENT_ERROR automove window too low or too high";
    /// A crawler pause that memcached refuses.
    CRAWLER_SLEEP = "CLIENT_ERROR sleep must be one second or less";
    /// Too many dumps are running.
    CRAWLER_BUSY = "BUSY currently processing crawler request";
    /// lru tune with percentages that memcached refuses.
    LRU_PERCENTAGES = "ERROR hot and warm pcts must not exceed 80";
    /// lru tune with factors that memcached refuses.
    LRU_FACTORS = "ERROR hot/warm age factors must be greater than 0";
    /// A slab class that memcached's crawler refuses.
    BAD_CLASS = "BADCLASS invalid class id";
    /// An item above the largest item size.
    TOO_LARGE = "SERVER_ERROR object too large for cache";
    /// Not enough memory for an item.
    NO_MEMORY_STORING = "SERVER_ERROR out of memory storing object";
    /// Not enough memory for something other than an item.
    NO_MEMORY = "SERVER_ERROR out of memory";
    /// The store failed: it cannot write or read what the request needs.
    STORE_FAILED = "SERVER_ERROR store failed: write not kept";
    /// The store is full.
    STORE_FULL = "SERVER_ERROR store is full";
    /// A memory limit that is too small.
    MEMLIMIT_TOO_SMALL = "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m";
    /// A memory limit that looks like a number of bytes.
    MEMLIMIT_NOT_MEGABYTES = "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes";
    /// A memory limit that could not be set.
    MEMLIMIT_FAILED = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust";
    /// The end of a retrieval, of statistics, or of a dump except mgdump.
    END = "END";
    /// Success of most admin commands.
    OK = "OK";
    /// Success of stats reset.
    RESET = "RESET";
    /// Success of a storage command.
    STORED = "STORED";
    /// The mode of a storage command does not allow the write, or an append or prepend would make
    /// the item too large.
    NOT_STORED = "NOT_STORED";
    /// The item's cas id is not the one in the request.
    EXISTS = "EXISTS";
    /// There is no such item.
    NOT_FOUND = "NOT_FOUND";
    /// Success of delete.
    DELETED = "DELETED";
    /// Success of touch.
    TOUCHED = "TOUCHED";
    /// The reply to mn.
    META_NOOP = "MN";
    /// A miss of mg or me, and the end of mgdump.
    META_MISS = "EN";
}

/// The largest length of a 64-bit number in decimal, in bytes.
pub const NUMBER_LEN_MAX: usize = 20;

/// The largest length of a line that [`value_line`] writes, in bytes.
pub const VALUE_LINE_MAX: usize = "VALUE ".len() + KEY_LEN_MAX + 3 * (NUMBER_LEN_MAX + 1) + 2;

const PAIRS: [u8; 200] = {
    let mut pairs = [0; 200];
    let mut i = 0;
    while i < 100 {
        pairs[2 * i] = b'0' + (i / 10) as u8;
        pairs[2 * i + 1] = b'0' + (i % 10) as u8;
        i += 1;
    }
    pairs
};

/// Writes `number` in decimal to the beginning of `out`. Returns the number of bytes written.
///
/// # Panics
/// Panics if `out` is too short; [`NUMBER_LEN_MAX`] bytes are always enough.
#[inline]
pub fn write_u64(out: &mut [u8], mut number: u64) -> usize {
    let len = number.checked_ilog10().unwrap_or(0) as usize + 1;
    let (out, mut at) = (&mut out[..len], len);
    while number >= 100 {
        let pair = (number % 100) as usize * 2;
        number /= 100;
        at -= 2;
        out[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    if number >= 10 {
        let pair = number as usize * 2;
        out[..2].copy_from_slice(&PAIRS[pair..pair + 2]);
    } else {
        out[0] = b'0' + number as u8;
    }
    len
}

/// Writes the line `VALUE key flags length[ cas]` with its line end to the beginning of `out`.
/// Returns the number of bytes written.
///
/// # Panics
/// Panics if `out` is too short; [`VALUE_LINE_MAX`] bytes are enough for keys of legal length.
#[inline]
pub fn value_line(
    out: &mut [u8],
    key: &[u8],
    flags: u32,
    value_len: usize,
    cas: Option<u64>,
) -> usize {
    out[..6].copy_from_slice(b"VALUE ");
    let mut at = 6 + key.len();
    out[6..at].copy_from_slice(key);
    let mut number = |at: &mut usize, number: u64| {
        out[*at] = b' ';
        *at += 1 + write_u64(&mut out[*at + 1..], number);
    };
    number(&mut at, u64::from(flags));
    number(&mut at, value_len as u64);
    if let Some(cas) = cas {
        number(&mut at, cas);
    }
    out[at..at + 2].copy_from_slice(b"\r\n");
    at + 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn value_line_writes_memcacheds_format() {
        let mut out = [0; VALUE_LINE_MAX];
        let len = value_line(&mut out, b"k", 0, 5, None);
        assert_eq!(&out[..len], b"VALUE k 0 5\r\n");
        let key = [b'x'; KEY_LEN_MAX];
        let len = value_line(&mut out, &key, u32::MAX, usize::MAX, Some(u64::MAX));
        assert!(out[..len].ends_with(b" 4294967295 18446744073709551615 18446744073709551615\r\n"));
    }

    proptest! {
        #[test]
        fn write_u64_agrees_with_the_standard_library(number in any::<u64>(), shift in 0u32..64) {
            let number = number >> shift;
            let mut out = [0; NUMBER_LEN_MAX];
            let len = write_u64(&mut out, number);
            let expected = number.to_string();
            prop_assert_eq!(&out[..len], expected.as_bytes());
        }
    }
}
