//! A model's view of plain memory: one loom cell for each address that was written through
//! [`writes`]. A cell fails the model if two accesses, one of them a write, are not ordered by the
//! code's synchronization. So a model finds a missing `Release`, or a frame that is reused too
//! early, although loom never runs two threads in parallel.
//!
//! An address stands for the whole record (or table) that begins there. Other memory, such as a
//! buffer that a record was read into, is never passed to [`writes`], so it passes every check.

use loom::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The cells of one run of a model.
#[derive(Default)]
struct Cells(Mutex<BTreeMap<usize, Arc<Cell>>>);

struct Cell(UnsafeCell<()>);

// SAFETY: the cell is empty. Loom's own data for it is used by one thread at a time, because the
// threads of a model run one at a time.
unsafe impl Send for Cell {}
// SAFETY: as above.
unsafe impl Sync for Cell {}

loom::lazy_static! {
    static ref CELLS: Cells = Cells::default();
}

impl Cells {
    fn range(&self, from: usize, to: usize) -> Vec<Arc<Cell>> {
        let cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cells.range(from..to).map(|(_, cell)| Arc::clone(cell)).collect()
    }
}

impl Cell {
    fn write(&self) {
        self.0.with_mut(|_| ());
    }
}

/// Described at the function of the same name in `sync.rs`.
pub fn reads(at: *const u8) {
    for cell in CELLS.range(at as usize, at as usize + 1) {
        cell.0.with(|_| ());
    }
}

/// Described at the function of the same name in `sync.rs`.
pub fn writes(at: *const u8) {
    let cell = {
        let mut cells = CELLS.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Cell(UnsafeCell::new(())));
        Arc::clone(cells.entry(at as usize).or_insert_with(new))
    };
    cell.write();
}

/// Described at the function of the same name in `sync.rs`.
pub fn discarded(at: *const u8, bytes: usize) {
    for cell in CELLS.range(at as usize, at as usize + bytes) {
        cell.write();
    }
}
