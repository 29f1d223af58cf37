mod actions;
mod attacks;
mod clients;
mod durability;
mod keys;
mod lab;
mod scraped;
mod tiers;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use larder_engine::limit::Limit;

use super::assets::ASSETS;
use super::headers::HARDENED;
use super::series::SERIES;
use crate::policies::Policy;
use crate::server::{Host, Server};
use crate::settings::{ListenAddress, Settings, StorePath};

fn settings() -> Settings {
    Settings {
        listen: vec![ListenAddress { host: "127.0.0.1".to_owned(), port: Some(0) }],
        admin: Some("127.0.0.1:0".parse().unwrap()),
        threads: 1,
        ..Settings::default()
    }
}

fn server() -> Server {
    Server::start(settings()).unwrap()
}

/// Sends a request with `Connection: close`, and returns everything that the server sends.
fn ask(address: SocketAddr, head: &str) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.write_all(format!("{head}\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    reply
}

fn get(server: &Server, path: &str) -> (u16, String) {
    get_from(server.admin_address().unwrap(), path)
}

fn get_from(address: SocketAddr, path: &str) -> (u16, String) {
    let reply = ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}"));
    let code = reply.split(' ').nth(1).unwrap().parse().unwrap();
    let body = reply.split_once("\r\n\r\n").unwrap().1.to_owned();
    (code, body)
}

#[test]
fn health_checks_report_the_state_of_the_server() {
    let server = server();
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(get(&server, path), (200, "ok\n".to_owned()), "{path}");
    }
    let (code, body) = get(&server, "/healthz?verbose");
    assert_eq!(code, 200);
    assert!(body.starts_with("{\"status\":\"ok\",\"version\":"), "{body}");
    assert!(body.contains("\"workers\":1,\"threads\":1,\"draining\":false"), "{body}");
    server.running.draining.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(get(&server, "/readyz").0, 503);
    assert_eq!(get(&server, "/livez").0, 200);
}

/// Sends requests just before the store is read. `/livez` and the page must work, and all other
/// paths must reply with the progress of the start.
#[test]
fn a_start_shows_its_progress() {
    let folder = std::env::temp_dir().join(format!("larder-start-{}", std::process::id()));
    // A separate loopback address, so that no client of another test can get the port before the
    // server binds it.
    let address = TcpListener::bind("127.77.0.1:0").unwrap().local_addr().unwrap();
    let mut settings = Settings { admin: Some(address), ..settings() };
    settings.store = vec![StorePath { path: folder.clone(), size: Some(64 << 20), tier: None }];
    std::fs::create_dir_all(&folder).unwrap();
    let (heard, answers) = std::sync::mpsc::channel();
    let starting = Box::new(move |status: &str| {
        for path in ["/livez", "/readyz", "/healthz?verbose", "/metrics", "/v1/stats", "/"] {
            heard.send((status.to_owned(), path, get_from(address, path))).unwrap();
        }
    });
    let host = Host { starting: Some(starting), ..Host::default() };
    let server = Server::start_in(settings, host).unwrap();
    let (status, _, live) = answers.try_recv().expect("the start reports its status");
    assert_eq!(status, "recovering: reading the store");
    assert_eq!(live, (200, "ok\n".to_owned()));
    for (status, path, (code, body)) in answers.try_iter().take(5) {
        if path == "/" {
            assert_eq!(code, 200);
            assert!(body.contains("<h1>Larder</h1>"), "{body}");
        } else {
            assert_eq!((code, body), (503, format!("{status}\n")), "{path}");
        }
    }
    assert_eq!(get(&server, "/readyz"), (200, "ok\n".to_owned()));
    drop(server);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn metrics_count_commands_of_clients() {
    let server = server();
    let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
    client.write_all(b"get a\r\n").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
    let (code, body) = get(&server, "/metrics");
    assert_eq!(code, 200);
    assert!(
        body.contains("\nmemcached_commands_total{command=\"get\",status=\"miss\"} 1\n"),
        "{body}"
    );
    assert!(body.contains("\nmemcached_limit_bytes 67108864\n"));
    assert!(body.contains("\nlarder_ready 1\n"));
}

#[test]
fn the_statistics_have_every_row_that_the_page_reads() {
    let server = server();
    let (code, body) = get(&server, "/v1/stats");
    assert_eq!(code, 200);
    assert!(body.contains("\"limit_maxbytes\":67108864"), "{body}");
    assert!(body.contains("\"version\":\"1.6.45\""), "{body}");
    let (code, page) = get(&server, "/");
    assert_eq!(code, 200);
    // The page fetches nothing from the network.
    assert!(!page.contains("http"), "{page}");
    for asset in ASSETS.iter().filter(|asset| asset.path.starts_with("/script/")) {
        for call in [".number(\"", ".text(\"", ".rate(\""] {
            for rest in asset.text.split(call).skip(1) {
                let row = rest.split('"').next().unwrap();
                assert!(body.contains(&format!("\"{row}\":")), "{}: {row}", asset.path);
            }
        }
    }
    assert_eq!(get(&server, "/nothing").0, 404);
}

#[test]
fn the_table_of_metrics_explains_the_statistics() {
    let server = server();
    let json = |path| -> serde_json::Value { serde_json::from_str(&get(&server, path).1).unwrap() };
    let (metrics, statistics) = (json("/v1/metrics"), json("/v1/stats"));
    let known = |row: &str| {
        let class = row.split(':').nth(1).unwrap_or_default();
        let row = row.replace(&format!("latency:{class}:"), "latency:CLASS:");
        metrics.as_array().unwrap().iter().any(|metric| metric["row"] == row.as_str())
    };
    for row in statistics.as_object().unwrap().keys() {
        assert!(known(row), "{row}");
    }
}

#[test]
fn every_file_of_the_page_is_served_hardened() {
    let server = server();
    let address = server.admin_address().unwrap();
    for asset in ASSETS {
        let reply = ask(address, &format!("GET {} HTTP/1.1\r\nHost: {address}", asset.path));
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 ") && body == asset.text, "{head}");
        let kind = match asset.path {
            "/" => "text/html",
            path if path.ends_with(".css") => "text/css",
            _ => "text/javascript",
        };
        assert!(head.contains(&format!("content-type: {kind}; charset=utf-8")), "{head}");
        for (name, value) in HARDENED {
            assert!(head.contains(&format!("\r\n{name}: {value}")), "{name}: {head}");
        }
        assert!(!head.contains("unsafe"), "{head}");
    }
}

#[test]
fn policies_are_in_the_metrics_and_the_statistics() {
    let policies = vec![Policy::new("api/v1", Limit::fixed(10, 0))];
    let server = Server::start(Settings { policies, ..settings() }).unwrap();
    let reader = server.running.context().unwrap().policies().reader();
    for value in [1, 9, 11, 12] {
        reader.count_plain(reader.named(b"api/v1").unwrap(), value);
    }
    let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
    client.write_all(b"set n 0 0 1\r\n1\r\nincr n 1\r\n").unwrap();
    client.read_exact(&mut [0; 11]).unwrap();
    let metrics = get(&server, "/metrics").1;
    for (result, count) in [("within", 1), ("near", 1), ("over", 2), ("shadow", 0)] {
        let labels = format!("{{policy=\"api/v1\",result=\"{result}\"}}");
        let sample = format!("\nlarder_limit_decisions_total{labels} {count}\n");
        assert!(metrics.contains(&sample), "{sample}: {metrics}");
    }
    let value = |name: &str| -> u64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("larder_{name} ")));
        line.expect(name).parse().unwrap()
    };
    assert_eq!(value("count_updates_in_place_total") + value("count_records_total"), 1);
    let statistics = get(&server, "/v1/stats").1;
    for row in ["\"limit:api/v1:enforced\":\"yes\"", "\"limit:api/v1:over\":2"] {
        assert!(statistics.contains(row), "{statistics}");
    }
}

#[test]
fn writes_and_requests_from_foreign_pages_are_refused() {
    let server = server();
    let address = server.admin_address().unwrap();
    let refused = [
        ("POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0", "405"),
        ("GET /v1/stats HTTP/1.1\r\nHost: evil.example", "403"),
        ("GET /v1/stats HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example", "403"),
        ("GET /healthz HTTP/1.0", "403"),
    ];
    for (head, code) in refused {
        let reply = ask(address, head);
        assert!(reply.contains(&format!(" {code} ")), "{head}: {reply}");
        assert!(!reply.contains("curr_items"), "{head}: {reply}");
    }
}

#[test]
fn a_taken_admin_address_that_was_asked_for_is_an_error() {
    let first = server();
    let taken = first.admin_address().unwrap();
    let asked = Settings { admin: Some(taken), ..settings() };
    let error = Server::start(asked).unwrap_err().to_string();
    assert!(error.contains("choose another address with --admin, or --admin off"), "{error}");
}

#[test]
fn a_page_gets_a_message_every_second_and_the_past() {
    let server = server();
    let address = server.admin_address().unwrap();
    let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
    client.write_all(b"get a\r\n").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
    let mut live = TcpStream::connect(address).unwrap();
    live.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    live.write_all(format!("GET /v1/live HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).unwrap();
    let mut beats = BufReader::new(live).lines().map(Result::unwrap).filter_map(|line| {
        Some(serde_json::from_str::<serde_json::Value>(line.strip_prefix("data: ")?).unwrap())
    });
    let (first, second) = (beats.next().unwrap(), beats.next().unwrap());
    assert!(second["time"].as_u64() > first["time"].as_u64());
    assert_eq!(first["condition"]["level"], "good");
    assert_eq!(first["series"].as_array().unwrap().len(), SERIES.len());
    let at = SERIES.iter().position(|series| series.name == "connections").unwrap();
    assert_eq!(first["values"][at], 1.0);

    let head = format!("GET /v1/history?seconds=60 HTTP/1.1\r\nHost: {address}");
    let reply = ask(address, &head);
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("content-security-policy"));
    let past: serde_json::Value = serde_json::from_str(body).unwrap();
    let times = past["times"].as_array().unwrap();
    assert!(times.contains(&first["time"]) && past["step"] == 1);
    assert_eq!(past["values"][at].as_array().unwrap().len(), times.len());
    assert_eq!(past["events"][0]["name"], "start");
    assert_eq!(get(&server, "/v1/history?seconds=x").0, 400);
    assert_eq!(get(&server, "/v1/history?minutes=5").0, 400);
}
