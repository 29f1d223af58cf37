//! Counters of one worker. Only the worker writes them; any thread may read them at any time. So
//! counting costs the hot path a plain load and store, and no locked instruction.

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
    pub(super) fn add(&self, n: u64) {
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

/// Counts of one worker since it started.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that are open now.
    pub current_connections: Counter,
    /// Connections accepted since the start.
    pub total_connections: Counter,
    /// Connections rejected because there were too many connections.
    pub rejected_connections: Counter,
    /// Connections closed after the idle timeout.
    pub idle_closed: Counter,
    /// Connections closed because all connections together kept too much memory.
    pub refused_buffers: Counter,
    /// Connections closed because they left more input unconsumed than a connection may keep.
    pub input_overflows: Counter,
    /// `accept` calls that failed for lack of descriptors or memory.
    pub accept_errors: Counter,
    /// Bytes received from clients.
    pub bytes_read: Counter,
    /// Bytes sent to clients.
    pub bytes_written: Counter,
    /// Completed reads (system calls with epoll, completions with io_uring).
    pub reads: Counter,
    /// Completed writes, counted like `reads`.
    pub writes: Counter,
    /// Calls of the service's `process`.
    pub processed: Counter,
    /// Times that a connection had to wait because its client did not read replies.
    pub output_stalls: Counter,
    /// Times that a connection had to continue in a later turn, so that others could run.
    pub yields: Counter,
    /// Turns of the loop.
    pub turns: Counter,
    /// Bytes in connections' buffers now: unconsumed input and unsent output.
    pub buffer_bytes: Counter,
}
