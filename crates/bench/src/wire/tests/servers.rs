//! The wires against real servers, which each test starts for itself.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// The longest time that a server may take to answer after its start.
const START: Duration = Duration::from_secs(60);
/// The longest time that a server may take to end.
const STOP: Duration = Duration::from_secs(20);
/// Directories of server programs that are often not on PATH.
const PLACES: [&str; 2] = ["/usr/sbin", "/usr/local/pgsql/bin"];
/// Debian's directory of PostgreSQL's versions.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";

/// A user and a group by their numbers.
type Owner = (u32, u32);

/// A server with a directory of its own. Dropping it stops the server and removes the directory.
struct Server {
    child: Option<Child>,
    directory: PathBuf,
    port: u16,
    owner: Option<Owner>,
}

impl Server {
    fn new(name: &str, owner: Option<Owner>) -> Server {
        let directory = format!("larder-wire-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        if let Some((user, group)) = owner {
            chown(&directory, Some(user), Some(group)).unwrap();
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Server { child: None, directory, port, owner }
    }

    fn address(&self) -> Address {
        Address::Tcp(format!("127.0.0.1:{}", self.port))
    }

    fn command(&self, program: &Path, arguments: &str) -> Command {
        let directory = self.directory.display().to_string();
        let fill =
            |word: &str| word.replace("DIR", &directory).replace("PORT", &self.port.to_string());
        let mut command = Command::new(program);
        command.args(arguments.split_whitespace().map(fill)).current_dir(&self.directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command
    }

    /// Runs a program to its end and returns its output. It must succeed.
    fn run(&self, program: &Path, arguments: &str, last_argument: &str) -> String {
        let mut command = self.command(program, arguments);
        command.arg(last_argument).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {arguments}: {errors}", program.display());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Starts the server, waits until `wire` can connect, and creates the tables.
    fn start(&mut self, program: &Path, arguments: &str, wire: &Arc<dyn Wire>) {
        let mut command = self.command(program, arguments);
        let die_with_parent = || {
            // SAFETY: the call takes numbers. It is safe between fork and exec.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            Ok(())
        };
        // SAFETY: the closure only makes a system call and allocates nothing.
        unsafe { command.pre_exec(die_with_parent) };
        self.child = Some(command.spawn().unwrap());
        let address = self.address();
        self.wait(|| wire.prepare(&address).and_then(|()| Caller::connect(&address, wire.clone())));
    }

    fn wait<T>(&mut self, mut attempt: impl FnMut() -> Result<T>) {
        let started = Instant::now();
        while let Err(error) = attempt() {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().unwrap());
            assert_eq!(ended, None, "the server ended: {error}");
            assert!(started.elapsed() < START, "the server does not answer: {error}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // An orderly end also frees PostgreSQL's shared memory.
            let pid = libc::pid_t::try_from(child.id()).unwrap_or(0);
            // SAFETY: the call takes numbers. The child was not waited for, so its id is its own.
            unsafe { libc::kill(pid, libc::SIGTERM) };
            let asked = Instant::now();
            while matches!(child.try_wait(), Ok(None)) && asked.elapsed() < STOP {
                thread::sleep(Duration::from_millis(10));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Finds a program. Prints that the test is skipped if there is none.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir(POSTGRES_VERSIONS).into_iter().flatten().flatten();
    let mut places = std::env::split_paths(&path)
        .chain(PLACES.map(PathBuf::from))
        .chain(versions.map(|version| version.path().join("bin")));
    let found = places.find_map(|place| Some(place.join(name)).filter(|file| file.is_file()));
    if found.is_none() {
        println!("skipped: there is no {name}");
    }
    found
}

fn is_root() -> bool {
    // SAFETY: the call takes nothing and returns a number.
    unsafe { libc::geteuid() == 0 }
}

/// Returns the numbers of a user in /etc/passwd.
fn user(name: &str) -> Option<Owner> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Checks what every wire must do, with values of up to `value_max` bytes.
fn check(server: &Server, wire: &Arc<dyn Wire>, value_max: usize) {
    let address = server.address();
    wire.prepare(&address).expect("the tables exist already");
    let mut caller = Caller::connect(&address, wire.clone()).unwrap();
    check_values(&mut caller, value_max);
    check_counter(&mut caller);
    check_pipeline(&mut caller);
    check_concurrent_increments(&address, wire);
}

/// Checks that a server refuses a login with this text.
fn check_refusal(server: &Server, wire: impl Wire + 'static, text: &str) {
    let error = Caller::connect(&server.address(), Arc::new(wire)).unwrap_err();
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

/// Increments one counter from two connections, some of the requests pipelined.
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
    let Some(program) = find("redis-server") else { return };
    let wire: Arc<dyn Wire> = Arc::new(Resp);
    let mut server = Server::new("redis", None);
    server.start(&program, "--port PORT --bind 127.0.0.1 --dir DIR", &wire);
    check(&server, &wire, usize::MAX);

    let mut caller = Caller::connect(&server.address(), wire).unwrap();
    caller.set(b"word", b"x").unwrap();
    let requests: [(Verb, &[u8], &[u8]); 2] =
        [(Verb::Incr, b"word", b""), (Verb::Get, b"word", b"")];
    let answers = caller.call(&requests).unwrap();
    assert_eq!(answers, [failed("ERR value is not an integer or out of range"), value(b"x")]);
}

#[test]
fn postgres() {
    for unlogged in [false, true] {
        let Some(program) = find("postgres") else { return };
        let owner = if is_root() { user("postgres") } else { None };
        if is_root() && owner.is_none() {
            println!("skipped: PostgreSQL does not run as root, and there is no user postgres");
            return;
        }
        let own = Postgres { unlogged, ..super::postgres::wire() };
        let wire: Arc<dyn Wire> = Arc::new(own.clone());
        let mut server = Server::new(&format!("postgres-{unlogged}"), owner);
        let initdb = program.with_file_name("initdb");
        server.run(&initdb, "-D DIR/data -U postgres -A trust -E UTF8 --locale=C", "--no-sync");
        server.start(&program, "-D DIR/data -p PORT -k DIR -h 127.0.0.1 -F", &wire);
        check(&server, &wire, usize::MAX);
        if let Some(psql) = find("psql") {
            let text = "SELECT relpersistence FROM pg_class WHERE relname IN ('cache', 'counters')";
            let kinds = server.run(&psql, "-h 127.0.0.1 -p PORT -U postgres -At bench -c", text);
            assert_eq!(kinds, if unlogged { "u\nu\n" } else { "p\np\n" });
        }

        let mut caller = Caller::connect(&server.address(), wire).unwrap();
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
    for engine in [TableEngine::Memory, TableEngine::InnoDb] {
        let (Some(program), Some(install)) = (find("mariadbd"), find("mariadb-install-db")) else {
            return;
        };
        let own = Mysql { engine, ..super::mysql::wire() };
        let value_max = own.value_max;
        let wire: Arc<dyn Wire> = Arc::new(own.clone());
        let mut server = Server::new(&format!("mariadb-{engine:?}"), None);
        let as_root = if is_root() { "--user=root" } else { "--skip-test-db" };
        server.run(&install, "--no-defaults --datadir=DIR/data --skip-test-db", as_root);
        fs::write(server.directory.join("user.sql"), own.user_statements()).unwrap();
        let arguments = "--no-defaults --datadir=DIR/data --socket=DIR/socket --port=PORT \
            --bind-address=127.0.0.1 --init-file=DIR/user.sql --user=root \
            --innodb-flush-log-at-trx-commit=0";
        let arguments = format!("{arguments} {}", Mysql::SERVER_OPTION);
        server.start(&program, &arguments, &wire);
        check(&server, &wire, value_max);
        if let Some(client) = find("mariadb") {
            let text = "SELECT engine FROM information_schema.tables WHERE table_schema = 'bench'";
            let arguments = "--no-defaults -h 127.0.0.1 -P PORT -u bench -N -B -e";
            let engines = server.run(&client, arguments, text);
            let name = if engine == TableEngine::Memory { "MEMORY" } else { "InnoDB" };
            assert_eq!(engines, format!("{name}\n{name}\n"));
        }

        let mut caller = Caller::connect(&server.address(), wire.clone()).unwrap();
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
