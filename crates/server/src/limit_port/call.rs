//! Requests that a connection of the limit port sends to the port's worker, and their replies.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use larder_engine::Refusal;
use larder_engine::limit::Decision;
use larder_protocol::KEY_LEN_MAX;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::policies::{Policies, Policy};
use crate::server::Running;

/// The longest time that a complete request waits for memory, for records that are not in memory,
/// and for the commits of its decisions. After this time it is answered without a decision. Also
/// the longest time that the server waits for the body of a request.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// A request about one limiter.
#[derive(Debug)]
pub(super) struct LimitRequest {
    pub(super) policy: Arc<Policy>,
    /// The key of the limiter: the policy's prefix, followed by the key that the client sent.
    pub(super) key: Vec<u8>,
    pub(super) action: LimitAction,
}

/// The reason why a policy has no limiter for a key.
#[derive(Debug)]
pub(super) enum UnfitKey {
    /// The policy's prefix, of this many bytes, and the key are together empty or longer than
    /// [`KEY_LEN_MAX`].
    Length(usize),
    /// Together they begin with the longer prefix of the policy with this name. The key of a
    /// request often comes from a client, who must not choose a limiter of another policy.
    OfPolicy(String),
}

impl LimitRequest {
    /// Creates a request for the limiter that `policy`, one of `policies`, has for `key`.
    pub(super) fn new(
        policies: &Policies,
        policy: Arc<Policy>,
        key: &[u8],
        action: LimitAction,
    ) -> Result<LimitRequest, UnfitKey> {
        let prefix = policy.prefix.as_deref().unwrap_or_default();
        let key = [prefix.as_bytes(), key].concat();
        if key.is_empty() || key.len() > KEY_LEN_MAX {
            return Err(UnfitKey::Length(prefix.len()));
        }
        match policies.of(&key) {
            Some(owner) if owner.name != policy.name => Err(UnfitKey::OfPolicy(owner.name.clone())),
            _ => Ok(LimitRequest { policy, key, action }),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitAction {
    /// Takes units, all or none.
    Take(u64),
    /// Shows the limiter and takes nothing.
    Look,
    /// Removes the limiter, so that all its units are free again.
    Reset,
}

/// The result of a request.
#[derive(Debug)]
pub(super) enum LimitReply {
    /// Whether the units were taken, and the state of the limiter.
    Decided(Decision),
    /// The limiter is removed, so all its units are free again.
    Reset,
    Undecided(Undecided),
}

/// Why a request has no decision.
#[derive(Clone, Copy, Debug)]
pub(super) enum Undecided {
    /// The key holds an item that is neither a limiter nor a number. A request turns a number into
    /// a limiter.
    NotALimiter,
    /// The engine refused the request.
    Refused(Refusal),
    /// The request was not executed within [`PATIENCE`], or its decision did not become durable
    /// within this time.
    Late,
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Undecided::NotALimiter => {
                "the key holds an item that is neither a limiter nor a number"
            }
            Undecided::Refused(Refusal::OutOfMemory) => "out of memory",
            Undecided::Refused(Refusal::StoreFailed) => "the store cannot be written",
            Undecided::Refused(Refusal::StoreFull) => "the store is full",
            Undecided::Late => return write!(f, "no decision within {} s", PATIENCE.as_secs()),
        })
    }
}

/// A request, and the channel for its reply.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) request: LimitRequest,
    pub(super) reply: oneshot::Sender<LimitReply>,
}

/// The server's state, and the channel to the worker that executes requests.
#[derive(Clone, Debug)]
pub(super) struct Callee {
    pub(super) running: Arc<Running>,
    pub(super) calls: mpsc::Sender<Call>,
}

impl Callee {
    /// Sends a request to the worker and waits for the reply. Returns [`Undecided::Late`] if there
    /// is no reply before `end`. If `end` has already passed, the request is not sent.
    pub(super) async fn call(&self, request: LimitRequest, end: Instant) -> LimitReply {
        const LATE: LimitReply = LimitReply::Undecided(Undecided::Late);
        if end <= Instant::now() {
            return LATE;
        }
        let (reply, replied) = oneshot::channel();
        let call = async {
            // `send` fails only if the limit port's thread is about to end.
            self.calls.send(Call { request, reply }).await.ok()?;
            replied.await.ok()
        };
        timeout_at(end, call).await.ok().flatten().unwrap_or(LATE)
    }
}
