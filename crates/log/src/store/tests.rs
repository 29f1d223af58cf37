//! Tests that a sync that fails for one thread also fails for other threads if it may have lost
//! their writes.

use super::*;
use larder_disk::{Failure, Fault, Operation, SimDevice};

const SIZE: u64 = 4 << 20;

fn store() -> (Arc<SimDevice>, Store) {
    let device = Arc::new(SimDevice::new(SIZE, 1));
    let geometry = Geometry::fit(SIZE, 64 << 10).unwrap();
    let superblock = Superblock::new(1, 2, 3, geometry, 4);
    let store = Store::new(Arc::<SimDevice>::clone(&device), superblock);
    (device, store)
}

#[test]
fn a_failed_sync_fails_for_all_whose_writes_had_begun() {
    let (device, store) = store();
    let failed_syncs = store.failed_syncs();
    store.write(SIZE / 2, b"of a commit that has not come to its sync").unwrap();
    device.plan(Fault::once(Operation::Sync, 1, Failure::Io));
    assert!(store.change_superblock_now(|superblock| superblock.fence = 5).is_err());
    // The device reports a lost write only once, to the sync above. The store must fail this sync,
    // too.
    assert!(store.sync(failed_syncs).is_err());
    store.write(SIZE / 2, b"once more").unwrap();
    store.sync(store.failed_syncs()).unwrap();
    // Writes that begin after the failure do not depend on it.
    store.change_superblock_now(|superblock| superblock.fence = 6).unwrap();
    assert_eq!(store.superblock().fence, 6);
}
