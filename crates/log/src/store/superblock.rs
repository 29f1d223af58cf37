//! Changes of the superblock. Invariant: each change is written to both copies, first to the older
//! copy, and the superblock has one writer at a time.

use crate::format::geometry::SUPERBLOCKS;
use crate::format::{BLOCK, Superblock};
use crate::store::Store;
use crate::store::state::{Changing, SuperblockWrite};
use crate::sync::lock;
use std::io;

impl Store {
    /// Changes the superblock; the next commit makes it durable.
    pub fn change_superblock(&self, change: impl FnOnce(&mut Superblock)) {
        let mut changing = lock(&self.changing);
        change(&mut changing.superblock);
        changing.changes += 1;
    }

    /// Returns the superblock with all changes, durable or not.
    pub fn superblock(&self) -> Superblock {
        lock(&self.changing).superblock
    }

    /// Changes the superblock and makes the change durable at once. Waits for the device; other
    /// threads may change the superblock meanwhile. Threads that a client waits for must use
    /// [`Store::change_superblock`] instead.
    ///
    /// # Errors
    /// Those of the device. After an error the superblock in memory is without the change, and the
    /// next commit writes this state to the device. If a crash comes before that commit, the next
    /// start may find the superblock with or without the change, as after any failed write.
    pub fn change_superblock_now(&self, change: impl Fn(&mut Superblock)) -> io::Result<()> {
        // Keeps the committer from writing the superblock meanwhile, because both writes would go
        // to the same copy.
        let _writing = lock(&self.writing_superblock);
        let mut next = *lock(&self.changing);
        change(&mut next.superblock);
        let failed_syncs = self.failed_syncs();
        let written = self.write_superblock(&next).and_then(|()| self.sync(failed_syncs));
        let mut changing = lock(&self.changing);
        match written {
            Ok(()) => {
                change(&mut changing.superblock);
                // Sets the counter instead of incrementing it. If a commit wrote the same copy just
                // before this call and settled during the call, it has already set the counter to
                // this value.
                changing.superblock.counter = next.superblock.counter + 1;
                changing.durable = changing.durable.max(next.changes);
                changing.mirrored = false;
            }
            Err(_) => changing.changes += 1,
        }
        written
    }

    fn write_superblock(&self, changing: &Changing) -> io::Result<()> {
        let counter = changing.superblock.counter + 1;
        let superblock = Superblock { counter, ..changing.superblock };
        let mut block = [0; BLOCK];
        superblock.encode(&mut block);
        debug_assert!(Superblock::decode(&block).is_ok(), "the next start could not read it");
        self.write(SUPERBLOCKS[superblock.copy()], &block)
    }

    /// Writes the superblock to the older of its two copies. Does nothing if both copies are up to
    /// date. After a change, one commit writes one copy, and the next commit writes the other. Both
    /// copies then hold the same state, in case one becomes unreadable. The caller must pass the
    /// result to [`Store::settle_superblock`] after the sync.
    pub(crate) fn write_changed_superblock(&self) -> io::Result<Option<SuperblockWrite>> {
        let _writing = lock(&self.writing_superblock);
        // Copies the superblock and unlocks it before the write, so that threads that read it do
        // not wait for the device.
        let changing = *lock(&self.changing);
        if !changing.wants_write() {
            return Ok(None);
        }
        self.write_superblock(&changing)?;
        let counter = changing.superblock.counter + 1;
        Ok(Some(SuperblockWrite { counter, changes: changing.changes }))
    }

    /// Notes that a write by [`Store::write_changed_superblock`] is durable.
    pub(crate) fn settle_superblock(&self, written: SuperblockWrite) {
        let mut changing = lock(&self.changing);
        // If the counter has already reached the number of this write, `change_superblock_now` has
        // since overwritten the same copy with a newer state, and noted that.
        if changing.superblock.counter < written.counter {
            changing.superblock.counter = written.counter;
            changing.mirrored = written.changes == changing.durable;
            changing.durable = changing.durable.max(written.changes);
        }
    }
}
