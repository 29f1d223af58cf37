//! Threads that read from the store for sessions: all records if a session has no read queue. For
//! other sessions, they read large values, and records that the queue did not accept or could not
//! read.

use crate::lane::{DurableLane, Lane};
use crate::lock::lock;
use crate::reads::requests::{Read, Readers, Request};
use larder_log::RecordId;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// The number of reader threads of a lane. Each waits for one read at a time.
const READERS: usize = 8;

/// Pause of a reader when the operating system has no memory for a value.
const NO_MEMORY: Duration = Duration::from_millis(10);

/// Starts the reader threads. While they wait, these threads hold only weak references to the lane,
/// so the lane can end.
pub(crate) fn spawn(lane: &Arc<Lane>) -> io::Result<()> {
    for number in 0..READERS {
        let (weak, readers) = (Arc::downgrade(lane), Arc::clone(&lane.readers));
        let builder = thread::Builder::new().name(format!("reader-{number}"));
        builder.spawn(move || run(&weak, &readers))?;
    }
    Ok(())
}

fn run(weak: &Weak<Lane>, readers: &Readers) {
    while let Some(request) = readers.wait() {
        let Some(lane) = weak.upgrade() else { return };
        if let Some(durable) = lane.durable() {
            durable.serve(request);
        }
    }
}

impl Lane {
    /// Serves all queued requests in the calling thread, for engines without threads. Returns true
    /// if there were any.
    pub(crate) fn serve_reads(&self) -> bool {
        let Some(durable) = self.durable() else { return false };
        let mut any = false;
        loop {
            let Some(request) = lock(&self.readers.queue).pop_front() else { return any };
            any = true;
            durable.serve(request);
        }
    }
}

impl DurableLane<'_> {
    fn serve(self, request: Request) {
        let Request { id, size, charge, inbox, waker } = request;
        let RecordId { address, generation } = id;
        let read = match charge {
            None if self.log.segment(address.segment()).is_jumbo() => {
                self.log.read_jumbo_head(address.segment()).map(Read::Record)
            }
            None => self.log.read_records(address, size).map(Read::Record),
            Some(charge) => self
                .log
                .load_absent_jumbo(address.segment(), generation, || drop(charge))
                .map(|loaded| {
                    if loaded {
                        let now = self.now.load(Ordering::Relaxed);
                        self.readers.large.arrived(id, now);
                    }
                    Read::InMemory
                }),
        };
        let read = read.unwrap_or_else(|error| match error.kind() {
            // The record is intact, so calls that need it may request it again. The pause keeps
            // them from doing so at once.
            io::ErrorKind::OutOfMemory => {
                thread::park_timeout(NO_MEMORY);
                Read::InMemory
            }
            _ => Read::Failed,
        });
        inbox.put(id, read);
        waker.wake();
    }
}
