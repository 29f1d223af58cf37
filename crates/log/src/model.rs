//! Code shared by the tests and the loom models of a log with a store.

#[cfg(loom)]
use crate::Address;
#[cfg(loom)]
use crate::append::{Claim, Stream};
use crate::format::{Geometry, Superblock};
use crate::log::Config;
#[cfg(loom)]
use crate::record::{Fields, Layout, write_head};
use crate::sync::lock;
use crate::{Budget, Epochs, Log, Store};
use larder_disk::SimDevice;
use std::sync::Arc;

#[cfg(loom)]
pub(crate) const SEGMENT: u32 = 8 << 10;
const SEGMENTS: u32 = 16;
#[cfg(loom)]
pub(crate) const VALUE: usize = 200;

/// Returns an empty log over a simulated device, with segments of [`SEGMENT`] bytes.
#[cfg(loom)]
pub(crate) fn durable_log() -> (Arc<Log>, Arc<Epochs>) {
    durable_log_of(SEGMENT)
}

/// Returns an empty log over a simulated device, with segments of `segment` bytes.
pub(crate) fn durable_log_of(segment: u32) -> (Arc<Log>, Arc<Epochs>) {
    let geometry = Geometry::new(segment, SEGMENTS).unwrap();
    let device = Arc::new(SimDevice::new(geometry.total_bytes(), 1));
    let superblock = Superblock { seq_limit: 1 << 20, ..Superblock::new(1, 2, 3, geometry, 0) };
    let store = Store::new(device, superblock);
    let budget = Arc::new(Budget::new(u64::from(segment) * 128));
    let epochs = Arc::new(Epochs::default());
    let config = Config {
        segment_size: segment as usize,
        max_frame_bytes: u64::from(segment) * 8,
        keeps_all: false,
    };
    let log = Log::new(config, Some(store), budget, Arc::clone(&epochs)).unwrap();
    lock(&log.free_places).extend((1..=SEGMENTS).rev());
    (Arc::new(log), epochs)
}

#[cfg(loom)]
/// Appends a record whose key and value are made of `byte`.
pub(crate) fn append(log: &Log, stream: Stream, byte: u8) -> Address {
    append_value(log, stream, byte, VALUE)
}

#[cfg(loom)]
/// Like [`append`], with a value of `len` bytes.
pub(crate) fn append_value(log: &Log, stream: Stream, byte: u8, len: usize) -> Address {
    let fields = Fields { seq: u64::from(byte), ..Fields::default() };
    append_item(log, stream, &fields, byte, len)
}

#[cfg(loom)]
/// Like [`append_value`], with these fields.
pub(crate) fn append_item(
    log: &Log,
    stream: Stream,
    fields: &Fields,
    byte: u8,
    len: usize,
) -> Address {
    let layout = Layout::of(fields, 1, len);
    let reserved = log.reserve(stream, layout.size(), 1, Claim::Clean).expect("there is room");
    // SAFETY: the reservation is this thread's own and as long as the layout says.
    unsafe {
        write_head(reserved.memory, &layout, fields, &[byte]);
        reserved.memory.add(layout.value_offset()).write_bytes(byte, len);
        log.seal_record(reserved.address, reserved.memory, &layout, 0);
    }
    reserved.address
}
