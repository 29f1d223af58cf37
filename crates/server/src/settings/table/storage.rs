//! Settings of memory and store.

use larder_engine::WhenFull;

use super::super::setting::Group::{Memory, Store};
use super::super::setting::Kind::{List, Switch, Value};
use super::super::setting::{Setting, choice, field, setting, switch};
use super::super::store::{
    durability_name, parse_durability, parse_interval, parse_lanes, parse_stores,
};
use super::super::types::Settings;
use super::super::units::show_size;
use super::super::values::{
    WHEN_FULL, joined, name_of, one_of, parse_item_size, parse_memory, parse_switch, show_duration,
    show_switch,
};

pub(super) static SETTINGS: &[Setting] = &[
    setting(
        "memory",
        Some('m'),
        Value("SIZE"),
        Memory,
        "RAM for data, index and buffers together: 64 (MiB), 512MB, 2GB",
        field!(memory, parse_memory, |s| show_size(s.memory)),
    )
    .brief("RAM for data, index and buffers")
    .or("memory-limit"),
    setting(
        "max-item-size",
        Some('I'),
        Value("SIZE"),
        Memory,
        "Largest item: 1m, 512k, 1GB at most",
        field!(max_item_size, parse_item_size, |s| show_size(s.max_item_size)),
    ).brief("Largest item"),
    setting(
        "when-full",
        None,
        Value("evict|refuse"),
        Memory,
        "When there is no room: the least valuable items make some, or writes are refused",
        choice!(when_full, WHEN_FULL),
    ).brief("Make room, or refuse writes"),
    setting(
        "disable-evictions",
        Some('M'),
        Switch,
        Memory,
        "Same as --when-full refuse",
        (
            |s, text| {
                if parse_switch(text)? {
                    s.when_full = WhenFull::Refuse;
                }
                Ok(())
            },
            |s| show_switch(s.when_full == WhenFull::Refuse),
        ),
    ),
    switch!("lock-memory", Some('k'), Memory, "Keep all memory out of swap", lock_memory),
    setting(
        "store",
        None,
        List("PATH[:SIZE][@TIER]"),
        Store,
        "Keep items in this directory, file or block device, too: /var/lib/larder, /dev/sdb:100GB; each \
         of several devices takes a share of the keys",
        (
            |s, text| {
                s.store = parse_stores(text)?;
                // `--store` replaces an `ext_path` of a source with lower precedence.
                s.ext_path = false;
                Ok(())
            },
            Settings::show_store,
        ),
    ).brief("Keep items in a directory, file or device"),
    setting(
        "forget",
        None,
        List("LANE"),
        Store,
        "Start without this lane of the store, whose device is gone for good, and without what was on it",
        field!(forget, parse_lanes, |s| joined(&s.forget)),
    ),
    setting(
        "durability",
        None,
        Value("none|async|sync"),
        Store,
        "What an acknowledged write survives: nothing (none), a crash, but for the writes of the last \
         --sync-interval (async), or a crash (sync)",
        field!(durability, parse_durability, |s| durability_name(s.durability())),
    ).brief("What a write survives"),
    setting(
        "sync-interval",
        None,
        Value("DURATION"),
        Store,
        "With --durability async: how long an acknowledged write may not be durable yet",
        field!(sync_interval, parse_interval, |s| show_duration(s.sync_interval)),
    ),
    switch!(
        "accept-damage",
        None,
        Store,
        "Start although the store is damaged, without what is lost; with --when-full refuse a damaged \
         store is an error otherwise",
        accept_damage
    ),
];
