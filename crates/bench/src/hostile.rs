//! Crowds of clients that are slow, rude or greedy. Polite clients of the same server must hardly
//! notice a crowd: the server must keep the connections of the polite clients open, store their
//! sets, and answer them almost as fast as without the crowd.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use larder_client::{Address, Client, Options, Reply, ReplyReader, Stream};

use crate::workload::random::Random;
use crate::{Error, Result};

/// Length of a large value in bytes. By default, servers accept items of up to about 1 MiB, and the
/// key counts too.
const LARGE: usize = 1_000_000;
/// Number of keys that the crowds `Deaf` and `Trickle` read. Each value has [`LARGE`] bytes.
const LARGE_KEYS: usize = 8;
/// The largest number of bytes that [`send`] sends per system call. A kernel may let no other
/// thread run on a processor until a system call ends. So the calls must be short, or a polite
/// client on the same processor waits for them.
const PART: usize = 16 << 10;
/// The longest time that one read by a crowd's client may take. For clients that behave
/// ([`Act::Behave`]), also the longest time that one write may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The behaviour of a crowd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrowdKind {
    /// Announces values of 1 MB and sends none of them.
    Announce,
    /// Sends half of a 1 MB set.
    HalfSets,
    /// Sends sets of 16 KB without the last byte.
    HalfLines,
    /// Asks for values of 1 MB and does not read them.
    Deaf,
    /// Asks for values of 1 MB and reads a few kilobytes a second.
    Trickle,
    /// Stores and reads values of 10 to 400 KB as fast as it can, and checks each.
    LargeValues,
    /// Fills the cache with pipelined sets, and checks each reply.
    Fill,
    /// Sends `flush_all` commands in batches.
    Flush,
    /// Requests statistics continuously, also those of key prefixes, and sets keys with many long
    /// prefixes (about 220 bytes).
    Stats,
    /// Requests the list of all keys (`lru_crawler metadump`) and does not read it.
    Dumps,
}

impl CrowdKind {
    /// All crowds.
    pub const ALL: [CrowdKind; 10] = [
        CrowdKind::Deaf,
        CrowdKind::Trickle,
        CrowdKind::Announce,
        CrowdKind::HalfSets,
        CrowdKind::HalfLines,
        CrowdKind::LargeValues,
        CrowdKind::Fill,
        CrowdKind::Flush,
        CrowdKind::Stats,
        CrowdKind::Dumps,
    ];

    /// Returns the name in tables and options.
    pub fn name(self) -> &'static str {
        self.conduct().0
    }

    /// Returns the name, the number of connections, and what each of them does.
    fn conduct(self) -> (&'static str, usize, Act) {
        match self {
            CrowdKind::Announce => {
                ("announce", 100, Act::Begin(|n| set_header("announce", n, LARGE)))
            }
            CrowdKind::HalfSets => ("half-sets", 200, Act::Provoke(half_set)),
            CrowdKind::HalfLines => ("half-lines", 1000, Act::Begin(half_line)),
            CrowdKind::Deaf => ("deaf", 100, Act::Begin(|_| gets(40))),
            CrowdKind::Trickle => ("trickle", 50, Act::Provoke(trickle)),
            CrowdKind::LargeValues => ("large-values", 16, Act::Behave(large_values)),
            CrowdKind::Fill => ("fill", 4, Act::Behave(fill)),
            CrowdKind::Flush => ("flush", 2, Act::Behave(flush)),
            CrowdKind::Stats => ("stats", 4, Act::Behave(stats)),
            CrowdKind::Dumps => {
                ("dumps", 12, Act::Begin(|_| "lru_crawler metadump all\r\n".into()))
            }
        }
    }
}

/// What a connection of a crowd does.
enum Act {
    /// Sends the text that the function returns when it is given the connection's number. Then only
    /// keeps the connection open. The server may close the connection at any time.
    Begin(fn(usize) -> String),
    /// Calls the function, which runs until the crowd ends. The server may close the connection.
    Provoke(RunClient),
    /// Calls the function, which runs until the crowd ends. The server must not close the
    /// connection.
    Behave(RunClient),
}

type RunClient = fn(&Stream, usize, &AtomicBool, &CrowdCounts) -> io::Result<()>;

/// Counts that the clients of a crowd share.
#[derive(Debug, Default)]
struct CrowdCounts {
    answers: AtomicU64,
    cut: AtomicU64,
    refused: AtomicU64,
    /// The error that ended the first of the connections counted in `cut`.
    why: OnceLock<io::Error>,
}

/// What the clients of a crowd counted, from its start to its end.
#[derive(Clone, Debug, Default)]
pub struct CrowdOutcome {
    /// Answers that behaving clients have read completely. The answers to the sets of
    /// [`CrowdKind::Stats`] do not count.
    pub answers: u64,
    /// Connections of behaving clients that ended before the crowd did. A client behaves if it
    /// reads all its replies and sends all bytes that it announces.
    pub cut: u64,
    /// Error replies to behaving clients.
    pub refused: u64,
    /// The error that ended the first of the connections counted in `cut`.
    pub why: Option<String>,
}

/// A running crowd. Dropping it ends the crowd.
#[derive(Debug, Default)]
pub struct Crowd {
    stop: Arc<AtomicBool>,
    counts: Arc<CrowdCounts>,
    threads: Vec<JoinHandle<()>>,
    /// Connections without a thread, which are only kept open.
    idle: Vec<Stream>,
}

impl Crowd {
    /// Connects a crowd to a server and starts it.
    ///
    /// # Errors
    /// Returns an error if a connection was refused.
    pub fn start(kind: CrowdKind, server: &Address) -> Result<Crowd> {
        crate::machine::allow_many_files();
        if matches!(server, Address::Unix(_)) {
            return Err(Error::usage("crowds come over TCP"));
        }
        let failed = |e| Error::io(format!("cannot begin with {}", kind.name()), e);
        if matches!(kind, CrowdKind::Deaf | CrowdKind::Trickle) {
            store_large(server).map_err(failed)?;
        }
        let mut crowd = Crowd::default();
        let (_, connections, act) = kind.conduct();
        for number in 0..connections {
            let stream = connect(server).map_err(failed)?;
            let (stop, counts) = (Arc::clone(&crowd.stop), Arc::clone(&crowd.counts));
            let (run, behaves) = match act {
                Act::Begin(bytes) => {
                    let _ = (&stream).write_all(bytes(number).as_bytes());
                    crowd.idle.push(stream);
                    continue;
                }
                Act::Provoke(run) => (run, false),
                Act::Behave(run) => (run, true),
            };
            let thread = thread::Builder::new().stack_size(256 << 10).spawn(move || {
                let ended = run(&stream, number, &stop, &counts);
                // If a client behaves, the server must serve it until the crowd ends.
                if let Err(why) = ended
                    && !stop.load(Relaxed)
                    && behaves
                {
                    counts.cut.fetch_add(1, Relaxed);
                    let _ = counts.why.set(why);
                }
            });
            crowd.threads.push(thread.map_err(failed)?);
        }
        Ok(crowd)
    }

    /// Ends the crowd.
    pub fn end(mut self) -> CrowdOutcome {
        self.leave();
        let CrowdCounts { answers, cut, refused, why } = &*self.counts;
        CrowdOutcome {
            answers: answers.load(Relaxed),
            cut: cut.load(Relaxed),
            refused: refused.load(Relaxed),
            why: why.get().map(io::Error::to_string),
        }
    }

    fn leave(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.idle.clear();
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.leave();
    }
}

fn connect(address: &Address) -> io::Result<Stream> {
    let stream = Stream::connect(address, None)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // Limits how long a client waits to send after the server has stopped reading. Clients that
    // behave set a longer limit.
    stream.set_write_timeout(Some(Duration::from_millis(200)))?;
    Ok(stream)
}

fn store_large(address: &Address) -> io::Result<()> {
    let mut client = Client::connect_to(address, Options { timeout: Some(PATIENCE) })?;
    for number in 0..LARGE_KEYS {
        match client.set(format!("large:{number}").as_bytes(), &[b'v'; LARGE], 0, 0) {
            // A server may refuse a value of this length with an error reply. The crowd can still
            // run: its requests for the value then miss.
            Err(error) if !error.is_recoverable() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

fn set_header(name: &str, number: usize, bytes: usize) -> String {
    format!("set {name}:{number} 0 0 {bytes}\r\n")
}

/// Returns a `set` command without the last byte of its value.
fn half_line(number: usize) -> String {
    set_header("half-lines", number, 16_000) + &"p".repeat(15_999)
}

fn gets(count: usize) -> String {
    (0..count).map(|n| format!("get large:{}\r\n", n % LARGE_KEYS)).collect()
}

/// Sends the first half of a value, or as much of it as the server reads. Afterwards only keeps the
/// connection open.
fn half_set(
    mut stream: &Stream,
    number: usize,
    stop: &AtomicBool,
    _: &CrowdCounts,
) -> io::Result<()> {
    write!(stream, "set half-set:{number} 0 0 {LARGE}\r\n")?;
    let half = vec![b'p'; LARGE / 2];
    let mut sent = 0;
    while !stop.load(Relaxed) {
        match stream.write(&half[sent..]) {
            Ok(0) => thread::sleep(Duration::from_millis(50)),
            Ok(more) => sent += more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn trickle(mut stream: &Stream, _: usize, stop: &AtomicBool, _: &CrowdCounts) -> io::Result<()> {
    stream.write_all(gets(1000).as_bytes())?;
    let mut bytes = [0; 1024];
    while !stop.load(Relaxed) {
        stream.read_exact(&mut bytes)?;
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

fn large_values(
    mut stream: &Stream,
    number: usize,
    stop: &AtomicBool,
    counts: &CrowdCounts,
) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut random = Random::new(number as u64);
    let mut replies = ReplyReader::new(stream);
    while !stop.load(Relaxed) {
        let key = random.below(4000);
        if random.below(2) == 0 {
            let len = 10_000 + random.below(390_000) as usize;
            stream.write_all(format!("set value:{key} 0 0 {len}\r\n").as_bytes())?;
            send(stream, &[&vec![key as u8; len][..], b"\r\n"].concat())?;
            counts.refused.fetch_add(u64::from(replies.reply()?.0 != Reply::Stored), Relaxed);
        } else {
            stream.write_all(format!("get value:{key}\r\n").as_bytes())?;
            let (mut reply, value) = replies.reply()?;
            if let Reply::Value { .. } = reply {
                if value.iter().any(|&byte| byte != key as u8) {
                    return Err(wrong("another value"));
                }
                reply = replies.reply()?.0;
            }
            if reply != Reply::End {
                return Err(wrong(format!("{reply:?} instead of END")));
            }
        }
        counts.answers.fetch_add(1, Relaxed);
    }
    Ok(())
}

fn send(mut stream: &Stream, bytes: &[u8]) -> io::Result<()> {
    bytes.chunks(PART).try_for_each(|part| stream.write_all(part))
}

/// Sends `pipeline` and reads replies until `ends` has returned true `count` times.
fn ask(
    stream: &Stream,
    replies: &mut ReplyReader<&Stream>,
    pipeline: &[u8],
    count: usize,
    mut ends: impl FnMut(Reply<'_>) -> bool,
) -> io::Result<()> {
    thread::scope(|scope| {
        let sender = scope.spawn(move || send(stream, pipeline));
        let mut left = count;
        while left > 0 {
            left -= usize::from(ends(replies.reply()?.0));
        }
        sender.join().map_err(|_| wrong("a thread panicked"))?
    })
}

fn fill(stream: &Stream, number: usize, stop: &AtomicBool, counts: &CrowdCounts) -> io::Result<()> {
    const SETS: usize = 1000;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut random = Random::new(number as u64);
    let mut replies = ReplyReader::new(stream);
    while !stop.load(Relaxed) {
        let mut pipeline = Vec::new();
        for _ in 0..SETS {
            let (key, len) = (random.below(1 << 40), random.below(2000) as usize);
            pipeline.extend_from_slice(format!("set fill:{key} 0 0 {len}\r\n").as_bytes());
            pipeline.resize(pipeline.len() + len, b'f');
            pipeline.extend_from_slice(b"\r\n");
        }
        ask(stream, &mut replies, &pipeline, SETS, |reply| {
            counts.refused.fetch_add(u64::from(reply != Reply::Stored), Relaxed);
            counts.answers.fetch_add(1, Relaxed);
            true
        })?;
    }
    Ok(())
}

fn flush(stream: &Stream, _: usize, stop: &AtomicBool, counts: &CrowdCounts) -> io::Result<()> {
    const FLUSHES: usize = 1700;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut replies = ReplyReader::new(stream);
    let pipeline = b"flush_all\r\n".repeat(FLUSHES);
    while !stop.load(Relaxed) {
        ask(stream, &mut replies, &pipeline, FLUSHES, |reply| {
            counts.refused.fetch_add(u64::from(reply != Reply::Ok), Relaxed);
            counts.answers.fetch_add(1, Relaxed);
            true
        })?;
    }
    Ok(())
}

fn stats(
    stream: &Stream,
    number: usize,
    stop: &AtomicBool,
    counts: &CrowdCounts,
) -> io::Result<()> {
    const STATS: usize = 200;
    const SETS: usize = 2000;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut random = Random::new(number as u64);
    let mut replies = ReplyReader::new(stream);
    let prefix = "p".repeat(220);
    ask(stream, &mut replies, b"stats detail on\r\n", 1, |_| true)?;
    while !stop.load(Relaxed) {
        let sets: String = (0..SETS)
            .map(|_| format!("set {prefix}{}:k 0 0 1\r\nx\r\n", random.below(1 << 30)))
            .collect();
        ask(stream, &mut replies, sets.as_bytes(), SETS, |_| true)?;
        let each = ["stats\r\n", "stats settings\r\n", "stats items\r\n", "stats slabs\r\n"];
        let pipeline = each.concat().repeat(STATS / each.len()) + "stats detail dump\r\n";
        ask(stream, &mut replies, pipeline.as_bytes(), STATS + 1, |reply| reply == Reply::End)?;
        counts.answers.fetch_add(STATS as u64, Relaxed);
    }
    Ok(())
}
