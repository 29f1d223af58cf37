//! Which keys are used: the hottest keys, by sampling the requests; items, bytes and times to live
//! by prefix and the largest items, by sampling the index; the keys that rate limits refuse most. The
//! admin port shows them.
//!
//! Invariants: sampling allocates no memory that grows with the number of keys or clients. No worker
//! waits for it.

mod aged;
mod answer;
mod hot;
mod prefix;
mod refused;
mod report;
mod sampler;
mod sampling;
mod sketch;
mod survey;
mod tree;
mod window;

pub(crate) use hot::HotKeys;
pub(crate) use prefix::Prefixes;
pub(crate) use refused::{RefusedKey, RefusedKeys, RefusedList};
pub(crate) use report::report;
pub(crate) use sampler::{KeySampler, SampledRequest};
pub(crate) use sampling::Sampling;
pub(crate) use survey::{Survey, SurveyThread};
