//! Settings of addresses and connections.

use super::super::setting::Group::Network;
use super::super::setting::Kind::{List, Value};
use super::super::setting::{Setting, choice, field, setting};
use super::super::values::{
    BACKENDS, PROTOCOLS, joined, name_of, one_of, optional_duration, parse_hosts, parse_mode,
    parse_port, path, positive, set_admin, set_listen, show_duration, show_path, show_port,
};

pub(super) static SETTINGS: &[Setting] = &[
    setting(
        "listen",
        Some('l'),
        List("ADDR"),
        Network,
        "Address, or address:port, to listen on; * is every address; repeatable",
        (set_listen, |s| joined(&s.listen_addresses())),
    )
    .brief("Address to listen on"),
    setting(
        "port",
        Some('p'),
        Value("PORT"),
        Network,
        "TCP port; 0 disables TCP, -1 lets the kernel choose a free port",
        field!(port, parse_port, |s| show_port(s.port)),
    )
    .brief("TCP port"),
    setting(
        "socket",
        Some('s'),
        Value("PATH"),
        Network,
        "Unix socket to listen on; without --listen or --port, TCP is then off",
        field!(socket, path, |s| show_path(s.socket.as_ref())),
    )
    .brief("Unix socket to listen on, instead of TCP")
    .or("unix-socket"),
    setting(
        "socket-mode",
        Some('a'),
        Value("MODE"),
        Network,
        "Permissions of the Unix socket, in octal",
        field!(socket_mode, parse_mode, |s| format!("{:o}", s.socket_mode)),
    )
    .or("unix-mask"),
    setting(
        "max-connections",
        Some('c'),
        Value("N"),
        Network,
        "Largest number of client connections at a time",
        field!(max_connections, positive, |s| s.max_connections.to_string()),
    )
    .brief("Largest number of client connections")
    .or("conn-limit"),
    setting(
        "idle-timeout",
        None,
        Value("DURATION"),
        Network,
        "Close connections that neither send nor receive for this long; 0 is never",
        field!(idle_timeout, optional_duration, |s| {
            show_duration(s.idle_timeout.unwrap_or_default())
        }),
    ),
    setting(
        "protocol",
        Some('B'),
        Value("auto|ascii|binary"),
        Network,
        "Protocol that connections may use; auto allows both",
        choice!(protocol, PROTOCOLS),
    ),
    setting(
        "io",
        None,
        Value("auto|uring|epoll"),
        Network,
        "Kernel interface for I/O; auto is io_uring if the kernel allows it, otherwise epoll",
        choice!(io, BACKENDS),
    ),
    setting(
        "admin",
        None,
        Value("ADDR|off"),
        Network,
        "Address of the admin page, health checks and metrics; off disables them",
        (set_admin, |s| s.admin.map_or("off".to_owned(), |address| address.to_string())),
    )
    .brief("Admin page and metrics"),
    setting(
        "admin-host",
        None,
        List("NAME"),
        Network,
        "Host name that requests to the admin page and the limit port may use; IP addresses and \
         localhost are always allowed; repeatable",
        field!(admin_hosts, parse_hosts, |s| s.admin_hosts.join(",")),
    ),
    setting(
        "admin-token-file",
        None,
        Value("FILE"),
        Network,
        "File with the token that the admin page requires to change things and to show values; \
         without it, each start creates a token and, unless the log is JSON, prints it",
        field!(admin_token_file, path, |s| show_path(s.admin_token_file.as_ref())),
    ),
    setting(
        "lab-report",
        None,
        Value("PATH"),
        Network,
        "Report of larder bench all that the admin page shows: its directory or its file",
        field!(lab_report, path, |s| show_path(s.lab_report.as_ref())),
    ),
    setting(
        "limit-port",
        None,
        Value("PORT"),
        Network,
        "Port for rate limits over HTTP and gRPC, at the addresses of --listen; 0 disables it, -1 \
         lets the kernel choose a free port",
        field!(limit_port, parse_port, |s| show_port(s.limit_port)),
    ),
];
