//! All settings and the sources of their values. Invariant: the table in `table.rs` is the only
//! list of settings, apart from `--config` and the policies. Flags, environment names, keys of the
//! configuration file, the help text and `stats settings` are all generated from the table, so none
//! of them can miss a setting.

mod error;
mod extended;
mod help;
mod listen;
mod load;
mod paths;
mod policies;
mod setting;
mod store;
mod table;
mod types;
mod units;
mod values;

pub use error::SettingsError;
pub use help::{MEMCACHED_VERSION, memcached_help, short_help};
pub use listen::ListenAddress;
pub use load::{Environment, SHORT_HELP, check_refused, command, from_matches, memcached_command};
pub use paths::{LanePaths, StorePath, parse_store_size};
pub(crate) use policies::{algorithm_name, show_window};
pub(crate) use store::durability_name;
pub use types::{Flavor, LogFormat, LogLevel, Port, Protocol, Settings};
pub(crate) use values::{log_level_name, when_full_name};

use larder_engine::{Durability, MIN_MEMORY};

impl Settings {
    /// Returns the settings that differ between `self` and `other`, each as key, value in `self`
    /// and value in `other`, in the order of the help.
    pub(crate) fn differences(&self, other: &Settings) -> Vec<(&'static str, String, String)> {
        let values = table::all().map(|s| (s.key, (s.show)(self), (s.show)(other)));
        values.filter(|(_, here, there)| here != there).collect()
    }

    /// Copies the setting `key` from `other`.
    pub(crate) fn take_over(&mut self, key: &str, other: &Settings) {
        let Some(setting) = table::all().find(|setting| setting.key == key) else {
            return;
        };
        // `set` accepts every text that `show` returns, except for some empty ones. A test checks
        // this for the defaults of all settings that are shown.
        let _ = (setting.set)(self, &(setting.show)(other));
        match other.is_given(setting.key) {
            true => self.given.insert(setting.key),
            false => self.given.remove(setting.key),
        };
    }

    /// Returns the key and the value of every setting that `stats settings` shows in addition to
    /// memcached's rows.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&'static str, String)> {
        table::all().filter(|s| s.is_shown()).map(|s| (s.key, (s.show)(self)))
    }

    /// Returns true if keys are sampled. Without an admin page they are not, because only the admin
    /// page shows them.
    pub(crate) fn samples_keys(&self) -> bool {
        self.key_sampling && self.admin.is_some()
    }

    /// Checks the conditions that several settings must satisfy together. Values that memcached
    /// accepts and Larder does not are adapted, and a note in `notes` says so.
    fn check(&mut self) -> Result<(), SettingsError> {
        let conflict = |reason: String| Err(SettingsError::Conflict(reason));
        if self.flavor == Flavor::Memcached && self.memory < MIN_MEMORY {
            self.notes.push(format!(
                "-m {} is raised to {}, the least that works here",
                self.memory >> 20,
                MIN_MEMORY >> 20
            ));
            self.memory = MIN_MEMORY;
        }
        if self.max_item_size > self.memory / 2 {
            return conflict(format!(
                "--max-item-size {} is more than half of --memory {}: raise --memory or lower \
                 --max-item-size",
                units::show_size(self.max_item_size),
                units::show_size(self.memory),
            ));
        }
        if let Some(asked @ (Durability::Async | Durability::Sync)) = self.durability
            && !self.has_store()
        {
            return conflict(format!(
                "--durability {} needs something that lasts: give --store PATH, or leave it out",
                durability_name(asked),
            ));
        }
        if self.accept_damage && !self.has_store() {
            return conflict("--accept-damage is about a store: give --store PATH".to_owned());
        }
        if !self.forget.is_empty() && !self.has_store() {
            return conflict("--forget is about a store: give --store PATH".to_owned());
        }
        if let Err(reason) = self.check_policies(&self.policies) {
            return conflict(reason);
        }
        if let Err(reason) = paths::lanes(&self.store) {
            return conflict(format!("--store {}: {reason}", self.show_store()));
        }
        if let Some(admin) = self.admin.filter(|admin| self.is_data_port(*admin)) {
            return conflict(format!(
                "--admin {admin} is an address of the data port: give the admin page another port, or \
                 --admin off"
            ));
        }
        if let Port::Fixed(port) = self.limit_port {
            let same = |listen: &ListenAddress| listen.port.unwrap_or(self.default_port()) == port;
            let of = if self.listen_addresses().iter().any(same) {
                Some("data port")
            } else {
                self.admin.filter(|admin| admin.port() == port).map(|_| "admin page")
            };
            if let Some(of) = of {
                return conflict(format!("--limit-port {port} is that of the {of}: give another"));
            }
        }
        if self.listen_addresses().is_empty() && self.socket.is_none() {
            return conflict(
                "nothing to listen on: give --listen ADDR:PORT, --port or --socket".to_owned(),
            );
        }
        if self.flavor == Flavor::Memcached
            && self.socket.is_some()
            && (self.is_given("port") || self.is_given("listen"))
        {
            self.notes
                .push("-s turns the network off, as in memcached: -p and -l are ignored".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
