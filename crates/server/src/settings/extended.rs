//! memcached's flag `-o name[=value],...`. Options that have a meaning in Larder are applied.
//! Options that tune mechanisms Larder does not have, and unknown options, are ignored with a note.
//! Options that must not be ignored, such as those for TLS, are refused.

use super::{Settings, store, values};

/// Tuning options that have no meaning in Larder. A name that ends in `_` stands for all names with
/// that prefix.
const TUNING: &[&str] = &[
    "drop_unread",
    "ext_",
    "hash_algorithm",
    "hashpower",
    "hot_",
    "inline_ascii_resp",
    "lru_",
    "maxconns_fast",
    "modern",
    "read_buf_mem_limit",
    "relaxed_privileges",
    "resp_obj_mem_limit",
    "slab_",
    "sock_cookie_id",
    "tail_repair_time",
    "temporary_ttl",
    "track_sizes",
    "warm_",
    "watcher_logbuf_size",
    "worker_logbuf_size",
];

/// Options that must not be ignored, each with the reason why it is not supported.
const REFUSED: &[(&str, &str)] = &[
    ("ssl_", "there is no TLS on the data port: put a TLS proxy in front, or leave this out"),
    ("proxy_", "there is no proxy: leave this out"),
    ("drop_privileges", "there is no system call filter: use systemd's SystemCallFilter="),
];

fn matches(name: &str, pattern: &str) -> bool {
    name == pattern || (pattern.ends_with('_') && name.starts_with(pattern))
}

pub(super) fn apply(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.extended = text.to_owned();
    if settings.ext_path {
        // The `-o` of a source of lower precedence has set the store with `ext_path`. This `-o`
        // replaces that `-o` as a whole, so its store goes too.
        settings.ext_path = false;
        settings.store.clear();
    }
    for option in text.split(',').map(str::trim).filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if name == "idle_timeout" {
            let timeout = values::optional_duration(value);
            settings.idle_timeout = timeout.map_err(|e| format!("{name}: {e}"))?;
            continue;
        }
        if name == "ext_path" {
            store::set_ext_path(settings, value).map_err(|e| format!("{name}: {e}"))?;
            continue;
        }
        if let Some((_, reason)) = REFUSED.iter().find(|(pattern, _)| matches(name, pattern)) {
            return Err(format!("{name}: {reason}"));
        }
        let plain = name.strip_prefix("no_").unwrap_or(name);
        let known = TUNING.iter().any(|pattern| matches(plain, pattern));
        settings.notes.push(match known || plain == "hashexpand" || plain == "chunked_items" {
            true => {
                format!("-o {name} tunes a part of memcached that larder does not have: ignored")
            }
            false => format!("-o {name} is not known: ignored"),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn options_with_a_meaning_are_set_and_others_noted() {
        let mut settings = Settings::default();
        apply(&mut settings, "idle_timeout=30, hashpower=20,,no_lru_crawler,wonder=1").unwrap();
        assert_eq!(settings.idle_timeout, Some(Duration::from_secs(30)));
        assert_eq!(settings.notes.len(), 3);
        assert!(settings.notes[2].contains("wonder is not known"), "{:?}", settings.notes);
        apply(&mut settings, "idle_timeout=0").unwrap();
        assert_eq!(settings.idle_timeout, None);
    }

    #[test]
    fn options_that_protect_or_keep_data_are_refused() {
        for text in ["ext_path=/f", "ssl_chain_cert=/c", "drop_privileges", "proxy_config=x"] {
            let refused = apply(&mut Settings::default(), text).unwrap_err();
            assert!(text.starts_with(refused.split(':').next().unwrap()), "{refused}");
        }
        assert!(apply(&mut Settings::default(), "no_drop_privileges").is_ok());
        assert!(apply(&mut Settings::default(), "idle_timeout=soon").is_err());
    }
}
