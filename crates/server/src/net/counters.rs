//! Counters of one worker. Only the worker writes them; any thread may read them at any time. So
//! counting costs a plain load and a plain store, and no locked instruction.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number with one writer and any number of readers.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Returns the present value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Adds `n`. Only the writing thread may call this, because the load and the store are separate
    /// steps.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Subtracts `n`. Only the writing thread may call this.
    #[inline]
    pub(super) fn sub(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(n), Relaxed);
    }

    /// Adds `after` - `before`. Only the writing thread may call this.
    #[inline]
    pub(super) fn adjust(&self, before: usize, after: usize) {
        if before != after {
            self.add(after as u64);
            self.sub(before as u64);
        }
    }
}

/// Declares the counters of one worker, and their sums over all workers.
macro_rules! counters {
    ($scope:vis $counters:ident, $totals:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        /// Counts of one worker since it started. Only its thread writes them.
        #[derive(Debug, Default)]
        $scope struct $counters { $($(#[$doc])* $scope $name: Counter,)* }

        /// The sums of all workers' counts.
        #[derive(Clone, Copy, Debug, Default)]
        $scope struct $totals { $($(#[$doc])* $scope $name: u64,)* }

        impl $totals {
            /// Adds the counts of one worker.
            pub(crate) fn add(&mut self, counters: &$counters) {
                $(self.$name += counters.$name.get();)*
            }

            /// Returns the counts since `earlier`.
            pub(crate) fn since(&self, earlier: &$totals) -> $totals {
                $totals { $($name: self.$name.wrapping_sub(earlier.$name),)* }
            }
        }
    };
}
pub(crate) use counters;

counters! { pub Counters, LoopTotals {
    /// Connections that are open now.
    current_connections,
    /// Connections accepted since the start.
    total_connections,
    /// Connections rejected because there were too many connections.
    rejected_connections,
    /// Connections closed after the idle timeout.
    idle_closed,
    /// Connections closed because all connections together kept too much memory.
    refused_buffers,
    /// Connections closed because the service left too much of their input unconsumed:
    /// `MAX_INPUT_HELD` bytes or more.
    input_overflows,
    /// `accept` calls that failed for lack of descriptors or memory.
    accept_errors,
    /// Bytes received from clients.
    bytes_read,
    /// Bytes sent to clients.
    bytes_written,
    /// Completed reads (system calls, or completions of io_uring).
    reads,
    /// Completed writes, counted like `reads`.
    writes,
    /// Calls of the service's `process`.
    processed,
    /// Number of times that output was kept because the client did not read its replies.
    output_stalls,
    /// Number of times that a connection had to continue in a later turn, so that other connections
    /// could run.
    yields,
    /// Turns of the loop.
    turns,
    /// Bytes in connections' buffers now: unconsumed input and unsent output.
    buffer_bytes,
} }
