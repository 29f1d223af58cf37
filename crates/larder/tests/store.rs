//! Stores as an operator sees them: the messages of a start, what survives a stop and a crash, and
//! which processes may open a store. After many steps, `larder check` must report the state that
//! the test expects. Runs the real binary.

mod harness;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use larder_disk::{Device, FileDevice};
use larder_log::format::Superblock;
use larder_log::format::checksum::checksum64;
use larder_log::format::geometry::SUPERBLOCKS;
use larder_log::recover::read_superblock;
use std::process::{Command, Output, Stdio};
use std::thread;

use harness::{BINARY, Folder, Process, Server, ask, connect, serve};

fn check(store: &Path) -> Output {
    Command::new(BINARY).arg("check").arg(store).output().expect("the binary starts")
}

fn checked(store: &Path, code: i32) -> String {
    let output = check(store);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

#[test]
fn durable_items_survive_a_crash_and_a_stop() {
    let folder = Folder::new("store");
    for durability in ["async", "sync"] {
        let store = folder.0.join(durability);
        let flags = ["--durability", durability, "--sync-interval", "50ms"];
        let server = Server::start(&store, &flags);
        assert!(server.recovered.contains("created=true"), "{}", server.recovered);
        server.ask("set a 5 0 3\r\nabc\r\n", "STORED\r\n");
        server.ask("set n 0 0 1\r\n1\r\nincr n 5\r\n", "STORED\r\n6\r\n");
        server.until_durable();
        assert_eq!(server.stat("larder_durability"), durability);
        assert_eq!(server.stat("larder_store"), format!("{}:64MB", store.display()));
        assert!(server.stat("larder_commits").parse::<u64>().expect("a number") > 0);
        server.kill();
        assert!(checked(&store, 0).contains("2 items"), "{durability}");

        let server = Server::start(&store, &flags);
        assert!(server.recovered.contains("items=2"), "{}", server.recovered);
        assert!(server.recovered.contains("clean=false"), "{}", server.recovered);
        assert_eq!(server.stat("larder_recovered_items"), "2");
        server.ask("get a n\r\n", "VALUE a 5 3\r\nabc\r\nVALUE n 0 1\r\n6\r\nEND\r\n");
        server.ask("delete n\r\nset last 0 0 1\r\nx\r\n", "DELETED\r\nSTORED\r\n");
        // The test does not wait until these changes are durable, because a stop must make
        // everything durable.
        server.stop();
        let report = checked(&store, 0);
        assert!(report.contains("stopped cleanly"), "{report}");

        let server = Server::start(&store, &flags);
        assert!(server.recovered.contains("clean=true"), "{}", server.recovered);
        server.ask("get a n last\r\n", "VALUE a 5 3\r\nabc\r\nVALUE last 0 1\r\nx\r\nEND\r\n");
        server.stop();
    }
}

#[test]
fn without_durability_items_survive_a_stop_but_not_a_crash() {
    let folder = Folder::new("volatile");
    let store = folder.0.join("store");
    let flags = ["--durability", "none"];
    let server = Server::start(&store, &flags);
    server.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    server.stop();
    let server = Server::start(&store, &flags);
    server.ask("get a\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n");
    server.kill();
    let report = checked(&store, 1);
    assert!(report.contains("a start    empties the store"), "{report}");
    let mut command = serve();
    let mut process = Process::spawn(command.arg("--store").arg(&store).args(flags));
    process.event("store_emptied");
    process.event("serving");
}

/// Changes the superblock of a store that is not in use.
fn with_superblock(store: &Path, change: impl FnOnce(&mut Superblock)) -> Superblock {
    let device = FileDevice::open(store, None).expect("a store");
    let mut superblock = read_superblock(&device).expect("it reads").expect("a store");
    change(&mut superblock);
    superblock.counter += 1;
    let mut block = [0; 4096];
    superblock.encode(&mut block);
    device.write_at(SUPERBLOCKS[superblock.copy()], &block).expect("it writes");
    superblock
}

/// Returns the remaining lifetime of an item, in seconds.
fn time_to_live(server: &Server, key: &str) -> u32 {
    let mut client = connect(&server.address);
    client.write_all(format!("mg {key} t\r\n").as_bytes()).expect("it reads");
    let mut reply = String::new();
    BufReader::new(client).read_line(&mut reply).expect("it answers");
    reply.trim().strip_prefix("HD t").and_then(|left| left.parse().ok()).expect(&reply)
}

fn now() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    u32::try_from(now.as_secs()).expect("before 2106")
}

#[test]
fn a_clock_that_is_behind_at_a_restart_revives_nothing() {
    let folder = Folder::new("clock");
    let store = folder.0.join("store");
    let began = now();
    let server = Server::start(&store, &[]);
    server.ask(&format!("set soon 0 {} 1\r\nx\r\n", began + 500), "STORED\r\n");
    server.ask("set late 0 3000 1\r\nx\r\n", "STORED\r\n");
    server.until_durable();
    server.kill();
    let stopped = with_superblock(&store, |superblock| superblock.clock += 1000);
    assert!(stopped.clock >= began + 1000, "the time of the start is remembered");

    // The store now looks as if it had been used for 1000 seconds and the clock had then been set
    // back. The item `soon` has expired in that time and must not come back.
    for _ in 0..2 {
        let server = Server::start(&store, &[]);
        let shown: u32 = server.stat("time").parse().expect("a time");
        assert!(shown.abs_diff(now()) < 60, "clients see the machine's clock, not {shown}");
        server.ask("get soon late\r\n", "VALUE late 0 1\r\nx\r\nEND\r\n");
        // Clients' absolute expiry times must refer to the machine's clock.
        server.ask(&format!("set new 0 {} 1\r\nx\r\n", now() + 100), "STORED\r\n");
        let left = time_to_live(&server, "new");
        assert!((40..=101).contains(&left), "{left}");
        server.stop();
    }
    let after = with_superblock(&store, |_| {});
    assert!((stopped.clock..stopped.clock + 60).contains(&after.clock), "{}", after.clock);
}

/// Builds a library that sets the wall clock of a process forward by `WALL_AHEAD` seconds.
fn faked_wall_clock(folder: &Folder) -> PathBuf {
    const SOURCE: &str = r#"
        #define _GNU_SOURCE
        #include <stdlib.h>
        #include <sys/syscall.h>
        #include <time.h>
        #include <unistd.h>
        int clock_gettime(clockid_t clock, struct timespec *time) {
            int result = syscall(SYS_clock_gettime, clock, time);
            if (clock == CLOCK_REALTIME)
                time->tv_sec += atol(getenv("WALL_AHEAD"));
            return result;
        }
    "#;
    let library = folder.0.join("wall.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-x", "c", "-", "-o"]).arg(&library);
    let mut compiler = compiler.stdin(Stdio::piped()).spawn().expect("a C compiler");
    let mut input = compiler.stdin.take().expect("stdin is piped");
    input.write_all(SOURCE.as_bytes()).expect("it reads");
    drop(input);
    assert!(compiler.wait().expect("it ends").success());
    library
}

#[test]
fn within_a_boot_a_restart_with_another_wall_clock_changes_no_expiry() {
    let folder = Folder::new("boot");
    let (store, library) = (folder.0.join("store"), faked_wall_clock(&folder));
    let start = |ahead: i32| {
        let mut command = serve();
        command.env("LD_PRELOAD", &library).env("WALL_AHEAD", ahead.to_string());
        Server::spawn(command.arg("--store").arg(format!("{}:64MB", store.display())))
    };
    let wall = |ahead: i32| now().checked_add_signed(ahead).expect("before 2106");
    let server = start(0);
    let begun = Instant::now();
    server.ask("set k 0 100 1\r\nx\r\n", "STORED\r\n");
    server.stop();
    for ahead in [3600, -3600] {
        let server = start(ahead);
        assert!(server.stat("time").parse::<u32>().expect("a time").abs_diff(wall(ahead)) < 60);
        let (left, passed) = (time_to_live(&server, "k"), begun.elapsed().as_secs() as u32);
        assert!(left <= 100 && left + passed + 1 >= 100, "{left} s left after {passed} s");
        // Clients' absolute expiry times must refer to the wall clock.
        let exptime = wall(ahead) + 50;
        server.ask(&format!("set absolute 0 {exptime} 1\r\nx\r\n"), "STORED\r\n");
        assert!((40..=51).contains(&time_to_live(&server, "absolute")));
        // The next start follows a crash. The first start of this loop followed a clean stop.
        server.until_durable();
        server.kill();
    }
    // With another `boot_id`, the server believes that the machine has rebooted since the last run.
    // Then the store's time must jump to the wall clock's time, unless that is earlier.
    for (ahead, reply) in [(-3600, "VALUE k 0 1\r\nx\r\nEND\r\n"), (3600, "END\r\n")] {
        with_superblock(&store, |superblock| superblock.boot_id ^= 1);
        let server = start(ahead);
        server.ask("get k\r\n", reply);
        server.stop();
    }
}

#[test]
fn a_store_without_a_size_takes_a_moderate_one_and_keeps_it() {
    let folder = Folder::new("size");
    let store = folder.0.join("store");
    let mut command = serve();
    let mut process = Process::spawn(command.arg("--store").arg(&store).args(["-m", "64"]));
    let line = process.event("store_size_chosen");
    process.event("serving");
    drop(process);
    let bytes = fs::metadata(&store).expect("a store").len();
    // The default size is 1 GiB with this memory limit, or a quarter of the free space if that is
    // less.
    assert!(bytes <= 1 << 30, "{bytes}");
    assert!(line.contains(&format!("bytes={bytes}")) && line.contains("PATH:SIZE"), "{line}");
    // A restart without a size keeps the store's size. A restart with a larger size enlarges the
    // store.
    for (more, wanted) in [("", bytes), (":1100MB", 1100 << 20)] {
        let mut process =
            Process::spawn(serve().args(["--store", &format!("{}{more}", store.display())]));
        process.event("serving");
        assert_eq!(fs::metadata(&store).expect("a store").len(), wanted);
    }
}

#[test]
fn a_store_belongs_to_one_process() {
    let folder = Folder::new("shared");
    let store = folder.0.join("store");
    let server = Server::start(&store, &[]);
    let (code, log) = Process::spawn(serve().arg("--store").arg(&store)).end();
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("another process uses this store: stop it first"), "{log}");
    assert_eq!(check(&store).status.code(), Some(3));
    server.ask("mn\r\n", "MN\r\n");
    server.stop();
    checked(&store, 0);
}

#[test]
fn a_file_that_is_not_a_store_is_not_overwritten() {
    let folder = Folder::new("foreign");
    let file = folder.0.join("precious");
    fs::write(&file, vec![b'x'; 2 << 20]).expect("a file");
    let named = format!("{}:64MB", file.display());
    let (code, log) = Process::spawn(serve().args(["--store", &named])).end();
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("is not a store"), "{log}");
    assert_eq!(fs::read(&file).expect("a file"), vec![b'x'; 2 << 20]);
}

/// For every kind of newer format, a start and `check` must name the version that can read it, and
/// must change nothing.
#[test]
fn a_newer_format_is_refused_by_name() {
    let folder = Folder::new("newer");
    let store = folder.0.join("store");
    let server = Server::start(&store, &[]);
    server.ask("set key 0 0 5\r\nvalue\r\n", "STORED\r\n");
    server.stop();
    let original = fs::read(&store).expect("a store");
    // Offset of the field, its new value, the expected message, and whether `check` can still read
    // the store.
    for (at, says, message, readable) in [
        (8, 2, "format version 2", false),
        (40, 1 << 40, "incompatible 0x10000000000", false),
        (32, 1, "read-only 0x1", true),
    ] {
        let mut newer = original.clone();
        for copy in newer[..8192].chunks_exact_mut(4096) {
            let old = u32::from_le_bytes(copy[at..at + 4].try_into().expect("4 bytes"));
            match at {
                8 => copy[at..at + 4].copy_from_slice(&2u32.to_le_bytes()),
                _ => copy[at..at + 8].copy_from_slice(&(u64::from(old) | says).to_le_bytes()),
            }
            // The superblock says that release 1.25.3 has written it.
            copy[4040..4046].copy_from_slice(&[1, 0, 25, 0, 3, 0]);
            let checksum = checksum64(&copy[..4088], 0);
            copy[4088..].copy_from_slice(&checksum.to_le_bytes());
        }
        fs::write(&store, &newer).expect("it writes");
        // The given size is larger than the store. A start that wrongly accepted the store would
        // therefore change the file.
        let named = format!("{}:96MB", store.display());
        let (code, log) = Process::spawn(serve().args(["--store", &named])).end();
        assert_eq!(code, Some(3), "{log}");
        assert!(log.contains(message) && log.contains("Larder 1.25.3 or newer"), "{log}");
        let output = check(&store);
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains(message) && said.contains("Larder 1.25.3 or newer"), "{said}");
        assert_eq!(output.status.code(), Some(if readable { 0 } else { 3 }), "{said}");
        assert_eq!(said.contains("is refused"), readable, "{said}");
        assert!(fs::read(&store).expect("a store") == newer, "{message}: something was changed");
    }
    fs::write(&store, &original).expect("it writes");
    let server = Server::start(&store, &[]);
    server.ask("get key\r\n", "VALUE key 0 5\r\nvalue\r\nEND\r\n");
    server.stop();
}

#[test]
fn damage_is_refused_or_dropped_but_never_hidden() {
    let folder = Folder::new("damage");
    let store = folder.0.join("store");
    let server = Server::start(&store, &[]);
    let value = "v".repeat(5000);
    for key in ["one", "two", "three"] {
        server.ask(&format!("set {key} 0 0 5000\r\n{value}\r\n"), "STORED\r\n");
        // Each item gets its own commit. The trailer of a later commit proves that the item was
        // durable, so a start must report damage to the item and not take it for a torn write.
        server.until_durable();
    }
    // Kills the server: after a clean stop, the next start may use the index image and read no
    // records.
    server.kill();
    let bytes = fs::read(&store).expect("the store");
    let at = bytes.windows(9).position(|bytes| bytes == b"twovvvvvv").expect("an item") + 100;
    let file = fs::OpenOptions::new().write(true).open(&store).expect("the store");
    file.write_all_at(b"!", at as u64).expect("a writable file");
    drop(file);
    let report = checked(&store, 2);
    assert!(report.contains("at least 1 records lost"), "{report}");

    let mut refusing = serve();
    refusing.arg("--store").arg(&store).args(["--when-full", "refuse"]);
    let (code, log) = Process::spawn(&mut refusing).end();
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("--accept-damage"), "{log}");
    let mut process = Process::spawn(refusing.arg("--accept-damage"));
    process.event("store_damaged");
    let listening = process.event("listening");
    let address = listening.rsplit_once("address=").expect("it says where").1;
    let mut client = connect(address);
    ask(&mut client, "get two\r\nmg one k\r\nmg three k\r\n", "END\r\nHD kone\r\nHD kthree\r\n");
}

/// A limit on the process's file size acts like a disk that refuses writes beyond this limit. The
/// test can lift the limit while the server runs.
#[test]
fn a_failing_store_is_reported_until_it_recovers() {
    let folder = Folder::new("failing");
    let store = folder.0.join("store");
    let mut command = Command::new("sh");
    // The shell ignores SIGXFSZ, so a write beyond the limit returns an error instead of ending the
    // process.
    let script = "trap '' XFSZ; exec \"$0\" \"$@\"";
    command.args(["-c", script, BINARY, "serve", "--listen", "127.0.0.1:0", "-t", "2"]);
    command.args(["--admin", "127.0.0.1:0", "--durability", "sync", "--store"]);
    command.arg(format!("{}:64MB", store.display()));
    let mut process = Process::spawn(&mut command);
    let listening = process.event("listening");
    let address = listening.rsplit_once("address=").expect("it says where").1.to_owned();
    let page = process.event("admin_page");
    let (_, page) = page.split_once("http://").expect("it says where");
    let page = page.trim_end_matches(['"', '/']).to_owned();
    process.event("serving");

    let mut client = connect(&address);
    ask(&mut client, "set kept 0 0 1\r\n1\r\n", "STORED\r\n");
    let pid = process.child.id().to_string();
    let limit = |bytes: &str| {
        let command = ["--pid", &pid, &format!("--fsize={bytes}:")];
        let status = Command::new("prlimit").args(command).status().expect("prlimit is there");
        assert!(status.success());
    };
    limit("4096");
    client.write_all(b"set lost 0 0 1\r\n1\r\n").expect("it reads");
    let mut replies = BufReader::new(client.try_clone().expect("a descriptor"));
    let mut reply = String::new();
    replies.read_line(&mut reply).expect("it answers");
    assert!(reply.starts_with("SERVER_ERROR store failed"), "{reply}");
    process.event("store_failing");
    let ready = http(&page, "/readyz");
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    assert!(ready.contains("the store refuses writes: "), "{ready}");
    assert!(http(&page, "/livez").starts_with("HTTP/1.1 200"));
    assert!(http(&page, "/metrics").contains("\nlarder_store_healthy 0\n"));
    ask(&mut client, "get kept lost\r\n", "VALUE kept 0 1\r\n1\r\nEND\r\n");

    limit("unlimited");
    process.event("store_healed");
    assert!(http(&page, "/readyz").starts_with("HTTP/1.1 200"));
    ask(&mut client, "set found 0 0 1\r\n1\r\n", "STORED\r\n");
    process.signal("-TERM");
    assert_eq!(process.end().0, Some(0));
    assert!(checked(&store, 0).contains("2 items"));
}

/// Returns the reply of the admin port.
fn http(address: &str, path: &str) -> String {
    let mut client = connect(address);
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    client.write_all(request.as_bytes()).expect("it reads");
    let mut reply = String::new();
    client.read_to_string(&mut reply).expect("it answers");
    reply
}

/// Returns the value of the nth key: from one byte to nearly the size of a segment, which makes a
/// jumbo.
fn value(n: usize) -> Vec<u8> {
    let large = if n.is_multiple_of(60) { 130_000 } else { 0 };
    let len = [1, 100, 1000, 5000, 20_000][n % 5] + n % 7 + large;
    (0..len).map(|at| b'a' + ((n * 31 + at) % 26) as u8).collect()
}

fn hit(n: usize) -> Vec<u8> {
    let value = value(n);
    [format!("VALUE key{n} 0 {}\r\n", value.len()).as_bytes(), &value[..], b"\r\n"].concat()
}

/// Sends `request`, reads as many bytes as `expected` has, and compares them with `expected`.
fn expect(client: &mut (impl Read + Write), request: &[u8], expected: &[u8]) {
    client.write_all(request).expect("it reads");
    let mut reply = vec![0; expected.len()];
    client.read_exact(&mut reply).expect("it answers");
    if reply != expected {
        let at = reply.iter().zip(expected).position(|(a, b)| a != b);
        panic!("{}: differs at {at:?}", String::from_utf8_lossy(&request[..request.len().min(60)]));
    }
}

#[test]
fn items_beyond_memory_are_read_back_by_either_backend() {
    const KEYS: usize = 6000;
    let folder = Folder::new("flash");
    for io in ["auto", "epoll"] {
        let store = folder.0.join(io);
        let server = Server::start(&store, &["-m", "16", "--io", io, "--threads", "2"]);
        let ways = if io == "epoll" { &["threads"][..] } else { &["uring", "threads"] };
        assert!(ways.contains(&&*server.stat("larder_flash_io")));
        let mut client = connect(&server.address);
        for n in 0..KEYS {
            let value = value(n);
            let head = format!("set key{n} 0 0 {}\r\n", value.len());
            expect(&mut client, &[head.as_bytes(), &value, b"\r\n"].concat(), b"STORED\r\n");
        }
        assert_eq!(server.stat("evictions"), "0", "there is room in the store");
        let address = &server.address;
        thread::scope(|scope| {
            for seed in 0..4usize {
                scope.spawn(move || {
                    let mut client = connect(address);
                    let mut nth = seed * 1009;
                    let mut next = || {
                        nth = (nth * 1103 + 12_345) % KEYS;
                        nth
                    };
                    for round in 0..60 {
                        // Sends single gets, one get of many keys, and a pipeline that also has a
                        // miss and a write.
                        let n = next();
                        let end = b"END\r\n";
                        expect(
                            &mut client,
                            format!("get key{n}\r\n").as_bytes(),
                            &[&hit(n)[..], end].concat(),
                        );
                        let many: Vec<usize> = (0..40).map(|_| next()).collect();
                        let names: String = many.iter().map(|n| format!(" key{n}")).collect();
                        let hits: Vec<u8> = many.iter().flat_map(|&n| hit(n)).collect();
                        expect(
                            &mut client,
                            format!("get{names}\r\n").as_bytes(),
                            &[&hits[..], end].concat(),
                        );
                        let mut request =
                            format!("set own{seed} 0 0 1\r\n{}\r\nget none\r\n", round % 10);
                        let mut replies = b"STORED\r\nEND\r\n".to_vec();
                        for n in many {
                            request += &format!("get key{n}\r\n");
                            replies.extend([&hit(n)[..], end].concat());
                        }
                        request += &format!("get own{seed}\r\n");
                        replies.extend(
                            format!("VALUE own{seed} 0 1\r\n{}\r\nEND\r\n", round % 10).bytes(),
                        );
                        expect(&mut client, request.as_bytes(), &replies);
                        // Another client closes its connection without waiting for the answer.
                        let mut gone = connect(address);
                        gone.write_all(format!("get{names}\r\n").as_bytes()).expect("it reads");
                    }
                });
            }
        });
        let reads: u64 = server.stat("larder_flash_reads").parse().expect("a number");
        assert!(reads > 1000, "only {reads} reads of items that are not in memory");
        assert_ne!(server.stat("larder_jumbo_segments"), "0");
        // Changes items that are not in memory.
        ask(&mut client, "append key0 0 0 1\r\n!\r\ntouch key1 0\r\n", "STORED\r\nTOUCHED\r\n");
        let mut longer = value(0);
        longer.push(b'!');
        let mut reply = format!("VALUE key0 0 {}\r\n", longer.len()).into_bytes();
        reply.extend([&longer[..], b"\r\nEND\r\n"].concat());
        expect(&mut client, b"get key0\r\n", &reply);
        ask(&mut client, "set key60 0 0 1\r\n!\r\ndelete key120\r\n", "STORED\r\nDELETED\r\n");
        server.stop();
        // After a clean stop, a start does not read large values. The server must read each of them
        // when a client requests it.
        let server = Server::start(&store, &["-m", "16", "--io", io, "--threads", "2"]);
        let mut client = connect(&server.address);
        expect(&mut client, b"get key60 key120\r\n", b"VALUE key60 0 1\r\n!\r\nEND\r\n");
        for n in (180..KEYS).step_by(60) {
            let reply = [&hit(n)[..], b"END\r\n"].concat();
            expect(&mut client, format!("get key{n}\r\n").as_bytes(), &reply);
        }
        assert_eq!(server.stat("evictions"), "0");
        server.stop();
    }
}
