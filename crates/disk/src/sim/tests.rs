//! The promises of a device, and that nothing beyond them is kept.

use super::*;

#[test]
fn what_was_synced_survives_every_crash() {
    let device = SimDevice::new(1 << 20, 1);
    device.write_at(4096, &[7; 8192]).expect("write");
    device.sync().expect("sync");
    for seed in 0..100 {
        let mut found = [0; 8192];
        device.crash(seed).read_at(4096, &mut found).expect("read");
        assert_eq!(found, [7; 8192], "seed {seed}");
    }
}
