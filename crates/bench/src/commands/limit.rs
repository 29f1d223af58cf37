//! `larder bench limit`: the load of `larder bench load` against a responder that only sends
//! replies. On this machine, no server with the same kernel interface (`--io`) can be cheaper than
//! the responder. With `--device`, the responder reads the device for every key, so no server that
//! reads every value from the device can be cheaper.

use std::path::PathBuf;

use clap::Args;

use super::load::Traffic;
use super::output::{JsonFile, print_summary, summary_table};
use crate::responder::Responder;
use crate::{Error, Result};

/// The load, and the kernel interface to use.
#[derive(Clone, Debug, Args)]
pub struct LimitArguments {
    /// Kernel interface of the responder: auto, epoll or uring
    #[arg(long, default_value = "auto")]
    io: String,
    /// Processor to run the responder on
    #[arg(long, value_name = "CPU")]
    server_cpu: Option<usize>,
    /// Number of threads of the responder
    #[arg(long, value_name = "THREADS", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    server_threads: u16,
    /// File or block device from which the responder reads the bytes of a value before it answers a
    /// key of a get. It must not be in use, and a file must have been written from end to end
    #[arg(long, value_name = "PATH")]
    device: Option<PathBuf>,
    #[command(flatten)]
    traffic: Traffic,
    #[command(flatten)]
    json: JsonFile,
    /// Do not print a line every second
    #[arg(long)]
    quiet: bool,
}

impl LimitArguments {
    pub(super) fn run(self) -> Result<()> {
        let shape = self.traffic.shape();
        let responder = Responder::start_on(
            &self.io,
            self.server_cpu,
            shape.value_lengths.max,
            self.server_threads.into(),
            self.device.as_deref(),
        )?;
        let mut load = self.traffic.load(responder.address.clone())?;
        if load.verify {
            return Err(Error::usage("the responder stores nothing: there is nothing to verify"));
        }
        load.progress = !self.quiet;
        load.probe = Some(responder.probe.clone());
        let summary = load.run(shape)?;
        print_summary(&summary);
        self.json.write(summary_table(&summary), &summary)
    }
}
