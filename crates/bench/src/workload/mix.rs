//! The verbs of a load and their proportions.

use std::fmt;
use std::str::FromStr;

use super::random::Random;
use crate::Error;

/// A command that the load sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verb {
    /// `get` of one or many keys.
    Get,
    /// `gets`: with cas ids.
    Gets,
    /// `gat`: get and touch.
    Gat,
    /// `set`.
    Set,
    /// `add`.
    Add,
    /// `delete`.
    Delete,
    /// `touch`.
    Touch,
    /// `incr` of a counter by 1.
    Incr,
    /// `decr` of a counter by 1.
    Decr,
    /// `mg` with the value.
    MetaGet,
    /// `ms`.
    MetaSet,
    /// A run of quiet `ms`, and then one `mn`. If all sets succeed, the server replies only to the
    /// `mn`. So neither the server nor the load spends much time on replies.
    QuietSets,
    /// `md`.
    MetaDelete,
    /// `ma` that increments a counter by 1. The server creates a missing counter.
    MetaArithmetic,
    /// `ma` that takes one unit from a rate limit. The reply has the units left, the time until all
    /// are free again, and the time to wait. A load never uses up the limit of `Limit::default`.
    Limit,
    /// `set` of a counter to 0; used only to store the counters before a load.
    SetCounter,
}

/// The number of verbs.
pub(crate) const VERBS: usize = 16;

const TABLE: [(Verb, &str, &[u8]); VERBS] = [
    (Verb::Get, "get", b"get "),
    (Verb::Gets, "gets", b"gets "),
    (Verb::Gat, "gat", b"gat "),
    (Verb::Set, "set", b"set "),
    (Verb::Add, "add", b"add "),
    (Verb::Delete, "delete", b"delete "),
    (Verb::Touch, "touch", b"touch "),
    (Verb::Incr, "incr", b"incr "),
    (Verb::Decr, "decr", b"decr "),
    (Verb::MetaGet, "mg", b"mg "),
    (Verb::MetaSet, "ms", b"ms "),
    (Verb::QuietSets, "msq", b"ms "),
    (Verb::MetaDelete, "md", b"md "),
    (Verb::MetaArithmetic, "ma", b"ma "),
    (Verb::Limit, "limit", b"ma "),
    (Verb::SetCounter, "setcounter", b"set "),
];

impl Verb {
    pub(crate) fn all() -> impl Iterator<Item = Verb> {
        TABLE.iter().map(|row| row.0)
    }

    /// Returns the name of the verb in the text form of a [`Mix`].
    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    #[inline]
    pub(crate) fn opening(self) -> &'static [u8] {
        TABLE[self as usize].2
    }

    /// Returns the bytes between two keys of one request.
    #[inline]
    pub(crate) fn separator(self) -> &'static [u8] {
        if self == Verb::QuietSets { b"\r\nms " } else { b" " }
    }

    #[inline]
    pub(crate) fn ending(self) -> &'static [u8] {
        if self == Verb::QuietSets { b"\r\nmn\r\n" } else { b"\r\n" }
    }

    /// Returns true if a request with this verb may have several keys.
    #[inline]
    pub(crate) fn is_multi(self) -> bool {
        matches!(self, Verb::Get | Verb::Gets | Verb::Gat | Verb::QuietSets)
    }

    /// Returns true if the answer contains values that the workload can check.
    #[inline]
    pub(crate) fn returns_values(self) -> bool {
        matches!(self, Verb::Get | Verb::Gets | Verb::Gat | Verb::MetaGet)
    }

    /// Returns true for verbs on counters. Counters have separate keys, see `Keys::counters`.
    #[inline]
    pub(crate) fn counts(self) -> bool {
        matches!(
            self,
            Verb::Incr | Verb::Decr | Verb::MetaArithmetic | Verb::Limit | Verb::SetCounter
        )
    }
}

/// Verbs with weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Each verb with the sum of the weights of all verbs up to and including it.
    rows: Vec<(Verb, u64)>,
}

impl Mix {
    /// Returns a mix of one verb.
    pub fn only(verb: Verb) -> Mix {
        Mix { rows: vec![(verb, 1)] }
    }

    pub(crate) fn verbs(&self) -> impl Iterator<Item = Verb> {
        self.rows.iter().map(|row| row.0)
    }

    /// Returns true if the mix contains this verb.
    pub fn has(&self, verb: Verb) -> bool {
        self.rows.iter().any(|row| row.0 == verb)
    }

    pub(crate) fn first(&self) -> Verb {
        self.rows.first().map_or(Verb::Get, |row| row.0)
    }

    /// Returns true if a verb of the mix fails unless the counters exist.
    pub(crate) fn needs_counters(&self) -> bool {
        self.has(Verb::Incr) || self.has(Verb::Decr)
    }

    #[inline]
    pub(crate) fn sample(&self, random: &mut Random) -> Verb {
        if let [(verb, _)] = self.rows[..] {
            return verb;
        }
        let total = self.rows.last().map_or(1, |row| row.1);
        let draw = random.below(total);
        self.rows.iter().find(|row| draw < row.1).map_or(Verb::Get, |row| row.0)
    }

    fn from_weights(weights: &[(Verb, u64)]) -> Result<Mix, Error> {
        let mut sum = 0u64;
        let mut rows = Vec::new();
        for &(verb, weight) in weights.iter().filter(|row| row.1 > 0) {
            sum = sum.checked_add(weight).ok_or_else(|| Error::usage("weights are too large"))?;
            rows.push((verb, sum));
        }
        if rows.is_empty() {
            return Err(Error::usage("a mix needs a verb with a weight above 0"));
        }
        Ok(Mix { rows })
    }
}

impl FromStr for Mix {
    type Err = Error;

    /// Parses verbs with weights, such as `get=90,set=10` or `incr`. It also parses a ratio of sets
    /// to gets, such as `1:10`, because other tools use this form.
    fn from_str(text: &str) -> Result<Mix, Error> {
        let bad = || Error::usage(format!("{text:?} is no mix: get=90,set=10 or 1:10 (set:get)"));
        if let Some((sets, gets)) = text.split_once(':') {
            let weight = |text: &str| text.trim().parse().map_err(|_| bad());
            return Mix::from_weights(&[(Verb::Set, weight(sets)?), (Verb::Get, weight(gets)?)]);
        }
        let mut weights = Vec::new();
        for part in text.split(',') {
            let (name, weight) = part.split_once('=').unwrap_or((part, "1"));
            let verb = Verb::all()
                .find(|verb| verb.name() == name.trim() && *verb != Verb::SetCounter)
                .ok_or_else(|| Error::usage(format!("{name:?} is not a verb of the load")))?;
            weights.push((verb, weight.trim().parse().map_err(|_| bad())?));
        }
        Mix::from_weights(&weights)
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = 0;
        for (index, &(verb, sum)) in self.rows.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{}={}", verb.name(), sum - before)?;
            before = sum;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_verbs() {
        for (index, verb) in Verb::all().enumerate() {
            assert_eq!(verb as usize, index, "{}", verb.name());
        }
    }

    #[test]
    fn spelling() {
        let mix: Mix = "get=90,set=10".parse().unwrap();
        assert_eq!(mix.to_string(), "get=90,set=10");
        assert_eq!("1:9".parse::<Mix>().unwrap().to_string(), "set=1,get=9");
        assert_eq!("0:1".parse::<Mix>().unwrap(), Mix::only(Verb::Get));
        assert_eq!("mg".parse::<Mix>().unwrap(), Mix::only(Verb::MetaGet));
        for text in ["", "fetch", "get=x", "get=0", "1:x", "0:0", "setcounter"] {
            assert!(text.parse::<Mix>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn weights_are_kept() {
        let mix: Mix = "get=70,set=20,delete=10".parse().unwrap();
        let mut random = Random::new(3);
        let mut counts = [0u32; VERBS];
        for _ in 0..100_000 {
            counts[mix.sample(&mut random) as usize] += 1;
        }
        for (verb, share) in [(Verb::Get, 0.7), (Verb::Set, 0.2), (Verb::Delete, 0.1)] {
            let seen = f64::from(counts[verb as usize]) / 100_000.0;
            assert!((seen - share).abs() < 0.01, "{}: {seen}", verb.name());
        }
    }
}
