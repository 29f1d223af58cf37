//! What commands and connections wait for, as a small set of reasons.

/// A reason to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A record is being read from a device.
    Read,
    /// The engine cannot execute the request yet. For example, memory or space on a device is being
    /// reclaimed, or the key is moving between lanes.
    Space,
    /// A long value waits in the queue of arriving values, because other arriving values use all
    /// memory that they may take.
    Place,
    /// The commit that a reply depends on is not durable yet.
    Commit,
}

/// A set of reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits(u8);

impl Waits {
    pub(crate) const NONE: Waits = Waits(0);

    /// All reasons with the names that statistics and the admin page show.
    const ALL: [(Wait, &'static str); 4] = [
        (Wait::Read, "read"),
        (Wait::Space, "space"),
        (Wait::Place, "place"),
        (Wait::Commit, "commit"),
    ];

    /// Returns the set with `wait` added.
    pub(crate) fn with(self, wait: Wait) -> Waits {
        Waits(self.0 | 1 << wait as u8)
    }

    /// Returns the union of the two sets.
    pub(crate) fn and(self, other: Waits) -> Waits {
        Waits(self.0 | other.0)
    }

    /// Returns the set as a number, for storage in an atomic.
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    pub(crate) fn of_bits(bits: u8) -> Waits {
        Waits(bits)
    }

    /// Returns the names of the reasons.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let has = move |wait: Wait| self.0 & (1 << wait as u8) != 0;
        Waits::ALL.into_iter().filter(move |(wait, _)| has(*wait)).map(|(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_names_its_reasons_once() {
        let names = |waits: Waits| waits.names().collect::<Vec<_>>();
        assert!(names(Waits::NONE).is_empty());
        let waits = Waits::NONE.with(Wait::Commit).with(Wait::Read).with(Wait::Commit);
        assert_eq!(names(waits), ["read", "commit"]);
        assert_eq!(Waits::of_bits(waits.bits()), waits);
        assert_eq!(names(waits.and(Waits::NONE.with(Wait::Place))), ["read", "place", "commit"]);
    }
}
