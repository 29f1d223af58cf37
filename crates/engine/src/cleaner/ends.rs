//! Handles segments that hold ends (tombstones, expired or evicted items) and may not be freed yet.
//! Either their ends move on as tombstones, or other segments get dead maps.
//!
//! Moving tombstones costs their bytes. Making maps costs the size of the maps of all segments in
//! which a record died. After that, all earlier tombstones can be dropped. So tombstones move until
//! they have cost what the maps would cost; then the maps are made. The total is at most twice the
//! cost of the cheaper alternative.

use crate::cleaner::state::Cleaner;
use crate::key::Key;
use crate::lane::{DurableLane, Lane};
use larder_log::format::Meta;
use larder_log::record::{HEADER, Kind, write_head};
use larder_log::{Claim, Fields, Layout, Record, Rule, SegmentNumber, Stream};
use std::sync::atomic::Ordering;

/// The number of segments per turn whose ends may fail to move. After these failures, the turn
/// moves ends only where moving is cheaper than dead maps.
const MOST_FAILED: usize = 4;

/// Returns at most `most` segments that need dead maps because of deaths up to the commit `until`.
/// Omits segments that `lane.older` skips: they could not be read, so their maps cannot be made.
fn mappable(lane: DurableLane<'_>, until: u64, most: usize) -> Vec<SegmentNumber> {
    let mut needed = lane.log.blocking_segments(until, most + lane.older.skipped());
    needed.retain(|&number| !lane.older.is_skipped(number));
    needed.truncate(most);
    needed
}

impl Cleaner {
    /// Moves the ends of segments in quarantine, so that these segments can be freed. If ends
    /// cannot move, or if dead maps are cheaper, returns at most `most` segments for which the
    /// caller must make dead maps instead.
    pub(crate) fn move_ends(&mut self, lane: DurableLane<'_>, most: usize) -> Vec<SegmentNumber> {
        let durable = lane.log.store.commits.durable();
        let idle = !lane.log.has_quarantine() && !lane.log.holds_ends();
        if idle || std::mem::replace(&mut self.ends.looked_at, durable) == durable {
            return Vec::new();
        }
        lane.log.release_held_ends();
        if self.ends.maps_until > 0 {
            let needed = mappable(lane, self.ends.maps_until, most);
            if !needed.is_empty() {
                return needed;
            }
            self.ends.maps_until = 0;
        }
        let blocked = lane.log.blocked_segments();
        let stuck = std::mem::take(&mut self.ends.is_stuck) && lane.log.holds_ends();
        if blocked.is_empty() && !stuck {
            return Vec::new();
        }
        if stuck && lane.log.blocking_segments(durable, 1).is_empty() {
            // Space is needed, but no dead map would release a moved tombstone. Perhaps all moved
            // tombstones are in the open segment, and only those of sealed segments can be
            // released. So this call seals the open segment. Once it is durable, a later turn can
            // make the maps that release its tombstones.
            lane.log.seal(Stream::Survivors);
            self.ends.is_stuck = true;
        }
        let mut failed = 0;
        for number in blocked {
            // A simulation breaks rules about dead maps to check that it detects maps that are
            // written too early. While such a rule is broken, ends do not move, so that many maps
            // are written.
            let affordable = !Rule::MapWhenDurable.is_broken()
                && !Rule::MapsWaitForOlder.is_broken()
                && self.maps_cost_more_than(lane, self.ends.moved + lane.log.end_bytes(number));
            let moves = !stuck && affordable;
            if !moves || !self.move_ends_of(lane, number) {
                let needed = mappable(lane, durable, most);
                let blocker = lane.log.blocker_of(number);
                let waits = blocker.is_some_and(|blocker| lane.older.is_skipped(blocker));
                if !needed.is_empty() || !waits {
                    self.ends.moved = 0;
                    self.ends.maps_until = durable;
                    return needed;
                }
                // The segment that blocks `number` is unreadable and gets no map. So the tombstones
                // of `number` move, even where maps would be cheaper.
                let tries = !moves && failed < MOST_FAILED;
                if !tries || !self.move_ends_of(lane, number) {
                    failed += 1;
                    lane.log.expect_no_place(number);
                }
            }
        }
        if stuck { mappable(lane, durable, most) } else { Vec::new() }
    }

    /// Retries segments that were given up because their ends did not move and maps could not be
    /// made.
    pub(crate) fn retry_ends(&mut self, lane: &Lane) {
        if lane.log.expect_places() {
            self.ends.looked_at = 0;
            lane.want_commit();
        }
    }

    /// Returns true if the dead maps that would let the blocked segments be freed take at least
    /// `bytes`.
    fn maps_cost_more_than(&self, lane: DurableLane<'_>, bytes: u64) -> bool {
        let store = lane.log.store;
        let wanted = bytes.div_ceil(Meta::encoded_bytes(store.map_bytes()) as u64) as usize;
        lane.log.needs_maps(store.commits.durable(), wanted.max(1))
    }

    /// Appends a tombstone for every key whose newest version may be in this quarantined segment.
    /// Returns false if not all of these ends could be moved.
    fn move_ends_of(&mut self, lane: DurableLane<'_>, number: SegmentNumber) -> bool {
        if lane.log.segment(number).is_dead_jumbo() {
            return false;
        }
        let Ok(loaded) = lane.log.load_if_absent(number) else { return false };
        if loaded.as_ref().is_some_and(|loaded| loaded.damaged) {
            return false;
        }
        let undo_count = lane.undo_count();
        self.participant.tick();
        let image = loaded.as_ref().map(|loaded| &loaded.image[..]);
        // SAFETY: the segment is sealed and settled, and only the cleaner frees segments.
        let mut records = unsafe { lane.log.records(number, image) };
        let moved = records.all(|(_, record)| match record.kind() {
            kind if kind.is_version() => self.move_end(lane, &record),
            _ => true,
        });
        self.participant.sleep();
        moved && lane.log.ends_are_carried(number, undo_count)
    }

    /// Appends a tombstone with the record's version, unless the index leads to a newer version of
    /// the key in memory. Does not read newer versions from the device: an unneeded tombstone does
    /// no harm, because it hides only older versions.
    fn move_end(&mut self, lane: DurableLane<'_>, record: &Record<'_>) -> bool {
        let key = Key::new(record.key(), lane.options.hash_seed);
        // SAFETY: the cleaner is awake in the epochs.
        let newer = unsafe {
            lane.index.find(&key, |slot| {
                if slot.is_older() {
                    return None;
                }
                let found = lane.log.record(slot.address())?;
                (found.key() == key.bytes()).then_some(())
            })
        };
        if newer.is_some() {
            return true;
        }
        let Some(_appending) = lane.append(&self.participant) else { return false };
        let layout = Layout { header: HEADER, key: key.bytes().len(), value: 0 };
        let now = lane.now.load(Ordering::Relaxed);
        let Some(reserved) = lane.log.reserve(Stream::Survivors, layout.size(), now, Claim::Clean)
        else {
            return false;
        };
        let fields = Fields { seq: record.seq(), ..Fields::of_kind(Kind::Tombstone) };
        let value_hash = lane.log.store.value_hash(&[], &[]);
        // SAFETY: only this thread uses the reservation, and it is as long as the layout says.
        unsafe {
            write_head(reserved.memory, &layout, &fields, key.bytes());
            lane.log.seal_record(reserved.address, reserved.memory, &layout, value_hash);
        }
        lane.log.hold_end(reserved.address.segment(), layout.size());
        self.ends.moved += layout.size() as u64;
        true
    }
}
