//! The rows of `stats` that only Larder has, except those of the store.

use larder_engine::WhenFull;

use super::super::metric::MetricUnit::Milliseconds;
use super::super::metric::{Metric, counter, gauge, some, text};
use crate::process;

pub(super) static SERVER: &[Metric] = &[
    text("larder_version", "The version of Larder.", |_| some(env!("CARGO_PKG_VERSION")))
        .named("larder_build_info")
        .labels("version"),
    text("larder_health", "`ok`, or the reason why clients should not use the server now.", |s| {
        some(s.readiness.clone().err().unwrap_or("ok".into()).into_owned())
    }),
    gauge("larder_ready", "1 if clients should use the server now.", |s| some(s.readiness.is_ok()))
        .named("larder_ready"),
    gauge(
        "larder_evicts",
        "1 if items are evicted when there is no room, 0 if writes are refused; see `--when-full`.",
        |s| some(s.settings.when_full == WhenFull::Evict),
    )
    .named("larder_evicts"),
    gauge(
        "larder_clock_off_ms",
        "How far the machine's wall clock has been stepped since the start. Larder's own time does \
         not follow a step, so absolute expiry times of clients are off by it until a restart.",
        |s| some(s.running.clock.stepped().as_millis() as u64),
    )
    .unit(Milliseconds)
    .largest()
    .named("larder_clock_off_seconds"),
    text("larder_io", "The kernel interface of the event loops.", |s| {
        some(s.running.net.backend().kind.name())
    })
    .named("larder_io_info")
    .labels("interface"),
];

pub(super) static MEMORY: &[Metric] = &[
    gauge("larder_bytes_resident", "Bytes of live items in memory.", |s| {
        some(s.engine.item_bytes - s.engine.flash_item_bytes)
    })
    .bytes()
    .named("larder_items_resident_bytes"),
    gauge(
        "larder_bytes_flash",
        "Bytes of live items that are only in the store. Reading such an item takes a read of the \
         store.",
        |s| some(s.engine.flash_item_bytes),
    )
    .bytes()
    .named("larder_items_flash_bytes"),
    gauge("larder_memory_used", "Bytes that count against the memory limit.", |s| {
        some(s.engine.memory_used)
    })
    .bytes()
    .named("larder_memory_used_bytes"),
    gauge("larder_index_bytes", "Bytes of RAM of the index.", |s| some(s.engine.index_bytes))
        .bytes()
        .named("larder_index_bytes"),
    gauge("larder_index_slots", "Slots of the index, used and free.", |s| {
        some(s.engine.index_slots)
    })
    .named("larder_index_slots"),
    gauge(
        "larder_older_slots",
        "Index slots that sets of `larder_unread_sets` have most probably made obsolete. \
         `curr_items` does not count the item of such a slot until Larder has checked the slot's \
         key.",
        |s| some(s.engine.older_slots),
    )
    .named("larder_older_slots"),
    gauge("larder_frame_bytes", "Bytes of RAM of segments.", |s| some(s.engine.frame_bytes))
        .bytes()
        .named("larder_frame_bytes"),
    gauge(
        "larder_copies",
        "Items of the store that are also kept in memory because they are read often.",
        |s| some(s.engine.copies),
    )
    .named("larder_copies"),
    gauge(
        "larder_copy_bytes",
        "Bytes of RAM of the segments that hold the items in `larder_copies`.",
        |s| some(s.engine.copy_bytes),
    )
    .bytes()
    .named("larder_copy_bytes"),
    gauge("larder_buffer_bytes", "Bytes of RAM of connection buffers.", |s| {
        some(s.engine.buffer_bytes)
    })
    .bytes()
    .named("larder_buffer_bytes"),
    gauge("larder_resident_bytes", "Resident memory of the process.", |_| {
        some(process::resident_bytes())
    })
        .bytes(),
    gauge("larder_segments", "Segments that hold items.", |s| some(s.engine.segments))
        .named("larder_segments"),
    gauge("larder_segment_size", "Size of a segment.", |s| some(s.engine.segment_size))
        .bytes()
        .largest()
        .named("larder_segment_size_bytes"),
    gauge("larder_jumbo_segments", "Segments of one large item.", |s| some(s.engine.jumbos))
        .named("larder_jumbo_segments"),
    counter("larder_moved_items", "Items that the cleaner moved to keep them.", |s| {
        some(s.totals().moved_items)
    })
    .named("larder_items_moved_total"),
    counter("larder_moved_bytes", "Bytes of records that the cleaner moved to keep their items.", |s| some(s.totals().moved_bytes))
        .bytes()
        .named("larder_moved_bytes_total"),
    counter(
        "larder_cleaned_segments",
        "Segments that the cleaner emptied by moving or removing their items.",
        |s| some(s.totals().cleaned_segments),
    )
    .named("larder_cleaned_segments_total"),
    counter(
        "larder_evicted_segments",
        "The part of `larder_cleaned_segments` from which cold items were evicted, or whose items had all \
         expired.",
        |s| some(s.totals().evicted_segments),
    )
    .named("larder_evicted_segments_total"),
    counter("larder_cleaned_bytes", "Bytes of records in the segments that the cleaner emptied, dead ones included.", |s| {
        some(s.totals().cleaned_bytes)
    })
    .bytes()
    .named("larder_cleaned_bytes_total"),
    counter(
        "larder_cleaned_live_bytes",
        "The live part of `larder_cleaned_bytes`. It includes evicted and expired records, which cost no \
         write; `larder_moved_bytes` has the cost.",
        |s| some(s.totals().cleaned_live_bytes),
    )
    .bytes()
    .named("larder_cleaned_live_bytes_total"),
    counter(
        "larder_dead_segments",
        "Segments that the cleaner emptied at no cost, because none of their records was alive.",
        |s| some(s.totals().dead_segments),
    )
    .named("larder_dead_segments_total"),
    gauge("larder_quarantined_segments", "Emptied segments whose places are not free yet.", |s| {
        some(s.engine.quarantined_segments)
    })
    .named("larder_quarantined_segments"),
    counter(
        "larder_counter_updates_in_place",
        "Changes of counters and limiters that changed their record in place. The number of \
         changes per record is the sum of this and `larder_counter_records`, divided by the latter.",
        |s| some(s.totals().counted_in_place),
    )
    .named("larder_count_updates_in_place_total"),
    counter(
        "larder_counter_records",
        "Changes of counters and limiters that wrote a new record.",
        |s| some(s.totals().counted_anew),
    )
    .named("larder_count_records_total"),
    counter(
        "larder_limits_allowed",
        "Requests for units of a rate limit (`ma` with `B` or `Q`, over HTTP, and descriptors of \
         Envoy; looks included) that were allowed.",
        |s| some(s.totals().taken),
    )
    .named("larder_limits_allowed_total"),
    counter("larder_limits_refused", "Such requests that were refused.", |s| {
        some(s.totals().refused)
    })
    .named("larder_limits_refused_total"),
    counter(
        "larder_limiters_evicted",
        "Rate limiters that were evicted although they had used units. Their clients have the \
         whole budget again.",
        |s| some(s.totals().evicted_limiters),
    )
    .named("larder_limiters_evicted_total"),
    counter(
        "larder_descriptors_unlimited",
        "Descriptors of Envoy that no policy matches, so they are not limited. If they should be, \
         compare the spelling of domain and keys with `stats limits`.",
        |s| some(s.running.context()?.policies().proxies().unlimited()),
    )
    .named("larder_descriptors_unlimited_total"),
    counter(
        "larder_envoy_calls_too_large",
        "Requests of Envoy that are over the limit because they are too large to be read. They \
         count for no policy.",
        |s| some(s.running.context()?.policies().proxies().too_large()),
    )
    .named("larder_envoy_calls_too_large_total"),
];

pub(super) static LOOPS: &[Metric] = &[
    counter("larder_reads", "Completed reads of sockets.", |s| some(s.loops().reads))
        .named("larder_reads_total"),
    counter("larder_writes", "Completed writes to sockets.", |s| some(s.loops().writes))
        .named("larder_writes_total"),
    counter("larder_loop_turns", "Turns of the event loops.", |s| some(s.loops().turns))
        .named("larder_loop_turns_total"),
    counter(
        "larder_output_stalls",
        "Times that a connection waited because its client did not read replies.",
        |s| some(s.loops().output_stalls),
    )
    .named("larder_output_stalls_total"),
    counter(
        "larder_values_cut",
        "Connections closed in the middle of a large value. Larder does that if values whose items \
         are gone (deleted, replaced or evicted) are still being sent and take more than an eighth \
         of memory. It cuts the value whose client has read nothing for longest.",
        |s| some(s.net.commands.values_cut),
    )
    .named("larder_connections_value_cut_total"),
    counter(
        "larder_accept_errors",
        "Accepts that failed for lack of descriptors or memory.",
        |s| some(s.loops().accept_errors),
    )
    .named("larder_accept_errors_total"),
    counter(
        "larder_slow_commands",
        "Commands that took at least as long as `--slow-command`. Only while latencies are measured.",
        |s| Some(s.latencies.as_ref()?.slow.into()),
    )
    .named("larder_slow_commands_total"),
    counter("larder_idle_closed", "Connections closed as idle.", |s| some(s.loops().idle_closed))
        .named("larder_connections_idle_closed_total"),
    counter("larder_http_connections", "Connections of the data port that spoke HTTP.", |s| {
        some(s.net.http)
    })
    .named("larder_http_connections_total"),
    counter(
        "larder_admin_actions",
        "Requests to the admin page that the token allowed: commands, look-ups, deletes, drains.",
        |s| s.running.admin_token.get().and_then(|token| some(token.actions())),
    )
    .named("larder_admin_actions_total"),
    counter(
        "larder_admin_token_failures",
        "Requests to the admin page with a wrong token. Somebody may be guessing it.",
        |s| s.running.admin_token.get().and_then(|token| some(token.failures())),
    )
    .named("larder_admin_token_failures_total"),
];
