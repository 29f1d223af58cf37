//! `/metrics` in Prometheus' text format. Names and labels follow the memcached exporter, with
//! `larder_` in place of `memcached_`. `stats reset` sets the counters of the engine and of the
//! policies to 0, which Prometheus treats as a restart. The counters of the event loops continue.

use std::fmt::{Display, Write};

use larder_engine::{Health, LaneState, Stats};

use crate::process;
use crate::server::Running;
use crate::settings::{MEMCACHED_VERSION, durability_name};

/// The text being written.
struct Page(String);

impl Page {
    /// Writes a metric with one sample.
    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.sample(name, "", value);
    }

    /// Writes gauges with one sample each.
    fn gauges(&mut self, gauges: &[(&str, &str, u64)]) {
        gauges.iter().for_each(|(name, help, value)| self.one(name, "gauge", help, value));
    }

    /// Writes counters with one sample each.
    fn counters(&mut self, counters: &[(&str, &str, u64)]) {
        counters.iter().for_each(|(name, help, value)| self.one(name, "counter", help, value));
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail, here and below.
        let _ = write!(self.0, "# HELP larder_{name} {help}\n# TYPE larder_{name} {kind}\n");
    }

    /// Writes a sample. `labels` has its braces, or is empty.
    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "larder_{name}{labels} {value}");
    }
}

/// Returns all metrics.
pub(super) fn text(running: &Running) -> String {
    let mut page = Page(String::with_capacity(8 << 10));
    let lanes = running.engine.lane_stats();
    let engine = Stats::sum(&lanes);
    process_metrics(running, &mut page);
    command_metrics(running, &engine.totals, &mut page);
    limit_metrics(running, &mut page);
    memory_metrics(&engine, &mut page);
    store_metrics(running, &engine, &lanes, &mut page);
    connection_metrics(running, &mut page);
    page.0
}

fn process_metrics(running: &Running, page: &mut Page) {
    let usage = process::usage();
    page.one(
        "up",
        "gauge",
        "Whether the server wants traffic.",
        u8::from(running.readiness().is_ok()),
    );
    page.head("version", "gauge", "The versions in use.");
    let labels = format!(
        "{{version=\"{}\",memcached=\"{MEMCACHED_VERSION}\",io=\"{}\"}}",
        env!("CARGO_PKG_VERSION"),
        running.net.backend().kind.name()
    );
    page.sample("version", &labels, 1);
    page.one(
        "uptime_seconds",
        "gauge",
        "Seconds since the start.",
        running.clock.uptime().as_secs(),
    );
    page.one("time_seconds", "gauge", "The server's clock.", running.clock.wall());
    page.one("threads", "gauge", "Worker threads.", running.settings().threads);
    page.head("process_cpu_seconds_total", "counter", "Processor time of the process.");
    for (mode, time) in [("user", usage.user), ("system", usage.system)] {
        let labels = format!("{{mode=\"{mode}\"}}");
        page.sample("process_cpu_seconds_total", &labels, time.as_secs_f64());
    }
    page.one(
        "process_resident_memory_bytes",
        "gauge",
        "Resident memory of the process.",
        process::resident_bytes(),
    );
}

fn command_metrics(running: &Running, totals: &larder_engine::Totals, page: &mut Page) {
    page.head("commands_total", "counter", "Commands by what they found.");
    let samples = [
        ("get", "hit", totals.get_hits),
        ("get", "miss", totals.get_misses),
        ("set", "hit", totals.cmd_set),
        ("touch", "hit", totals.touch_hits),
        ("touch", "miss", totals.touch_misses),
        ("delete", "hit", totals.delete_hits),
        ("delete", "miss", totals.delete_misses),
        ("incr", "hit", totals.incr_hits),
        ("incr", "miss", totals.incr_misses),
        ("decr", "hit", totals.decr_hits),
        ("decr", "miss", totals.decr_misses),
        ("cas", "hit", totals.cas_hits),
        ("cas", "miss", totals.cas_misses),
        ("cas", "badval", totals.cas_badval),
        ("flush", "hit", totals.cmd_flush),
    ];
    for (command, status, count) in samples {
        let labels = format!("{{command=\"{command}\",status=\"{status}\"}}");
        page.sample("commands_total", &labels, count);
    }
    let meta = running.net_totals_ever().commands.meta_commands;
    page.one("meta_commands_total", "counter", "Meta commands, whatever they did.", meta);
    page.counters(&[
        ("get_expired_total", "Reads that met an expired item.", totals.get_expired),
        (
            "counter_updates_in_place_total",
            "Changes of counters and limiters that changed their record in place.",
            totals.counted_in_place,
        ),
        (
            "counter_records_total",
            "Changes of counters and limiters that wrote a new record.",
            totals.counted_anew,
        ),
        ("limits_allowed_total", "Requests for units of a limit that passed.", totals.taken),
        (
            "limits_refused_total",
            "Requests for units of a limit that were refused.",
            totals.refused,
        ),
        (
            "limiters_evicted_total",
            "Rate limiters that were evicted with used units.",
            totals.evicted_limiters,
        ),
    ]);
}

fn limit_metrics(running: &Running, page: &mut Page) {
    const NAME: &str = "limit_decisions_total";
    page.head(NAME, "counter", "Decisions of rate limits, by policy and result.");
    for policy in running.policies().iter() {
        for (result, count) in policy.counters.totals() {
            let labels = format!("{{policy=\"{}\",result=\"{result}\"}}", escaped(&policy.name));
            page.sample(NAME, &labels, count);
        }
    }
}

fn memory_metrics(engine: &larder_engine::Stats, page: &mut Page) {
    let totals = &engine.totals;
    page.gauges(&[
        ("current_items", "Items now.", engine.items),
        ("current_bytes", "Bytes of live records.", engine.item_bytes),
        ("flash_bytes", "Of these, what is on the device only.", engine.flash_item_bytes),
        ("limit_bytes", "The memory limit.", engine.memory_limit),
        ("memory_used_bytes", "Bytes charged against the limit.", engine.memory_used),
        ("malloced_bytes", "Bytes of RAM of frames.", engine.frame_bytes),
        ("index_bytes", "Bytes of RAM of the index.", engine.index_bytes),
        ("index_slots", "Slots of the index.", engine.index_slots),
        (
            "older_slots",
            "Items that sets may have superseded, not looked at yet.",
            engine.older_slots,
        ),
        ("buffer_bytes", "Bytes of connection buffers.", engine.buffer_bytes),
        ("segments", "Segments that hold items.", engine.segments),
        ("jumbo_segments", "Segments of one large item.", engine.jumbos),
    ]);
    page.counters(&[
        ("items_total", "Items ever stored.", totals.total_items),
        ("items_evicted_total", "Live items that made room.", totals.evictions),
        ("items_evicted_unfetched_total", "Of these, never read.", totals.evicted_unfetched),
        ("items_reclaimed_total", "Expired items that were removed.", totals.expired),
        ("items_expired_unfetched_total", "Of these, never read.", totals.expired_unfetched),
        ("items_moved_total", "Items moved by the cleaner.", totals.moved_items),
        ("items_too_large_total", "Writes refused for their size.", totals.store_too_large),
        ("items_no_memory_total", "Writes refused for want of memory.", totals.store_no_memory),
    ]);
}

fn store_metrics(running: &Running, engine: &Stats, lanes: &[Stats], page: &mut Page) {
    let settings = running.settings();
    page.head("store_info", "gauge", "What an acknowledged write survives.");
    let labels = format!("{{durability=\"{}\"}}", durability_name(settings.durability()));
    page.sample("store_info", &labels, u8::from(settings.has_store()));
    let healthy = running.store_failure().is_none();
    page.one("store_healthy", "gauge", "Whether the store takes writes.", u8::from(healthy));
    page.gauges(&[
        ("unsynced_bytes", "Acknowledged bytes that are not durable yet.", engine.unsynced_bytes),
        ("bad_places", "Places for segments that cannot be read as a whole.", engine.bad_places),
        ("recovered_items", "Items found at the start.", engine.recovered_items),
    ]);
    let seconds = |ms: u64| ms as f64 / 1e3;
    page.one(
        "unsynced_age_seconds",
        "gauge",
        "Age of the oldest of them.",
        seconds(engine.unsynced_ms),
    );
    page.one("recovery_seconds", "gauge", "How long recovery took.", seconds(engine.recovery_ms));
    page.one("commits_total", "counter", "Commits to the store.", engine.commits);
    page.counters(&[
        ("record_bytes_total", "Bytes of records that clients wrote.", engine.totals.written_bytes),
        ("device_written_bytes_total", "Bytes written to devices.", engine.device_written_bytes),
        ("map_written_bytes_total", "Bytes of dead maps written.", engine.map_written_bytes),
        ("freed_bytes_total", "Bytes of records in freed segments.", engine.freed_bytes),
        (
            "segment_read_bytes_total",
            "Bytes read to look at whole segments.",
            engine.segment_read_bytes,
        ),
    ]);
    lane_metrics(running, lanes, page);
    page.head("commit_seconds", "summary", "How long the latest commits took.");
    for (quantile, us) in [("0.5", engine.commit_us_p50), ("0.99", engine.commit_us_p99)] {
        let labels = format!("{{quantile=\"{quantile}\"}}");
        page.sample("commit_seconds", &labels, us as f64 / 1e6);
    }
}

fn lane_metrics(running: &Running, stats: &[Stats], page: &mut Page) {
    if !running.settings().has_store() {
        return;
    }
    let lanes = running.engine.lanes();
    let mut each = |name, help, value: &dyn Fn(&LaneState, &Stats) -> u64| {
        page.head(name, "gauge", help);
        for (lane, stats) in lanes.iter().zip(stats) {
            let device = escaped(&lane.name);
            let labels = format!("{{lane=\"{}\",device=\"{device}\"}}", lane.number);
            page.sample(name, &labels, value(lane, stats));
        }
    };
    each("lane_healthy", "Whether the device takes writes.", &|lane, _| {
        u64::from(lane.health == Health::Good)
    });
    each("lane_draining", "Whether the device is being emptied.", &|lane, _| lane.draining.into());
    each("lane_partitions", "Shares of the keys, of 4096.", &|lane, _| lane.partitions as u64);
    each("lane_items", "Items of the device's keys.", &|_, stats| stats.items);
    each("lane_bytes", "Bytes of their records.", &|_, stats| stats.item_bytes);
    each("lane_capacity_bytes", "Size of the device.", &|lane, _| lane.capacity);
}

/// Returns a label's value in the escaped form of the format.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn connection_metrics(running: &Running, page: &mut Page) {
    let net = running.net_totals_ever();
    page.one("current_connections", "gauge", "Connections now.", net.loops.current_connections);
    page.one(
        "max_connections",
        "gauge",
        "Connections that are allowed.",
        running.settings().max_connections,
    );
    page.counters(&[
        ("connections_total", "Connections ever taken.", net.loops.total_connections),
        (
            "connections_rejected_total",
            "Connections turned away: too many.",
            net.loops.rejected_connections,
        ),
        ("connections_idle_closed_total", "Connections closed as idle.", net.loops.idle_closed),
        (
            "connections_no_memory_total",
            "Connections closed for want of buffers.",
            net.loops.refused_buffers,
        ),
        (
            "connections_value_cut_total",
            "Connections closed because a value went while it was being sent.",
            net.commands.values_cut,
        ),
        ("connections_yielded_total", "Turns given to other connections.", net.loops.yields),
        ("accept_errors_total", "Failed accepts.", net.loops.accept_errors),
        ("http_connections_total", "Connections of the data port that spoke HTTP.", net.http),
        ("read_bytes_total", "Bytes received.", net.loops.bytes_read),
        ("written_bytes_total", "Bytes sent.", net.loops.bytes_written),
        ("reads_total", "Completed reads of sockets.", net.loops.reads),
        ("writes_total", "Completed writes to sockets.", net.loops.writes),
        ("output_stalls_total", "Waits for a client to read.", net.loops.output_stalls),
    ]);
}
