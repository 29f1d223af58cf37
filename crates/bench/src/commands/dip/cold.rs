//! Cold items, which the measured load never requests. A large store consists mostly of such items,
//! and the server's work for hot items must not grow with the number of cold items.

use std::thread;

use clap::Args;
use serde::Serialize;

use super::super::load::fill;
use super::super::output::megabytes;
use crate::generator::{Load, Pacing, Summary};
use crate::launch::RunningServer;
use crate::workload::{Lengths, Mix, Shape, Verb};
use crate::{Error, Result, complain};

/// Number of connections that delete cold items.
const DELETERS: usize = 4;

/// The cold items.
#[derive(Clone, Debug, Args)]
pub(super) struct Cold {
    /// Number of cold items: they are stored first, and the load never requests them
    #[arg(long = "cold", value_name = "ITEMS", default_value_t = 0)]
    cold_items: u64,
    /// Bytes of the value of a cold item: a number or a range
    #[arg(long, value_name = "BYTES", default_value = "1000")]
    cold_size: Lengths,
    /// Time to live of cold items, in seconds; 0 is forever. If it is shorter than the run, all of
    /// them expire during the run
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    cold_ttl: u32,
    /// Number of deletes of random cold items to send per second while the load runs
    #[arg(long, value_name = "PER_SECOND", default_value_t = 0.0)]
    cold_deletes: f64,
}

impl Cold {
    fn shape(&self, mix: Mix) -> Shape {
        Shape {
            mix,
            keys: self.cold_items,
            prefix: "cold-".into(),
            value_lengths: self.cold_size,
            ttl: self.cold_ttl,
            ..Shape::default()
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.cold_deletes > 0.0 && self.cold_items == 0 {
            return Err(Error::usage("--cold-deletes needs --cold"));
        }
        Ok(())
    }

    /// Stores all cold items.
    pub(super) fn fill(&self, load: &Load) -> Result<()> {
        if self.cold_items == 0 {
            return Ok(());
        }
        complain!("storing {} cold items", self.cold_items);
        let load = Load { progress: false, probe: None, ..load.clone() };
        fill(&load, &self.shape(Mix::only(Verb::Set)), true)
    }

    /// Runs the load. Deletes cold items during the run if `--cold-deletes` is set.
    pub(super) fn run_beside(&self, load: &Load, shape: Shape) -> Result<Summary> {
        if self.cold_deletes == 0.0 {
            return load.run(shape);
        }
        let deletes = Load {
            connections: DELETERS,
            pacing: Pacing::Constant(self.cold_deletes),
            progress: false,
            probe: None,
            ..load.clone()
        };
        let cold = self.shape(Mix::only(Verb::Delete));
        thread::scope(|scope| {
            let deleting = scope.spawn(|| deletes.run(cold)?.without_errors());
            let loaded = load.run(shape);
            match deleting.join() {
                Ok(deleted) => deleted.and(loaded),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Describes the cold items in the setup of a report.
    pub(super) fn describe(&self) -> String {
        if self.cold_items == 0 {
            return String::new();
        }
        let ttl = if self.cold_ttl > 0 {
            format!(", expiring after {} s", self.cold_ttl)
        } else {
            String::new()
        };
        let deletes = match self.cold_deletes > 0.0 {
            true => format!(", {:.0} of them deleted per second", self.cold_deletes),
            false => String::new(),
        };
        format!("; beside {} cold items of {} bytes{ttl}{deletes}", self.cold_items, self.cold_size)
    }
}

/// The bytes of segments that Larder freed, and what it read and wrote for this.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct FreeingCost {
    /// Bytes of records in freed segments.
    pub(super) freed: u64,
    /// Bytes of dead maps written.
    pub(super) maps: u64,
    /// Bytes of segments that were read whole, for example to clean them.
    pub(super) read: u64,
}

impl FreeingCost {
    /// Returns the cost since the server's start; `None` if the server does not report it.
    pub(super) fn of(server: &RunningServer) -> Option<FreeingCost> {
        Some(FreeingCost {
            freed: server.stat("larder_freed_bytes").ok()?,
            maps: server.stat("larder_map_written_bytes").ok()?,
            read: server.stat("larder_segment_read_bytes").ok()?,
        })
    }

    pub(super) fn since(self, before: FreeingCost) -> FreeingCost {
        FreeingCost {
            freed: self.freed - before.freed,
            maps: self.maps - before.maps,
            read: self.read - before.read,
        }
    }

    pub(super) fn line(self) -> String {
        format!(
            "; freed {}, wrote {} of dead maps and read {} of segments for it",
            megabytes(self.freed),
            megabytes(self.maps),
            megabytes(self.read)
        )
    }
}
