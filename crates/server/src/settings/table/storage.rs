//! Settings of memory and store.

use larder_engine::WhenFull;

use super::super::setting::Group::{Memory, Store};
use super::super::setting::Kind::{List, Switch, Value};
use super::super::setting::{Setting, choice, setting, switch};
use super::super::store::{
    DURABILITIES, durability_name, set_forget, set_store, set_sync_interval, show_forget,
};
use super::super::types::Settings;
use super::super::units::show_size;
use super::super::values::{
    WHEN_FULL, name_of, one_of, parse_switch, set_max_item_size, set_memory, show_duration,
    show_switch,
};

pub(super) static SETTINGS: &[Setting] = &[
    setting(
        "memory",
        Some('m'),
        Value("SIZE"),
        Memory,
        "RAM for data and index together: 64 (MiB), 512MB, 2GB",
        (set_memory, |s| show_size(s.memory)),
    )
    .brief("RAM for data, index and buffers")
    .or("memory-limit"),
    setting(
        "max-item-size",
        Some('I'),
        Value("SIZE"),
        Memory,
        "Largest item: 1m, 512k, 1GB at most",
        (set_max_item_size, |s| show_size(s.max_item_size)),
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
        (set_store, Settings::show_store),
    ).brief("Keep items in a directory, file or device"),
    setting(
        "forget",
        None,
        List("LANE"),
        Store,
        "Start without this lane of the store, whose device is gone for good, and without what was on it",
        (set_forget, show_forget),
    ),
    setting(
        "durability",
        None,
        Value("none|async|sync"),
        Store,
        "What an acknowledged write survives: nothing (none), a crash, but for the writes of the last \
         --sync-interval (async), or a crash (sync)",
        (
            |s, text| {
                s.durability = Some(one_of(text, DURABILITIES)?);
                Ok(())
            },
            |s| durability_name(s.durability()),
        ),
    ).brief("What a write survives"),
    setting(
        "sync-interval",
        None,
        Value("DURATION"),
        Store,
        "With --durability async: how long an acknowledged write may not be durable yet",
        (set_sync_interval, |s| show_duration(s.sync_interval)),
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
