//! Parses and formats sizes and durations in the form in which people write them.

use std::time::Duration;

/// The unit of a size that is written without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DefaultUnit {
    /// Bytes, as in memcached's `-I`.
    Bytes,
    /// Mebibytes, as in memcached's `-m`.
    Mebibytes,
}

/// Reads a size: `64`, `512MB`, `1.5g`. Units are powers of 1024, whether they are written `M`,
/// `MB` or `MiB`.
pub(super) fn parse_size(text: &str, bare: DefaultUnit) -> Result<u64, String> {
    let complaint = || {
        let meaning = match bare {
            DefaultUnit::Bytes => "a bare number counts bytes",
            DefaultUnit::Mebibytes => "a bare number counts MiB",
        };
        format!("{text:?} is not a size: write for example 64, 512MB or 2GB ({meaning})")
    };
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.as_str() {
        "" if bare == DefaultUnit::Mebibytes => 20,
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(complaint()),
    };
    let number = number.trim_end();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 6 {
        return Err(complaint());
    }
    let scale = 10u128.pow(fraction.len() as u32);
    let too_large = || format!("{text:?} is larger than any machine: check the unit");
    let scaled: u128 = format!("{whole}{fraction}").parse().map_err(|_| too_large())?;
    let bytes = scaled.checked_mul(1 << shift).ok_or_else(too_large)? / scale;
    u64::try_from(bytes).ok().filter(|bytes| *bytes < 1 << 62).ok_or_else(too_large)
}

/// Formats a size with the largest unit that gives a whole number.
pub(super) fn show_size(bytes: u64) -> String {
    let units = [(40, "TB"), (30, "GB"), (20, "MB"), (10, "KB")];
    for (shift, unit) in units {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes}B")
}

/// Reads a duration: `30` (seconds), `500ms`, `5m`, `1h`, `2d`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let complaint =
        || format!("{text:?} is not a duration: write for example 30 (seconds), 500ms, 5m or 1h");
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| complaint())?;
    let seconds = |each: u64| number.checked_mul(each).map(Duration::from_secs);
    match unit.trim() {
        "ms" => Some(Duration::from_millis(number)),
        "" | "s" => seconds(1),
        "m" | "min" => seconds(60),
        "h" => seconds(3600),
        "d" => seconds(86_400),
        _ => None,
    }
    .filter(|duration| duration.as_secs() <= u64::from(u32::MAX))
    .ok_or_else(complaint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_accept_all_units() {
        let cases: [(&str, DefaultUnit, Option<u64>); 20] = [
            ("64", DefaultUnit::Mebibytes, Some(64 << 20)),
            ("64", DefaultUnit::Bytes, Some(64)),
            ("512MB", DefaultUnit::Mebibytes, Some(512 << 20)),
            ("512mib", DefaultUnit::Mebibytes, Some(512 << 20)),
            ("2GB", DefaultUnit::Bytes, Some(2 << 30)),
            ("2 GB", DefaultUnit::Bytes, Some(2 << 30)),
            ("1.5g", DefaultUnit::Bytes, Some(3 << 29)),
            ("0.5k", DefaultUnit::Bytes, Some(512)),
            ("1m", DefaultUnit::Bytes, Some(1 << 20)),
            ("512k", DefaultUnit::Bytes, Some(512 << 10)),
            ("100b", DefaultUnit::Mebibytes, Some(100)),
            ("1t", DefaultUnit::Bytes, Some(1 << 40)),
            ("", DefaultUnit::Bytes, None),
            ("MB", DefaultUnit::Bytes, None),
            ("-1", DefaultUnit::Bytes, None),
            ("64X", DefaultUnit::Bytes, None),
            ("1e9", DefaultUnit::Bytes, None),
            ("1.2.3", DefaultUnit::Bytes, None),
            ("99999999999999999999999999999999999999999999", DefaultUnit::Bytes, None),
            ("9999999999t", DefaultUnit::Bytes, None),
        ];
        for (text, bare, expected) in cases {
            assert_eq!(parse_size(text, bare).ok(), expected, "{text}");
        }
    }

    #[test]
    fn shown_sizes_read_back() {
        for bytes in [0, 1, 1023, 1024, 64 << 20, 3 << 29, 2 << 30, 1 << 40] {
            assert_eq!(parse_size(&show_size(bytes), DefaultUnit::Mebibytes), Ok(bytes));
        }
    }

    #[test]
    fn durations_accept_all_units() {
        let cases = [
            ("0", Some(Duration::ZERO)),
            ("30", Some(Duration::from_secs(30))),
            ("500ms", Some(Duration::from_millis(500))),
            ("5m", Some(Duration::from_secs(300))),
            ("1h", Some(Duration::from_secs(3600))),
            ("2d", Some(Duration::from_secs(172_800))),
            ("", None),
            ("s", None),
            ("-5", None),
            ("1w", None),
            ("18446744073709551615d", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_duration(text).ok(), expected, "{text}");
        }
    }
}
