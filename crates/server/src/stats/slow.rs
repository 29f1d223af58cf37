//! `stats slow`: the last slow commands.

use super::rows::{Row, put};
use crate::clients::address_of;
use crate::server::Running;
use crate::slow::{SentBy, SlowCommand, SlowCommands};

/// Shows the last slow commands, the newest first, or the reason why there are none.
pub(super) fn rows(running: &Running, row: &mut Row<'_>) {
    match running.slow_from() {
        Ok(least) => put(row, "threshold_us", least.as_micros()),
        Err(reason) => return put(row, "off", reason),
    }
    let Some(context) = running.context() else { return };
    put(row, "count", running.latencies().map_or(0, |latencies| latencies.slow));
    for (number, command) in context.slow.newest_first().iter().enumerate() {
        command_rows(running, &context.slow, number, command, row);
    }
}

fn command_rows(
    running: &Running,
    slow: &SlowCommands,
    number: usize,
    command: &SlowCommand,
    row: &mut Row<'_>,
) {
    let ms = running.clock.wall_ms(command.time_ns);
    row(&format!("{number}:time"), format_args!("{}.{:03}", ms / 1000, ms % 1000));
    put(row, &format!("{number}:took_us"), command.took_ns / 1000);
    match &command.sent_by {
        SentBy::Connection { id, peer, protocol } => {
            put(row, &format!("{number}:connection"), id);
            put(row, &format!("{number}:addr"), address_of(peer));
            put(row, &format!("{number}:protocol"), protocol.name());
        }
        SentBy::LimitPort => put(row, &format!("{number}:protocol"), "http"),
    }
    put(row, &format!("{number}:class"), command.class.name());
    if let Some(name) = &command.name {
        put(row, &format!("{number}:command"), name);
    }
    put(row, &format!("{number}:commands"), command.commands);
    if let Some(key) = command.key {
        put(row, &format!("{number}:key_hash"), slow.name_of(key));
    }
    put(row, &format!("{number}:request_bytes"), command.request_bytes);
    put(row, &format!("{number}:reply_bytes"), command.reply_bytes);
    let waits: Vec<_> = command.waits.names().collect();
    let waits = if waits.is_empty() { "running".to_owned() } else { waits.join(",") };
    put(row, &format!("{number}:waits"), waits);
}
