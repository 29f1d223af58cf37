//! Actions with the token: commands, look-ups, deletes, drains.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::admin::action_session::{REPLY_MAX, VALUE_MAX};
use crate::server::{Reloaded, Server};
use larder_engine::Durability;

/// Returns status, head and body of the reply to a POST with these headers.
pub(super) fn post(
    server: &Server,
    path: &str,
    headers: &str,
    body: &[u8],
) -> (u16, String, String) {
    let address = server.admin_address().unwrap();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\
         Content-Length: {length}\r\n\r\n"
    );
    reply_to(address, &[head.as_bytes(), body].concat())
}

/// Returns status, head and body of the reply to these bytes.
pub(super) fn reply_to(address: SocketAddr, request: &[u8]) -> (u16, String, String) {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // The server may refuse before it has read everything, so the write may fail.
    let _ = client.write_all(request);
    let mut reply = Vec::new();
    let _ = client.read_to_end(&mut reply);
    let reply = String::from_utf8_lossy(&reply);
    let code = reply.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    (code, head.to_owned(), body.to_owned())
}

pub(super) fn allowed(server: &Server) -> String {
    let token = server.admin_token().unwrap();
    format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n")
}

/// Executes an action with the token. Returns status and body of the reply.
fn act(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let (code, head, body) = post(server, path, &allowed(server), body.to_string().as_bytes());
    assert!(head.contains("cache-control: no-store"), "{head}");
    (code, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

fn run(server: &Server, command: &str) -> String {
    let (code, answer) = act(server, "/v1/command", &json!({ "command": command }));
    assert_eq!(code, 200, "{command}: {answer}");
    answer["reply"].as_str().unwrap().to_owned()
}

fn set(server: &Server, command: &str, value: &str) -> String {
    let body = json!({ "command": command, "value": value });
    let (code, answer) = act(server, "/v1/command", &body);
    assert_eq!(code, 200, "{command}: {answer}");
    answer["reply"].as_str().unwrap().to_owned()
}

/// Sends a command of one line to the data port. Returns the reply's first `length` bytes.
pub(super) fn tell(server: &Server, command: &[u8], length: usize) -> Vec<u8> {
    let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.write_all(command).unwrap();
    let mut reply = vec![0; length];
    client.read_exact(&mut reply).unwrap();
    reply
}

#[test]
fn a_command_has_the_reply_that_a_client_gets() {
    let server = server();
    assert_eq!(run(&server, "get a"), "END\n");
    assert_eq!(set(&server, "set a 7 0 3", "x\\x0dz"), "STORED\n");
    assert_eq!(run(&server, "get a b"), "VALUE a 7 3\nx\\x0dz\nEND\n");
    assert_eq!(tell(&server, b"get a\r\n", 23), b"VALUE a 7 3\r\nx\rz\r\nEND\r\n");
    assert_eq!(run(&server, "mg a s v"), "VA 3 s3\nx\\x0dz\n");
    assert_eq!(run(&server, "mn"), "MN\n");
    assert_eq!(run(&server, "delete a"), "DELETED\n");
    assert_eq!(run(&server, "get a"), "END\n");
    assert_eq!(run(&server, "nonsense"), "ERROR\n");
    assert_eq!(run(&server, "quit"), "");
    assert!(run(&server, "stats").contains("STAT cmd_get 6\n"));
    assert!(run(&server, "stats settings").contains("STAT maxbytes 67108864\n"));
    // `--enable-shutdown` is off, so the command is refused.
    assert!(run(&server, "shutdown").starts_with("SERVER_ERROR: shutdown not"));
    assert_eq!(run(&server, "watch fetchers"), "CLIENT_ERROR watch commands not allowed\n");
    let (_, metrics) = get(&server, "/metrics");
    assert!(metrics.contains("\nlarder_admin_actions_total 13\n"), "{metrics}");
}

#[test]
fn long_values_and_long_replies() {
    let server = server();
    let value = "v".repeat(50_000);
    assert_eq!(set(&server, "set long 0 0 50000", &value), "STORED\n");
    assert_eq!(run(&server, "get long"), format!("VALUE long 0 50000\n{value}\nEND\n"));
    // A command that announces a value, but comes without one, is refused.
    let body = json!({ "command": "set huge 0 0 99999999" });
    assert_eq!(act(&server, "/v1/command", &body).0, 400);
    let many = vec!["long"; 40].join(" ");
    let (code, answer) = act(&server, "/v1/command", &json!({ "command": format!("get {many}") }));
    assert_eq!((code, &answer["truncated"]), (200, &Value::Bool(true)));
    let reply = answer["reply"].as_str().unwrap();
    assert!(reply.len() > REPLY_MAX - 1000 && reply.len() <= REPLY_MAX, "{}", reply.len());
    assert!(reply.starts_with("VALUE long 0 50000\nvvv"));
    // The session must still work after a reply that was truncated.
    assert_eq!(run(&server, "mn"), "MN\n");
    let (_, item) = act(&server, "/v1/item", &json!({ "key": "long" }));
    assert_eq!((&item["size"], &item["truncated"]), (&json!(50_000), &json!(false)));
    let head = format!("set big 0 0 {}\r\n", 2 * VALUE_MAX);
    let big = [head.as_bytes(), &vec![b'\\'; 2 * VALUE_MAX], b"\r\n"].concat();
    assert_eq!(tell(&server, &big, 8), b"STORED\r\n");
    let (_, item) = act(&server, "/v1/item", &json!({ "key": "big" }));
    assert_eq!((&item["size"], &item["truncated"]), (&json!(2 * VALUE_MAX), &json!(true)));
    assert_eq!(item["value"].as_str().unwrap(), "\\\\".repeat(VALUE_MAX));
}

/// The reply to a dump of all keys is truncated. The dump must still end, so that the next one can
/// begin.
#[test]
fn dumps_are_cut() {
    let server = server();
    let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
    let sets: String = (0..30_000)
        .map(|n| format!("set key-with-a-long-name-{n} 0 0 1 noreply\r\nx\r\n"))
        .collect();
    client.write_all(format!("{sets}mn\r\n").as_bytes()).unwrap();
    client.read_exact(&mut [0; 4]).unwrap();
    for _ in 0..6 {
        let body = json!({ "command": "lru_crawler metadump all" });
        let (code, answer) = act(&server, "/v1/command", &body);
        assert_eq!((code, &answer["truncated"]), (200, &Value::Bool(true)), "{answer}");
        let reply = answer["reply"].as_str().unwrap();
        assert!(reply.starts_with("OK\nkey=key-with-a-long-name-"), "{}", &reply[..60]);
    }
}

#[test]
fn an_item_is_shown_without_being_read() {
    let server = server();
    let look = |key: &str| act(&server, "/v1/item", &json!({ "key": key }));
    assert_eq!(look("a"), (200, json!({ "found": false })));
    let set = b"ms a 4 T100 F9 E18446744073709551000\r\n<b>\xff\r\n";
    assert_eq!(tell(&server, set, 4), b"HD\r\n");
    let (code, item) = look("a");
    assert_eq!(code, 200);
    let ttl = item["ttl"].as_u64().unwrap();
    assert!((90..=100).contains(&ttl), "{item}");
    for (field, value) in [
        ("found", json!(true)),
        ("flags", json!(9)),
        ("size", json!(4)),
        ("cas", json!("18446744073709551000")),
        ("fetched", json!(false)),
        ("stale", json!(false)),
        ("value", json!("<b>\\xff")),
        ("truncated", json!(false)),
    ] {
        assert_eq!(item[field], value, "{field}");
    }
    assert_eq!(look("a").1["fetched"], json!(false), "a look-up counts as a read");
    assert_eq!(tell(&server, b"mg a h\r\n", 7), b"HD h0\r\n");
    assert_eq!(look("a").1["fetched"], json!(true));
    // A look-up does not take the win of a stale item, so the next `mg` must get it (`W`).
    assert_eq!(tell(&server, b"md a I T30\r\n", 4), b"HD\r\n");
    assert_eq!(look("a").1["stale"], json!(true));
    assert_eq!(tell(&server, b"mg a\r\n", 8), b"HD X W\r\n");
    let statistics = get(&server, "/v1/stats").1;
    assert!(statistics.contains("\"cmd_get\":2"), "{statistics}");
}

#[test]
fn keys_may_have_any_bytes() {
    let server = server();
    // The key is `a b\r\nflush_all`, in base64.
    assert_eq!(tell(&server, b"ms YSBiDQpmbHVzaF9hbGw= 1 b\r\nx\r\n", 4), b"HD\r\n");
    assert_eq!(tell(&server, b"set plain 0 0 1\r\nx\r\n", 8), b"STORED\r\n");
    for key in ["a b\r\nflush_all", "a b\\x0d\\x0aflush_all"] {
        assert_eq!(act(&server, "/v1/item", &json!({ "key": key })).1["found"], json!(true));
    }
    let delete = |key: &str| act(&server, "/v1/delete", &json!({ "key": key }));
    assert_eq!(delete("a b\\x0d\\x0aflush_all"), (200, json!({ "deleted": true })));
    assert_eq!(delete("a b\\x0d\\x0aflush_all"), (200, json!({ "deleted": false })));
    assert_eq!(tell(&server, b"get plain\r\n", 17), b"VALUE plain 0 1\r\n");
    assert_eq!(delete(&"k".repeat(250)), (200, json!({ "deleted": false })));
    for wrong in ["", &"k".repeat(251), "\\", "\\xzz", &"\u{e9}".repeat(126)] {
        assert_eq!(delete(wrong).0, 400, "{wrong}");
        assert_eq!(act(&server, "/v1/item", &json!({ "key": wrong })).0, 400, "{wrong}");
    }
}

fn with_store(folder: &Path, durability: Durability) -> Server {
    let store =
        |name: &str| StorePath { path: folder.join(name), size: Some(64 << 20), tier: None };
    let store = vec![store("a"), store("b")];
    Server::start(Settings { store, durability: Some(durability), ..settings() }).unwrap()
}

#[test]
fn items_that_are_only_in_the_store_are_read_and_devices_are_drained() {
    let folder = std::env::temp_dir().join(format!("larder-actions-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let server = with_store(&folder, Durability::Sync);
    assert_eq!(set(&server, "set first 0 0 3", "abc"), "STORED\n");
    drop(server);
    // After a restart nothing is in memory, so the look-up waits for the device.
    let server = with_store(&folder, Durability::Sync);
    let (code, item) = act(&server, "/v1/item", &json!({ "key": "first" }));
    assert_eq!((code, &item["value"]), (200, &json!("abc")));
    let device = folder.join("a");
    let device = device.to_str().unwrap();
    let drain = |device: &str, drain| {
        act(&server, "/v1/drain", &json!({ "device": device, "drain": drain }))
    };
    assert_eq!(drain(device, true), (200, json!({ "draining": true })));
    assert!(server.engine().lanes().iter().any(|lane| lane.draining || lane.drained));
    assert_eq!(drain(device, false), (200, json!({ "draining": false })));
    assert_eq!(drain("/no/such", true).0, 409);
    let item = act(&server, "/v1/item", &json!({ "key": "first" })).1;
    assert_eq!(item["value"], json!("abc"));
    drop(server);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Stops the server while it may be executing an action. The reply must say correctly whether the
/// action was executed.
#[test]
fn a_stop_tells_whether_an_action_was_executed() {
    let folder = std::env::temp_dir().join(format!("larder-actions-stop-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for round in 0..4 {
        let server = with_store(&folder, Durability::Sync);
        assert_eq!(set(&server, "set before 0 0 1", "x"), "STORED\n");
        let (address, headers) = (server.admin_address().unwrap(), allowed(&server));
        let body = json!({ "command": format!("set k{round} 0 0 1"), "value": "y" }).to_string();
        let request = format!(
            "POST /v1/command HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        if round % 2 == 0 {
            // The page has one thread. Once it answers this request, it has received the earlier
            // request with the action.
            assert_eq!(get(&server, "/livez").0, 200);
        }
        server.shutdown(Duration::from_secs(5)).unwrap();
        let mut reply = String::new();
        let _ = client.read_to_string(&mut reply);
        let server = with_store(&folder, Durability::Sync);
        let found = run(&server, &format!("get k{round}")) != "END\n";
        match reply.split(' ').nth(1) {
            Some("200") => assert!(found && reply.contains("STORED"), "{reply}"),
            Some("503") => assert!(!found && reply.contains("not executed"), "{reply}"),
            _ => assert!(round % 2 == 1 && reply.is_empty(), "{reply}"),
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Every action must write two warnings to the log: one when it begins, and one with its outcome
/// when it has ended.
#[test]
fn actions_are_logged_with_their_outcomes() {
    use std::sync::{Arc, Mutex};
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // The page runs on its own thread, so only a global subscriber receives its log lines. No other
    // test of this crate sets one.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let server = server();
    assert_eq!(set(&server, "set logged 0 0 13", "secret-of-log"), "STORED\n");
    act(&server, "/v1/delete", &json!({ "key": "logged\\x0a" }));
    act(&server, "/v1/delete", &json!({ "key": "logged" }));
    assert_eq!(run(&server, "logged-nonsense"), "ERROR\n");
    act(&server, "/v1/drain", &json!({ "device": "logged-device", "drain": true }));
    drop(server);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let of = |event: &str, what: &str| -> Vec<String> {
        let what = format!("what=\"{what}\"");
        let wanted = |line: &&str| line.contains(event) && line.contains(&what);
        text.lines().filter(wanted).map(str::to_owned).collect()
    };
    for (what, outcome) in [
        ("set logged 0 0 13", "done"),
        ("logged\\\\x0a", "no item"),
        ("logged", "done"),
        ("logged-nonsense", "ERROR"),
        ("logged-device", "logged-device: the store has no device of this name"),
    ] {
        assert_eq!(of("\"admin_action\"", what).len(), 1, "{what}: {text}");
        let ended = of("\"admin_action_ended\"", what);
        assert_eq!(ended.len(), 1, "{what}: {text}");
        let line = &ended[0];
        assert!(
            line.contains(&format!("outcome=\"{outcome}")) && line.contains("127.0.0.1"),
            "{line}"
        );
    }
    assert!(!text.contains("secret-of-log"), "{text}");
}

#[test]
fn switches_hold_for_the_page_too() {
    let mut settings = settings();
    settings.switches.control = false;
    settings.switches.flush = false;
    let server = Server::start(settings).unwrap();
    let body = json!({ "device": "a", "drain": true });
    assert_eq!(act(&server, "/v1/drain", &body).0, 403);
    assert!(run(&server, "cache_memlimit 100").contains("not allowed"));
    assert!(run(&server, "flush_all").contains("not allowed"));
}

/// The thread of the session begins with the first action, and ends with the server.
#[test]
fn the_session_costs_nothing_before_the_first_action() {
    let server = server();
    let has_begun = || !server.admin.as_ref().unwrap().state.action_session.has_not_begun();
    assert!(!has_begun());
    get(&server, "/v1/stats");
    assert!(!has_begun());
    assert_eq!(run(&server, "mn"), "MN\n");
    assert!(has_begun());
    server.shutdown(Duration::ZERO).unwrap();
}

#[test]
fn a_file_holds_the_token_and_a_reload_reads_it_again() {
    let path = std::env::temp_dir().join(format!("larder-actions-token-{}", std::process::id()));
    let write = |token: &str, mode| {
        std::fs::write(&path, token).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode))
            .unwrap();
    };
    let settings = || Settings { admin_token_file: Some(path.clone()), ..settings() };
    write("first-token-with-more", 0o644);
    let error = Server::start(settings()).unwrap_err().to_string();
    assert!(error.starts_with("--admin-token-file /") && error.contains("chmod 600"), "{error}");
    write("first-token-with-more\n", 0o600);
    let server = Server::start(settings()).unwrap();
    assert_eq!(server.admin_token(), None);
    let status = |token: &str| {
        let headers =
            format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
        post(&server, "/v1/item", &headers, br#"{"key":"a"}"#).0
    };
    assert_eq!((status("first-token-with-more"), status("other-token-with-more")), (200, 401));
    write("other-token-with-more\n", 0o600);
    assert_eq!(server.reloader().reload(&settings()).changed, ["the token of the admin page"]);
    assert_eq!((status("first-token-with-more"), status("other-token-with-more")), (401, 200));
    assert_eq!(server.reloader().reload(&settings()), Reloaded::default());
    // A file that cannot be used must change nothing.
    write("short", 0o600);
    let refused = server.reloader().reload(&settings()).refused;
    assert!(
        refused[0].starts_with("admin-token-file /") && refused[0].contains("20"),
        "{refused:?}"
    );
    let none = Settings { admin_token_file: None, ..settings() };
    let refused = server.reloader().reload(&none).refused;
    assert!(refused[0].contains("only a start creates a token"), "{refused:?}");
    assert_eq!(status("other-token-with-more"), 200);
    std::fs::remove_file(&path).unwrap();
}
