//! The token of the admin port: who has it may change the server and see keys and values.
//!
//! It travels only in the header `Authorization`. A browser never adds that header by itself, and a
//! page from elsewhere cannot add it without a preflight request, which is refused (see
//! [`origin`](super::origin)). A token in a cookie would be sent with every request, whichever page
//! makes it; a token in an address would end up in logs and in the browser's history.
//!
//! Invariants: a comparison takes as long for any wrong token as for the right one of its length. A
//! token beyond the rate of wrong tokens is not compared. The state does not grow with the number
//! of clients or attempts.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::door::ClientAddress;
use super::{HARDENED, Subject};
use crate::process;

/// Number of random bytes of a token that the server creates.
const RANDOM: usize = 20;
/// The shortest token that a file may hold, in bytes.
const SHORTEST: usize = 16;
/// The longest token that a file may hold, in bytes.
const LONGEST: usize = 256;
/// Interval at which one more wrong token is compared.
const INTERVAL: Duration = Duration::from_millis(250);
/// Number of wrong tokens that are compared at once after a pause.
const BURST: u32 = 16;
/// The shortest interval between two log lines about wrong tokens.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The token, with the counts of its uses.
#[derive(Debug)]
pub(crate) struct AdminToken {
    state: Mutex<TokenState>,
    /// Number of requests with a wrong token, and of those refused because of too many.
    failures: AtomicU64,
    /// Number of requests executed with the token.
    actions: AtomicU64,
}

#[derive(Debug)]
struct TokenState {
    secret: Secret,
    /// True if this start has created the token. False if a file holds it.
    is_created: bool,
    /// The rate of wrong tokens from this machine, and from elsewhere. They are separate, so that
    /// nobody elsewhere can lock out the operator of this machine.
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

/// The time until which wrong tokens have used up their rate.
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
enum Checked {
    Right,
    Wrong,
    /// Not compared, because too many wrong tokens came before.
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

    fn new(secret: String, is_created: bool) -> AdminToken {
        let (secret, rates) = (Secret(secret), Default::default());
        let state = Mutex::new(TokenState { secret, is_created, rates, logged: None });
        AdminToken { state, failures: AtomicU64::new(0), actions: AtomicU64::new(0) }
    }

    /// Reads the token from a file. Returns true if it has changed.
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

    /// Compares `given` with the token. Counts and logs a failure.
    fn check(&self, given: &[u8], client: Option<SocketAddr>, now: Instant) -> Checked {
        let mut state = self.lock();
        let rate = usize::from(!client.is_some_and(is_local));
        let checked = if state.rates[rate].is_exceeded(now) {
            Checked::TooMany
        } else if is_equal(state.secret.0.as_bytes(), given) {
            return Checked::Right;
        } else {
            state.rates[rate].note(now);
            Checked::Wrong
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

/// Reads a token from a file. Its owner, and at most a group, may access the file.
fn read(path: &Path) -> Result<String, String> {
    // Without this flag, the open of a pipe waits for a writer.
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
    // One byte more shows that there are more.
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
        // A longer token is compared with the repeated secret.
        let wanted = secret.get(at % secret.len().max(1)).copied().unwrap_or(0);
        difference |= usize::from(std::hint::black_box(wanted ^ byte));
    }
    std::hint::black_box(difference) == 0
}

/// Returns true for a client on this machine.
fn is_local(client: SocketAddr) -> bool {
    let ip: IpAddr = client.ip().to_canonical();
    ip.is_loopback()
}

/// Returns the token of a request's header; `None` if there is none, `Err` if there are several
/// headers or another scheme.
fn bearer(headers: &HeaderMap) -> Result<Option<&[u8]>, ()> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len()).ok_or(())?;
    match values.next() {
        None if scheme.eq_ignore_ascii_case(b"Bearer ") => Ok(Some(token.trim_ascii())),
        _ => Err(()),
    }
}

fn client_of(parts: &Parts) -> Option<SocketAddr> {
    parts.extensions.get::<ConnectInfo<ClientAddress>>().map(|client| client.0.0)
}

fn refuse(code: StatusCode, reason: &'static str) -> Response {
    let scheme = [(header::WWW_AUTHENTICATE, "Bearer realm=\"larder\"")];
    (code, HARDENED, scheme, reason).into_response()
}

/// Extractor for requests that carry the token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Authorized {
    /// The address of the client.
    pub(super) client: Option<SocketAddr>,
}

impl FromRequestParts<Arc<Subject>> for Authorized {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        subject: &Arc<Subject>,
    ) -> Result<Self, Response> {
        let client = client_of(parts);
        let given = match bearer(&parts.headers) {
            Ok(Some(given)) => given,
            Ok(None) => return Err(refuse(StatusCode::UNAUTHORIZED, "this needs the token\n")),
            Err(()) => {
                let reason = "the token is one header: Authorization: Bearer TOKEN\n";
                return Err(refuse(StatusCode::UNAUTHORIZED, reason));
            }
        };
        match subject.token.check(given, client, Instant::now()) {
            Checked::Right => Ok(Authorized { client }),
            Checked::Wrong => Err(refuse(StatusCode::UNAUTHORIZED, "the token is wrong\n")),
            Checked::TooMany => {
                let reason = "too many wrong tokens: wait some seconds\n";
                Err(refuse(StatusCode::TOO_MANY_REQUESTS, reason))
            }
        }
    }
}

/// Extractor for requests that may see names of keys: they come from this machine, or carry the
/// token. A request that a proxy has forwarded counts as from elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trusted;

impl FromRequestParts<Arc<Subject>> for Trusted {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        subject: &Arc<Subject>,
    ) -> Result<Self, Response> {
        /// Headers by which a proxy says for whom it asks.
        const FORWARDED: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];
        let is_forwarded = FORWARDED.iter().any(|name| parts.headers.contains_key(*name));
        let has_token = parts.headers.contains_key(header::AUTHORIZATION);
        if !has_token && !is_forwarded && client_of(parts).is_some_and(is_local) {
            return Ok(Trusted);
        }
        Authorized::from_request_parts(parts, subject).await.map(|_| Trusted)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::settings::Settings;

    const TOKEN: &str = "0123456789abcdef";

    #[test]
    fn only_the_same_bytes_are_equal() {
        assert!(is_equal(b"abcd", b"abcd"));
        let others: [&[u8]; 7] = [b"", b"abc", b"abcde", b"abcdabcd", b"abcx", b"xbcd", b"ABCD"];
        for other in others {
            assert!(!is_equal(b"abcd", other), "{other:?}");
        }
        // The low byte of the difference of these lengths is 0.
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
        assert_eq!(of(b"0123456789abcdef\n", 0o600).as_deref(), Ok(TOKEN));
        assert_eq!(of(b"0123456789abcdef\r\n", 0o440).as_deref(), Ok(TOKEN));
        assert_eq!(of(&[b'x'; LONGEST], 0o600), Ok("x".repeat(LONGEST)));
        assert!(of(b"0123456789abcdef", 0o644).unwrap_err().contains("chmod 600"));
        assert!(of(b"0123456789abcdef", 0o602).unwrap_err().contains("chmod 600"));
        for short in [&b""[..], b"\n", b"0123456789abcde\n", &[b'x'; LONGEST + 1], &[b'x'; 9999]] {
            assert!(of(short, 0o600).unwrap_err().contains("16 to 256"), "{short:?}");
        }
        for odd in
            ["0123456789 abcdef", "0123456789\nabcdef", "0123456789abcdeé", "0123456789\tabcdef"]
        {
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
        assert_eq!(token.check(first.as_bytes(), None, now), Checked::Right);
        write("0123456789abcdef");
        assert_eq!(token.read_again(&path), Ok(true));
        assert_eq!(token.read_again(&path), Ok(false));
        assert_eq!(token.created(), None);
        assert_eq!(token.check(first.as_bytes(), None, now), Checked::Wrong);
        assert_eq!(token.check(TOKEN.as_bytes(), None, now), Checked::Right);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn wrong_tokens_are_limited_and_do_not_lock_out_this_machine() {
        let token = AdminToken::new(TOKEN.to_owned(), false);
        let here = Some("127.0.0.1:5".parse().unwrap());
        let there = Some("10.0.0.5:5".parse().unwrap());
        let began = Instant::now();
        let wrong = |client, after| token.check(b"0123456789abcdeX", client, began + after);
        let zero = Duration::ZERO;
        for _ in 0..BURST {
            assert_eq!(wrong(there, zero), Checked::Wrong);
        }
        assert_eq!(wrong(there, zero), Checked::TooMany);
        assert_eq!(token.check(TOKEN.as_bytes(), there, began), Checked::TooMany);
        assert_eq!(token.check(TOKEN.as_bytes(), here, began), Checked::Right);
        assert_eq!(wrong(here, zero), Checked::Wrong);
        // One more per interval.
        assert_eq!(wrong(there, INTERVAL), Checked::Wrong);
        assert_eq!(wrong(there, INTERVAL), Checked::TooMany);
        assert_eq!(token.check(TOKEN.as_bytes(), there, began + INTERVAL * 3), Checked::Right);
        // After a long pause there is one burst, not more.
        let later = Duration::from_secs(3600);
        let compared = (0..100).filter(|_| wrong(there, later) == Checked::Wrong).count();
        assert_eq!(compared, BURST as usize);
        assert_eq!(token.failures(), u64::from(BURST) + 1 + 1 + 1 + 1 + 1 + 100);
    }

    #[test]
    fn the_token_is_one_bearer_header() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().unwrap());
            }
            bearer(&headers).map(|token| token.map(<[u8]>::to_vec))
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&["Bearer abc"]), Ok(Some(b"abc".to_vec())));
        assert_eq!(of(&["bearer abc"]), Ok(Some(b"abc".to_vec())));
        for wrong in [&["Bearer"][..], &["Basic abc"], &["abc"], &[""], &["Bearer a", "Bearer a"]] {
            assert_eq!(of(wrong), Err(()), "{wrong:?}");
        }
    }

    /// Names of keys are for this machine, and with the token for others.
    #[test]
    fn this_machine_is_trusted_unless_a_proxy_asks() {
        let token = AdminToken::new(TOKEN.to_owned(), false);
        let subject =
            Arc::new(Subject::new(Settings::default(), token, "127.0.0.1:1".parse().unwrap()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let status = |client: &str, header: Option<(&str, &str)>| {
            let client = ClientAddress(client.parse().unwrap());
            let mut request = axum::http::Request::builder().extension(ConnectInfo(client));
            if let Some((name, value)) = header {
                request = request.header(name, value);
            }
            let (mut parts, ()) = request.body(()).unwrap().into_parts();
            let trusted = runtime.block_on(Trusted::from_request_parts(&mut parts, &subject));
            trusted.map_or_else(|refusal| refusal.status().as_u16(), |_| 200)
        };
        let right = format!("Bearer {TOKEN}");
        for here in ["127.0.0.1:9", "[::1]:9"] {
            assert_eq!(status(here, None), 200);
            assert_eq!(status(here, Some(("authorization", &right))), 200);
            assert_eq!(status(here, Some(("authorization", "Bearer 0000000000000000"))), 401);
            for name in ["Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"] {
                assert_eq!(status(here, Some((name, "10.0.0.5"))), 401, "{name}");
            }
        }
        assert_eq!(status("10.0.0.5:9", None), 401);
        assert_eq!(status("10.0.0.5:9", Some(("x-forwarded-for", "127.0.0.1"))), 401);
        assert_eq!(status("10.0.0.5:9", Some(("authorization", &right))), 200);
    }

    #[test]
    fn only_loopback_addresses_are_local() {
        for local in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(is_local(local.parse().unwrap()), "{local}");
        }
        for other in ["10.0.0.5:1", "0.0.0.0:1", "[::]:1", "[fe80::1]:1", "[::ffff:10.0.0.5]:1"] {
            assert!(!is_local(other.parse().unwrap()), "{other}");
        }
    }
}
