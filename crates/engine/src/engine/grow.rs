//! Growing a device of the store while clients are served: choosing the device, and the calls that
//! wait.
//!
//! It takes as long as the device does, so a separate thread grows one device after the other, in
//! the order of the requests. Growing to the present size changes nothing, so a client that missed
//! a reply may repeat its request.

use crate::Outcome;
use crate::engine::Engine;
use crate::engine::growths::{Ended, GrowError, Wish};
use crate::lane::Lane;
use crate::lock::lock;
use larder_log::GrowError as LogError;
use larder_log::format::tier::LABEL_AREA;
use larder_log::format::{BLOCK, LaneNumber};
use std::sync::Arc;
use std::task::Waker;
use std::thread;

impl Engine {
    /// Grows a device of the store to `bytes` while clients are served, and waits for that. The
    /// device is named as it was given, or by the number of its lane; a single device needs no
    /// name. The new space may be used at once.
    ///
    /// # Errors
    /// See [`GrowError`].
    pub fn grow(&self, name: Option<&str>, bytes: u64) -> Result<(), GrowError> {
        self.growing(name)?.grow(bytes).map_err(GrowError::Refused)?;
        // The lane should own another share of the keys now.
        self.kick_mover();
        Ok(())
    }

    /// As [`Engine::grow`], on another thread. Returns `NeedsSpace` until the growth has ended.
    pub(crate) fn request_grow(
        self: &Arc<Self>,
        name: Option<&str>,
        bytes: u64,
        waker: &Waker,
    ) -> Outcome<Result<(), GrowError>> {
        let mut growths = lock(&self.growths);
        let now_us = self.lanes[0].clock_us();
        growths.wishes.retain(|wish| !wish.is_stale(now_us));
        if let Some(result) = growths.answer(name, bytes, waker) {
            return Outcome::Ready(result);
        }
        let pending = |wish: &&mut Wish| wish.ended.is_none() && wish.is(name, bytes);
        if let Some(wish) = growths.wishes.iter_mut().find(pending) {
            if !wish.is_asked_by(waker) {
                wish.askers.push(waker.clone());
            }
            return Outcome::NeedsSpace;
        }
        if !growths.running {
            let engine = Arc::clone(self);
            let builder = thread::Builder::new().name("grower".into());
            if let Err(error) = builder.spawn(move || engine.run_growths()) {
                return Outcome::Ready(Err(GrowError::Refused(LogError::Device(error))));
            }
            growths.running = true;
        }
        let size = self.growing(name).ok().and_then(|lane| lane.growing_size());
        let (name, askers) = (name.map(str::to_owned), vec![waker.clone()]);
        growths.wishes.push(Wish { name, bytes, size, askers, ended: None });
        Outcome::NeedsSpace
    }

    /// Carries out the requests one after the other until none is left.
    fn run_growths(&self) {
        loop {
            let (name, bytes, size) = {
                let mut growths = lock(&self.growths);
                let Some(wish) = growths.wishes.iter().find(|wish| wish.ended.is_none()) else {
                    growths.running = false;
                    return;
                };
                (wish.name.clone(), wish.bytes, wish.size)
            };
            let result = match self.grow(name.as_deref(), bytes) {
                // Another request has meanwhile made the device even larger.
                Err(GrowError::Refused(LogError::Smaller { .. }))
                    if size.is_some_and(|size| bytes >= size) =>
                {
                    Ok(())
                }
                result => result,
            };
            let at_us = self.lanes[0].clock_us();
            let mut growths = lock(&self.growths);
            let Some(wish) = growths.wishes.iter_mut().find(|wish| wish.ended.is_none()) else {
                continue;
            };
            wish.ended = Some(Ended { at_us, result });
            let askers = wish.askers.clone();
            drop(growths);
            askers.into_iter().for_each(Waker::wake);
        }
    }

    /// Returns the lane of the device to grow.
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
        let number = name.parse().ok().map(LaneNumber);
        let lane = number.and_then(|number| used().find(|lane| lane.number() == number));
        lane.ok_or_else(|| GrowError::Unknown { names: names() })
    }
}

impl Lane {
    /// Returns the bytes of the store outside the device to grow, and the bytes of that device that
    /// are not the store's.
    fn beside_growing(&self) -> Option<(u64, u64)> {
        let before =
            self.log.store()?.superblock().fast_part().map_or(0, |fast| fast.total_bytes());
        Some((before, if before == 0 { 0 } else { LABEL_AREA }))
    }

    /// Returns the size of the device to grow, in bytes.
    fn growing_size(&self) -> Option<u64> {
        let (before, label) = self.beside_growing()?;
        let all = self.log.store()?.device().size();
        Some(all.saturating_sub(before).saturating_add(label))
    }

    /// Grows the lane's device, or its lower device if there is one, to `bytes`.
    fn grow(&self, bytes: u64) -> Result<(), LogError> {
        let (before, label) = self.beside_growing().ok_or(LogError::NoStore)?;
        let bytes = bytes - bytes % BLOCK as u64;
        let there = |all: u64| all.saturating_sub(before).saturating_add(label);
        let all = bytes.saturating_sub(label).saturating_add(before);
        self.log.grow(all).map_err(|error| match error {
            LogError::Smaller { size } => LogError::Smaller { size: there(size) },
            LogError::TooLittle { least } => LogError::TooLittle { least: there(least) },
            LogError::TooLarge { most } => LogError::TooLarge { most: there(most) },
            error => error,
        })?;
        // Waits for a cleaner turn that began before the growth and does not know of it.
        let turn = lock(&self.cleaning);
        self.set_full(None);
        drop(turn);
        self.wake_waiting();
        self.kick_cleaner();
        Ok(())
    }
}
