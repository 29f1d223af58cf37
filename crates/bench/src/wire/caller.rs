//! A blocking client of any protocol in this folder, for replays and for checks outside of a load.

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::sync::Arc;

use larder_client::{Address, Options, Reply, Sink, Stream};

use super::{Asker, Replies, Wire};
use crate::workload::Verb;
use crate::{Error, Result};

/// The largest number of bytes per read.
const INPUT: usize = 16 * 1024;

/// A reply that a [`Caller`] received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The reply to a get: the value, if there is one.
    Value(Option<Vec<u8>>),
    Stored,
    /// The counter's new value.
    Number(u64),
    NotFound,
    /// The server's error, or a reply of a kind that is not in this list.
    Failed(String),
}

/// A connection with blocking calls.
#[derive(Debug)]
pub(crate) struct Caller {
    socket: Stream,
    wire: Arc<dyn Wire>,
    replies: Box<dyn Replies>,
}

impl Caller {
    pub(crate) fn connect(address: &Address, wire: Arc<dyn Wire>) -> Result<Caller> {
        let socket = open(address)?;
        wire.greet(&socket)?;
        Ok(Caller { socket, replies: wire.replies(), wire })
    }

    #[cfg(test)]
    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.ask(Verb::Get, key, b"")? {
            Answer::Value(value) => Ok(value),
            other => Err(unexpected(Verb::Get, &other)),
        }
    }

    #[cfg(test)]
    pub(crate) fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.ask(Verb::Set, key, value)? {
            Answer::Stored => Ok(()),
            other => Err(unexpected(Verb::Set, &other)),
        }
    }

    /// Adds 1 to a counter and returns its new value. A [`Wire`] has no request that only reads a
    /// counter. So a caller that wants to know the value calls this function, and subtracts 1.
    pub(crate) fn incr(&mut self, key: &[u8]) -> Result<u64> {
        match self.ask(Verb::Incr, key, b"")? {
            Answer::Number(number) => Ok(number),
            other => Err(unexpected(Verb::Incr, &other)),
        }
    }

    /// Sets a counter to 0.
    pub(crate) fn reset_counter(&mut self, key: &[u8]) -> Result<()> {
        match self.ask(Verb::SetCounter, key, b"")? {
            Answer::Stored => Ok(()),
            other => Err(unexpected(Verb::SetCounter, &other)),
        }
    }

    /// Sends requests, each a verb, a key and a value, and then reads their replies. All requests
    /// together must fit into the buffers of the sockets. Otherwise the server could wait for this
    /// function to read replies, and this function for the server to read requests.
    pub(crate) fn call(&mut self, requests: &[(Verb, &[u8], &[u8])]) -> Result<Vec<Answer>> {
        let mut bytes = Vec::new();
        for &(verb, key, value) in requests {
            if !self.wire.speaks(verb) {
                return Err(Error::usage(format!("{:?} has no {}", self.wire, verb.name())));
            }
            self.wire.push(verb, key, value, &mut bytes);
        }
        self.exchange(&bytes, requests.iter().map(|request| request.0))
    }

    /// Sends requests, given as the bytes that [`Wire::push`] appends, and then reads their
    /// replies. `verbs` has the verb of each request. As with [`Caller::call`], the requests must
    /// fit into the buffers of the sockets.
    pub(crate) fn exchange(
        &mut self,
        requests: &[u8],
        verbs: impl Iterator<Item = Verb>,
    ) -> Result<Vec<Answer>> {
        let mut asking = Asking::new(verbs);
        let mut socket = &self.socket;
        socket.write_all(requests).map_err(|e| Error::io("cannot send a request", e))?;
        let mut input = vec![0; INPUT];
        while !asking.verbs.is_empty() {
            match self.socket.receive(&mut input) {
                Ok(0) => return Err(Error::server("the server closed the connection")),
                Ok(read) => {
                    self.replies.feed(&input[..read], &mut asking).map_err(Error::Void)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("cannot read a reply", error)),
            }
        }
        Ok(asking.answers)
    }

    fn ask(&mut self, verb: Verb, key: &[u8], value: &[u8]) -> Result<Answer> {
        let answer = self.call(&[(verb, key, value)])?.pop();
        answer.ok_or_else(|| Error::server("a request without a reply"))
    }
}

/// Connects with the default time-outs of the memcached client.
pub(super) fn open(address: &Address) -> Result<Stream> {
    let timeout = Options::default().timeout;
    let socket = Stream::connect(address, timeout)?;
    socket.set_timeout(timeout).map_err(|e| Error::io("cannot limit the time of calls", e))?;
    Ok(socket)
}

fn unexpected(verb: Verb, answer: &Answer) -> Error {
    match answer {
        Answer::Failed(text) => Error::server(format!("{} failed: {text}", verb.name())),
        answer => Error::Void(format!("{answer:?} as the answer to {}", verb.name())),
    }
}

/// The verbs of the requests whose replies have not arrived yet, and the answers so far.
#[derive(Debug, Default)]
pub(super) struct Asking {
    pub(super) verbs: VecDeque<Verb>,
    pub(super) answers: Vec<Answer>,
    /// The length in bytes that the reply announced for the current value.
    announced: usize,
    value: Vec<u8>,
}

impl Asking {
    pub(super) fn new(verbs: impl IntoIterator<Item = Verb>) -> Asking {
        Asking { verbs: verbs.into_iter().collect(), ..Asking::default() }
    }
}

impl Asker for Asking {
    fn verb(&self) -> Option<Verb> {
        self.verbs.front().copied()
    }
}

impl Sink for Asking {
    fn value(&mut self, _key: &[u8], length: usize) {
        self.announced = length;
        self.value.clear();
    }

    fn body(&mut self, offset: usize, piece: &[u8]) {
        debug_assert_eq!(offset, self.value.len(), "pieces of a value are adjacent");
        self.value.extend_from_slice(piece);
    }

    fn reply(&mut self, reply: Reply<'_>, values: u32) {
        self.verbs.pop_front();
        self.answers.push(match reply {
            Reply::End if values == 0 => Answer::Value(None),
            Reply::End => {
                debug_assert_eq!(self.announced, self.value.len(), "a value is whole");
                Answer::Value(Some(std::mem::take(&mut self.value)))
            }
            Reply::Stored => Answer::Stored,
            Reply::Number(number) => Answer::Number(number),
            Reply::NotFound => Answer::NotFound,
            Reply::Error(text) => Answer::Failed(String::from_utf8_lossy(text).into_owned()),
            other => Answer::Failed(format!("{other:?}")),
        });
    }
}
