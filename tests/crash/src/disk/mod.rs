//! The server's disk: an in-memory file system that the test mounts through FUSE. The disk knows
//! for each write whether a completed sync has covered it. On command it loses the writes that no
//! sync has covered, or fails.
//!
//! The disk lies below the kernel's file interface, so the server may use any system calls.
//! Writeback caching is off: when the server's `write` returns, the disk has its data. The test
//! controls the disk through [`Disk`]; [`mount`] answers the kernel.
//!
//! Invariant: this process never accesses files through the mount point, because a thread that
//! answers the kernel must not wait for the kernel.

mod image;
mod mount;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use image::Cut;
use image::{Covered, Image};
use mount::Mounted;

use larder_disk::Random;

/// The reported size of the disk in bytes.
const CAPACITY: u64 = 64 << 30;

/// The longest time for which a sync is held. The server's process cannot end during a sync, even
/// if it is killed. So each hold ends by itself. Otherwise a scenario that failed could not end its
/// server.
const HOLD: Duration = Duration::from_secs(10);

/// The faults that the disk shows at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Every write fails with this error number. It may still have written some of its bytes.
    pub(crate) write_error: Option<i32>,
    /// Every sync fails with this error number.
    pub(crate) sync_error: Option<i32>,
    /// The duration of a sync; see also `slow_file`.
    pub(crate) sync_delay: Duration,
    /// No sync of `held_file` ends until this is false again or [`HOLD`] has passed.
    pub(crate) hold_syncs: bool,
    /// The number of a file whose syncs take another time than `sync_delay`, and that time.
    pub(crate) slow_file: Option<(u64, Duration)>,
    /// The number of the only file whose syncs are held; `None` for all files.
    pub(crate) held_file: Option<u64>,
}

impl Faults {
    /// Returns the time that a sync of `file` takes with these faults.
    fn sync_delay(&self, file: u64) -> Duration {
        if self.hold_syncs && self.held_file.is_none_or(|held| held == file) {
            return HOLD;
        }
        match self.slow_file {
            Some((slow, delay)) if slow == file => delay,
            _ => self.sync_delay,
        }
    }
}

/// Counts of requests to the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) writes: u64,
    pub(crate) bytes: u64,
    pub(crate) syncs: u64,
    pub(crate) failed: u64,
    /// Number of power failures that could lose bytes.
    pub(crate) cuts: u64,
    /// Number of bytes that those power failures could lose.
    pub(crate) at_stake: u64,
}

/// The state of the power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    On,
    /// Power is off. Requests that change the disk have no effect and wait for an answer; reads are
    /// answered.
    Off,
    /// Power is off and the server was killed. The waiting requests fail, so that the server's
    /// process can end.
    Released,
}

/// A change to the directory that no sync of the directory has covered.
#[derive(Clone, Debug)]
enum NameChange {
    Link(String, u64),
    Unlink(String),
}

#[derive(Debug)]
struct State {
    files: BTreeMap<u64, Image>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    name_changes: Vec<NameChange>,
    next_file: u64,
    faults: Faults,
    power: Power,
    /// Number of calls of [`Disk::abandon_syncs`]. If it changes during a sync, the sync ends
    /// without effect.
    killed: u64,
    counts: Counts,
    random: Random,
}

impl State {
    /// Applies a sync to the file. Returns an error number if the sync fails.
    fn end_sync(&mut self, file: u64, covered: Covered) -> Result<(), i32> {
        self.counts.syncs += 1;
        let error = self.faults.sync_error;
        self.counts.failed += u64::from(error.is_some());
        if let Some(image) = self.files.get_mut(&file) {
            match error {
                None => image.sync_completed(covered),
                Some(_) => image.sync_failed(covered),
            }
        }
        error.map_or(Ok(()), Err)
    }

    fn change_name(&mut self, change: NameChange) {
        apply(&mut self.names, &change);
        self.name_changes.push(change);
    }
}

fn apply(names: &mut BTreeMap<String, u64>, change: &NameChange) {
    match change {
        NameChange::Link(name, file) => {
            names.insert(name.clone(), *file);
        }
        NameChange::Unlink(name) => {
            names.remove(name);
        }
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when the faults change, and by [`Disk::release`].
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock means that a thread panicked, which fails the test anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the power is off. Returns the state, or `None` if the caller must fail the
    /// kernel's request, so that the server's process can end.
    fn powered(&self) -> Option<MutexGuard<'_, State>> {
        let off = |state: &mut State| state.power == Power::Off;
        let waited = self.changed.wait_while(self.state(), off);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        (state.power == Power::On).then_some(state)
    }

    /// Waits for the duration of a sync, then applies the sync to the file. Returns an error number
    /// if the sync fails. `killed` is [`State::killed`] at the beginning of the sync.
    fn sync(&self, file: u64, covered: Covered, killed: u64) -> Result<(), i32> {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            if state.killed != killed {
                return Err(libc::EIO);
            }
            match state.power {
                Power::Released => return Err(libc::EIO),
                Power::Off => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                Power::On => {}
            }
            let left = state.faults.sync_delay(file).saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.end_sync(file, covered)
    }
}

/// The test's disk. Dropping it unmounts the disk.
#[derive(Debug)]
pub(crate) struct Disk {
    shared: Arc<Shared>,
    directory: PathBuf,
    mounted: Option<Mounted>,
}

impl Disk {
    /// Creates `directory` and mounts an empty disk there.
    ///
    /// # Errors
    /// Returns the operating system's error if FUSE cannot be used.
    pub(crate) fn mount(directory: &Path, seed: u64) -> io::Result<Disk> {
        std::fs::create_dir_all(directory)?;
        let state = State {
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_changes: Vec::new(),
            next_file: 2,
            faults: Faults::default(),
            power: Power::On,
            killed: 0,
            counts: Counts::default(),
            random: Random::new(seed),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let mut disk = Disk { shared, directory: directory.to_owned(), mounted: None };
        disk.attach()?;
        Ok(disk)
    }

    #[cfg(test)]
    fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn counts(&self) -> Counts {
        self.shared.state().counts
    }

    /// Returns the number of bytes that a power failure now could lose.
    pub(crate) fn unsynced(&self) -> u64 {
        self.shared.state().files.values().map(Image::unsynced).sum()
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        self.shared.state().faults = faults;
        self.shared.changed.notify_all();
    }

    /// Cuts the power. After that, the server's process can end only if it is killed and
    /// [`Disk::release`] is called.
    pub(crate) fn power_off(&self) {
        self.shared.state().power = Power::Off;
    }

    /// Makes all waiting requests of the killed server fail.
    pub(crate) fn release(&self) {
        self.shared.state().power = Power::Released;
        self.shared.changed.notify_all();
    }

    /// Ends the syncs of a killed server without effect, as if the kill had come just before them.
    pub(crate) fn abandon_syncs(&self) {
        self.shared.state().killed += 1;
        self.set_faults(Faults::default());
    }

    /// Applies a power failure and restores the power. The server's process must have ended. During
    /// the call the disk is unmounted, which also drops the kernel's cache.
    ///
    /// # Errors
    /// Returns errors of unmounting and mounting.
    pub(crate) fn cut(&mut self, cut: Cut) -> io::Result<()> {
        self.set_faults(Faults::default());
        self.detach()?;
        {
            let state = &mut *self.shared.state();
            state.power = Power::On;
            let at_stake: u64 = state.files.values().map(Image::unsynced).sum();
            state.counts.cuts += u64::from(at_stake > 0);
            state.counts.at_stake += at_stake;
            for image in state.files.values_mut() {
                image.cut(cut, &mut state.random);
            }
            let changes = std::mem::take(&mut state.name_changes);
            let kept = match cut {
                Cut::Nothing => 0,
                Cut::Everything => changes.len(),
                _ => state.random.below(changes.len() as u64 + 1) as usize,
            };
            changes[..kept].iter().for_each(|change| apply(&mut state.durable_names, change));
            state.names = state.durable_names.clone();
            let names = &state.names;
            state.files.retain(|file, _| names.values().any(|named| named == file));
        }
        self.attach()
    }

    /// Returns the names of the disk's files.
    pub(crate) fn names(&self) -> Vec<String> {
        self.shared.state().names.keys().cloned().collect()
    }

    /// Returns the number of the file `name`.
    pub(crate) fn file(&self, name: &str) -> Option<u64> {
        self.shared.state().names.get(name).copied()
    }

    /// Deletes a file durably. No server may have it open.
    pub(crate) fn remove(&self, name: &str) {
        let state = &mut *self.shared.state();
        let number = state.names.remove(name);
        state.durable_names.remove(name);
        state.name_changes.retain(|change| match change {
            NameChange::Link(changed, _) | NameChange::Unlink(changed) => changed != name,
        });
        if let Some(number) = number {
            state.files.remove(&number);
        }
    }

    /// Creates the directory `to` on another file system, and copies all files there.
    pub(crate) fn save(&self, to: &Path) -> io::Result<()> {
        std::fs::create_dir_all(to)?;
        let state = self.shared.state();
        state.names.iter().try_for_each(|(name, number)| match state.files.get(number) {
            Some(image) => image.save(&std::fs::File::create(to.join(name))?),
            None => Ok(()),
        })
    }

    fn attach(&mut self) -> io::Result<()> {
        self.mounted = Some(Mounted::new(Arc::clone(&self.shared), &self.directory)?);
        Ok(())
    }

    fn detach(&mut self) -> io::Result<()> {
        self.mounted.take().map_or(Ok(()), Mounted::unmount)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.set_faults(Faults::default());
        self.release();
        if let Err(error) = self.detach() {
            eprintln!("cannot unmount {}: {error}", self.directory.display());
        }
    }
}

#[cfg(test)]
mod tests;
