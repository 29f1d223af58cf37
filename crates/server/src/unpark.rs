//! The waker of a thread that parks while its engine session waits.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Returns a waker that unparks the calling thread.
pub(crate) fn waker_of_this_thread() -> Waker {
    Arc::new(Unpark(thread::current())).into()
}
