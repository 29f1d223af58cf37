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
    /// The experiments of four articles against every system that is here, as one report
    All(all::Arguments),
    /// Two results of `all` side by side
    Diff(diff::Arguments),
    /// Load any memcached-compatible server and report rates, latencies and its cost per request
    Load(load::Arguments),
    /// Load a responder that does nothing but answer: the physical limit of this machine
    Limit(limit::Arguments),
    /// Larder, the responder and peers side by side: the standard table
    Compare(compare::Arguments),
    /// Resident bytes per item, Larder and peers
    Memory(memory::Arguments),
    /// Increment one key from 1 to N connections; every reply must be a number of its own
    Counters(counters::Arguments),
    /// Replay a trace: get, and set what was missed
    Replay(replay::Arguments),
    /// Miss ratios of Larder and peers at equal resident memory
    Hitratio(hitratio::Arguments),
    /// Second by second: a load that writes a store several times over, and its worst second
    Dip(dip::Arguments),
    /// What background work costs by how many segments a store has, counted
    Growth(growth::Arguments),
    /// What threads cost each other: the engine without sockets, by one thread and by several
    Cores(cores::Arguments),
    /// Polite clients beside crowds that are slow, rude or greedy, with Larder and peers
    Hostile(hostile::Arguments),
    /// The report of `larder bench all`, drawn again from its results
    Report(report::Arguments),
    /// Result files of these commands as Markdown tables
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
