use larder_disk::*;
use larder_engine::*;
use std::sync::Arc;
use std::task::Waker;
#[test]
fn dbg() {
    let device = Arc::new(SimDevice::new(8 << 20, 1));
    let mk = |device: &Arc<SimDevice>| Options { memory: 8 << 20, store: Some(StoreOptions { device: Arc::<SimDevice>::clone(device), durability: Durability::Sync, sync_interval: std::time::Duration::from_secs(1), accept_damage: false, clock: MonotonicClock(Arc::new(|| std::time::Duration::ZERO)), seeds: [1,2,3], created: 5 }), ..Options::default() };
    let engine = Engine::open_without_threads(mk(&device)).unwrap();
    let mut s = engine.session(Waker::noop().clone());
    s.tick(1000);
    for i in 0..10 { let k = format!("key{i}"); let _ = s.store(&s.key(k.as_bytes()), Store::set(b"hello", 0, Expiry::NEVER)); }
    println!("{:?}", engine.stats());
    assert!(engine.commit());
    println!("{:?}", device.counts());
    engine.close().unwrap();
    println!("{:?} {:?} {:?}", device.counts(), engine.health(), larder_log::recover::read_superblock(&*device));
    let mut b = [0u8; 4096]; for at in [0u64, 4096] { device.read_at(at, &mut b).unwrap(); println!("AT {at} {:?} {:?}", &b[..32], larder_log::format::Superblock::decode(&b).map(|s| (s.counter, s.clean))); }
    let d2 = Arc::new(device.crash(3));
    println!("{:?}", larder_log::recover::read_superblock(&*d2));
    let e2 = Engine::open_without_threads(mk(&d2)).unwrap();
    println!("{:?}", e2.recovered());
}
