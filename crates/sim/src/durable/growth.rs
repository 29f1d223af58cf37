//! Operations of worlds whose devices grow while in use. Sometimes a device fails or the power
//! fails during the growth.

use super::{Check, DurableWorld};
use larder_disk::{Device, Operation};
use larder_engine::{GrowError, LaneState, LogGrowError};
use std::sync::Arc;

/// The largest size of a device, in bytes. It is small enough for a device to become full.
const MOST: u64 = 40 << 20;
/// The largest growth of a device per call, in bytes.
const STEP: u64 = 4 << 20;

impl DurableWorld {
    /// Grows a device, usually by some segments.
    pub(super) fn grow(&mut self) -> Check {
        self.finish_held_commit()?;
        let lanes = self.needed();
        let LaneState { name, lower, .. } = &lanes[self.pick(lanes.len())];
        let Some(part) = self.machine.part(name).cloned() else { return Ok(()) };
        let device = match (lower, &part.lower) {
            (Some(_), Some(device)) => Arc::clone(device),
            (None, _) => Arc::clone(&part.device),
            (Some(lower), None) => return Err(format!("{lower} is not there")),
        };
        let (before, size) = (device.size(), device.size() + self.random.below(STEP));
        if size > MOST {
            return Ok(());
        }
        match self.random.below(6) {
            0 | 1 => device.stop_at(device.counts().changes() + 1 + self.random.below(6)),
            2 => {
                let sync = self.random.one_in(2);
                let position = self.engine.lanes().iter().position(|lane| lane.name == *name);
                let operation = if sync { Operation::Sync } else { Operation::Write };
                self.fail_next(position.unwrap_or(0), operation)?;
            }
            _ => {}
        }
        let grow = || self.engine.grow(Some(lower.as_ref().unwrap_or(name)), size);
        let mut grown = grow();
        if self.machine.is_stopped() {
            // The stop left the device with either its old or its new size. The next start accepts
            // both.
            return Ok(());
        }
        if let Err(GrowError::Refused(LogGrowError::Device(_))) = grown {
            part.devices().for_each(|device| device.mend());
            grown = grow();
        }
        match grown {
            Ok(()) if device.size() == size - size % 4096 => self.counts.grown += 1,
            Err(GrowError::Refused(LogGrowError::TooLittle { least })) if least > size => {}
            grown => return Err(format!("{name} of {before} bytes grows to {size}: {grown:?}")),
        }
        Ok(())
    }
}
