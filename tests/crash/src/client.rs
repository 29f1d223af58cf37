//! A client process: connections that write and connections that read, each with a journal. The
//! test starts its own program again for each client, so that clients are separate processes, as in
//! real use.
//!
//! A writing connection has two threads, so that it can send while answers are outstanding.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use larder_client::{Address, ReplyReader, Stream};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::journal::{Event, Journal};
use crate::operation::{Key, Operation};
use crate::reply::{self, Reply};
use crate::workload::{CasIds, Sizes, Workload};
use larder_disk::Random;

/// The longest wait for an answer. A server that takes longer counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);
/// The largest number of cas ids remembered for each key. Writers also send old ids, and the server
/// must refuse these.
const CAS_IDS: usize = 16;

/// The work of a client process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ClientPlan {
    pub(crate) port: u16,
    pub(crate) seed: u64,
    /// The number of the process's first writer.
    pub(crate) first: u16,
    /// Number of connections that write.
    pub(crate) writers: u16,
    /// Number of connections that read the keys of all writers.
    pub(crate) readers: u16,
    /// Number of writers of all processes together.
    pub(crate) all: u16,
    /// Number of keys of each writer.
    pub(crate) keys: u16,
    pub(crate) sizes: Sizes,
    /// Length of the longest value, in bytes.
    pub(crate) largest: u32,
    /// The largest number of unanswered requests on one connection.
    pub(crate) window: usize,
    /// Number of requests after which a writer or reader ends; with 0, it continues until the
    /// server ends.
    pub(crate) requests: u64,
    /// The directory of the journals.
    pub(crate) journals: PathBuf,
}

/// Runs a client process until its work ends. Its plan is a [`ClientPlan`] as JSON.
///
/// # Errors
/// Returns an error if a journal cannot be written. Errors of connections go into the journals.
pub(crate) fn run(plan: &str) -> io::Result<()> {
    let plan: &ClientPlan = &serde_json::from_str(plan)?;
    thread::scope(|scope| {
        let writers = (plan.first..plan.first + plan.writers)
            .map(|writer| scope.spawn(move || Writer::run(plan, writer)));
        let readers = (0..plan.readers).map(|reader| scope.spawn(move || read_all(plan, reader)));
        let threads: Vec<_> = writers.chain(readers).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a client thread panicked")))
        })
    })
}

fn connect(port: u16) -> io::Result<Stream> {
    let stream = Stream::connect(&Address::Tcp(format!("127.0.0.1:{port}")), None)?;
    stream.set_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Returns the event of a connection's end. If the error is one that a killed server causes, the
/// event has no fault.
fn ended(error: &io::Error) -> Event {
    let fault = match error.kind() {
        io::ErrorKind::InvalidData => Some(format!("wrong answer: {error}")),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            Some(format!("no answer within {} s", PATIENCE.as_secs()))
        }
        _ => None,
    };
    Event::Ended { time: clock::now(), fault }
}

/// State that the two threads of a writer share.
#[derive(Default)]
struct Progress {
    /// Requests that were sent and not yet answered. Quiet requests are not in it, because the
    /// server does not answer them.
    waiting: VecDeque<(u64, Key, Operation)>,
    cas_ids: CasIds,
    /// True if no more requests will be sent.
    finished: bool,
    /// True if no more answers will come.
    broken: bool,
}

struct Writer {
    journal: Journal,
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Writer {
    fn run(plan: &ClientPlan, number: u16) -> io::Result<()> {
        let journal = Journal::create(&plan.journals.join(format!("writer-{number:03}")))?;
        let stream = match connect(plan.port) {
            Ok(stream) => stream,
            Err(error) => return journal.note(&[ended(&error)]),
        };
        let progress = Mutex::new(Progress::default());
        let writer = Writer { journal, progress, changed: Condvar::new() };
        thread::scope(|scope| {
            let receiver = scope.spawn(|| writer.receive(&stream));
            let sent = writer.send(plan, number, &stream);
            writer.progress().finished = true;
            writer.changed.notify_all();
            let received = receiver.join();
            sent.and(received.unwrap_or_else(|_| Err(io::Error::other("a receiver panicked"))))
        })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, plan: &ClientPlan, writer: u16, mut stream: &Stream) -> io::Result<()> {
        let random = Random::part(plan.seed, &[u64::from(writer)]);
        let mut choice = Random::part(plan.seed, &[u64::from(writer), 1]);
        let mut work = Workload::new(random, writer, plan.keys, plan.sizes, plan.largest);
        let (mut number, mut bytes) = (0, Vec::new());
        loop {
            let mut events = Vec::new();
            {
                let full = |progress: &mut Progress| {
                    progress.waiting.len() >= plan.window && !progress.broken
                };
                let progress = self.progress();
                let waited = self.changed.wait_while(progress, full);
                let mut progress = waited.unwrap_or_else(PoisonError::into_inner);
                if progress.broken {
                    return Ok(());
                }
                let room = (plan.window - progress.waiting.len()) as u64;
                let group = choice.between(1, room);
                while (events.len() as u64) < group || work.owes() {
                    let (key, operation) = work.next(&progress.cas_ids);
                    operation.encode(&key.name(), &mut bytes);
                    if !operation.is_quiet() {
                        progress.waiting.push_back((number, key, operation.clone()));
                    }
                    events.push(Event::Sent { number, time: clock::now(), key, operation });
                    number += 1;
                }
            }
            self.journal.note(&events)?;
            self.changed.notify_all();
            if stream.write_all(&bytes).is_err() {
                // The thread that receives answers records how the connection ended.
                return Ok(());
            }
            bytes.clear();
            if plan.requests > 0 && number >= plan.requests {
                return Ok(());
            }
        }
    }

    fn receive(&self, stream: &Stream) -> io::Result<()> {
        let mut from = ReplyReader::new(stream);
        loop {
            let (number, key, operation) = {
                let idle =
                    |progress: &mut Progress| progress.waiting.is_empty() && !progress.finished;
                let waited = self.changed.wait_while(self.progress(), idle);
                let progress = waited.unwrap_or_else(PoisonError::into_inner);
                match progress.waiting.front() {
                    Some(next) => next.clone(),
                    None => break,
                }
            };
            match reply::read(&mut from, &operation) {
                Ok(reply) => {
                    let time = clock::now();
                    self.journal.note(&[Event::Answered { number, time, reply: reply.clone() }])?;
                    self.answered(key, &reply);
                }
                Err(error) => {
                    self.journal.note(&[ended(&error)])?;
                    self.progress().broken = true;
                    self.changed.notify_all();
                    return Ok(());
                }
            }
        }
        self.journal.note(&[Event::Ended { time: clock::now(), fault: None }])
    }

    fn answered(&self, key: Key, reply: &Reply) {
        let mut progress = self.progress();
        progress.waiting.pop_front();
        let cas = match reply {
            Reply::Stored(cas) | Reply::Number(_, cas) => *cas,
            Reply::Item(seen) => Some(seen.cas),
            _ => None,
        };
        if let Some(cas) = cas {
            let known = progress.cas_ids.entry(key).or_default();
            known.push(cas);
            if known.len() > CAS_IDS {
                known.remove(0);
            }
        }
        drop(progress);
        self.changed.notify_all();
    }
}

/// Reads random keys of all writers. A reader sends [`ClientPlan::requests`] requests. With 0 it
/// continues until the server ends.
fn read_all(plan: &ClientPlan, reader: u16) -> io::Result<()> {
    let name = format!("reader-{:03}-{reader:03}", plan.first);
    let journal = Journal::create(&plan.journals.join(name))?;
    let stream = match connect(plan.port) {
        Ok(stream) => stream,
        Err(error) => return journal.note(&[ended(&error)]),
    };
    let mut random = Random::part(plan.seed, &[u64::from(plan.first), 2, u64::from(reader)]);
    let mut from = ReplyReader::new(&stream);
    let mut number = 0;
    loop {
        number += 1;
        let mut index = random.below(u64::from(plan.keys)) as u16;
        if random.chance(50) {
            index -= index % 4; // A counter.
        }
        let key = Key { writer: random.below(u64::from(plan.all)) as u16, index };
        let mut request = Vec::new();
        Operation::Get.encode(&key.name(), &mut request);
        let asked = clock::now();
        let reply =
            (&stream).write_all(&request).and_then(|()| reply::read(&mut from, &Operation::Get));
        let answered = clock::now();
        let seen = match reply {
            Ok(Reply::Item(seen)) => Some(seen),
            Ok(Reply::Failed(_)) => continue,
            Ok(_) => None,
            Err(error) => return journal.note(&[ended(&error)]),
        };
        journal.note(&[Event::Read { key, asked, answered, seen }])?;
        if plan.requests > 0 && number >= plan.requests {
            return journal.note(&[Event::Ended { time: answered, fault: None }]);
        }
    }
}
