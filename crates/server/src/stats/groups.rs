//! `stats items`, `slabs` and `conns`. Larder has no slab classes. It shows all items as class 1,
//! with the log's 8-byte units as chunks, so that sums over classes are correct.

use super::rows::{Row, put};
use crate::net::{Endpoint, Peer};
use crate::server::Running;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

/// The unit of the log, in bytes.
const UNIT: u64 = 8;

pub(super) fn items(running: &Running, row: &mut Row<'_>) {
    let engine = running.engine.stats();
    let totals = &engine.totals;
    if engine.items == 0 {
        return;
    }
    let rows: [(&str, u64); 28] = [
        ("number", engine.items),
        ("number_hot", 0),
        ("number_warm", 0),
        ("number_cold", engine.items),
        ("age_hot", 0),
        ("age_warm", 0),
        ("age", 0),
        ("mem_requested", engine.item_bytes),
        ("evicted", totals.evictions),
        ("evicted_nonzero", 0),
        ("evicted_time", 0),
        ("outofmemory", totals.store_no_memory),
        ("tailrepairs", 0),
        ("reclaimed", totals.expired),
        ("expired_unfetched", totals.expired_unfetched),
        ("evicted_unfetched", totals.evicted_unfetched),
        ("evicted_active", 0),
        ("crawler_reclaimed", 0),
        ("crawler_items_checked", 0),
        ("lrutail_reflocked", 0),
        ("moves_to_cold", 0),
        ("moves_to_warm", 0),
        ("moves_within_lru", 0),
        ("direct_reclaims", 0),
        ("hits_to_hot", 0),
        ("hits_to_warm", 0),
        ("hits_to_cold", totals.get_hits),
        ("hits_to_temp", 0),
    ];
    for (name, value) in rows {
        row(&format!("items:1:{name}"), format_args!("{value}"));
    }
}

pub(super) fn slabs(running: &Running, row: &mut Row<'_>) {
    let engine = running.engine.stats();
    let totals = &engine.totals;
    let chunks = engine.frame_bytes / UNIT;
    let used = (engine.item_bytes / UNIT).min(chunks);
    let rows: [(&str, u64); 15] = [
        ("chunk_size", UNIT),
        ("chunks_per_page", engine.segment_size / UNIT),
        ("total_pages", engine.segments),
        ("total_chunks", chunks),
        ("used_chunks", used),
        ("free_chunks", chunks - used),
        ("free_chunks_end", 0),
        ("get_hits", totals.get_hits),
        ("cmd_set", totals.cmd_set),
        ("delete_hits", totals.delete_hits),
        ("incr_hits", totals.incr_hits),
        ("decr_hits", totals.decr_hits),
        ("cas_hits", totals.cas_hits),
        ("cas_badval", totals.cas_badval),
        ("touch_hits", totals.touch_hits),
    ];
    if engine.segments > 0 {
        for (name, value) in rows {
            row(&format!("1:{name}"), format_args!("{value}"));
        }
    }
    put(row, "active_slabs", u8::from(engine.segments > 0));
    put(row, "total_malloced", engine.frame_bytes);
}

/// Shows listeners and connections. In place of memcached's descriptor, connections show their
/// connection number. Listeners have no such number, so they are counted from 0.
pub(super) fn connections(running: &Running, row: &mut Row<'_>) {
    let tcp = |address: &SocketAddr| match address {
        SocketAddr::V4(address) => format!("tcp:{address}"),
        SocketAddr::V6(address) => format!("tcp6:{address}"),
    };
    let mut unix = String::new();
    let uptime = running.clock.uptime().as_secs();
    for (number, listener) in running.net.options().listeners.iter().enumerate() {
        let address = match listener.endpoint() {
            Endpoint::Tcp(address) => tcp(address),
            Endpoint::Unix { path, .. } => {
                unix = format!("unix:{}", path.display());
                unix.clone()
            }
        };
        let name = format!("listen{number}");
        row(&format!("{name}:addr"), format_args!("{address}"));
        row(&format!("{name}:state"), format_args!("conn_listening"));
        row(&format!("{name}:secs_since_last_cmd"), format_args!("{uptime}"));
    }
    let now = running.clock.now();
    for (id, entry) in running.registry.snapshot() {
        let (from, to) = match &entry.peer {
            Peer::Tcp { from, to } => (tcp(from), tcp(to)),
            // Clients of a Unix socket have no address. A socket unit may pass several such
            // listeners; the last one is shown.
            Peer::Unix => ("unix:".to_owned(), unix.clone()),
        };
        row(&format!("{id}:addr"), format_args!("{from}"));
        row(&format!("{id}:listen_addr"), format_args!("{to}"));
        row(&format!("{id}:state"), format_args!("conn_read"));
        let idle = now.saturating_sub(entry.last_command.load(Relaxed));
        row(&format!("{id}:secs_since_last_cmd"), format_args!("{idle}"));
    }
}
