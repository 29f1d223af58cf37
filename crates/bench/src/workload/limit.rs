//! The rate limit that requests of the verb `limit` take units from.

/// A rate limit: a number of units per window, as a fixed window or as a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Units per window.
    pub budget: u64,
    /// Length of the window in seconds.
    pub window: u32,
    /// With a token bucket, the units that may be taken at once; `None` is a fixed window.
    pub burst: Option<u64>,
}

impl Default for Limit {
    /// Returns a fixed window of an hour with a budget that no load uses up.
    fn default() -> Limit {
        Limit { budget: 1_000_000_000_000, window: 3600, burst: None }
    }
}

impl Limit {
    /// Returns the flags of Larder's `ma`.
    pub(super) fn flags(&self) -> String {
        let mode = self.burst.map_or(String::new(), |burst| format!(" MG G{burst}"));
        format!(" B{} N{}{mode} r t w", self.budget, self.window)
    }

    /// Returns budget, window and burst as decimal words; the burst of a fixed window is 0.
    pub(super) fn words(&self) -> String {
        format!("{} {} {}", self.budget, self.window, self.burst.unwrap_or(0))
    }

    /// Returns the largest number of units that may be taken in the `seconds` after the first
    /// request. With a fixed window, `seconds` must be shorter than the window.
    pub(crate) fn bound(&self, seconds: f64) -> u64 {
        match self.burst {
            None => self.budget,
            Some(burst) => {
                burst + (seconds * self.budget as f64 / f64::from(self.window)).floor() as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_written_as_the_protocol_says() {
        assert_eq!(Limit::default().flags(), " B1000000000000 N3600 r t w");
        let bucket = Limit { budget: 1000, window: 1, burst: Some(100) };
        assert_eq!(bucket.flags(), " B1000 N1 MG G100 r t w");
        assert_eq!(bucket.words(), "1000 1 100");
    }

    #[test]
    fn a_bucket_admits_its_burst_and_its_refill() {
        let bucket = Limit { budget: 1000, window: 2, burst: Some(100) };
        assert_eq!(bucket.bound(1.5), 850);
        assert_eq!(Limit { burst: None, ..bucket }.bound(1.5), 1000);
    }
}
