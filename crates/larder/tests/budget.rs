//! The memory budget is a promise. For any input of clients, and even if clients do not read their
//! replies, the process stays within the budget, and no client's writes wait for another client.
//! Runs the real binary.

mod harness;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use larder_disk::Random;

const MEGABYTE: usize = 1 << 20;
/// Length of a large value in bytes. With a short key, it fits under the default `-I 1m`.
const LARGE: usize = MEGABYTE - 100;

struct Server {
    process: Child,
    address: String,
    memory: u64,
}

impl Server {
    /// Starts a server with `memory` MiB and waits until it is ready.
    fn start(memory: u64, more: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_larder"))
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "off", "-t", "2"])
            .args(["-m", &memory.to_string()])
            .args(more)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let mut log = BufReader::new(process.stderr.take().expect("stderr is piped"));
        let mut line = String::new();
        while !line.contains("event=listening") {
            line.clear();
            assert!(log.read_line(&mut line).expect("the log is text") > 0, "it ended at start");
        }
        let address = line.trim().rsplit_once("address=").expect("it says where").1.to_owned();
        // Reads the rest of stderr, so that the server cannot block on a full pipe.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Server { process, address, memory }
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(&self.address).expect("it accepts");
        stream.set_nodelay(true).expect("a socket option");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket option");
        stream.set_write_timeout(Some(Duration::from_secs(30))).expect("a socket option");
        Client(BufReader::new(stream))
    }

    fn resident(&self) -> u64 {
        harness::resident(&self.process)
    }

    fn assert_within_budget(&self) {
        harness::assert_within_budget(&self.process, self.memory);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("the server reads");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server answers");
        line.trim_end().to_owned()
    }

    fn set(&mut self, key: &str, value: &[u8]) {
        self.send(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes());
        self.send(value);
        self.send(b"\r\n");
        assert_eq!(self.line(), "STORED", "set {key}");
    }

    fn alive(&mut self) {
        self.send(b"mn\r\n");
        assert_eq!(self.line(), "MN");
    }
}

/// Waits until the server's process has at most `bytes` of resident memory.
fn until_resident(server: &Server, bytes: u64) {
    let begun = Instant::now();
    while server.resident() > bytes {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} bytes", server.resident());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn buffers_of_connections_that_end_go_back_to_the_kernel() {
    const CLIENTS: u64 = 3000;
    const HALF: usize = 15_900;
    // A sanitizer keeps freed memory, so the resident memory would not shrink.
    if std::env::var_os("INSTRUMENTED").is_some() {
        return;
    }
    let server = Server::start(256, &["-c", "5000"]);
    let mut first = server.connect();
    first.alive();
    let before = server.resident();
    let half = [b"set half 0 0 16000\r\n".to_vec(), vec![b'p'; HALF]].concat();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(|client| client.send(&half));
    let all = CLIENTS * HALF as u64;
    let begun = Instant::now();
    while server.resident() < before + all * 9 / 10 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} bytes", server.resident());
        std::thread::sleep(Duration::from_millis(20));
    }
    // Some connections stay open. Their buffers lie between the freed buffers, so the allocator
    // does not return the freed memory to the kernel by itself. The server must make it do so.
    let stay: Vec<Client> = clients.into_iter().step_by(100).collect();
    until_resident(&server, before + all / 3);
    drop(stay);
    first.alive();
}

#[test]
fn idle_connections_are_cheap() {
    let count = 4000;
    let server = Server::start(64, &["-c", "5000"]);
    let mut first = server.connect();
    first.alive();
    let before = server.resident();
    let mut idle: Vec<Client> = (0..count).map(|_| server.connect()).collect();
    // Each connection sends one complete command. Half of the connections then send an incomplete
    // one, so the server must keep its bytes.
    for (at, client) in idle.iter_mut().enumerate() {
        client.alive();
        if at % 2 == 0 {
            client.send(b"get half-a-com");
        }
    }
    first.alive();
    let each = server.resident().saturating_sub(before) / count;
    assert!(each <= 8 << 10, "{each} bytes for each idle connection");
    server.assert_within_budget();
}

#[test]
fn clients_that_do_not_read_do_not_block_others() {
    let server = Server::start(64, &[]);
    let mut writer = server.connect();
    let value = vec![b'v'; LARGE];
    for n in 0..20 {
        writer.set(&format!("large:{n}"), &value);
    }
    let mut deaf: Vec<Client> = (0..64).map(|_| server.connect()).collect();
    for client in &mut deaf {
        let keys: Vec<String> = (0..20).map(|n| format!("large:{n}")).collect();
        client.send(format!("get {}\r\n", keys.join(" ")).as_bytes());
    }
    writer.alive();
    let began = Instant::now();
    for n in 0..100 {
        writer.set(&format!("new:{n}"), &value);
        server.assert_within_budget();
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "100 MB of writes took {took:?}");
}

#[test]
fn a_get_of_many_large_values_stays_in_the_budget() {
    let server = Server::start(64, &[]);
    let mut client = server.connect();
    let value = vec![b'v'; LARGE];
    for n in 0..30 {
        client.set(&format!("large:{n}"), &value);
    }
    let keys: Vec<String> = (0..18_000).map(|n| format!("large:{}", n % 30)).collect();
    client.send(format!("get {}\r\n", keys.join(" ")).as_bytes());
    let mut buffer = vec![0; MEGABYTE];
    for _ in 0..300 {
        client.0.read_exact(&mut buffer).expect("values come");
        server.assert_within_budget();
    }
    drop(client);
    server.connect().alive();
}

#[test]
fn bodies_that_never_arrive_stay_in_the_budget() {
    let server = Server::start(64, &[]);
    let mut victim = server.connect();
    victim.set("kept", b"value");
    let mut stalled: Vec<Client> = (0..300).map(|_| server.connect()).collect();
    let part = vec![b'p'; 200 << 10];
    for (n, client) in stalled.iter_mut().enumerate() {
        client.send(format!("set stalled:{n} 0 0 {}\r\n", 240 << 10).as_bytes());
        // Even if the server refuses the value and discards it, it must read these bytes.
        client.send(&part);
    }
    for n in 0..2000 {
        victim.set(&format!("small:{n}"), &part[..5000]);
    }
    // While the incomplete values of `stalled` hold memory, the server may refuse a long value, but
    // only with the error `refused`. If it does not refuse a value, it must store it.
    for n in 0..200 {
        victim.send(format!("set new:{n} 0 0 {}\r\n", part.len()).as_bytes());
        victim.send(&part);
        victim.send(b"\r\n");
        let reply = victim.line();
        let refused = "SERVER_ERROR out of memory storing object";
        assert!(reply == "STORED" || reply == refused, "{reply:?}");
        server.assert_within_budget();
    }
    drop(stalled);
    victim.alive();
}

/// With `-M` the server does not evict, so items must leave memory for connections.
#[test]
fn a_server_that_refuses_keeps_room_for_connections() {
    let server = Server::start(256, &["-M", "-c", "5000"]);
    let mut polite = server.connect();
    let value = vec![b'v'; 10_000];
    let mut kept = 0;
    loop {
        polite.send(format!("set key:{kept} 0 0 {}\r\n", value.len()).as_bytes());
        polite.send(&value);
        polite.send(b"\r\n");
        match polite.line().as_str() {
            "STORED" => kept += 1,
            refused => break assert_eq!(refused, "SERVER_ERROR out of memory storing object"),
        }
    }
    assert!(kept > 20_000, "{kept} of 256 MiB");
    for n in 0..500 {
        polite.send(format!("delete key:{n}\r\n").as_bytes());
        assert_eq!(polite.line(), "DELETED");
    }
    let part = vec![b'p'; 900 << 10];
    let mut arriving: Vec<Client> = (0..36).map(|_| server.connect()).collect();
    for client in &mut arriving {
        client.send(format!("set arriving 0 0 {}\r\n", 910 << 10).as_bytes());
        client.send(&part[..600 << 10]);
    }
    let mut half: Vec<Client> = (0..3900).map(|_| server.connect()).collect();
    for client in &mut half {
        // This write may fail: under pressure the server closes the connections with the most
        // buffered bytes.
        let _ = client.0.get_mut().write_all(b"set half 0 0 16000\r\n");
        let _ = client.0.get_mut().write_all(&part[..15_900]);
    }
    for n in 500..1000 {
        polite.set(&format!("key:{n}"), &value);
        polite.send(format!("gets key:{n}\r\n").as_bytes());
        assert!(polite.line().starts_with("VALUE "), "key:{n} is gone");
        polite.0.read_exact(&mut vec![0; value.len() + 7]).expect("a value");
    }
    server.assert_within_budget();
}

#[test]
fn hostile_input_leaves_the_server_answering() {
    let server = Server::start(64, &[]);
    let key = "k".repeat(250);
    let flood = format!("get {key}\r\nset {key} 0 0 2\r\nxx\r\n").repeat(2000);
    let mut random = Random::new(1);
    let noise: Vec<u8> = (0..200_000).map(|_| random.below(256) as u8).collect();
    std::thread::scope(|scope| {
        for round in 0..8 {
            let (server, flood, noise) = (&server, &flood, &noise);
            scope.spawn(move || {
                for _ in 0..10 {
                    let Ok(mut stream) = TcpStream::connect(&server.address) else { continue };
                    // The server may close the connection because of nonsense, so a failed write is
                    // not an error.
                    let bytes = if round % 2 == 0 { flood.as_bytes() } else { &noise[..] };
                    let _ = stream.write_all(bytes);
                }
            });
        }
        let mut good = server.connect();
        for n in 0..500 {
            good.set(&format!("good:{n}"), b"value");
            good.send(format!("get good:{n}\r\n").as_bytes());
            let reply = [good.line(), good.line(), good.line()];
            assert_eq!(reply, [&format!("VALUE good:{n} 0 5"), "value", "END"]);
        }
    });
    server.assert_within_budget();
}
