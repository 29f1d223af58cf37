//! The token of the admin port. A client with the token may change the server and see keys and
//! values.
//!
//! Invariants: the time of a comparison depends on the length of the given token only, not on its
//! bytes. The right token is always accepted, so a client that sends wrong ones cannot lock out the
//! operator. Guessing is hopeless because of the token's length, not because of a limit on
//! attempts: even the shortest token of random hexadecimal digits has 80 bits. The server's memory
//! does not grow with the number of clients or attempts.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::process;

/// Number of random bytes of a token that the server creates.
const RANDOM: usize = 20;
/// The shortest token that a file may hold, in bytes.
const SHORTEST: usize = 20;
/// The longest token that a file may hold, in bytes.
const LONGEST: usize = 256;
/// The rate of wrong tokens that are [`Checked::Wrong`] is limited by a token bucket: one per
/// interval, after a burst of [`BURST`]. Wrong tokens above this rate are [`Checked::TooMany`].
const INTERVAL: Duration = Duration::from_millis(250);
/// The largest number of wrong tokens that are [`Checked::Wrong`] although they arrive at the same
/// time.
const BURST: u32 = 16;
/// The shortest interval between two log lines about wrong tokens.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The token, with the counts of its uses.
#[derive(Debug)]
pub(crate) struct AdminToken {
    state: Mutex<TokenState>,
    /// Number of requests with a wrong token.
    failures: AtomicU64,
    /// Number of requests executed with the token.
    actions: AtomicU64,
}

#[derive(Debug)]
struct TokenState {
    secret: Secret,
    /// True if the server has created the token when it started. False if a file holds the token.
    is_created: bool,
    /// The rate of wrong tokens from this machine, and the rate of those from elsewhere. With
    /// separate rates, an operator on this machine learns that a token is wrong even while others
    /// send many wrong ones.
    rates: [FailureRate; 2],
    logged: Option<Instant>,
}

/// Text that no debug output shows.
struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Limits the rate of wrong tokens. Each token that is [`Checked::Wrong`] uses up one [`INTERVAL`]
/// of time, and these intervals follow each other without overlap. The field is the end of the last
/// interval. The next one begins at this end, or now if the end has passed.
#[derive(Clone, Copy, Debug, Default)]
struct FailureRate(Option<Instant>);

impl FailureRate {
    fn is_exceeded(&self, now: Instant) -> bool {
        self.0.is_some_and(|until| until > now + INTERVAL * (BURST - 1))
    }

    fn note(&mut self, now: Instant) {
        self.0 = Some(self.0.map_or(now, |until| until.max(now)) + INTERVAL);
    }
}

/// The result of checking the token of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checked {
    Right,
    Wrong,
    /// The token is wrong, and too many wrong tokens came just before it. The client must wait.
    TooMany,
}

impl AdminToken {
    /// Reads the token from a file, or creates one.
    ///
    /// # Errors
    /// Returns the reason why the file cannot be used, or why the kernel returned no random bytes.
    pub(crate) fn of(file: Option<&Path>) -> Result<AdminToken, String> {
        let secret = match file {
            Some(file) => read(file)?,
            None => create().map_err(|error| format!("no random bytes: {error}"))?,
        };
        Ok(AdminToken::new(secret, file.is_none()))
    }

    pub(super) fn new(secret: String, is_created: bool) -> AdminToken {
        let (secret, rates) = (Secret(secret), Default::default());
        let state = Mutex::new(TokenState { secret, is_created, rates, logged: None });
        AdminToken { state, failures: AtomicU64::new(0), actions: AtomicU64::new(0) }
    }

    /// Reads the token from a file. Returns true if the token has changed.
    ///
    /// # Errors
    /// Returns the reason why the file cannot be used. The token then stays as it was.
    pub(crate) fn read_again(&self, file: &Path) -> Result<bool, String> {
        let secret = read(file)?;
        let mut state = self.lock();
        state.is_created = false;
        let changed = state.secret.0 != secret;
        state.secret = Secret(secret);
        Ok(changed)
    }

    /// Returns the token if this start has created it.
    pub(crate) fn created(&self) -> Option<String> {
        let state = self.lock();
        state.is_created.then(|| state.secret.0.clone())
    }

    /// Returns the number of requests with a wrong token.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// Returns the number of requests executed with the token.
    pub(crate) fn actions(&self) -> u64 {
        self.actions.load(Relaxed)
    }

    /// Counts a request that is executed with the token.
    pub(super) fn note_action(&self) {
        self.actions.fetch_add(1, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, TokenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares `given` with the token. Counts and logs a failure. `is_here` is true for a client
    /// on this machine.
    pub(super) fn check(
        &self,
        given: &[u8],
        client: Option<SocketAddr>,
        is_here: bool,
        now: Instant,
    ) -> Checked {
        let mut state = self.lock();
        if is_equal(state.secret.0.as_bytes(), given) {
            return Checked::Right;
        }
        let rate = &mut state.rates[usize::from(!is_here)];
        let checked = match rate.is_exceeded(now) {
            true => Checked::TooMany,
            false => {
                rate.note(now);
                Checked::Wrong
            }
        };
        let failures = self.failures.fetch_add(1, Relaxed) + 1;
        if state.logged.is_none_or(|last| now.duration_since(last) >= LOG_INTERVAL) {
            state.logged = Some(now);
            let client = client.map_or("unknown".to_owned(), |client| client.to_string());
            tracing::warn!(event = "admin_token_wrong", client, failures);
        }
        checked
    }
}

fn create() -> std::io::Result<String> {
    let random = process::random_bytes::<RANDOM>()?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads a token from a file. Refuses a file that users other than its owner and group may access.
fn read(path: &Path) -> Result<String, String> {
    // Without `O_NONBLOCK`, opening a pipe would wait for a writer.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a file".to_owned());
    }
    if metadata.mode() & 0o007 != 0 {
        return Err("other users may access it: chmod 600".to_owned());
    }
    let mut text = Vec::new();
    // The longest token, a line end of two bytes, and one more byte, which shows that the file is
    // too long.
    let limit = LONGEST as u64 + 3;
    file.take(limit).read_to_end(&mut text).map_err(|error| error.to_string())?;
    let token = text.trim_ascii_end();
    if !(SHORTEST..=LONGEST).contains(&token.len()) {
        return Err(format!("it must hold a token of {SHORTEST} to {LONGEST} characters"));
    }
    if !token.iter().all(u8::is_ascii_graphic) {
        return Err("the token must be one line of visible ASCII without spaces".to_owned());
    }
    Ok(String::from_utf8_lossy(token).into_owned())
}

/// Compares in a time that depends only on the length of `given`.
fn is_equal(secret: &[u8], given: &[u8]) -> bool {
    let mut difference = secret.len() ^ given.len();
    for (at, byte) in given.iter().enumerate() {
        // If `given` is longer than the secret, it is compared with the repeated secret.
        let wanted = secret.get(at % secret.len().max(1)).copied().unwrap_or(0);
        difference |= usize::from(std::hint::black_box(wanted ^ byte));
    }
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TOKEN: &str = "0123456789abcdef0123";

    #[test]
    fn only_the_same_bytes_are_equal() {
        assert!(is_equal(b"abcd", b"abcd"));
        let others: [&[u8]; 7] = [b"", b"abc", b"abcde", b"abcdabcd", b"abcx", b"xbcd", b"ABCD"];
        for other in others {
            assert!(!is_equal(b"abcd", other), "{other:?}");
        }
        // The lengths differ by 256, so their low bytes are equal. The comparison must use the
        // whole lengths.
        assert!(!is_equal(b"a", &[b'a'; 257]));
    }

    #[test]
    fn created_tokens_are_random_and_not_shown_by_accident() {
        let (first, second) = (AdminToken::of(None).unwrap(), AdminToken::of(None).unwrap());
        let token = first.created().unwrap();
        assert_eq!(token.len(), 2 * RANDOM);
        assert_ne!(first.created(), second.created());
        assert!(!format!("{first:?}").contains(&token));
    }

    #[test]
    fn a_file_must_hold_one_token_that_others_cannot_read() {
        let path = std::env::temp_dir().join(format!("larder-token-{}", std::process::id()));
        let of = |content: &[u8], mode| {
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            read(&path)
        };
        assert_eq!(of(b"0123456789abcdef0123\n", 0o600).as_deref(), Ok(TOKEN));
        assert_eq!(of(b"0123456789abcdef0123\r\n", 0o440).as_deref(), Ok(TOKEN));
        assert_eq!(of(&[b'x'; LONGEST], 0o600), Ok("x".repeat(LONGEST)));
        assert!(of(b"0123456789abcdef0123", 0o644).unwrap_err().contains("chmod 600"));
        assert!(of(b"0123456789abcdef0123", 0o602).unwrap_err().contains("chmod 600"));
        for short in
            [&b""[..], b"\n", b"0123456789abcdef012\n", &[b'x'; LONGEST + 1], &[b'x'; 9999]]
        {
            assert!(of(short, 0o600).unwrap_err().contains("20 to 256"), "{short:?}");
        }
        for odd in [
            "0123456789 0123456789",
            "0123456789\n0123456789",
            "0123456789abcdef012é",
            "0123456789\t0123456789",
        ] {
            assert!(of(odd.as_bytes(), 0o600).unwrap_err().contains("visible ASCII"), "{odd}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(read(&path).unwrap_err().contains("No such file"));
        assert!(read(&std::env::temp_dir()).unwrap_err().contains("not a file"));
    }

    #[test]
    fn a_changed_file_replaces_the_token_and_a_bad_one_does_not() {
        let path = std::env::temp_dir().join(format!("larder-token-again-{}", std::process::id()));
        let write = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        };
        let token = AdminToken::of(None).unwrap();
        let (first, now) = (token.created().unwrap(), Instant::now());
        write("too short");
        assert!(token.read_again(&path).is_err());
        assert_eq!(token.check(first.as_bytes(), None, false, now), Checked::Right);
        write(TOKEN);
        assert_eq!(token.read_again(&path), Ok(true));
        assert_eq!(token.read_again(&path), Ok(false));
        assert_eq!(token.created(), None);
        assert_eq!(token.check(first.as_bytes(), None, false, now), Checked::Wrong);
        assert_eq!(token.check(TOKEN.as_bytes(), None, false, now), Checked::Right);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn wrong_tokens_are_limited_and_do_not_lock_out_operators() {
        let token = AdminToken::new(TOKEN.to_owned(), false);
        let began = Instant::now();
        let (here, there) = (true, false);
        let check = |given: &str, is_here, after| {
            token.check(given.as_bytes(), None, is_here, began + after)
        };
        let wrong = |is_here, after| check("0123456789abcdef012X", is_here, after);
        let zero = Duration::ZERO;
        for _ in 0..BURST {
            assert_eq!(wrong(there, zero), Checked::Wrong);
        }
        assert_eq!(wrong(there, zero), Checked::TooMany);
        // Wrong tokens do not lock out an operator, who sends the right one.
        assert_eq!(check(TOKEN, there, zero), Checked::Right);
        assert_eq!(check(TOKEN, here, zero), Checked::Right);
        assert_eq!(wrong(here, zero), Checked::Wrong);
        // After an interval, one more wrong token is not too many.
        assert_eq!(wrong(there, INTERVAL), Checked::Wrong);
        assert_eq!(wrong(there, INTERVAL), Checked::TooMany);
        // After a long pause there is one burst, not more.
        let later = Duration::from_secs(3600);
        let told = (0..100).filter(|_| wrong(there, later) == Checked::Wrong).count();
        assert_eq!(told, BURST as usize);
        assert_eq!(token.failures(), u64::from(BURST) + 1 + 1 + 1 + 1 + 100);
    }
}
