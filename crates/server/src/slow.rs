//! The last slow commands. In one call of the service, a worker answers all commands of a
//! connection that arrived together. The worker measures the duration of each call anyway, so the
//! check whether a call was slow costs almost nothing. Only after a slow call, the worker parses
//! the call's first request again to learn the request's key. Invariant: a worker that records a
//! command never waits, and spends a bounded time per second on recording, even if all commands are
//! slow.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use larder_engine::SecretHash;

use crate::clients::ClientProtocol;
use crate::latency::{CommandClass, Timing};
use crate::net::{ConnectionId, Peer};
use crate::waits::Waits;

/// The largest number of slow commands that are kept.
pub(crate) const KEPT: usize = 128;

/// The sender of a slow command.
#[derive(Clone, Debug)]
pub(crate) enum SentBy {
    /// A connection of the data port.
    Connection { id: ConnectionId, peer: Peer, protocol: ClientProtocol },
    /// A request of the limit port.
    LimitPort,
}

/// A slow command, or a slow call that has answered several commands.
#[derive(Clone, Debug)]
pub(crate) struct SlowCommand {
    /// The server's time of the reply, in nanoseconds.
    pub(crate) time_ns: u64,
    pub(crate) took_ns: u64,
    pub(crate) sent_by: SentBy,
    pub(crate) class: CommandClass,
    /// The name in the text protocol, or the number of the operation in the binary protocol.
    pub(crate) name: Option<Box<str>>,
    /// The number of commands that were answered together. `class`, `name` and `key` describe the
    /// first of these commands, if it is known.
    pub(crate) commands: u32,
    /// The command's first key.
    pub(crate) key: Option<SecretHash>,
    /// Length of the requests, in bytes.
    pub(crate) request_bytes: u64,
    /// Length of the replies, in bytes.
    pub(crate) reply_bytes: u64,
    /// The reasons for which the command waited. Empty if it was slow only because its worker was
    /// busy.
    pub(crate) waits: Waits,
}

impl SlowCommand {
    /// Creates the entry of a command that was timed apart from its call. Its reply has `len` bytes
    /// and is sent at `now_ns`.
    pub(crate) fn apart(
        sent_by: SentBy,
        timing: &Timing,
        took_ns: u64,
        now_ns: u64,
        len: usize,
    ) -> SlowCommand {
        SlowCommand {
            time_ns: now_ns,
            took_ns,
            sent_by,
            class: timing.class(),
            name: None,
            commands: 1,
            key: timing.key(),
            request_bytes: timing.request_bytes(),
            reply_bytes: len as u64,
            waits: timing.waits(),
        }
    }
}

/// The last slow commands of all workers.
#[derive(Debug, Default)]
pub(crate) struct SlowCommands {
    kept: Mutex<VecDeque<SlowCommand>>,
    /// A keyed hash function that makes a name from a [`SecretHash`]. The names do not reveal the
    /// secret.
    names: RandomState,
}

impl SlowCommands {
    /// Adds a command. Drops the command if a reader or another worker holds the lock, because a
    /// worker must not wait.
    pub(crate) fn push(&self, command: SlowCommand) {
        if let Ok(mut kept) = self.kept.try_lock() {
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(command);
        }
    }

    /// Returns the commands, the newest first.
    pub(crate) fn newest_first(&self) -> Vec<SlowCommand> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().rev().cloned().collect()
    }

    /// Drops all commands.
    pub(crate) fn clear(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns a name by which operators recognize a key. A key keeps its name until a restart.
    /// Another server gives the same key another name.
    pub(crate) fn name_of(&self, key: SecretHash) -> String {
        format!("{:016x}", self.names.hash_one(key))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use larder_engine::{Engine, Options};
    use std::collections::HashSet;
    use std::task::Waker;

    pub(crate) fn slow(took_ns: u64) -> SlowCommand {
        SlowCommand {
            time_ns: took_ns,
            took_ns,
            sent_by: SentBy::LimitPort,
            class: CommandClass::Get,
            name: None,
            commands: 1,
            key: None,
            request_bytes: 1,
            reply_bytes: 1,
            waits: Waits::NONE,
        }
    }

    #[test]
    fn the_last_commands_are_kept() {
        let commands = SlowCommands::default();
        (0..1000).for_each(|ns| commands.push(slow(ns)));
        let kept: Vec<_> = commands.newest_first().iter().map(|command| command.took_ns).collect();
        assert_eq!(kept, (1000 - KEPT as u64..1000).rev().collect::<Vec<_>>());
    }

    #[test]
    fn names_of_keys_tell_nothing_about_their_hashes() {
        let options = Options { memory: 8 << 20, ..Options::default() };
        let engine = Engine::open_without_threads(options).unwrap();
        let session = engine.session(Waker::noop().clone());
        let key = |name: &str| session.key(name.as_bytes()).secret_hash();
        let (here, elsewhere) = (SlowCommands::default(), SlowCommands::default());
        let names: Vec<_> = (0..1000).map(|n| here.name_of(key(&format!("{n}")))).collect();
        let distinct: HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        for (n, name) in names.iter().enumerate() {
            assert_eq!(*name, here.name_of(key(&format!("{n}"))));
            assert_ne!(*name, elsewhere.name_of(key(&format!("{n}"))));
            assert!(name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
        assert_eq!(format!("{:?}", key("1")), format!("{:?}", key("2")), "no bit is shown");
    }

    #[test]
    fn a_push_does_not_wait_for_a_reader() {
        let commands = SlowCommands::default();
        let reader = commands.kept.lock().unwrap();
        commands.push(slow(1));
        drop(reader);
        commands.push(slow(2));
        assert_eq!(commands.newest_first().len(), 1);
    }
}
