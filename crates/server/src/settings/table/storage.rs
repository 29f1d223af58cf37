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
        "RAM for data, index and buffers together; a number without a unit is in MiB",
        field!(memory, parse_memory, |s| show_size(s.memory)),
    )
    .brief("RAM for data, index and buffers")
    .or("memory-limit"),
    setting(
        "max-item-size",
        Some('I'),
        Value("SIZE"),
        Memory,
        "Largest item, with its key: 1k to 1GB, at most half of --memory; plain numbers are bytes",
        field!(max_item_size, parse_item_size, |s| show_size(s.max_item_size)),
    )
    .brief("Largest item, with its key"),
    setting(
        "when-full",
        None,
        Value("evict|refuse"),
        Memory,
        "When there is no space left: evict the least valuable items, or refuse writes",
        choice!(when_full, WHEN_FULL),
    )
    .brief("Evict items or refuse writes"),
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
        "Directory, file or block device to store items in, such as /var/lib/larder or \
         /dev/sdb:100GB; repeat it for more devices, which share the keys or, with @TIER, form \
         a fast and a slow tier",
        (
            |s, text| {
                s.store = parse_stores(text)?;
                // This setting replaces an `ext_path` that a source of lower precedence gave, such
                // as the environment.
                s.ext_path = false;
                Ok(())
            },
            Settings::show_store,
        ),
    )
    .brief("Store items in a directory, file or device"),
    setting(
        "forget",
        None,
        List("LANE"),
        Store,
        "Start without a device that is lost for good, and without its items; the error of the \
         start that misses the device names its LANE (0 to 31); repeatable",
        field!(forget, parse_lanes, |s| joined(&s.forget)),
    ),
    setting(
        "durability",
        None,
        Value("none|async|sync"),
        Store,
        "Which acknowledged writes survive a crash: all (sync), all but those of the last \
         --sync-interval (async), or none (none)",
        field!(durability, parse_durability, |s| durability_name(s.durability())),
    )
    .brief("Crash safety of writes"),
    setting(
        "sync-interval",
        None,
        Value("DURATION"),
        Store,
        "With async durability: longest time until an acknowledged write is durable",
        field!(sync_interval, parse_interval, |s| show_duration(s.sync_interval)),
    ),
    switch!(
        "accept-damage",
        None,
        Store,
        "With --when-full refuse: start even if the store is damaged, without the damaged items; \
         otherwise such a start is refused",
        accept_damage
    ),
];
