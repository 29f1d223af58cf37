//! A cache without a store that refuses what does not fit, and keeps what it has.

#[path = "common/cache.rs"]
mod cache;

use cache::Cache;
use larder_disk::Random;
use larder_engine::*;

const MEMORY: u64 = 64 << 20;
const VALUE: [u8; 10_000] = [b'v'; 10_000];
/// Length of a large value, in bytes. It is longer than half a segment, so the engine receives the
/// value in a separate mapping.
const LARGE: usize = 1 << 20;

impl Cache {
    fn open() -> Cache {
        let options = Options { memory: MEMORY, when_full: WhenFull::Refuse, ..Options::default() };
        Cache::with(options, 1)
    }

    fn set(&self, key: u64) -> Outcome<Stored> {
        let key = key.to_string();
        self.session.store(&self.session.key(key.as_bytes()), Store::set(&VALUE, 0, Expiry::NEVER))
    }

    fn turn(&mut self) {
        self.session.tick(1);
        self.engine.clean(&mut self.cleaner);
    }

    /// Sets new keys until one is refused. Returns their number.
    fn fill(&mut self) -> u64 {
        let mut kept = 0;
        loop {
            match self.set(kept) {
                Outcome::Ready(_) => kept += 1,
                Outcome::Refused(refusal) => {
                    assert_eq!(refusal, Refusal::OutOfMemory);
                    return kept;
                }
                _ => self.turn(),
            }
        }
    }
}

/// Values that have partly arrived may take the memory that deletes have freed, but no frames that
/// overwrites need. Overwrites must always go on, because each frees as much memory as it takes.
#[test]
fn arriving_values_leave_room_for_overwrites() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut cache = Cache::open();
        let kept = cache.fill();
        assert!(kept * 10_000 > MEMORY * 3 / 4, "{kept} items");
        for n in 0..500u64 {
            let key = n.to_string();
            let deleted =
                cache.session.delete(&cache.session.key(key.as_bytes()), &Delete::default());
            assert!(matches!(deleted, Outcome::Ready(_)), "{deleted:?}");
        }
        let mut arriving = Vec::new();
        let (mut next, mut waits) = (500, 0);
        while next < 2000 {
            match random.below(8) {
                0 if arriving.len() < 8 => match cache.session.large_value(None, LARGE) {
                    Outcome::Ready(Some(large)) => arriving.push((large, 0)),
                    other => panic!("{other:?}"),
                },
                1..4 if !arriving.is_empty() => {
                    let at = random.below(arriving.len() as u64) as usize;
                    let (large, filled) = &mut arriving[at];
                    let more = (*filled + (64 << 10)).min(LARGE - 1);
                    match cache.session.grow_large(large, more) {
                        Outcome::Ready(()) => *filled = more,
                        Outcome::Refused(_) => drop(arriving.swap_remove(at)),
                        _ => {}
                    }
                }
                4 => cache.turn(),
                _ => match cache.set(next % kept) {
                    Outcome::Ready(_) => (next, waits) = (next + 1, 0),
                    Outcome::NeedsSpace => {
                        waits += 1;
                        assert!(waits < 1000, "seed {seed}: {next}: it waits for ever");
                    }
                    other => panic!("seed {seed}: overwrite {next} of {kept}: {other:?}"),
                },
            }
        }
    }
}

/// A value for which there is no memory must be refused soon, however much memory earlier deletes
/// have freed.
#[test]
fn a_value_without_memory_is_refused_soon() {
    for deleted in (0..400).step_by(5) {
        let mut cache = Cache::open();
        let kept = cache.fill();
        for n in kept - deleted..kept {
            let key = n.to_string();
            let key = cache.session.key(key.as_bytes());
            assert!(matches!(cache.session.delete(&key, &Delete::default()), Outcome::Ready(_)));
        }
        // The cleaner frees frames now, before memory is wanted for anything else.
        (0..5).for_each(|_| cache.turn());
        let Outcome::Ready(Some(mut large)) = cache.session.large_value(None, LARGE) else {
            panic!("only its address space is reserved");
        };
        let mut turns = 0;
        while let Outcome::NeedsSpace = cache.session.grow_large(&mut large, LARGE) {
            turns += 1;
            assert!(turns < 50, "{deleted} deleted: it waits for ever");
            cache.turn();
        }
    }
}
