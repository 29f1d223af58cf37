//! Opens a lane: its log, index and store, its recovery, its threads and its sessions.

use crate::cleaner::ghost::Ghost;
use crate::index::Index;
use crate::lane::log::LaneLog;
use crate::lane::memory::{FRAMES, GROWTH, bytes_for_frames, segment_size};
use crate::lane::options::{LaneOptions, LaneStore};
use crate::lane::session::LaneSession;
use crate::lane::{DurableLane, Lane};
use crate::older::OlderSlots;
use crate::recovery::{Progress, Recovery};
use crate::verbs::recache::RecacheWinners;
use crate::{OpenError, WhenFull};
use larder_disk::ReadQueue;
use larder_log::{Budget, Buffers, Config, Epochs};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::task::Waker;

impl Lane {
    /// Starts the threads of a lane. They end once the last `Arc` of the lane is dropped.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        crate::cleaner::spawn(self)?;
        if let Some(durability) = self.log.durability() {
            crate::durability::spawn(self, durability)?;
            crate::durability::spawn_early(self, durability)?;
            crate::reads::spawn(self)?;
        }
        Ok(())
    }

    /// Opens a lane without threads. The budgets of all lanes share `buffers`, the memory of
    /// connections. The lane's budget refuses the memory request with number `refuse`; 0 refuses
    /// none. Reports the progress of a store's recovery to `progress`.
    pub(crate) fn open(
        options: LaneOptions,
        store: Option<LaneStore>,
        buffers: &Arc<Buffers>,
        refuse: u64,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Arc<Lane>, OpenError> {
        let budget = || {
            let budget = Budget::sharing(options.memory, buffers);
            budget.refuse(refuse);
            let keeps_all = options.when_full == WhenFull::Refuse && store.is_none();
            let for_frames = bytes_for_frames(options.memory);
            Arc::new(if keeps_all { budget.keeping_all(for_frames) } else { budget })
        };
        let (mut lane, recovery) = Self::construct(options.clone(), store.clone(), budget())?;
        let has_image = |durable: &DurableLane<'_>| {
            !durable.state.store.read_all && durable.log.read_image().is_some()
        };
        if let Some(durable) = lane.durable().filter(has_image) {
            let recovered = durable.load_image(&recovery)?;
            if recovered.is_some() {
                lane.recovered = recovered;
                return Ok(Arc::new(lane));
            }
            // The image is unusable, but a part of it may have been loaded. So the recovery begins
            // with a new lane.
            drop(lane);
            lane = Self::construct(options.clone(), store.clone(), budget())?.0;
        }
        let recover = |durable: DurableLane<'_>| durable.recover(recovery, progress);
        lane.recovered = lane.durable().map(recover).transpose()?;
        Ok(Arc::new(lane))
    }

    /// Creates an empty lane, and the state that its store's recovery begins with.
    fn construct(
        options: LaneOptions,
        store: Option<LaneStore>,
        budget: Arc<Budget>,
    ) -> Result<(Lane, Recovery), OpenError> {
        let memory = options.memory;
        let epochs = Arc::new(Epochs::default());
        let mut segment_size = segment_size(memory, FRAMES);
        let mut recovery = Recovery::default();
        let open_store = |store: LaneStore| {
            let opened = crate::recovery::open_store(&store, options.hash_seed)?;
            segment_size = opened.store.segment_size();
            recovery = opened.recovery;
            Ok::<_, OpenError>((opened.store, store))
        };
        let store = store.map(open_store).transpose()?;
        // The limits below allow for memory that other lanes have now and this lane may get later.
        let most = options.most_memory * GROWTH;
        let keeps_all = options.when_full == WhenFull::Refuse;
        let config = Config { segment_size, max_frame_bytes: most, keeps_all };
        let log = LaneLog::new(config, store, Arc::clone(&budget), Arc::clone(&epochs));
        let index = Index::new(options.memory_of_all, most, keeps_all, &budget, &epochs);
        let index = index.map_err(OpenError::Map)?;
        let ghost = Ghost::new(memory);
        budget.charge(ghost.bytes());
        let lane = Lane {
            log: log.map_err(OpenError::Map)?,
            index,
            older: OlderSlots::new(&budget),
            ghost,
            recache_winners: RecacheWinners::default(),
            now: AtomicU32::new(0),
            flush_at: AtomicU32::new(0),
            fence: AtomicU64::new(0),
            full: AtomicU8::new(0),
            turns: AtomicU64::new(0),
            found_nothing: AtomicU64::new(0),
            frames_full: AtomicBool::new(false),
            ends_must_go: AtomicBool::new(false),
            unreadable_strays: AtomicBool::new(false),
            evicts: AtomicBool::new(false),
            readers: Arc::default(),
            recovered: None,
            strays: Mutex::default(),
            cold: Mutex::default(),
            cleaning: Mutex::default(),
            counters: Mutex::default(),
            waiting: Mutex::default(),
            cleaner: Mutex::default(),
            options,
            budget,
            epochs,
        };
        lane.limit_index();
        Ok((lane, recovery))
    }

    /// See [`Engine::session`](crate::Engine::session).
    pub(crate) fn session(self: &Arc<Self>, waker: Waker) -> LaneSession {
        let counters = self.new_counters();
        LaneSession::new(Arc::clone(self), counters, waker)
    }

    /// Returns a queue through which a session reads the store by itself. `event` is an eventfd
    /// that becomes readable whenever a read ends.
    ///
    /// # Errors
    /// There is no store, or no such queue on this system. Then the lane's reader threads do the
    /// reads.
    pub(crate) fn read_queue(&self, event: BorrowedFd<'_>) -> io::Result<Box<dyn ReadQueue>> {
        let store = self.log.store().ok_or(io::ErrorKind::Unsupported)?;
        store.device().read_queue(event)
    }
}
