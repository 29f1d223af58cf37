//! The counters of event loops and commands, summed over all workers.

use crate::command::CounterTotals;
use crate::net::Counters;

/// The sum of all workers' counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NetTotals {
    pub(crate) current: u64,
    pub(crate) total: u64,
    pub(crate) rejected: u64,
    pub(crate) idle_closed: u64,
    pub(crate) refused_buffers: u64,
    pub(crate) accept_errors: u64,
    /// Connections that spoke HTTP.
    pub(crate) http: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) yields: u64,
    pub(crate) stalls: u64,
    pub(crate) turns: u64,
    pub(crate) buffer_bytes: u64,
    pub(crate) commands: CounterTotals,
}

impl NetTotals {
    /// Adds the counters of one worker's event loop.
    pub(crate) fn add(&mut self, counters: &Counters) {
        self.current += counters.current_connections.get();
        self.total += counters.total_connections.get();
        self.rejected += counters.rejected_connections.get();
        self.idle_closed += counters.idle_closed.get();
        self.refused_buffers += counters.refused_buffers.get();
        self.accept_errors += counters.accept_errors.get();
        self.bytes_read += counters.bytes_read.get();
        self.bytes_written += counters.bytes_written.get();
        self.reads += counters.reads.get();
        self.writes += counters.writes.get();
        self.yields += counters.yields.get();
        self.stalls += counters.output_stalls.get();
        self.turns += counters.turns.get();
        self.buffer_bytes += counters.buffer_bytes.get();
    }

    /// Returns the number of meta commands.
    pub(crate) fn meta(&self) -> u64 {
        self.commands.meta_commands
    }

    /// Returns the number of connections closed because a value vanished while it was being sent.
    pub(crate) fn values_cut(&self) -> u64 {
        self.commands.values_cut
    }

    /// Returns the counts since `earlier`. The number of open connections stays as it is.
    pub(crate) fn since(mut self, earlier: &NetTotals) -> NetTotals {
        let pairs = [
            (&mut self.total, earlier.total),
            (&mut self.rejected, earlier.rejected),
            (&mut self.idle_closed, earlier.idle_closed),
            (&mut self.refused_buffers, earlier.refused_buffers),
            (&mut self.accept_errors, earlier.accept_errors),
            (&mut self.http, earlier.http),
            (&mut self.bytes_read, earlier.bytes_read),
            (&mut self.bytes_written, earlier.bytes_written),
            (&mut self.reads, earlier.reads),
            (&mut self.writes, earlier.writes),
            (&mut self.yields, earlier.yields),
            (&mut self.stalls, earlier.stalls),
            (&mut self.turns, earlier.turns),
            (&mut self.commands.meta_commands, earlier.commands.meta_commands),
            (&mut self.commands.values_cut, earlier.commands.values_cut),
        ];
        for (now, before) in pairs {
            *now = now.wrapping_sub(before);
        }
        self
    }
}
