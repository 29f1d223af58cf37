//! The connections and the slow commands of a real server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::task::Waker;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{get, settings};
use crate::server::Server;
use crate::settings::Settings;
use crate::slow::KEPT;

/// A threshold that makes every command slow.
const ALL: Option<Duration> = Some(Duration::from_nanos(1));

fn clients(server: &Server) -> Value {
    let (code, body) = get(server, "/v1/clients");
    assert_eq!(code, 200);
    serde_json::from_str(&body).unwrap()
}

/// Asks for the list of clients until `accepts` returns true for an answer. Returns this answer.
#[track_caller]
fn wait_for(server: &Server, mut accepts: impl FnMut(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let answer = clients(server);
        if accepts(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{answer:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn ask(client: &mut (impl Read + Write), request: &[u8], expected: &[u8]) {
    client.write_all(request).unwrap();
    let mut reply = vec![0; expected.len()];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(reply.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

#[test]
fn connections_are_listed_with_their_traffic() {
    let folder = std::env::temp_dir().join(format!("larder-<b>clients-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("socket");
    let server =
        Server::start(Settings { threads: 2, socket: Some(socket.clone()), ..settings() }).unwrap();
    let connect = || TcpStream::connect(server.addresses()[0]).unwrap();
    let (mut text, mut binary, silent) = (connect(), connect(), connect());
    let mut unix = UnixStream::connect(&socket).unwrap();
    ask(&mut text, b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
    ask(&mut text, b"get a\r\nmn\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\nMN\r\n");
    let noop = [&[0x80, 0x0a][..], &[0; 22]].concat();
    ask(&mut binary, &noop, &[&[0x81, 0x0a][..], &[0; 22]].concat());
    // The second request is incomplete, so this connection must be shown as waiting for `input`.
    ask(&mut unix, b"mn\r\nset b 0 0 3\r\nab", b"MN\r\n");
    let answer = wait_for(&server, |answer| answer["total"] == 4);
    let row = |address: &str| {
        let rows = answer["connections"].as_array().unwrap();
        rows.iter().find(|row| row["address"] == address).expect(address).clone()
    };
    let of = |client: &TcpStream| row(&client.local_addr().unwrap().to_string());
    let text_row = of(&text);
    assert_eq!(text_row["protocol"], "text");
    assert_eq!((&text_row["received"], &text_row["sent"]), (&(16 + 11).into(), &(8 + 25).into()));
    assert_eq!((&text_row["commands"], &text_row["state"]), (&3.into(), &"idle".into()));
    let binary_row = of(&binary);
    assert_eq!((&binary_row["protocol"], &binary_row["sent"]), (&"binary".into(), &24.into()));
    assert_eq!((&of(&silent)["protocol"], &of(&silent)["sent"]), (&"none yet".into(), &0.into()));
    let unix_row = row("unix");
    assert_eq!((&unix_row["received"], &unix_row["state"]), (&4.into(), &"input".into()));
    assert!(unix_row["kept"].as_u64() >= Some(15));
    let protocols: Value =
        serde_json::from_str(r#"[["none yet", 1], ["text", 2], ["binary", 1]]"#).unwrap();
    let shown = answer["protocols"].as_array().unwrap().iter();
    let shown: Vec<Value> = shown
        .map(|row| [&row["name"], &row["connections"]].into_iter().cloned().collect())
        .collect();
    assert_eq!(Value::from(shown), protocols);
    assert_eq!(answer["address_count"], 2);
    let addresses = answer["addresses"].as_array().unwrap();
    let local = addresses.iter().find(|row| row["address"] == "127.0.0.1").unwrap();
    assert_eq!(local["connections"], 3);

    // Rates must cover the time since the last answer.
    ask(&mut text, b"mn\r\n", b"MN\r\n");
    let next = wait_for(&server, |next| next["time"] != answer["time"]);
    let seconds = next["interval"].as_f64().unwrap();
    let received = next["received_per_second"].as_f64().unwrap() * seconds;
    assert!((received - 4.0).abs() < 0.01, "{next:#}");
    drop(unix);
    wait_for(&server, |next| next["total"] == 3 && next["address_count"] == 1);
    drop(server);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn slow_commands_are_bounded_and_name_their_keys() {
    let server = Server::start(Settings { threads: 2, slow_command: ALL, ..settings() }).unwrap();
    let connect = || TcpStream::connect(server.addresses()[0]).unwrap();
    let mut clients_of = [connect(), connect()];
    // Connections are spread over the workers, so both workers record slow commands.
    clients_of.iter_mut().for_each(|client| ask(client, b"mg known\r\n", b"EN\r\n"));
    let answer = wait_for(&server, |answer| answer["slow"]["count"] == 2);
    let session = server.engine().session(Waker::noop().clone());
    let secret = session.key(b"known").secret_hash();
    let known = server.running.context().unwrap().slow.name_of(secret);
    drop(session);
    for command in answer["slow"]["commands"].as_array().unwrap() {
        assert_eq!((&command["command"], &command["class"]), (&"mg".into(), &"get".into()));
        assert_eq!(command["key_hash"], *known);
    }
    for round in 0..3 * KEPT {
        for client in &mut clients_of {
            let name = format!("set key{round} 0 0 1\r\nx\r\n");
            ask(client, name.as_bytes(), b"STORED\r\n");
        }
    }
    let answer = wait_for(&server, |answer| answer["slow"]["count"] == 2 + 6 * KEPT);
    let slow = &answer["slow"];
    assert_eq!((&slow["off"], &slow["threshold_us"]), (&Value::Null, &0.into()));
    let commands = slow["commands"].as_array().unwrap();
    assert!((1..=KEPT).contains(&commands.len()));
    let addresses: Vec<_> =
        clients_of.iter().map(|client| client.local_addr().unwrap().to_string()).collect();
    assert_eq!(commands[0]["command"], "set");
    for command in commands {
        assert_eq!((&command["waits"], &command["commands"]), (&Value::Array(vec![]), &1.into()));
        assert!(addresses.iter().any(|address| command["address"] == **address), "{command}");
    }

    let mut shown = Vec::new();
    crate::stats::group(&server.running, b"slow", &mut |name, value| {
        shown.push((name.to_owned(), value.to_string()));
    });
    assert!(shown.contains(&("count".to_owned(), (2 + 6 * KEPT).to_string())), "{shown:?}");
    assert!(shown.contains(&("0:waits".to_owned(), "running".to_owned())), "{shown:?}");
    assert!(shown.contains(&("0:command".to_owned(), "set".to_owned())), "{shown:?}");
    let hashes = shown.iter().filter(|(name, _)| name.ends_with(":key_hash"));
    assert_eq!(hashes.count(), commands.len());

    // A reset also drops the recorded commands. With this threshold the reset itself is slow, so it
    // is then the only recorded command. A worker does not record a command while a reader of the
    // commands holds the lock, so the reset may have to be repeated.
    let answer = wait_for(&server, |answer| {
        let recorded = answer["slow"]["count"] == 1 && answer["slow"]["commands"][0] != Value::Null;
        if !recorded {
            ask(&mut clients_of[0], b"stats reset\r\n", b"RESET\r\n");
        }
        recorded
    });
    let commands = answer["slow"]["commands"].as_array().unwrap();
    assert_eq!((commands.len(), &commands[0]["command"]), (1, &"stats".into()));
}

#[test]
fn unfinished_requests_are_not_idle() {
    let server = Server::start(Settings { threads: 1, ..settings() }).unwrap();
    let connect = || TcpStream::connect(server.addresses()[0]).unwrap();
    let of = |answer: &Value, client: &TcpStream| {
        let address = client.local_addr().unwrap().to_string();
        let rows = answer["connections"].as_array().unwrap();
        rows.iter().find(|row| row["address"] == *address).unwrap().clone()
    };
    let (mut long, mut refused) = (connect(), connect());
    let half = vec![b'x'; 50_000];
    ask(&mut long, &[&b"mn\r\nset a 0 0 100000\r\n"[..], &half].concat(), b"MN\r\n");
    let too_large = b"SERVER_ERROR object too large for cache\r\n";
    ask(&mut refused, &[&b"set b 0 0 2000000\r\n"[..], &half].concat(), too_large);
    wait_for(&server, |answer| {
        let (long, refused) = (of(answer, &long), of(answer, &refused));
        // The bytes of the refused value must not be kept.
        (&long["state"], &refused["state"]) == (&"input".into(), &"input".into())
            && long["kept"].as_u64() >= Some(50_000)
            && refused["kept"].as_u64() < Some(50_000)
    });
    ask(&mut long, &[&half[..], b"\r\n"].concat(), b"STORED\r\n");
    wait_for(&server, |answer| {
        let long = of(answer, &long);
        long["state"] == "idle" && long["kept"].as_u64() < Some(50_000)
    });
}

#[test]
fn a_reload_changes_the_threshold_of_slow_commands() {
    let server = Server::start(settings()).unwrap();
    let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
    let off = |server: &Server| -> String {
        let slow = wait_for(server, |answer| answer["slow"]["off"].is_string())["slow"].clone();
        assert_eq!(slow["commands"].as_array().map(Vec::len), Some(0));
        slow["off"].as_str().unwrap().to_owned()
    };
    assert_eq!(clients(&server)["slow"]["threshold_us"], 10_000);
    let reload = |slow_command, latency| {
        let new = Settings { slow_command, latency, ..settings() };
        server.reloader().reload(&new).changed.join(", ")
    };
    assert_eq!(reload(None, true), "slow-command 10ms -> 0s");
    ask(&mut client, b"mn\r\n", b"MN\r\n");
    assert!(off(&server).starts_with("--slow-command is 0"));
    let ms = Some(Duration::from_millis(25));
    assert_eq!(reload(ms, true), "slow-command 0s -> 25ms");
    let answer = wait_for(&server, |answer| answer["slow"]["off"].is_null());
    assert_eq!(answer["slow"]["threshold_us"], 25_000);
    reload(ms, false);
    assert!(off(&server).contains("--disable-latency"));
    let answer = clients(&server);
    assert_eq!(
        (&answer["counts_commands"], &answer["connections"][0]["commands"]),
        (&false.into(), &Value::Null)
    );
}
