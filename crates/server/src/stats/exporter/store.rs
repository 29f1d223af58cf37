//! Metrics of the exporter about memcached's flash tier (extstore).

use super::family::{Family, counter, gauge};

pub(super) static STORE: &[Family] = &[
    counter("memcached_extstore_compact_rescued_total", &[("", "extstore_compact_rescues")]),
    gauge("memcached_extstore_pages_free", &[("", "extstore_pages_free")]),
    gauge("memcached_extstore_pages_used", &[("", "extstore_pages_used")]),
    counter("memcached_extstore_objects_evicted_total", &[("", "extstore_objects_evicted")]),
    counter("memcached_extstore_objects_read_total", &[("", "extstore_objects_read")]),
    counter("memcached_extstore_objects_written_total", &[("", "extstore_objects_written")]),
    gauge("memcached_extstore_objects_used", &[("", "extstore_objects_used")]),
    counter("memcached_extstore_bytes_written_total", &[("", "extstore_bytes_written")]),
    counter("memcached_extstore_bytes_used", &[("", "extstore_bytes_used")]),
    gauge("memcached_extstore_bytes_fragmented", &[("", "extstore_bytes_fragmented")]),
    gauge("memcached_extstore_bytes_limit", &[("", "extstore_limit_maxbytes")]),
];
