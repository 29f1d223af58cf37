//! Models of increments that change a record in place while other threads read the key, set it,
//! increment it, or clean its segment.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p larder-engine --release loom`

use crate::cleaner::Cleaner;
use crate::cleaner::state::Fate;
use crate::lane::model::{self, check_books, get, increment, session, set};
use larder_log::Stream;
use larder_log::sync::model::{Outcomes, check, spawn};
use std::sync::Arc;

const KEY: &[u8] = b"k";

/// What another thread does to the counter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// Increments the counter, too.
    Increment,
    /// Sets the counter to 50.
    Set,
    /// Seals the counter's segment and cleans it.
    Clean,
}

/// One thread increments the counter, another one reads it, a third does what `beside` says. No
/// increment may be lost, and the reader must see a whole value.
fn count_beside(beside: Beside, switches: usize) {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    check(switches, move || {
        let lane = model::lane(model::SMALL);
        let (mut writer, mut reader, mut third) = (session(&lane), session(&lane), session(&lane));
        writer.tick(1);
        set(&writer, KEY, b"10");
        // The second increment changes the record in place.
        assert_eq!((increment(&writer, KEY), increment(&writer, KEY)), (Some(11), Some(12)));
        writer.sleep();
        let number = 1;
        loom::explore();
        let writing = spawn(move || {
            writer.tick(1);
            let counted = increment(&writer, KEY).expect("it is there");
            writer.sleep();
            (writer, counted)
        });
        let reading = spawn(move || {
            reader.tick(1);
            let seen = get(&reader, KEY).expect("it is there").to_vec();
            reader.sleep();
            (reader, String::from_utf8(seen).unwrap().parse::<u64>().unwrap())
        });
        third.tick(1);
        match beside {
            Beside::Increment => assert!(increment(&third, KEY).is_some()),
            Beside::Set => set(&third, KEY, b"50"),
            Beside::Clean => {
                lane.log.seal_all();
                Cleaner::new(&lane).clean(&lane, Stream::Hot, number, Fate::Keep);
                lane.log.reap();
            }
        }
        third.sleep();
        let (mut writer, counted) = writing.join().unwrap();
        let (reader, seen) = reading.join().unwrap();
        writer.tick(1);
        let last: u64 = std::str::from_utf8(get(&writer, KEY).unwrap()).unwrap().parse().unwrap();
        match beside {
            Beside::Increment => {
                assert_eq!(last, 14, "an increment is lost");
                assert!((12..=14).contains(&seen) && (13..=14).contains(&counted));
            }
            Beside::Set => {
                assert!([50, 51].contains(&last) && [13, 51].contains(&counted));
                assert_eq!(last == 51, counted == 51);
                assert!([12, 13, 50, 51].contains(&seen));
            }
            Beside::Clean => {
                assert_eq!((last, counted), (13, 13));
                assert!([12, 13].contains(&seen));
            }
        }
        noted.note((counted, seen));
        check_books(&lane);
        drop((writer, reader, third));
        check_books(&lane);
    });
    let all = outcomes.all();
    let seen = |wanted| all.iter().any(|&(_, seen)| seen == wanted);
    assert!(seen(12) && seen(13), "{all:?}");
}

#[test]
fn loom_increments_add_up() {
    count_beside(Beside::Increment, 1);
}

#[test]
fn loom_an_increment_meets_a_set() {
    count_beside(Beside::Set, 1);
}

#[test]
fn loom_an_increment_meets_the_cleaner() {
    count_beside(Beside::Clean, 1);
}
