//! A device of the store grows while clients are served: which one, and who waits for that.
//!
//! It takes as long as the device does, so a thread of its own does it, one growth after the other. To grow to
//! a size that is there already changes nothing: whoever missed an answer may ask again.

use crate::Outcome;
use crate::engine::Engine;
use crate::lane::{Lane, lock};
use larder_log::GrowError as LogError;
use larder_log::format::BLOCK;
use larder_log::format::tier::LABEL_AREA;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::thread;

/// An answer that nobody has fetched for so long, in microseconds, is nobody's.
const STALE_US: u64 = 1_000_000;

/// Why a device does not grow. Nothing that is used has changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum GrowError {
    /// There are several, and none is named.
    Which {
        /// What they are called.
        names: Vec<String>,
    },
    /// No device of the store is called so.
    Unknown {
        /// What they are called.
        names: Vec<String>,
    },
    /// The store goes on behind it, on its lower device.
    HasLower {
        /// What that is called.
        lower: String,
    },
    /// The log of the device refuses.
    Refused(LogError),
}

impl fmt::Display for GrowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrowError::Which { names } => {
                write!(f, "the store has several devices, name one: {}", names.join(", "))
            }
            GrowError::Unknown { names } => {
                write!(f, "no device of the store is called so; there are {}", names.join(", "))
            }
            GrowError::HasLower { lower } => write!(
                f,
                "it has a lower device and cannot grow any more: grow the lower one, {lower}"
            ),
            GrowError::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for GrowError {}

/// What sessions want to grow, and what came of it.
#[derive(Debug, Default)]
pub(crate) struct Growths {
    running: bool,
    ended: Option<Ended>,
    waiting: Vec<Waker>,
}

#[derive(Debug)]
struct Ended {
    name: Option<String>,
    bytes: u64,
    at_us: u64,
    result: Result<(), GrowError>,
}

impl Engine {
    /// Grows a device of the store to `bytes` while clients are served, and waits for it. The device is named
    /// as it was given, or by the number of its lane; where there is only one it needs no name. What came
    /// to be may be used at once.
    ///
    /// # Errors
    /// See [`GrowError`].
    pub fn grow(&self, name: Option<&str>, bytes: u64) -> Result<(), GrowError> {
        self.growing(name)?.grow(bytes).map_err(GrowError::Refused)?;
        // It should have another share of the keys now.
        self.kick_mover();
        Ok(())
    }

    /// As [`Engine::grow`], in a thread of its own: `NeedsSpace` until it has ended.
    pub(crate) fn request_grow(
        self: &Arc<Self>,
        name: Option<&str>,
        bytes: u64,
        waker: &Waker,
    ) -> Outcome<Result<(), GrowError>> {
        let mut growths = lock(&self.growths);
        let now = self.lanes[0].clock_us();
        let is_it = |ended: &mut Ended| {
            let (asked, age) = (ended.name.as_deref(), now.saturating_sub(ended.at_us));
            asked == name && ended.bytes == bytes && age < STALE_US
        };
        if let Some(ended) = growths.ended.take_if(is_it) {
            return Outcome::Ready(ended.result);
        }
        if !growths.running {
            let (engine, name) = (Arc::clone(self), name.map(str::to_owned));
            let builder = thread::Builder::new().name("grower".into());
            if let Err(error) = builder.spawn(move || engine.run_growth(name, bytes)) {
                return Outcome::Ready(Err(GrowError::Refused(LogError::Device(error))));
            }
            growths.running = true;
        }
        growths.waiting.push(waker.clone());
        Outcome::NeedsSpace
    }

    fn run_growth(&self, name: Option<String>, bytes: u64) {
        let result = self.grow(name.as_deref(), bytes);
        let at_us = self.lanes[0].clock_us();
        let waiting = {
            let mut growths = lock(&self.growths);
            growths.running = false;
            growths.ended = Some(Ended { name, bytes, at_us, result });
            std::mem::take(&mut growths.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The lane of the device that is to grow.
    fn growing(&self, name: Option<&str>) -> Result<&Arc<Lane>, GrowError> {
        if self.options().store.is_none() {
            return Err(GrowError::Refused(LogError::NoStore));
        }
        let used = || self.lanes.iter().filter(|lane| self.is_used(lane));
        let names = || {
            let both = |lane: &Arc<Lane>| {
                [Some(lane.name().to_owned()), lane.lower_name().map(str::to_owned)]
            };
            used().flat_map(both).flatten().collect::<Vec<_>>()
        };
        let Some(name) = name else {
            let mut all = used().filter(|lane| lane.lower_name().is_none());
            return match (all.next(), used().count()) {
                (Some(only), 1) => Ok(only),
                _ => Err(GrowError::Which { names: names() }),
            };
        };
        if let Some(lane) = used().find(|lane| lane.lower_name() == Some(name)) {
            return Ok(lane);
        }
        if let Some(lane) = used().find(|lane| lane.name() == name) {
            return match lane.lower_name() {
                None => Ok(lane),
                Some(lower) => Err(GrowError::HasLower { lower: lower.to_owned() }),
            };
        }
        let number: Option<usize> = name.parse().ok();
        let lane = number.and_then(|number| used().find(|lane| lane.number() == number));
        lane.ok_or_else(|| GrowError::Unknown { names: names() })
    }
}

impl Lane {
    /// Grows its device, or the lower one if there is one, to `bytes`.
    fn grow(&self, bytes: u64) -> Result<(), LogError> {
        let store = self.log.store().ok_or(LogError::NoStore)?;
        // What of the store does not lie on that device.
        let before = store.superblock().fast_part().map_or(0, |fast| fast.total_bytes());
        let label = if before == 0 { 0 } else { LABEL_AREA };
        let bytes = bytes - bytes % BLOCK as u64;
        let there = |all: u64| all.saturating_sub(before).saturating_add(label);
        let all = bytes.saturating_sub(label).saturating_add(before);
        self.log.grow(all).map_err(|error| match error {
            LogError::Smaller { size } => LogError::Smaller { size: there(size) },
            LogError::TooLittle { least } => LogError::TooLittle { least: there(least) },
            LogError::TooLarge { most } => LogError::TooLarge { most: there(most) },
            error => error,
        })?;
        // A turn of the cleaner that began before knows nothing of it.
        let turn = lock(&self.cleaning);
        self.set_full(None);
        drop(turn);
        self.wake_waiting();
        self.kick_cleaner();
        Ok(())
    }
}
