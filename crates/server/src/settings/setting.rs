//! What the table says of one setting, and the short forms that its rows are written in.

use super::types::Settings;

/// How a setting is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// With a value; the text is its name in the help.
    Value(&'static str),
    /// With a list of values, separated by commas or given repeatedly.
    List(&'static str),
    /// On by being there; `true` or `false` in the environment and in the file.
    Switch,
    /// Counted: `-vv` is 2.
    Count,
}

/// Where a setting stands in the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Network,
    Memory,
    Store,
    Commands,
    Process,
    Log,
    /// memcached's, with no effect here; not in the help of `larder serve`.
    Tuning,
    /// Refused with a reason; not in any help.
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

/// One setting.
pub(super) struct Setting {
    /// The long flag, and the key in the file; `LARDER_KEY` in the environment.
    pub(super) key: &'static str,
    /// memcached's long flag, where it is another one.
    pub(super) alias: Option<&'static str>,
    pub(super) short: Option<char>,
    pub(super) kind: Kind,
    pub(super) group: Group,
    pub(super) help: &'static str,
    /// What it does in a few words, for the help that fits a screen; empty if it is not there.
    pub(super) brief: &'static str,
    /// Takes over a value; the error says what to do.
    pub(super) set: fn(&mut Settings, &str) -> Result<(), String>,
    /// The present value, readable by `set`.
    pub(super) show: fn(&Settings) -> String,
}

impl Setting {
    /// Whether the setting says something about how the server runs.
    pub(super) fn is_shown(&self) -> bool {
        !matches!(self.group, Group::Tuning | Group::Refused)
    }

    /// Its name in the environment.
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
    /// What the help says that fits a screen.
    pub(super) const fn brief(mut self, brief: &'static str) -> Setting {
        self.brief = brief;
        self
    }

    /// memcached's name of the flag.
    pub(super) const fn or(mut self, alias: &'static str) -> Setting {
        self.alias = Some(alias);
        self
    }
}

/// A setting that sets a boolean field.
macro_rules! switch {
    ($field:ident) => {
        switch!($field, true)
    };
    ($field:ident, $on:literal) => {
        (
            |s, text| {
                s.$field = parse_switch(text)? == $on;
                Ok(())
            },
            |s| show_switch(s.$field == $on),
        )
    };
}

/// A setting whose value one field has, read by a function.
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

/// A setting whose values have names.
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
