//! Opens an engine: recovers its lanes, passes a scheduled flush on to new lanes, deletes strays
//! and writes the changed table of lanes. Only then does the engine serve.

use crate::durability::{StoreOptions, timed};
use crate::engine::lanes::{Assembled, assemble};
use crate::engine::partitions::Partitions;
use crate::engine::{Engine, memory_shares, position_of};
use crate::error::{OpenError, StoreError};
use crate::lane::Lane;
use crate::lane::memory::{
    MAX_ITEM_SIZE, MIN_ITEM_SIZE, MIN_MEMORY, min_memory, segment_size_with_store,
};
use crate::lane::options::{LaneOptions, LaneStore};
use crate::lock::lock;
use crate::mover::state::Mover;
use crate::options::Options;
use crate::recovery;
use crate::recovery::{Progress, Recovered};
use larder_log::Buffers;
use larder_log::format::{LaneNumber, Lanes, MAX_LANES, PARTITIONS};
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

/// Parameters of an opening. Only simulations and tests use other values than [`Engine::open`].
#[derive(Clone, Copy, Debug)]
struct Opening {
    /// Each lane refuses its memory request with this number, counted from 1; 0 refuses none.
    refuse: u64,
    /// Number of threads that fill the index of each lane during recovery.
    threads: usize,
}

impl Engine {
    /// Opens an engine and starts its threads. They end when the last handle of the engine, an
    /// `Arc`, is dropped.
    ///
    /// # Errors
    /// If the options do not fit together, if the operating system provides no memory or no thread,
    /// or if the store cannot be used. See [`OpenError`].
    pub fn open(options: Options) -> Result<Arc<Engine>, OpenError> {
        Self::open_with_progress(options, &mut |_| {})
    }

    /// As [`Engine::open`], and reports the progress of a store's recovery to `progress`.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_with_progress(
        options: Options,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Arc<Engine>, OpenError> {
        let engine =
            Self::build(options, Opening { refuse: 0, threads: recovery::threads() }, progress)?;
        engine.lanes.iter().try_for_each(Lane::start).map_err(OpenError::Map)?;
        crate::mover::spawn(&engine).map_err(OpenError::Map)?;
        Ok(engine)
    }

    /// Opens an engine without threads, for simulations that control the order of events. The
    /// caller runs [`Engine::clean`], [`Engine::commit`], [`Engine::serve_reads`] and
    /// [`Engine::move_partitions`] itself. Recovery reads each device with one thread, in order.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_without_threads(options: Options) -> Result<Arc<Engine>, OpenError> {
        Self::build(options, Opening { refuse: 0, threads: 1 }, &mut |_| {})
    }

    /// As [`Engine::open_without_threads`], but each lane counts those of its memory requests that
    /// may fail, and refuses the `nth` one; 0 refuses none. For simulations of memory shortage.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_refusing_memory(options: Options, nth: u64) -> Result<Arc<Engine>, OpenError> {
        Self::build(options, Opening { refuse: nth, threads: 1 }, &mut |_| {})
    }

    fn build(
        options: Options,
        opening: Opening,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Arc<Engine>, OpenError> {
        if options.memory < MIN_MEMORY {
            return Err(OpenError::MemoryTooSmall { minimum: MIN_MEMORY });
        }
        let maximum = MAX_ITEM_SIZE.min(options.memory / 2);
        if !(MIN_ITEM_SIZE..=maximum).contains(&options.max_item_size) {
            return Err(OpenError::MaxItemSize { minimum: MIN_ITEM_SIZE, maximum });
        }
        let Some(store) = &options.store else {
            let count = options.lanes.clamp(1, MAX_LANES);
            let mut table = Lanes::alone(0);
            for (partition, owner) in table.owners.iter_mut().enumerate() {
                *owner = LaneNumber((partition * count / PARTITIONS) as u8);
            }
            let lanes = open_lanes_in_memory(&options, &table, count, opening, progress)?;
            return Ok(Self::of(&options, lanes, table));
        };
        let share = options.memory / store.devices.len().max(1) as u64;
        let assembled = assemble(store, segment_size_with_store(share), options.hash_seed)?;
        let lanes = open_lanes(&options, store, &assembled, opening, progress)?;
        join_flushes(&lanes).map_err(StoreError::Device)?;
        let Assembled { opening, table, forgets, .. } = assembled;
        lanes.iter().try_for_each(|lane| crate::mover::delete_strays(lane, forgets))?;
        let engine = Self::of(&options, lanes, table);
        if table != opening {
            // Writes the new table to all lanes. It no longer marks lanes as joining, so from now
            // on a start fails if the device of a new lane is absent. In this table, the partitions
            // of lost lanes belong to other lanes.
            engine.change_table(|_| {}).map_err(StoreError::Device)?;
        }
        Ok(engine)
    }

    fn of(options: &Options, lanes: Box<[Arc<Lane>]>, table: Lanes) -> Arc<Engine> {
        let position = |partition: usize| position_of(&lanes, table.owners[partition]).unwrap_or(0);
        let in_memory = lanes.iter().all(|lane| !lane.has_store());
        let settled = in_memory || lanes.len() == 1 && table.motion.is_none();
        let partitions = Partitions::new(position, settled);
        let mover = Mover::new(&table, &lanes);
        let recovered = lanes
            .iter()
            .filter_map(|lane| lane.recovered())
            .fold(None, |all: Option<Recovered>, lane| {
                Some(all.map_or(lane.clone(), |all| all.and(lane)))
            });
        Arc::new(Engine {
            memory: AtomicU64::new(options.memory),
            sharing: Mutex::new(()),
            opened_memory: options.memory,
            max_item_size: options.max_item_size,
            lanes,
            partitions,
            table: Mutex::new(table),
            table_writer: Mutex::default(),
            mover: Mutex::new(mover),
            mover_thread: OnceLock::new(),
            step_waiting: Mutex::default(),
            drains: Mutex::default(),
            growths: Mutex::default(),
            recovered,
        })
    }
}

/// Returns the memory limit that an engine needs, in bytes, so that the lane at `position` gets at
/// least `share` bytes. `lanes` has two numbers for each lane, as in [`memory_shares`]: its minimum
/// in bytes, and the number of partitions that it owns.
fn memory_for(share: u64, max_item_size: u64, lanes: &[(u64, usize)], position: usize) -> u64 {
    let least = |&(least, _): &(u64, usize)| least.max(max_item_size * 2);
    let all: u64 = lanes.iter().map(least).sum();
    let (own, owned) = (least(&lanes[position]), lanes[position].1.max(1));
    let rest = u128::from(share.saturating_sub(own)) * PARTITIONS as u128;
    let memory = all + rest.div_ceil(owned as u128) as u64;
    memory.next_multiple_of(1 << 20)
}

/// Opens the lanes of an engine without a store. The number of these lanes and their partitions
/// never change.
fn open_lanes_in_memory(
    options: &Options,
    table: &Lanes,
    count: usize,
    opening: Opening,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Box<[Arc<Lane>]>, OpenError> {
    let need = |lane| (min_memory(false, 0), table.owned(lane));
    let needs: Vec<_> = LaneNumber::all().take(count).map(need).collect();
    let shares = match count {
        1 => vec![options.memory],
        _ => memory_shares(options.memory, options.max_item_size, &needs)?,
    };
    let buffers = Arc::<Buffers>::default();
    let open = |(position, memory): (usize, u64)| {
        let lane = LaneOptions {
            position: position as u8,
            memory,
            memory_of_all: options.memory,
            most_memory: memory,
            max_item_size: options.max_item_size,
            when_full: options.when_full,
            hash_seed: options.hash_seed,
        };
        Lane::open(lane, None, &buffers, opening.refuse, progress)
    };
    shares.into_iter().enumerate().map(open).collect()
}

/// Opens the lanes of a store in parallel. New lanes are created last, when the superblocks of the
/// existing lanes already list them. So if this start ends early, the next start knows every lane
/// that was created.
fn open_lanes(
    options: &Options,
    store: &StoreOptions,
    assembled: &Assembled<'_>,
    Opening { refuse, threads }: Opening,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Box<[Arc<Lane>]>, OpenError> {
    let (opening, table) = (&assembled.opening, &assembled.table);
    let needs: Vec<_> = assembled
        .lanes
        .iter()
        .map(|lane| (min_memory(true, lane.segment_size), table.owned(lane.number)))
        .collect();
    let shares = memory_shares(options.memory, options.max_item_size, &needs)?;
    let opened_at =
        store.opened.of_store(assembled.lanes.iter().filter_map(|lane| lane.found.as_ref()));
    let buffers = Arc::<Buffers>::default();
    let told = Mutex::new((vec![(0, 0); needs.len()], progress));
    let open = |position: usize| {
        let lane = &assembled.lanes[position];
        let (device, times) = timed(lane.device.clone(), &store.clock);
        let name = device.name.clone();
        let lane_store = LaneStore {
            device,
            times,
            common: store.clone(),
            found: lane.found,
            opened_at,
            segment_size: lane.segment_size,
            lanes: Lanes { here: lane.number, ..*opening },
            read_all: assembled.forgets,
            threads,
        };
        let lane = LaneOptions {
            position: position as u8,
            memory: shares[position],
            memory_of_all: options.memory,
            most_memory: options.memory,
            max_item_size: options.max_item_size,
            when_full: options.when_full,
            hash_seed: assembled.hash_seed,
        };
        let mut progress = |Progress::Reading { segments, of }: Progress| {
            let (each, tell) = &mut *lock(&told);
            each[position] = (segments, of);
            let sum = each.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            tell(Progress::Reading { segments: sum.0, of: sum.1 });
        };
        Lane::open(lane, Some(lane_store), &buffers, refuse, &mut progress).map_err(|error| {
            match error {
                OpenError::Store(StoreError::IndexTooLarge { minimum }) => {
                    let minimum = memory_for(minimum, options.max_item_size, &needs, position);
                    OpenError::MemoryTooSmall { minimum }
                }
                OpenError::Store(error) if needs.len() > 1 => {
                    StoreError::Lane { name, error: Box::new(error) }.into()
                }
                error => error,
            }
        })
    };
    let mut opened = Vec::with_capacity(needs.len());
    for exists in [true, false] {
        let these: Vec<usize> =
            (0..needs.len()).filter(|&at| assembled.lanes[at].found.is_some() == exists).collect();
        let results: Vec<_> = std::thread::scope(|scope| {
            let open = &open;
            let threads: Vec<_> =
                these.iter().map(|&at| scope.spawn(move || (at, open(at)))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        // Several lanes may need more memory. Reports the largest of their minimums, because it
        // suffices for all of them.
        let too_small = |(_, result): &(usize, Result<Arc<Lane>, OpenError>)| match result {
            Err(OpenError::MemoryTooSmall { minimum }) => Some(*minimum),
            _ => None,
        };
        if let Some(minimum) = results.iter().filter_map(too_small).max() {
            return Err(OpenError::MemoryTooSmall { minimum });
        }
        for (at, lane) in results {
            opened.push((at, lane?));
        }
    }
    opened.sort_unstable_by_key(|&(at, _)| at);
    Ok(opened.into_iter().map(|(_, lane)| lane).collect())
}

/// Passes a scheduled flush on to new lanes. Only the existing lanes have the flush in their
/// superblocks.
fn join_flushes(lanes: &[Arc<Lane>]) -> io::Result<()> {
    let Some(at) = lanes.iter().map(|lane| lane.flush_time()).filter(|&at| at != 0).max() else {
        return Ok(());
    };
    let is_new = |lane: &&Arc<Lane>| {
        lane.recovered().is_some_and(|recovered| recovered.created || recovered.discarded)
    };
    lanes.iter().filter(is_new).try_for_each(|lane| lane.join_flush(at))
}
