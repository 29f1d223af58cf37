//! `stats conns`: listeners and connections.

use std::net::SocketAddr;

use super::rows::Row;
use crate::net::{Endpoint, Peer};
use crate::server::Running;

/// Shows listeners and connections. memcached names connections and listeners by their descriptor.
/// Here, connections are named by their connection number, and listeners are numbered from 0.
pub(super) fn rows(running: &Running, row: &mut Row<'_>) {
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
    running.registry.each(|id, entry| {
        let (from, to) = match &entry.peer {
            Peer::Tcp { from, to } => (tcp(from), tcp(to)),
            // Clients of a Unix socket have no address. A systemd socket unit may pass several Unix
            // listeners. Their clients are all shown with the path of the last Unix listener.
            Peer::Unix => ("unix:".to_owned(), unix.clone()),
        };
        row(&format!("{id}:addr"), format_args!("{from}"));
        row(&format!("{id}:listen_addr"), format_args!("{to}"));
        row(&format!("{id}:state"), format_args!("conn_read"));
        let idle = now.saturating_sub(entry.last_command());
        row(&format!("{id}:secs_since_last_cmd"), format_args!("{idle}"));
    });
}
