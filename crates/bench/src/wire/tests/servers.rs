//! Tests the implementations of `Wire` with real servers. Each test starts its server as the lab
//! does.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use super::*;
use crate::lab::target::{Sandbox, Server, catalogue};

/// Starts the lab's system `id`, configured for values of up to `value_max` bytes, and creates the
/// tables that `wire` uses. If the system is not installed, prints that the test is skipped and
/// returns `None`.
fn start(id: &str, value_max: usize, wire: &Arc<dyn Wire>) -> Option<Server> {
    let system = catalogue().into_iter().find(|system| system.id == id).unwrap();
    let found = match system.find() {
        Ok(found) => found,
        Err(missing) => {
            println!("skipped: {} ({})", missing.why, missing.install);
            return None;
        }
    };
    let parent = std::env::temp_dir().join(format!("larder-wire-{}", std::process::id()));
    let sandbox = Sandbox::new(&parent, 256, 2, 20).unwrap();
    let server = found.start(&Sandbox { value_max, ..sandbox }).unwrap();
    wire.prepare(&server.address).unwrap();
    Some(server)
}

/// Runs the client `program` and returns its output. The word `PORT` in `arguments` stands for the
/// server's port. `last_argument` may contain spaces. Returns `None` if the program is not
/// installed.
fn ask(server: &Server, program: &str, arguments: &str, last_argument: &str) -> Option<String> {
    let address = server.address.to_string();
    let port = address.rsplit_once(':').unwrap().1;
    let words = arguments.split_whitespace().map(|word| word.replace("PORT", port));
    let mut command = Command::new(program);
    let output = command.args(words).arg(last_argument).stdin(Stdio::null()).output();
    let output = match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: there is no {program}");
            return None;
        }
        output => output.unwrap(),
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {errors}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Checks what every wire must do, with values of up to `value_max` bytes.
fn check(server: &Server, wire: &Arc<dyn Wire>, value_max: usize) {
    let address = &server.address;
    wire.prepare(address).expect("the tables exist already");
    let mut caller = Caller::connect(address, wire.clone()).unwrap();
    check_values(&mut caller, value_max);
    check_counter(&mut caller);
    check_pipeline(&mut caller);
    check_concurrent_increments(address, wire);
}

/// Checks that a server refuses the login of `wire`, and that its error contains `text`.
fn check_refusal(server: &Server, wire: impl Wire + 'static, text: &str) {
    let error = Caller::connect(&server.address, Arc::new(wire)).unwrap_err();
    assert!(error.to_string().contains(text), "{error}");
}

fn check_values(caller: &mut Caller, value_max: usize) {
    assert_eq!(caller.get(b"fig").unwrap(), None);
    caller.set(b"fig", b"sweet").unwrap();
    assert_eq!(caller.get(b"fig").unwrap(), Some(b"sweet".to_vec()));
    assert_eq!(caller.get(b"FIG").unwrap(), None, "keys differ by case");
    let lengths = [0, 1, 250, 251, 1000, 1001, 8192, 65_000, 1 << 20, 5 << 20];
    for length in lengths.into_iter().filter(|&length| length <= value_max) {
        let value: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
        caller.set(b"fig", &value).unwrap();
        assert_eq!(caller.get(b"fig").unwrap(), Some(value), "{length} bytes");
    }
    let key = [b'k'; 250];
    caller.set(&key, b"\r\n\0'\\%\xff").unwrap();
    assert_eq!(caller.get(&key).unwrap(), Some(b"\r\n\0'\\%\xff".to_vec()));
}

fn check_counter(caller: &mut Caller) {
    assert_eq!(caller.incr(b"visits").unwrap(), 1);
    assert_eq!(caller.incr(b"visits").unwrap(), 2);
    caller.reset_counter(b"visits").unwrap();
    assert_eq!(caller.incr(b"visits").unwrap(), 1);
    caller.reset_counter(b"visitors").unwrap();
    assert_eq!(caller.incr(b"visitors").unwrap(), 1);
    let many = vec![(Verb::Incr, &b"many"[..], &b""[..]); 300];
    let numbers: Vec<Answer> = (1..=300).map(Answer::Number).collect();
    assert_eq!(caller.call(&many).unwrap(), numbers);
}

fn check_pipeline(caller: &mut Caller) {
    let large = vec![b'v'; 900];
    let requests: Vec<(Verb, &[u8], &[u8])> = vec![
        (Verb::Get, b"absent", b""),
        (Verb::Set, b"plum", b"sour"),
        (Verb::Incr, b"piped", b""),
        (Verb::Get, b"plum", b""),
        (Verb::Set, b"plum", &large),
        (Verb::SetCounter, b"reset", b""),
        (Verb::Get, b"plum", b""),
        (Verb::Incr, b"reset", b""),
    ];
    let answers = |round| {
        [
            Answer::Value(None),
            Answer::Stored,
            Answer::Number(round),
            value(b"sour"),
            Answer::Stored,
            Answer::Stored,
            value(&large),
            Answer::Number(1),
        ]
    };
    let rounds = 20;
    let expected: Vec<Answer> = (1..=rounds).flat_map(answers).collect();
    assert_eq!(caller.call(&requests.repeat(rounds as usize)).unwrap(), expected);
}

/// Increments one counter from two connections, one of which pipelines its requests. Every number
/// must be returned exactly once.
fn check_concurrent_increments(address: &Address, wire: &Arc<dyn Wire>) {
    const CALLS: u64 = 100;
    let count = |depth: usize| {
        let mut caller = Caller::connect(address, wire.clone()).unwrap();
        let requests = vec![(Verb::Incr, &b"shared"[..], &b""[..]); depth];
        let answers = (0..CALLS).flat_map(|_| caller.call(&requests).unwrap());
        answers
            .map(|answer| match answer {
                Answer::Number(number) => number,
                other => panic!("{other:?}"),
            })
            .collect::<Vec<u64>>()
    };
    let mut numbers = thread::scope(|scope| {
        let threads = [1, 10].map(|depth| scope.spawn(move || count(depth)));
        threads.map(|thread| thread.join().unwrap()).concat()
    });
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=11 * CALLS).collect::<Vec<_>>(), "no update is missing or doubled");
}

#[test]
fn redis() {
    let wire: Arc<dyn Wire> = Arc::new(Resp);
    let Some(server) = start("redis", 1024, &wire) else { return };
    check(&server, &wire, usize::MAX);

    let mut caller = Caller::connect(&server.address, wire).unwrap();
    caller.set(b"word", b"x").unwrap();
    let requests: [(Verb, &[u8], &[u8]); 2] =
        [(Verb::Incr, b"word", b""), (Verb::Get, b"word", b"")];
    let answers = caller.call(&requests).unwrap();
    assert_eq!(answers, [failed("ERR value is not an integer or out of range"), value(b"x")]);
}

#[test]
fn postgres() {
    for (id, unlogged) in [("postgres-nofsync", false), ("postgres-unlogged", true)] {
        let own = Postgres { user: "bench".into(), unlogged };
        let wire: Arc<dyn Wire> = Arc::new(own.clone());
        let Some(server) = start(id, 1024, &wire) else { return };
        check(&server, &wire, usize::MAX);
        let text = "SELECT relpersistence FROM pg_class WHERE relname IN ('cache', 'counters')";
        let arguments = "-h 127.0.0.1 -p PORT -U bench -At bench -c";
        if let Some(kinds) = ask(&server, "psql", arguments, text) {
            assert_eq!(kinds, if unlogged { "u\nu\n" } else { "p\np\n" });
        }

        let mut caller = Caller::connect(&server.address, wire).unwrap();
        let requests: [(Verb, &[u8], &[u8]); 3] =
            [(Verb::Incr, b"\xff", b""), (Verb::Set, b"plum", b"ripe"), (Verb::Get, b"plum", b"")];
        let answers = caller.call(&requests).unwrap();
        let user = "stranger".to_owned();
        let role = "28000 role \"stranger\" does not exist";
        check_refusal(&server, Postgres { user, ..own }, role);
        let refusal = "22021 invalid byte sequence for encoding \"UTF8\": 0xff";
        assert_eq!(answers, [failed(refusal), Answer::Stored, value(b"ripe")]);
    }
}

#[test]
fn mariadb() {
    for (id, engine) in
        [("mariadb-memory", TableEngine::Memory), ("mariadb-innodb", TableEngine::InnoDb)]
    {
        let own = Mysql { engine, ..super::mysql::wire() };
        let value_max = own.value_max;
        let wire: Arc<dyn Wire> = Arc::new(own.clone());
        let Some(server) = start(id, value_max, &wire) else { return };
        check(&server, &wire, value_max);
        let text = "SELECT engine FROM information_schema.tables WHERE table_schema = 'bench'";
        let arguments = "--no-defaults -h 127.0.0.1 -P PORT -u bench -N -B -e";
        let name = if engine == TableEngine::Memory { "MEMORY" } else { "InnoDB" };
        if let Some(engines) = ask(&server, "mariadb", arguments, text) {
            assert_eq!(engines, format!("{name}\n{name}\n"));
        }

        let mut caller = Caller::connect(&server.address, wire.clone()).unwrap();
        let long = vec![b'x'; value_max + 1];
        let requests: [(Verb, &[u8], &[u8]); 3] =
            [(Verb::Set, b"plum", &long), (Verb::Set, b"plum", b"ripe"), (Verb::Get, b"plum", b"")];
        let answers = caller.call(&requests).unwrap();
        let refusal = "1406 22001 Data too long for column 'value' at row 1";
        assert_eq!(answers, [failed(refusal), Answer::Stored, value(b"ripe")]);
        let user = "stranger".to_owned();
        check_refusal(&server, Mysql { user, ..own }, "1045 28000 Access denied for user");
        let huge = vec![b'x'; 20 << 20];
        assert_eq!(caller.call(&[(Verb::Set, b"plum", &huge)]).unwrap(), [failed(refusal)]);
    }
}
