//! A model of two threads and one stripe. One thread raises the stripe's version counter, because
//! keys come from another lane. The other thread writes keys of the stripe.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p larder-engine --release loom`

use super::*;
use larder_log::sync::model::{check, spawn};

#[test]
fn loom_no_version_is_below_one_that_was_raised() {
    check(3, || {
        let (budget, epochs) = (Arc::new(Budget::new(1 << 20)), Arc::new(Epochs::default()));
        let index = Index::new(1 << 20, 1 << 20, false, &budget, &epochs).expect("memory");
        let index = Arc::new(index);
        loom::explore();
        let writer = {
            let index = Arc::clone(&index);
            spawn(move || {
                let guard = index.lock(&Key::new(b"k", 1));
                guard.next_seq();
            })
        };
        index.raise_seq_in(0..index.stripe_count(), 100);
        let next = index.lock(&Key::new(b"k", 1)).next_seq();
        assert!(next > 100, "{next} follows 100");
        writer.join().unwrap();
    });
}
