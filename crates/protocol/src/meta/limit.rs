//! The flags of an `ma` that takes units of a rate limit: an `ma` with the flag `B` (a budget) or
//! `Q` (a policy).

use super::Meta;
use crate::reply;
use crate::scan::{parse_i32, parse_u64};

/// The longest window, in milliseconds. It is 2^31 - 1 seconds, because clients may write the
/// window in seconds, as a signed 32-bit number.
const WINDOW_MAX: u64 = i32::MAX as u64 * 1000;

/// The rate limit of a command: a policy that it names, or a limit that its own flags describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitFlags<'a> {
    /// Q: the name of a policy.
    Policy(&'a [u8]),
    /// A limit that the command's own flags describe.
    Own {
        /// M: how used units are counted.
        mode: LimitMode,
        /// B: the budget, in units.
        budget: u64,
        /// N: the length of the window in milliseconds; 0 is a window that never ends.
        window_ms: u64,
        /// G: the burst of [`LimitMode::Gcra`], in units. `None` means that the burst is the
        /// budget.
        burst: Option<u64>,
    },
}

/// How the used units of a limit are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitMode {
    /// MI, or no M: a fixed window.
    Fixed,
    /// MW: a sliding window.
    Sliding,
    /// MG: the generic cell rate algorithm, a token bucket.
    Gcra,
}

impl<'a> LimitFlags<'a> {
    /// Returns true if `token` is a flag that makes an `ma` take units of a rate limit.
    pub(super) fn is_named_by(token: &[u8]) -> bool {
        matches!(token[0], b'B' | b'Q')
    }

    /// Reads the limit of an `ma` whose [`Flags`](super::Flags) are correct and have B or Q.
    ///
    /// # Errors
    /// Returns the reply that refuses the command. The flag `q` (quiet) never suppresses it.
    pub fn parse(command: &Meta<'a>) -> Result<Self, &'static str> {
        let (mut policy, mut budget, mut window, mut burst, mut mode) =
            (None, None, None, None, None);
        for token in command.tokens() {
            let argument = &token[1..];
            match token[0] {
                b'Q' => policy = Some(argument),
                b'B' => budget = Some(parse_u64(argument).ok_or(reply::BAD_TOKEN)?),
                b'G' => burst = Some(parse_u64(argument).ok_or(reply::BAD_TOKEN)?),
                b'N' => window = Some(parse_window(argument).ok_or(reply::BAD_TOKEN)?),
                b'M' => mode = Some(argument.first().copied().unwrap_or(b' ')),
                _ => {}
            }
        }
        if let Some(name) = policy {
            let own = budget.is_some() || window.is_some() || burst.is_some() || mode.is_some();
            return if own { Err(reply::POLICY_AND_LIMIT) } else { Ok(Self::Policy(name)) };
        }
        let budget = budget.ok_or(reply::BAD_TOKEN)?;
        let mode = match mode {
            None | Some(b'I' | b'+') => LimitMode::Fixed,
            Some(b'W') => LimitMode::Sliding,
            Some(b'G') => LimitMode::Gcra,
            Some(b'D' | b'-') => return Err(reply::BUDGET_AND_DECREMENT),
            Some(_) => return Err(reply::INVALID_ARITHMETIC_MODE),
        };
        let window_ms = window.unwrap_or(0);
        if mode != LimitMode::Fixed && window_ms == 0 {
            return Err(reply::LIMIT_NEEDS_WINDOW);
        }
        if mode != LimitMode::Gcra && burst.is_some() {
            return Err(reply::BURST_NEEDS_GCRA);
        }
        Ok(Self::Own { mode, budget, window_ms, burst })
    }
}

/// Parses a duration: a number of seconds, or of milliseconds with the suffix `ms`. Returns
/// milliseconds.
fn parse_window(argument: &[u8]) -> Option<u64> {
    let window = match argument.strip_suffix(b"ms") {
        Some(millis) => parse_u64(millis)?,
        // `parse_i32` takes `-` for 0, as memcached does.
        None if argument.starts_with(b"-") => return None,
        None => u64::try_from(parse_i32(argument)?).ok()? * 1000,
    };
    (window <= WINDOW_MAX).then_some(window)
}
