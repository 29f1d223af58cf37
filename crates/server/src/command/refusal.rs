//! The replies of the text protocol to a refusal by the engine.

use larder_engine::Refusal;
use larder_protocol::reply;

/// Returns the reply line for a refusal. `stores` tells if the request carried a value to store.
pub(crate) fn refusal_line(refusal: Refusal, stores: bool) -> &'static str {
    match refusal {
        Refusal::OutOfMemory if stores => reply::NO_MEMORY_STORING,
        Refusal::OutOfMemory => reply::NO_MEMORY,
        Refusal::StoreFailed => reply::STORE_FAILED,
        Refusal::StoreFull => reply::STORE_FULL,
    }
}
