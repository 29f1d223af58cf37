//! Statistics of keys for the admin port. Samples of requests give the hottest keys. Samples of the
//! index give items, bytes and times to live by prefix, and the largest items. Counts of refused
//! requests give the keys that rate limits refuse most.
//!
//! Invariants: sampling allocates no memory that grows with the number of keys or clients. A worker
//! that takes a sample never waits for a lock.

mod aged;
mod answer;
mod hot;
mod item_sampling;
mod prefix;
mod refused;
mod report;
mod sampler;
mod sampling;
mod sketch;
mod tree;
mod window;

pub(crate) use hot::HotKeys;
pub(crate) use item_sampling::{ItemSampling, ItemSamplingThread};
pub(crate) use prefix::Prefixes;
pub(crate) use refused::{RefusedKey, RefusedKeys, RefusedList};
pub(crate) use report::report;
pub(crate) use sampler::{KeySampler, SampledRequest};
pub(crate) use sampling::Sampling;
