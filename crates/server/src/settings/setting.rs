//! The type of one row of the settings table, and macros that make the code of a row shorter.

use super::types::Settings;

/// The form in which a setting is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The setting has one value. The string stands for the value in the help, such as `PATH`.
    Value(&'static str),
    /// The setting has a list of values, separated by commas or given repeatedly. The string stands
    /// for one value in the help.
    List(&'static str),
    /// A flag without a value; `true` or `false` in the environment and in the file.
    Switch,
    /// A flag that is counted: `-vv` is 2.
    Count,
}

/// The section of the help in which a setting appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Network,
    Memory,
    Store,
    Commands,
    Process,
    Log,
    /// Tuning flags of memcached. Most of them have no effect in Larder. `stats settings` leaves
    /// them out.
    Tuning,
    /// Flags that are refused with a reason; not in any help.
    Refused,
}

impl Group {
    pub(super) fn heading(self) -> &'static str {
        match self {
            Group::Network => "Network",
            Group::Memory => "Memory",
            Group::Store => "Store",
            Group::Commands => "Commands",
            Group::Process => "Process",
            Group::Log => "Logging",
            Group::Tuning | Group::Refused => "Other",
        }
    }
}

/// A setting: its names, its place in the help, and how its value is parsed and shown.
pub(super) struct Setting {
    /// The name of the long flag, and the key in the settings file. The environment variable is
    /// `LARDER_` and this name in capitals, with `_` for `-`.
    pub(super) key: &'static str,
    /// memcached's long flag, if it differs from `key`.
    pub(super) alias: Option<&'static str>,
    pub(super) short: Option<char>,
    pub(super) kind: Kind,
    pub(super) group: Group,
    pub(super) help: &'static str,
    /// The description in the short help; empty if the short help leaves the setting out.
    pub(super) brief: &'static str,
    /// Sets the value from text. The error says what to do.
    pub(super) set: fn(&mut Settings, &str) -> Result<(), String>,
    /// Returns the value in the given settings, as text that `set` accepts. The text of an absent
    /// value is empty, and `set` may refuse it.
    pub(super) show: fn(&Settings) -> String,
}

impl Setting {
    /// Returns true if `stats settings` and the help show the value of the setting. They leave out
    /// memcached's tuning flags and refused flags.
    pub(super) fn is_shown(&self) -> bool {
        !matches!(self.group, Group::Tuning | Group::Refused)
    }

    /// Returns the name of the setting's environment variable.
    pub(super) fn environment(&self) -> String {
        format!("LARDER_{}", self.key.to_ascii_uppercase().replace('-', "_"))
    }
}

type Set = fn(&mut Settings, &str) -> Result<(), String>;
type Show = fn(&Settings) -> String;

pub(super) const fn setting(
    key: &'static str,
    short: Option<char>,
    kind: Kind,
    group: Group,
    help: &'static str,
    (set, show): (Set, Show),
) -> Setting {
    Setting { key, alias: None, short, kind, group, help, brief: "", set, show }
}

impl Setting {
    /// Adds the text of the short help.
    pub(super) const fn brief(mut self, brief: &'static str) -> Setting {
        self.brief = brief;
        self
    }

    /// Adds memcached's name of the flag.
    pub(super) const fn or(mut self, alias: &'static str) -> Setting {
        self.alias = Some(alias);
        self
    }
}

/// Declares a setting for a boolean field. The setting is on if the field equals `$on`. A call
/// without `$on` means `true`.
macro_rules! switch {
    ($key:literal, $short:expr, $group:expr, $help:literal, $($field:ident).+) => {
        switch!($key, $short, $group, $help, $($field).+, true)
    };
    ($key:literal, $short:expr, $group:expr, $help:literal, $($field:ident).+, $on:literal) => {
        setting(
            $key,
            $short,
            Switch,
            $group,
            $help,
            (
                |s, text| {
                    s.$($field).+ = parse_switch(text)? == $on;
                    Ok(())
                },
                |s| show_switch(s.$($field).+ == $on),
            ),
        )
    };
}

/// Returns `set` and `show` for one field, from the functions that parse and format its value.
macro_rules! field {
    ($field:ident, $parse:path, $show:expr) => {
        (
            |s, text| {
                s.$field = $parse(text)?;
                Ok(())
            },
            $show,
        )
    };
}

/// Returns `set` and `show` for a field whose values have names.
macro_rules! choice {
    ($field:ident, $names:ident) => {
        (
            |s, text| {
                s.$field = one_of(text, $names)?;
                Ok(())
            },
            |s| name_of(s.$field, $names),
        )
    };
}

pub(super) use {choice, field, switch};
