//! Assembles a store from the given devices, and computes each device's share of the keys.

use crate::durability::{StoreDevice, StoreOptions};
use crate::error::StoreError;
use larder_log::format::superblock::SuperblockError;
use larder_log::format::{LaneNumber, Lanes, MAX_LANES, PARTITIONS, Superblock};
use larder_log::recover::read_superblock;
use std::ops::Range;

/// Added to the version of the table of lanes when a lane is forgotten. So if the lost lane turns
/// up again, Larder recognises its table as out of date. The lost lane may have a higher version
/// than the other lanes had, because it may have written tables that could not be written to the
/// other lanes. The difference is far below `AHEAD`.
const AHEAD: u64 = 1 << 32;

/// A device that has a store, and its superblock.
type Formatted<'a> = (&'a StoreDevice, Superblock);

/// A lane to be opened.
#[derive(Clone, Debug)]
pub(crate) struct Member<'a> {
    /// The lane's number in the table.
    pub(crate) number: LaneNumber,
    pub(crate) device: &'a StoreDevice,
    /// Size of a segment, in bytes.
    pub(crate) segment_size: usize,
    /// The device's superblock, if it already has a store.
    pub(crate) found: Option<Superblock>,
}

/// The store that the given devices form.
#[derive(Debug)]
pub(crate) struct Assembled<'a> {
    /// The lanes, sorted by lane number.
    pub(crate) lanes: Vec<Member<'a>>,
    /// The table of lanes in all superblocks while the lanes are opened. It still names lanes that
    /// are being forgotten as owners of their partitions.
    pub(crate) opening: Lanes,
    /// The table of lanes once the engine serves clients.
    pub(crate) table: Lanes,
    /// True if lanes are being forgotten.
    pub(crate) forgets: bool,
    pub(crate) hash_seed: u64,
}

/// Determines the lanes of the store. Adds new devices and removes lanes that are to be forgotten.
/// New lanes get segments of `segment_size` bytes, and a new store gets `hash_seed`.
pub(crate) fn assemble(
    options: &StoreOptions,
    segment_size: usize,
    hash_seed: u64,
) -> Result<Assembled<'_>, StoreError> {
    let (stores, empty) = read_superblocks(options)?;
    let (known, hash_seed) = match newest(&stores)? {
        Some(superblock) => (superblock.lanes, superblock.hash_seed),
        None => (Lanes { members: [0; MAX_LANES], ..Lanes::alone(0) }, hash_seed),
    };
    let mut table = known;
    let mut lanes = present_lanes(&table, &stores)?;
    let (lost, unserved) = absent_lanes(options, &table, &lanes)?;
    unserved.into_iter().for_each(|number| table.remove(number));
    add_lanes(&mut table, &mut lanes, empty, segment_size)?;
    if lanes.is_empty() {
        return Err(StoreError::NoLanes);
    }
    if stores.is_empty() && lanes.len() == 1 {
        // Older versions of Larder, which know only stores of one lane, can read this table.
        table = Lanes::alone(lanes[0].device.seeds[1].into());
    }
    lanes.sort_unstable_by_key(|lane| lane.number);
    let capacity = |lane: &Member<'_>| (lane.number, lane.device.capacity());
    let capacities: Vec<(LaneNumber, u64)> = lanes.iter().map(capacity).collect();
    if lanes.iter().all(|lane| table.is_draining(lane.number)) {
        // At least one lane must hold the keys.
        table.draining = 0;
    }
    // In a new store no partition has an owner. In an existing store, a partition may belong to one
    // of the `unserved` lanes, which were just removed: an earlier start gave it to that lane, but
    // ended before it served clients.
    give_away_lost(&mut table, &capacities, stores.is_empty());
    if table != known && !table.is_alone() || lanes.len() > 1 && table.is_alone() {
        if table.set == 0 {
            table.set = table.members[lanes[0].number.index()];
        }
        table.version = known.version + 1;
    }
    let opening = table;
    if !lost.is_empty() {
        forget(&mut table, &lost, &capacities);
    }
    table.joining = 0;
    Ok(Assembled { lanes, opening, table, forgets: !lost.is_empty(), hash_seed })
}

/// Returns the devices that have a store, and those that have none.
fn read_superblocks(
    options: &StoreOptions,
) -> Result<(Vec<Formatted<'_>>, Vec<&StoreDevice>), StoreError> {
    let (mut stores, mut empty) = (Vec::new(), Vec::new());
    for device in &options.devices {
        // The sync makes data durable that a killed server wrote but did not sync. Such data can be
        // readable without being durable.
        device.device.sync()?;
        let found = read_superblock(&*device.device)?;
        match found.and_then(|superblock| superblock.may_write().map(|()| superblock)) {
            Ok(superblock) => stores.push((device, superblock)),
            Err(SuperblockError::Empty) => empty.push(device),
            Err(error) if options.devices.len() == 1 => return Err(StoreError::Superblock(error)),
            Err(error) => {
                let error = Box::new(StoreError::Superblock(error));
                return Err(StoreError::Lane { name: device.name.clone(), error });
            }
        }
    }
    Ok((stores, empty))
}

/// Returns the lanes of the table whose devices are given.
fn present_lanes<'a>(
    table: &Lanes,
    stores: &[Formatted<'a>],
) -> Result<Vec<Member<'a>>, StoreError> {
    let mut lanes = Vec::new();
    for &(device, superblock) in stores {
        let (number, id) = (superblock.lanes.here, superblock.store_id as u64);
        let name = || device.name.clone();
        let is_member = table.members[number.index()] == id;
        if is_member && !has(&lanes, number) {
            let segment_size = superblock.geometry.segment_size() as usize;
            lanes.push(Member { number, device, segment_size, found: Some(superblock) });
        } else if is_member {
            return Err(StoreError::Foreign { name: name() });
        } else if superblock.lanes.members[number.index()] == id {
            return Err(StoreError::LeftBehind { name: name() });
        }
        // A device that is missing from the table in its own superblock has been drained, so it is
        // not added to `lanes`.
    }
    Ok(lanes)
}

fn has(lanes: &[Member<'_>], number: LaneNumber) -> bool {
    lanes.iter().any(|lane| lane.number == number)
}

/// Returns the numbers of the lanes whose devices are not given: first the lanes to be forgotten,
/// then lanes that never served and therefore hold nothing. Fails if any other lane is absent.
fn absent_lanes(
    options: &StoreOptions,
    table: &Lanes,
    lanes: &[Member<'_>],
) -> Result<(Vec<LaneNumber>, Vec<LaneNumber>), StoreError> {
    if let Some(&lane) = options.forget.iter().find(|&&lane| has(lanes, lane)) {
        return Err(StoreError::NotMissing { lane });
    }
    let absent = |&number: &LaneNumber| table.is_member(number) && !has(lanes, number);
    let has_served = |number: &LaneNumber| table.joining & number.bit() == 0;
    let (lost, unserved): (Vec<_>, Vec<_>) = LaneNumber::all().filter(absent).partition(has_served);
    let missing: Vec<_> =
        lost.iter().copied().filter(|lane| !options.forget.contains(lane)).collect();
    if !missing.is_empty() {
        let name = |lane: &Member<'_>| (lane.device.name.clone(), lane.number);
        let given = lanes.iter().map(name).collect();
        return Err(StoreError::Missing { lanes: missing, given });
    }
    Ok((lost, unserved))
}

/// Adds a lane for each empty device.
fn add_lanes<'a>(
    table: &mut Lanes,
    lanes: &mut Vec<Member<'a>>,
    empty: Vec<&'a StoreDevice>,
    segment_size: usize,
) -> Result<(), StoreError> {
    for device in empty {
        let Some(number) = LaneNumber::all().find(|&number| !table.is_member(number)) else {
            return Err(StoreError::TooManyLanes);
        };
        table.members[number.index()] = device.seeds[1].max(1);
        table.joining |= number.bit();
        lanes.push(Member { number, device, segment_size, found: None });
    }
    Ok(())
}

/// Removes lost lanes from the table and gives their partitions to the others.
fn forget(table: &mut Lanes, lost: &[LaneNumber], capacities: &[(LaneNumber, u64)]) {
    lost.iter().for_each(|&number| table.remove(number));
    // Dropping the motion is safe: before the start writes this table, it deletes the strays of
    // every lane, those of the motion included.
    table.motion = None;
    give_away_lost(table, capacities, false);
    // A lost lane that turns up again must be recognised as out of date; see `AHEAD`.
    table.version += AHEAD;
}

/// Returns the superblock with the newest table. Fails if the superblocks belong to different sets
/// of devices.
fn newest<'a>(stores: &'a [Formatted<'_>]) -> Result<Option<&'a Superblock>, StoreError> {
    let Some((_, first)) = stores.first() else { return Ok(None) };
    let foreign = |(_, other): &&Formatted<'_>| other.lanes.set != first.lanes.set;
    if let Some(&(device, _)) = stores.iter().find(foreign) {
        return Err(StoreError::Foreign { name: device.name.clone() });
    }
    Ok(stores.iter().map(|(_, superblock)| superblock).max_by_key(|s| s.lanes.version))
}

/// Gives partitions whose owner is missing to the lanes that are present. In a `new` store, these
/// are all partitions.
fn give_away_lost(table: &mut Lanes, capacities: &[(LaneNumber, u64)], new: bool) {
    let wanted = wanted(table, capacities);
    let mut room: Vec<(LaneNumber, usize)> = wanted
        .iter()
        .map(|&(lane, count)| {
            (lane, if new { count } else { count.saturating_sub(table.owned(lane)) })
        })
        .collect();
    // `fallback` gets the partitions that no lane has room for. There are no such partitions as
    // long as some lane that does not drain has capacity.
    let first = room.iter().find(|&&(lane, _)| wanted.iter().any(|w| w.0 == lane && w.1 > 0));
    let fallback = first.map_or(LaneNumber(0), |&(lane, _)| lane);
    for partition in 0..PARTITIONS {
        if !new && table.is_member(table.owners[partition]) {
            continue;
        }
        let lane = match room.iter_mut().find(|(_, room)| *room > 0) {
            Some((lane, room)) => {
                *room -= 1;
                *lane
            }
            None => fallback,
        };
        table.owners[partition] = lane;
    }
}

/// Returns how many partitions each lane should own: a share proportional to its capacity, or none
/// if it is draining. `capacities` gives each lane's capacity in bytes.
pub(crate) fn wanted(table: &Lanes, capacities: &[(LaneNumber, u64)]) -> Vec<(LaneNumber, usize)> {
    let weight = |&(lane, bytes): &(LaneNumber, u64)| match table.is_draining(lane) {
        true => 0,
        false => u128::from(bytes),
    };
    let sum: u128 = capacities.iter().map(weight).sum::<u128>().max(1);
    let mut before = 0;
    let mut given = 0;
    let share = |lane: &(LaneNumber, u64)| {
        before += weight(lane);
        let end = (before * PARTITIONS as u128 / sum) as usize;
        let count = end - given;
        given = end;
        (lane.0, count)
    };
    capacities.iter().map(share).collect()
}

/// Returns the next partitions to move, with the lanes they move from and to. Returns `None` if no
/// lane has partitions to give, if no other lane can receive them, or if `allowed` accepts none. A
/// lane that is not draining gives partitions only if it has at least `run` more than its share.
///
/// The returned partitions are successive partitions of one lane, in one aligned block of `run`
/// partitions.
///
/// `usable` tells whether a lane takes part in motions, and `receives` whether it accepts
/// partitions. `allowed` gets the number of the first of the successive partitions, and tells
/// whether they may move.
pub(crate) fn next_motion(
    table: &Lanes,
    capacities: &[(LaneNumber, u64)],
    run: usize,
    usable: impl Fn(LaneNumber) -> bool,
    receives: impl Fn(LaneNumber) -> bool,
    allowed: impl Fn(usize) -> bool,
) -> Option<(Range<usize>, LaneNumber, LaneNumber)> {
    let wanted = wanted(table, capacities);
    let surplus = |&(lane, wanted): &(LaneNumber, usize)| {
        let owned = table.owned(lane);
        let tolerated = if table.is_draining(lane) { 0 } else { run - 1 };
        (owned > wanted + tolerated).then(|| (owned - wanted, lane))
    };
    let deficit = |&(lane, wanted): &(LaneNumber, usize)| {
        let missing = wanted.saturating_sub(table.owned(lane));
        (!table.is_draining(lane)).then_some((missing, lane))
    };
    let usable = |&&(lane, _): &&(LaneNumber, usize)| usable(lane);
    let (_, from) = wanted.iter().filter(usable).filter_map(surplus).max()?;
    let others = wanted.iter().filter(usable).filter(|&&(lane, _)| lane != from && receives(lane));
    let (missing, to) = others.filter_map(deficit).max()?;
    if missing == 0 && !table.is_draining(from) {
        return None;
    }
    let owned = |partition: &usize| table.owners[*partition] == from;
    let mut end = PARTITIONS;
    loop {
        let last = (0..end).rev().find(owned)?;
        let start = last / run * run;
        let first = (start..=last).rev().take_while(owned).last()?;
        if allowed(first) {
            return Some((first..last + 1, from, to));
        }
        end = first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LaneNumber = LaneNumber(0);
    const B: LaneNumber = LaneNumber(1);
    const C: LaneNumber = LaneNumber(2);

    fn table(lanes: usize) -> Lanes {
        let mut table = Lanes::alone(1);
        (0..lanes).for_each(|lane| table.members[lane] = lane as u64 + 1);
        table
    }

    #[test]
    fn shares_are_proportional_to_capacities() {
        let mut table = table(3);
        let capacities = [(A, 100), (B, 200), (C, 100)];
        assert_eq!(wanted(&table, &capacities), [(A, 1024), (B, 2048), (C, 1024)]);
        table.draining = B.bit();
        assert_eq!(wanted(&table, &capacities), [(A, 2048), (B, 0), (C, 2048)]);
        assert_eq!(wanted(&table, &[(C, 7)]), [(C, PARTITIONS)]);
    }

    #[test]
    fn motions_end_when_every_lane_has_its_share() {
        for run in [1, 4, 64] {
            let mut table = table(3);
            let capacities = [(A, 100), (B, 50), (C, 50)];
            let mut motions = 0;
            while let Some((unit, from, to)) =
                next_motion(&table, &capacities, run, |_| true, |_| true, |_| true)
            {
                assert!(
                    from != to && unit.len() <= run && unit.start / run == (unit.end - 1) / run
                );
                unit.for_each(|partition| table.owners[partition] = to);
                motions += 1;
                assert!(motions <= PARTITIONS);
            }
            for (lane, wanted) in wanted(&table, &capacities) {
                assert!(
                    table.owned(lane).abs_diff(wanted) < 2 * run,
                    "{lane}: {}",
                    table.owned(lane)
                );
            }
            table.draining = A.bit();
            while let Some((unit, _, to)) =
                next_motion(&table, &capacities, run, |_| true, |_| true, |_| true)
            {
                unit.for_each(|partition| table.owners[partition] = to);
            }
            assert_eq!(table.owned(A), 0);
        }
    }

    #[test]
    fn a_failing_lane_takes_no_part_in_motions() {
        let table = table(3);
        let capacities = [(A, 100), (B, 100), (C, 100)];
        let motion = next_motion(&table, &capacities, 1, |lane| lane != B, |_| true, |_| true);
        assert_eq!(motion.map(|(_, from, to)| (from, to)), Some((A, C)));
        assert_eq!(next_motion(&table, &capacities, 1, |lane| lane != A, |_| true, |_| true), None);
    }

    #[test]
    fn partitions_of_a_lost_lane_go_to_the_remaining_lanes() {
        let mut table = table(3);
        (0..PARTITIONS).for_each(|at| table.owners[at] = LaneNumber((at % 3) as u8));
        table.members[B.index()] = 0;
        give_away_lost(&mut table, &[(A, 100), (C, 100)], false);
        assert_eq!((table.owned(A), table.owned(B), table.owned(C)), (2048, 0, 2048));
        assert!(
            (0..PARTITIONS).step_by(3).all(|at| table.owners[at] == A),
            "partitions of remaining lanes stay"
        );
    }
}
