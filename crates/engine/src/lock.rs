//! Locks a mutex although another thread may have panicked while it held the lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    larder_log::sync::count_lock();
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
