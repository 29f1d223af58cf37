//! The counters of event loops and commands, summed over all workers.

use crate::command::CommandTotals;
use crate::net::LoopTotals;

/// The sum of all workers' counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NetTotals {
    pub(crate) loops: LoopTotals,
    pub(crate) commands: CommandTotals,
    /// Connections that spoke HTTP.
    pub(crate) http: u64,
}

impl NetTotals {
    /// Returns the counts since `earlier`. Connections and buffer bytes keep their present values.
    pub(crate) fn since(&self, earlier: &NetTotals) -> NetTotals {
        let LoopTotals { current_connections, buffer_bytes, .. } = self.loops;
        let loops = self.loops.since(&earlier.loops);
        NetTotals {
            loops: LoopTotals { current_connections, buffer_bytes, ..loops },
            commands: self.commands.since(&earlier.commands),
            http: self.http.wrapping_sub(earlier.http),
        }
    }
}
