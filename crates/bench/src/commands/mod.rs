//! The lab's commands.

mod all;
mod compare;
mod cores;
mod counters;
mod diff;
mod dip;
mod growth;
pub(crate) mod hitratio;
mod hostile;
mod limit;
mod load;
mod memory;
pub(crate) mod output;
mod replay;
mod report;
mod table;

use clap::Subcommand;

use crate::Result;
use all::AllArguments;
use compare::CompareArguments;
use cores::CoresArguments;
use counters::CountersArguments;
use diff::DiffArguments;
use dip::DipArguments;
use growth::GrowthArguments;
use hitratio::HitratioArguments;
use hostile::HostileArguments;
use limit::LimitArguments;
use load::LoadArguments;
use memory::MemoryArguments;
use replay::ReplayArguments;
use report::ReportArguments;
use table::TableArguments;

/// The measurements of `larder bench …`, and their results.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run the experiments of four articles against all installed systems; write one report
    All(AllArguments),
    /// Compare two results of `larder bench all`
    Diff(DiffArguments),
    /// Load any memcached-compatible server; report rates, latencies and the cost per request
    Load(LoadArguments),
    /// Load a responder that only sends replies, to find the physical limit of this machine
    Limit(LimitArguments),
    /// Compare Larder, other servers and the responder of `limit` under standard loads
    Compare(CompareArguments),
    /// Measure the resident memory per item of Larder and other servers
    Memory(MemoryArguments),
    /// Increment one counter over 1 to N connections, and check that no increment is lost
    Counters(CountersArguments),
    /// Replay a trace of requests: get each key, and set it if it was missed
    Replay(ReplayArguments),
    /// Compare the miss ratios of Larder and other servers at equal resident memory
    Hitratio(HitratioArguments),
    /// Overwrite a store several times at a steady rate, and report the worst second
    Dip(DipArguments),
    /// Measure how the cost of background work depends on the number of a store's segments
    Growth(GrowthArguments),
    /// Measure how much threads slow each other down in the engine, without sockets
    Cores(CoresArguments),
    /// Measure well-behaved clients beside crowds of slow, rude or greedy ones
    Hostile(HostileArguments),
    /// Draw the report of `larder bench all` again from its results
    Report(ReportArguments),
    /// Print result files of these commands as Markdown tables
    Table(TableArguments),
}

impl Command {
    /// Runs the command and prints its report on the standard output.
    ///
    /// # Errors
    /// Returns an error if there are no figures, for example because the server sent a wrong
    /// answer.
    pub fn run(self) -> Result<()> {
        match self {
            Command::All(arguments) => arguments.run(),
            Command::Diff(arguments) => arguments.run(),
            Command::Load(arguments) => arguments.run(),
            Command::Limit(arguments) => arguments.run(),
            Command::Compare(arguments) => arguments.run(),
            Command::Memory(arguments) => arguments.run(),
            Command::Counters(arguments) => arguments.run(),
            Command::Replay(arguments) => arguments.run(),
            Command::Hitratio(arguments) => arguments.run(),
            Command::Dip(arguments) => arguments.run(),
            Command::Growth(arguments) => arguments.run(),
            Command::Cores(arguments) => arguments.run(),
            Command::Hostile(arguments) => arguments.run(),
            Command::Report(arguments) => arguments.run(),
            Command::Table(arguments) => arguments.run(),
        }
    }
}
