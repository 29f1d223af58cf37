//! The requests of a load: verbs, keys and values, written directly into a send buffer. Nothing
//! here uses a socket or a clock, so a seed always gives the same stream of requests.

pub(crate) mod distribution;
pub(crate) mod keys;
mod limit;
pub(crate) mod mix;
pub(crate) mod random;
pub(crate) mod values;

use std::collections::VecDeque;
use std::ops::Range;

pub use distribution::Distribution;
pub use keys::Lengths;
pub use limit::Limit;
pub use mix::{Mix, Verb};

use crate::Result;
use crate::wire::Wire;
use distribution::Sampler;
use keys::{Keys, push_number};
use random::Random;
use values::Values;

/// The options that determine the bytes of the requests.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The verbs with their weights.
    pub mix: Mix,
    /// The number of different keys.
    pub keys: u64,
    /// The prefix of every key.
    pub prefix: String,
    /// The lengths of keys in bytes, including the prefix.
    pub key_lengths: Lengths,
    /// The lengths of values in bytes.
    pub value_lengths: Lengths,
    /// The popularity of keys.
    pub distribution: Distribution,
    /// The number of keys in one get, or in one run of quiet sets.
    pub keys_per_get: usize,
    /// Time to live of items that are stored or touched, in seconds; 0 is forever.
    pub ttl: u32,
    /// If true, the load requests each key once, in the order of the numbers, and then ends.
    /// Otherwise it draws keys at random.
    pub in_order: bool,
    /// The rate limit that requests of the verb [`Verb::Limit`] take units from.
    pub limit: Limit,
    /// A value depends on its key and on this number. After an overwrite with another salt, the new
    /// value differs from the old one.
    pub salt: u64,
}

impl Default for Shape {
    /// Returns a load of gets of one million keys, which are read with equal probability. Keys have
    /// 15 bytes and values 50.
    fn default() -> Self {
        Shape {
            mix: Mix::only(Verb::Get),
            keys: 1_000_000,
            prefix: "key-".into(),
            key_lengths: Lengths { min: 15, max: 15 },
            value_lengths: Lengths { min: 50, max: 50 },
            distribution: Distribution::Uniform,
            keys_per_get: 1,
            ttl: 0,
            in_order: false,
            limit: Limit::default(),
            salt: 0,
        }
    }
}

/// The key of the first counter of the default shape.
pub(crate) const FIRST_COUNTER: &[u8] = b"key#00000000000";

/// A shape with everything computed from it. All generator threads share it.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) shape: Shape,
    keys: Keys,
    counters: Keys,
    pub(crate) values: Values,
    sampler: Sampler,
    ttl: String,
    /// The flags of the rate limit for Larder's `ma`.
    limit_flags: String,
    /// Budget, window and burst of the rate limit as decimal words, for a [`Wire`].
    limit_words: String,
}

/// One generator thread's position in its stream of requests.
#[derive(Debug)]
pub(crate) struct Source {
    random: Random,
    next: Range<u64>,
    /// Buffers for the key and the value of the request that is being written for a [`Wire`].
    key: Vec<u8>,
    value: Vec<u8>,
}

/// The facts about a sent request that are needed to check its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) verb: Verb,
    pub(crate) keys: u32,
}

impl Workload {
    pub(crate) fn new(shape: Shape) -> Result<Workload> {
        if shape.keys == 0 || shape.keys_per_get == 0 {
            return Err(crate::Error::usage("a workload needs at least one key"));
        }
        let keys = Keys::new(&shape.prefix, shape.key_lengths, shape.keys)?;
        Ok(Workload {
            counters: keys.counters(),
            keys,
            values: Values::new(shape.value_lengths).with_salt(shape.salt),
            sampler: Sampler::new(shape.distribution, shape.keys),
            ttl: shape.ttl.to_string(),
            limit_flags: shape.limit.flags(),
            limit_words: shape.limit.words(),
            shape,
        })
    }

    /// Returns the source for generator thread `index` out of `threads`.
    pub(crate) fn source(&self, seed: u64, index: u64, threads: u64) -> Source {
        let part = |index: u64| {
            (u128::from(self.shape.keys) * u128::from(index) / u128::from(threads)) as u64
        };
        Source {
            random: Random::new(random::mix(seed).wrapping_add(index)),
            next: part(index)..part(index + 1),
            key: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Returns the number of the next key; `None` once a load with [`Shape::in_order`] has
    /// requested all keys.
    #[inline]
    fn next_number(&self, source: &mut Source) -> Option<u64> {
        match self.shape.in_order {
            true => source.next.next(),
            false => Some(self.sampler.sample(&mut source.random)),
        }
    }

    /// Appends the next request to `buffer`, in the protocol of `wire`, and the number of its only
    /// key to `numbers`. Returns the facts that the check of the answer needs. Returns `None` once
    /// a load with [`Shape::in_order`] has requested all keys.
    pub(crate) fn push_request_to(
        &self,
        wire: &dyn Wire,
        source: &mut Source,
        buffer: &mut Vec<u8>,
        numbers: Option<&mut VecDeque<u64>>,
    ) -> Option<Asked> {
        let verb = self.shape.mix.sample(&mut source.random);
        let number = self.next_number(source)?;
        let Source { key, value, .. } = source;
        key.clear();
        value.clear();
        if verb.counts() { &self.counters } else { &self.keys }.push(key, number);
        if verb == Verb::Set {
            self.values.push(value, &self.values.expected(key));
        }
        if verb == Verb::Limit {
            value.extend_from_slice(self.limit_words.as_bytes());
        }
        wire.push(verb, key, value, buffer);
        if let Some(numbers) = numbers {
            numbers.push_back(number);
        }
        Some(Asked { verb, keys: 1 })
    }

    /// Appends the next request to `buffer`, in memcached's protocol, and the numbers of its keys
    /// to `numbers`. Returns the facts that the check of the answer needs. Returns `None` once a
    /// load with [`Shape::in_order`] has requested all keys.
    #[inline]
    pub(crate) fn push_request(
        &self,
        source: &mut Source,
        buffer: &mut Vec<u8>,
        mut numbers: Option<&mut VecDeque<u64>>,
    ) -> Option<Asked> {
        let begin = buffer.len();
        let mut asked = 0;
        let verb = self.shape.mix.sample(&mut source.random);
        let keys = if verb.is_multi() { self.shape.keys_per_get } else { 1 };
        buffer.extend_from_slice(verb.opening());
        if verb == Verb::Gat {
            buffer.extend_from_slice(self.ttl.as_bytes());
            buffer.push(b' ');
        }
        for index in 0..keys {
            let number = match self.next_number(source) {
                Some(number) => number,
                None if index > 0 => break,
                None => {
                    buffer.truncate(begin);
                    return None;
                }
            };
            if index > 0 {
                buffer.extend_from_slice(verb.separator());
            }
            let start = buffer.len();
            if verb.counts() { &self.counters } else { &self.keys }.push(buffer, number);
            if let Some(numbers) = numbers.as_deref_mut() {
                numbers.push_back(number);
            }
            self.push_rest(verb, buffer, start);
            asked += 1;
        }
        buffer.extend_from_slice(verb.ending());
        Some(Asked { verb, keys: asked })
    }

    /// Appends the part of a request that follows the key. The key reaches from `start` to the end
    /// of `buffer`.
    #[inline]
    fn push_rest(&self, verb: Verb, buffer: &mut Vec<u8>, start: usize) {
        match verb {
            Verb::Get | Verb::Gets | Verb::Gat | Verb::Delete | Verb::MetaDelete => {}
            Verb::Set | Verb::Add => {
                let expected = self.values.expected(&buffer[start..]);
                buffer.extend_from_slice(b" 0 ");
                buffer.extend_from_slice(self.ttl.as_bytes());
                buffer.push(b' ');
                push_number(buffer, expected.length as u64);
                buffer.extend_from_slice(b"\r\n");
                self.values.push(buffer, &expected);
            }
            Verb::MetaSet | Verb::QuietSets => {
                let expected = self.values.expected(&buffer[start..]);
                buffer.push(b' ');
                push_number(buffer, expected.length as u64);
                if self.shape.ttl != 0 {
                    buffer.extend_from_slice(b" T");
                    buffer.extend_from_slice(self.ttl.as_bytes());
                }
                if verb == Verb::QuietSets {
                    buffer.extend_from_slice(b" q");
                }
                buffer.extend_from_slice(b"\r\n");
                self.values.push(buffer, &expected);
            }
            Verb::Incr | Verb::Decr => buffer.extend_from_slice(b" 1"),
            Verb::Touch => {
                buffer.push(b' ');
                buffer.extend_from_slice(self.ttl.as_bytes());
            }
            Verb::MetaGet => buffer.extend_from_slice(b" v"),
            // `ma` creates a missing counter with the value 0, so the counter need not be stored
            // first.
            Verb::MetaArithmetic => buffer.extend_from_slice(b" v N0 J0"),
            Verb::Limit => buffer.extend_from_slice(self.limit_flags.as_bytes()),
            Verb::SetCounter => buffer.extend_from_slice(b" 0 0 1\r\n0"),
        }
    }

    /// Replaces the contents of `buffer` by the key with this number.
    #[inline]
    pub(crate) fn key(&self, number: u64, buffer: &mut Vec<u8>) {
        buffer.clear();
        self.keys.push(buffer, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(shape: Shape, seed: u64, count: usize) -> String {
        let workload = Workload::new(shape).unwrap();
        let mut source = workload.source(seed, 0, 1);
        let mut buffer = Vec::new();
        for _ in 0..count {
            workload.push_request(&mut source, &mut buffer, None);
        }
        String::from_utf8(buffer).unwrap()
    }

    fn small(mix: &str) -> Shape {
        Shape { mix: mix.parse().unwrap(), keys: 3, ttl: 60, ..Shape::default() }
    }

    #[test]
    fn each_verb_has_the_format_of_the_protocol() {
        let one = |mix: &str| {
            requests(
                Shape { keys: 1, value_lengths: Lengths { min: 4, max: 4 }, ..small(mix) },
                1,
                1,
            )
        };
        let values = Values::new(Lengths { min: 4, max: 4 });
        let mut value = Vec::new();
        values.push(&mut value, &values.expected(b"key-00000000000"));
        let value = String::from_utf8(value).unwrap();
        assert_eq!(one("get=1"), "get key-00000000000\r\n");
        assert_eq!(one("gat=1"), "gat 60 key-00000000000\r\n");
        assert_eq!(one("set=1"), format!("set key-00000000000 0 60 4\r\n{value}\r\n"));
        assert_eq!(one("ms=1"), format!("ms key-00000000000 4 T60\r\n{value}\r\n"));
        assert_eq!(one("mg=1"), "mg key-00000000000 v\r\n");
        assert_eq!(one("md=1"), "md key-00000000000\r\n");
        assert_eq!(one("ma=1"), "ma key#00000000000 v N0 J0\r\n");
        assert_eq!(one("incr=1"), "incr key#00000000000 1\r\n");
        assert_eq!(FIRST_COUNTER, b"key#00000000000");
        assert_eq!(one("touch=1"), "touch key-00000000000 60\r\n");
        assert_eq!(one("delete=1"), "delete key-00000000000\r\n");
    }

    #[test]
    fn many_keys_in_one_get() {
        let shape = Shape { keys_per_get: 3, in_order: true, ..small("get=1") };
        assert_eq!(
            requests(shape, 1, 2),
            "get key-00000000000 key-00000000001 key-00000000002\r\n"
        );
    }

    #[test]
    fn a_run_of_quiet_sets_ends_in_one_noop() {
        let value_lengths = Lengths { min: 1, max: 1 };
        let shape = Shape { keys_per_get: 2, in_order: true, value_lengths, ..small("msq") };
        let run = requests(shape, 1, 1);
        let lines: Vec<&str> = run.split("\r\n").collect();
        let [first, _, second, _, "mn", ""] = lines[..] else { panic!("{run:?}") };
        assert_eq!((first, second), ("ms key-00000000000 1 T60 q", "ms key-00000000001 1 T60 q"));
    }

    #[test]
    fn the_seed_decides_everything() {
        let mix = "get=5,set=3,delete=1";
        let shape = || Shape { keys: 1000, ..small(mix) };
        assert_eq!(requests(shape(), 42, 500), requests(shape(), 42, 500));
        assert_ne!(requests(shape(), 42, 500), requests(shape(), 43, 500));
    }

    #[test]
    fn in_order_each_key_comes_once_with_several_threads() {
        let shape = Shape { keys: 1000, in_order: true, ..small("set=1") };
        let workload = Workload::new(shape).unwrap();
        let mut numbers = VecDeque::new();
        for thread in 0..3 {
            let mut source = workload.source(1, thread, 3);
            let mut buffer = Vec::new();
            while workload.push_request(&mut source, &mut buffer, Some(&mut numbers)).is_some() {}
        }
        assert_eq!(numbers, (0..1000).collect::<VecDeque<u64>>());
    }
}
