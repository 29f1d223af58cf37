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

/// The measurements of `larder bench …`, and their results.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run the experiments of four articles against all installed systems; write one report
    All(all::Arguments),
    /// Compare two results of `larder bench all`
    Diff(diff::Arguments),
    /// Load any memcached-compatible server; report rates, latencies and the cost per request
    Load(load::Arguments),
    /// Load a responder that only sends replies, to find the physical limit of this machine
    Limit(limit::Arguments),
    /// Compare Larder, other servers and the responder of `limit` under standard loads
    Compare(compare::Arguments),
    /// Measure the resident memory per item of Larder and other servers
    Memory(memory::Arguments),
    /// Increment one counter over 1 to N connections, and check that no increment is lost
    Counters(counters::Arguments),
    /// Replay a trace of requests: get each key, and set it if it was missed
    Replay(replay::Arguments),
    /// Compare the miss ratios of Larder and other servers at equal resident memory
    Hitratio(hitratio::Arguments),
    /// Overwrite a store several times at a steady rate, and report the worst second
    Dip(dip::Arguments),
    /// Measure how the cost of background work depends on the number of a store's segments
    Growth(growth::Arguments),
    /// Measure how much threads slow each other down in the engine, without sockets
    Cores(cores::Arguments),
    /// Measure well-behaved clients beside crowds of slow, rude or greedy ones
    Hostile(hostile::Arguments),
    /// Draw the report of `larder bench all` again from its results
    Report(report::Arguments),
    /// Print result files of these commands as Markdown tables
    Table(table::Arguments),
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
