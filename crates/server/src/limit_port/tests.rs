use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use larder_engine::limit::Limit;
use larder_engine::{Durability, NANOS, WhenFull};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::connections::BUFFER;
use super::grace;
use crate::policies::Policy;
use crate::server::{Server, Stopper};
use crate::settings::{ListenAddress, Port, Settings, StorePath};
use crate::slow::SentBy;

pub(super) const HOUR: u64 = 3600 * NANOS;

pub(super) fn logins(budget: u64) -> Policy {
    let prefix = Some("login/".to_owned());
    Policy { prefix, ..Policy::new("logins", Limit::fixed(budget, HOUR)) }
}

pub(super) fn settings(policies: Vec<Policy>) -> Settings {
    Settings {
        listen: vec![ListenAddress { host: "127.0.0.1".to_owned(), port: Some(0) }],
        admin: None,
        limit_port: Port::Any,
        threads: 2,
        policies,
        ..Settings::default()
    }
}

pub(super) fn server(policies: Vec<Policy>) -> Server {
    Server::start(settings(policies)).unwrap()
}

pub(super) fn with_store(folder: &Path, durability: Durability, policies: Vec<Policy>) -> Server {
    let store = vec![StorePath { path: folder.to_owned(), size: Some(256 << 20), tier: None }];
    let (durability, memory) = (Some(durability), 16 << 20);
    Server::start(Settings { store, durability, memory, ..settings(policies) }).unwrap()
}

pub(super) fn connect(address: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    client
}

/// Returns the next reply of a connection: its head and its body.
fn reply(client: &mut TcpStream) -> (String, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("a whole head");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = field(&head, "content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    client.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn status(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

fn send(client: &mut TcpStream, request: &str, more: &str) {
    client.write_all(format!("{request} HTTP/1.1\r\nHost: x\r\n{more}\r\n").as_bytes()).unwrap();
}

/// Sends a request on a new connection. Returns status, head and body of the reply.
fn ask(server: &Server, request: &str, more: &str) -> (u16, String, String) {
    let mut client = connect(server.limit_addresses()[0]);
    send(&mut client, request, more);
    let (head, body) = reply(&mut client);
    (status(&head), head, body)
}

/// Returns the reply to a command on the data port.
pub(super) fn command(server: &Server, line: &str) -> String {
    let mut client = connect(server.addresses()[0]);
    client.write_all(format!("{line}\r\n").as_bytes()).unwrap();
    let mut reply = String::new();
    while !reply.ends_with('\n') {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        reply.push(byte[0].into());
    }
    reply.trim_end().to_owned()
}

#[test]
fn units_are_taken_until_none_are_left() {
    let server = server(vec![logins(5)]);
    let take = |query: &str| ask(&server, &format!("POST /v1/limit/logins?{query}"), "");
    let (status, head, body) = take("key=ann&cost=3");
    assert_eq!(status, 200);
    let first = r#"{"allowed":true,"policy":"logins","limit":5,"remaining":2,"reset_ms":3600000,"retry_after_ms":0}"#;
    assert_eq!(body, first);
    assert_eq!(field(&head, "ratelimit-policy"), Some(r#""logins";q=5;w=3600"#));
    assert_eq!(field(&head, "ratelimit"), Some(r#""logins";r=2;t=3600"#));
    assert_eq!(field(&head, "content-type"), Some("application/json"));
    assert_eq!(field(&head, "cache-control"), Some("no-store"));
    assert_eq!(field(&head, "retry-after"), None);

    let (status, head, body) = take("key=ann&cost=3");
    assert_eq!(status, 429);
    assert!(body.starts_with(r#"{"allowed":false,"policy":"logins","limit":5,"remaining":2,"#));
    assert_eq!(field(&head, "retry-after"), Some("3600"));
    assert_eq!(field(&head, "ratelimit"), Some(r#""logins";r=2;t=3600"#));
    // A request for more units than the limit never passes, so there is no time to wait for.
    let (status, head, body) = take("key=ann&cost=18446744073709551615");
    assert_eq!((status, field(&head, "retry-after")), (429, None));
    assert!(body.ends_with(r#""retry_after_ms":null}"#), "{body}");

    let (status, _, body) = ask(&server, "GET /v1/limit/logins?key=ann", "");
    assert_eq!(status, 200);
    assert!(
        body.starts_with(r#"{"policy":"logins","limit":5,"remaining":2,"reset_ms":"#),
        "{body}"
    );
    assert_eq!(ask(&server, "DELETE /v1/limit/logins?key=ann", "").0, 204);
    assert_eq!(ask(&server, "DELETE /v1/limit/logins?key=ann", "").0, 204);
    let (_, _, body) = ask(&server, "GET /v1/limit/logins?key=ann", "");
    assert!(body.contains(r#""remaining":5,"reset_ms":0"#), "{body}");

    let head = {
        let mut client = connect(server.limit_addresses()[0]);
        send(&mut client, "HEAD /v1/limit/logins?key=ann", "Connection: close\r\n");
        let mut all = String::new();
        client.read_to_string(&mut all).unwrap();
        all
    };
    assert!(head.ends_with("\r\n\r\n") && head.contains("\r\nratelimit: \"logins\";r=5;t=0\r\n"));
    let table = server.running.policies();
    let counts = table.named(b"logins").unwrap().counters.totals();
    assert_eq!(counts, [("within", 1), ("near", 0), ("over", 2), ("shadow", 0)]);
}

/// Returns how many requests the latency histogram of the class `limit` has counted.
fn timed(server: &Server) -> u64 {
    let latencies = server.running.latencies_ever().unwrap();
    latencies.classes().find(|(class, _)| *class == "limit").unwrap().1.count()
}

#[test]
fn memcached_clients_share_the_limiter() {
    let server = server(vec![logins(5)]);
    assert_eq!(command(&server, "ma login/ann Qlogins D2 r"), "HD r3 B5");
    let (_, _, body) = ask(&server, "POST /v1/limit/logins?key=ann&cost=2", "");
    assert!(body.contains("\"remaining\":1,"), "{body}");
    assert_eq!(command(&server, "ma login/ann Qlogins D2 r"), "NS r1 B5");
    let forwarded = "X-Forwarded-For: 10.0.0.1, ann\r\n";
    assert_eq!(ask(&server, "GET /v1/forward-auth/logins", forwarded).0, 200);
    assert_eq!(command(&server, "ma login/ann Qlogins r"), "NS r0 B5");
    assert_eq!(ask(&server, "GET /v1/forward-auth/logins", forwarded).0, 429);
    // A plain number must become a limiter. Any other item must be refused.
    assert_eq!(command(&server, "set login/bob 0 0 1\r\n4"), "STORED");
    let (status, _, body) = ask(&server, "POST /v1/limit/logins?key=bob", "");
    assert!(status == 200 && body.contains("\"remaining\":0,"), "{body}");
    assert_eq!(command(&server, "set login/bob 0 0 1\r\nx"), "STORED");
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=bob", "").0, 409);
    assert_eq!(timed(&server), 3 + 5);
}

#[test]
fn requests_that_cannot_be_executed_say_why() {
    let server = server(vec![logins(5)]);
    let uri = |key: usize| format!("POST /v1/limit/logins?key={}", "k".repeat(key));
    assert_eq!(ask(&server, &uri(244), "").0, 200);
    let (status, _, body) = ask(&server, &uri(245), "");
    assert_eq!(status, 400);
    let reason = "the key and the policy's prefix of 6 bytes exceed 250 bytes";
    assert_eq!(body, format!("{{\"error\":\"{reason}\"}}"));
    assert_eq!(ask(&server, "POST /v1/limit/nobody?key=a", "").0, 404);
    let (status, head, _) = ask(&server, "PUT /v1/limit/logins?key=a", "");
    assert_eq!((status, field(&head, "allow")), (405, Some("GET, HEAD, POST, DELETE")));
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=a", "Origin: http://a\r\n").0, 403);
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=a&cost=-1", "").0, 400);
    let (status, _, body) = ask(&server, "POST /v1/limit/logins?key=%00%ff%22", "");
    assert!(status == 200 && body.contains("\"remaining\":4,"), "{body}");
}

#[test]
fn a_proxy_chooses_the_status_and_the_header() {
    let shadow = Policy { shadow: true, ..Policy::new("shadow", Limit::fixed(0, HOUR)) };
    let api =
        Policy { prefix: Some("api/".to_owned()), ..Policy::new("api", Limit::fixed(1, HOUR)) };
    let server = server(vec![api, shadow]);
    let uri = "GET /v1/forward-auth/api?by=header:X-Api-Key&status=403";
    let header = "X-Api-Key: a b\r\nOrigin: http://page.example\r\n";
    assert_eq!(ask(&server, uri, header).0, 200);
    let (status, head, _) = ask(&server, uri, header);
    assert_eq!((status, field(&head, "retry-after")), (403, Some("3600")));
    assert_eq!(ask(&server, uri, "").0, 400);
    let forwarded = "X-Forwarded-For: ::1\r\n";
    let (status, head, body) = ask(&server, "GET /v1/forward-auth/shadow", forwarded);
    assert_eq!((status, field(&head, "retry-after")), (200, None));
    assert!(body.starts_with(r#"{"allowed":true,"shadow":true,"#), "{body}");
    assert!(body.ends_with(r#""retry_after_ms":0}"#), "{body}");
    let counts = server.running.policies().named(b"shadow").unwrap().counters.totals();
    assert_eq!(counts[3], ("shadow", 1));
}

/// The key often comes from a client. It must not lead to an item of another policy or, without a
/// prefix, to any item.
#[test]
fn no_key_leads_to_a_limiter_of_another_policy() {
    let api = || Policy::new("api", Limit::gcra(1000, NANOS, 50).unwrap());
    let admins = || Policy {
        prefix: Some("login/admin/".to_owned()),
        ..Policy::new("admins", Limit::fixed(5, HOUR))
    };
    let server = server(vec![logins(5), api(), admins()]);
    let uri = "GET /v1/forward-auth/api?by=header:X-Api-Key";
    for header in ["X-Api-Key: login/ann\r\n", "X-Api-Key: ann\r\n"] {
        let (status, _, body) = ask(&server, uri, header);
        assert!(status == 400 && body.contains("no prefix"), "{status} {body}");
    }
    for (request, owner) in [
        ("POST /v1/limit/api?key=login/ann", "logins"),
        ("DELETE /v1/limit/api?key=login%2fann", "logins"),
        ("POST /v1/limit/logins?key=admin/ann", "admins"),
        ("GET /v1/limit/api?key=login/admin/ann", "admins"),
    ] {
        let (status, _, body) = ask(&server, request, "");
        assert!(status == 400 && body.contains(owner), "{request}: {status} {body}");
    }
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=admin", "").0, 200);
    assert_eq!(ask(&server, "POST /v1/limit/admins?key=ann", "").0, 200);
    assert_eq!(ask(&server, "POST /v1/limit/api?key=ann", "").0, 200);
    let forwarded = "X-Forwarded-For: 10.0.0.1\r\n";
    assert_eq!(ask(&server, "GET /v1/forward-auth/api", forwarded).0, 200);
}

#[test]
fn a_reload_replaces_the_policies() {
    let server = server(vec![logins(5)]);
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=ann&cost=5", "").0, 200);
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=ann", "").0, 429);
    let more = settings(vec![logins(6)]);
    assert!(server.reloader().reload(&more).refused.is_empty());
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=ann", "").0, 200);
    assert!(server.reloader().reload(&settings(Vec::new())).refused.is_empty());
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=ann", "").0, 404);
}

/// For each algorithm, eight connections take units from two limiters at the same time. Each
/// connection has many requests in flight. All connections together must get exactly the budget of
/// each limiter.
#[test]
fn exactly_the_limit_is_admitted() {
    const BUDGET: u64 = 1000;
    // No unit becomes free while the test runs.
    const DAY: u64 = 86_400_000_000_000;
    for limit in [
        Limit::fixed(BUDGET, DAY),
        Limit::sliding(BUDGET, DAY).unwrap(),
        Limit::gcra(1, DAY, BUDGET).unwrap(),
    ] {
        assert_eq!(admitted_of(limit), 2 * BUDGET as usize, "{limit:?}");
    }
}

/// Sends 500 requests on each of eight connections, to two limiters. Returns how many are admitted.
fn admitted_of(limit: Limit) -> usize {
    const EACH: usize = 500;
    let server = server(vec![Policy::new("logins", limit)]);
    let address = server.limit_addresses()[0];
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            std::thread::spawn(move || {
                let mut client = connect(address);
                let requests: String = (0..EACH)
                    .map(|_| format!("POST /v1/limit/logins?key={} HTTP/1.1\r\n\r\n", thread % 2))
                    .collect();
                let mut writer = client.try_clone().unwrap();
                let writes = std::thread::spawn(move || writer.write_all(requests.as_bytes()));
                let admitted = (0..EACH).filter(|_| status(&reply(&mut client).0) == 200).count();
                writes.join().unwrap().unwrap();
                admitted
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).sum()
}

#[test]
fn large_heads_and_bodies_do_not_harm_other_clients() {
    let server = server(vec![logins(5)]);
    let mut honest = connect(server.limit_addresses()[0]);
    // A head of this length must be accepted, because proxies pass on the cookies of their clients.
    let cookie = format!("Cookie: {}\r\n", "c".repeat(BUFFER / 2));
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=a", &cookie).0, 200);
    let many: String = (0..200).map(|at| format!("X-{at}: 1\r\n")).collect();
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=a", &many).0, 431);
    let endless = ["GET /".to_owned(), "GET / HTTP/1.1\r\nCookie: ".to_owned()];
    for start in endless {
        let mut client = connect(server.limit_addresses()[0]);
        // The write fails if the server has closed the connection.
        let _ = client.write_all((start + &"c".repeat(100 * BUFFER)).as_bytes());
        let mut seen = String::new();
        let _ = client.read_to_string(&mut seen);
        assert!(seen.is_empty() || status(&seen) == 431, "{seen}");
    }
    // The server replies before the body arrives, and does not read the body as another request.
    let body = "Content-Length: 1000000000\r\nExpect: 100-continue\r\n";
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=a", body).0, 200);
    let body = "Transfer-Encoding: chunked\r\n";
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=a", body).0, 200);
    for nonsense in ["GET\r\n\r\n", "get a\r\n", "\x16\x03\x01\0\r\n\r\n", "\u{80}\r\n\r\n"] {
        let mut client = connect(server.limit_addresses()[0]);
        client.write_all(nonsense.as_bytes()).unwrap();
        let mut seen = String::new();
        client.read_to_string(&mut seen).unwrap();
        assert!(seen.is_empty() || status(&seen) == 400, "{seen}");
    }
    send(&mut honest, "GET /v1/limit/logins?key=a", "");
    assert!(reply(&mut honest).1.contains("\"remaining\":2,"));
}

/// If the server has no free memory, an existing limiter must still decide. A request that needs a
/// new limiter must get an error in place of a decision.
#[test]
fn no_memory_is_no_decision() {
    let (when_full, memory) = (WhenFull::Refuse, 8 << 20);
    let server =
        Server::start(Settings { when_full, memory, ..settings(vec![logins(5)]) }).unwrap();
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=old", "").0, 200);
    for length in [64 << 10, 1 << 10] {
        let value = "v".repeat(length);
        let set = |number| format!("set {length}/{number} 0 0 {length}\r\n{value}");
        let refused = (0..).map(|number| command(&server, &set(number)));
        let refused = refused.into_iter().find(|reply| reply != "STORED");
        assert_eq!(refused.as_deref(), Some("SERVER_ERROR out of memory storing object"));
    }
    let mut client = connect(server.limit_addresses()[0]);
    let (head, body) = (0..100_000)
        .map(|key| {
            send(&mut client, &format!("POST /v1/limit/logins?key={key}"), "");
            reply(&mut client)
        })
        .find(|(head, _)| status(head) != 200)
        .expect("memory is full");
    assert_eq!((status(&head), &*body), (503, r#"{"error":"out of memory"}"#));
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=old&cost=4", "").0, 200);
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=old", "").0, 429);
}

/// Neither an idle client nor one that sends half a request must delay the stop.
#[test]
fn a_stop_waits_for_no_idle_client() {
    let server = server(vec![logins(5)]);
    let mut half = connect(server.limit_addresses()[0]);
    half.write_all(b"POST /v1/limit/logins?key=a HTTP/1.1\r\nHost:").unwrap();
    let mut idle = connect(server.limit_addresses()[0]);
    send(&mut idle, "POST /v1/limit/logins?key=a", "");
    assert_eq!(status(&reply(&mut idle).0), 200);
    let began = std::time::Instant::now();
    server.shutdown(Duration::from_secs(600)).unwrap();
    assert!(began.elapsed() < Duration::from_secs(60));
    assert!(matches!(idle.read(&mut [0]), Ok(0) | Err(_)));
    assert!(matches!(half.read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn a_stop_at_once_ends_a_grace_that_has_begun() {
    let stopper = Stopper::default();
    let (_stop, mut stopped) = watch::channel(Some(Instant::now() + Duration::from_secs(3600)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended = runtime.block_on(async {
        let grace = timeout(Duration::from_secs(60), grace(&mut stopped, &stopper));
        let impatience = async {
            tokio::task::yield_now().await;
            stopper.stop_now("impatience");
        };
        tokio::join!(grace, impatience).0
    });
    assert!(ended.is_ok());
}

/// The decisions of a durable policy must survive a restart. Limiters that are only in the store
/// must be read from there.
#[test]
fn limiters_of_a_store_are_read_and_kept() {
    const KEYS: usize = 40;
    let folder = std::env::temp_dir().join(format!("larder-limit-port-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let policy = || vec![Policy { durability: Some(Durability::Sync), ..logins(5) }];
    let server = with_store(&folder, Durability::Async, policy());
    let take = |server: &Server, left: u64| {
        for key in 0..KEYS {
            let (_, _, body) = ask(server, &format!("POST /v1/limit/logins?key={key}"), "");
            assert!(body.contains(&format!("\"remaining\":{left},")), "{body}");
        }
    };
    take(&server, 4);
    // Together these values are four times as large as the memory. So the records of the limiters
    // are afterwards only on the device.
    let mut client = connect(server.addresses()[0]);
    let value = "v".repeat(500 << 10);
    for number in 0..128 {
        let line = format!("set filler{number} 0 0 {}\r\n{value}\r\n", value.len());
        client.write_all(line.as_bytes()).unwrap();
        client.read_exact(&mut [0; 8]).unwrap();
    }
    take(&server, 3);
    drop(server);
    let server = with_store(&folder, Durability::Sync, policy());
    take(&server, 2);
    assert_eq!(timed(&server), KEYS as u64);
    drop(server);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn slow_requests_name_their_limiters() {
    let folder = std::env::temp_dir().join(format!("larder-limit-slow-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let durable = Policy { durability: Some(Durability::Sync), ..logins(9) };
    let quick = Policy::new("quick", Limit::fixed(9, HOUR));
    let store = vec![StorePath { path: folder.clone(), size: Some(256 << 20), tier: None }];
    // With this threshold, every request is slow.
    let slow_command = Some(Duration::from_nanos(1));
    let settings = Settings { store, slow_command, ..settings(vec![durable, quick]) };
    let server = Server::start(settings).unwrap();
    assert_eq!(ask(&server, "POST /v1/limit/quick?key=ann", "").0, 200);
    assert_eq!(ask(&server, "POST /v1/limit/logins?key=ann", "").0, 200);
    let session = server.engine().session(std::task::Waker::noop().clone());
    let slow = server.running.context().unwrap().slow.newest_first();
    let shown: Vec<_> = slow
        .iter()
        .map(|command| (command.key, command.waits.names().collect::<Vec<_>>().join(" ")))
        .collect();
    let hash = |key: &[u8]| Some(session.key(key).secret_hash());
    let expected = [(hash(b"login/ann"), "commit".to_owned()), (hash(b"ann"), String::new())];
    assert_eq!(shown, expected);
    assert!(slow.iter().all(|command| matches!(command.sent_by, SentBy::LimitPort)));
    drop(session);
    drop(server);
    std::fs::remove_dir_all(&folder).unwrap();
}
