//! Grows devices of the store while clients are served.
//!
//! Growing waits for the device, so a separate thread grows one device after the other, in the
//! order of the requests. Growing to the present size changes nothing, so a client that missed a
//! reply may repeat its request.

use crate::Outcome;
use crate::engine::Engine;
use crate::engine::grow_requests::{Ended, GrowError, GrowRequest};
use crate::lane::DurableLane;
use crate::lock::lock;
use larder_log::GrowError as LogError;
use larder_log::format::tier::LABEL_AREA;
use larder_log::format::{BLOCK, LaneNumber};
use std::sync::Arc;
use std::task::Waker;
use std::thread;

impl Engine {
    /// Grows a device of the store to `bytes`. Waits until the growth has ended; clients are served
    /// meanwhile. `name` is the device's name or the number of its lane. It may be `None` if the
    /// store has a single device. The new space may be used at once.
    ///
    /// # Errors
    /// See [`GrowError`].
    pub fn grow(&self, name: Option<&str>, bytes: u64) -> Result<(), GrowError> {
        self.growing(name)?.grow(bytes).map_err(GrowError::Refused)?;
        // With more space, the lane should own more partitions. The mover moves them.
        self.kick_mover();
        Ok(())
    }

    /// Grows a device as [`Engine::grow`] does, but on another thread. Returns `NeedsSpace` until
    /// the growth has ended.
    pub(crate) fn request_grow(
        self: &Arc<Self>,
        name: Option<&str>,
        bytes: u64,
        waker: &Waker,
    ) -> Outcome<Result<(), GrowError>> {
        let mut growths = lock(&self.growths);
        let now_us = self.lanes[0].clock_us();
        growths.requests.retain(|request| !request.is_stale(now_us));
        if let Some(result) = growths.answer(name, bytes, waker) {
            return Outcome::Ready(result);
        }
        let pending =
            |request: &&mut GrowRequest| request.ended.is_none() && request.is(name, bytes);
        if let Some(request) = growths.requests.iter_mut().find(pending) {
            if !request.has_waiter(waker) {
                request.waiters.push(waker.clone());
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
        let size = self.growing(name).ok().map(DurableLane::growing_size);
        let (name, waiters) = (name.map(str::to_owned), vec![waker.clone()]);
        growths.requests.push(GrowRequest { name, bytes, size, waiters, ended: None });
        Outcome::NeedsSpace
    }

    /// Carries out the requests one after the other until none is left.
    fn run_growths(&self) {
        loop {
            let (name, bytes, size) = {
                let mut growths = lock(&self.growths);
                let Some(request) = growths.requests.iter().find(|request| request.ended.is_none())
                else {
                    growths.running = false;
                    return;
                };
                (request.name.clone(), request.bytes, request.size)
            };
            let result = match self.grow(name.as_deref(), bytes) {
                // When this request was made, `bytes` was not less than the device's size. Since
                // then another request has made the device larger than `bytes`, so this request is
                // fulfilled.
                Err(GrowError::Refused(LogError::Smaller { .. }))
                    if size.is_some_and(|size| bytes >= size) =>
                {
                    Ok(())
                }
                result => result,
            };
            let at_us = self.lanes[0].clock_us();
            let mut growths = lock(&self.growths);
            let Some(request) = growths.requests.iter_mut().find(|request| request.ended.is_none())
            else {
                continue;
            };
            request.ended = Some(Ended { at_us, result });
            let waiters = request.waiters.clone();
            drop(growths);
            waiters.into_iter().for_each(Waker::wake);
        }
    }

    /// Returns the lane of the device to grow.
    fn growing(&self, name: Option<&str>) -> Result<DurableLane<'_>, GrowError> {
        let used = self.lanes.iter().filter(|lane| self.is_used(lane));
        let used: Vec<_> = used.filter_map(|lane| lane.durable()).collect();
        if used.is_empty() {
            return Err(GrowError::Refused(LogError::NoStore));
        }
        let used = || used.iter().copied();
        let names = || {
            let both = |lane: DurableLane<'_>| {
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

impl DurableLane<'_> {
    /// Returns two sizes in bytes. The first is the size of the part of the store on the fast
    /// device. The second is the size of the label area at the start of the lower device, which is
    /// no part of the store. Both sizes are 0 without a lower device.
    fn beside_growing(self) -> (u64, u64) {
        let before = self.log.store.superblock().fast_part().map_or(0, |fast| fast.total_bytes());
        (before, if before == 0 { 0 } else { LABEL_AREA })
    }

    /// Returns the size of the device to grow, in bytes.
    fn growing_size(self) -> u64 {
        let (before, label) = self.beside_growing();
        self.log.store.device().size().saturating_sub(before).saturating_add(label)
    }

    /// Grows the lane's device, or its lower device if there is one, to `bytes`.
    fn grow(self, bytes: u64) -> Result<(), LogError> {
        let (before, label) = self.beside_growing();
        let bytes = bytes - bytes % BLOCK as u64;
        let there = |all: u64| all.saturating_sub(before).saturating_add(label);
        let all = bytes.saturating_sub(label).saturating_add(before);
        self.log.grow(all).map_err(|error| match error {
            LogError::Smaller { size } => LogError::Smaller { size: there(size) },
            LogError::TooLittle { least } => LogError::TooLittle { least: there(least) },
            LogError::TooLarge { most } => LogError::TooLarge { most: there(most) },
            error => error,
        })?;
        // A cleaner turn that began before the growth may still declare the lane full. So this
        // function waits until that turn has ended.
        let turn = lock(&self.cleaning);
        self.set_full(None);
        drop(turn);
        self.wake_waiting();
        self.kick_cleaner();
        Ok(())
    }
}
