//! Errors in the settings. Each message names the faulty flag, variable or file, and says what to
//! do.

use std::fmt;
use std::path::PathBuf;

/// The reason why the settings cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum SettingsError {
    /// The value of a setting cannot be used.
    Value {
        /// Where the user set the value: `--memory`, `LARDER_MEMORY`, or the file's path and the
        /// name of the setting.
        place: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The configuration file has a key that does not exist.
    UnknownKey {
        /// The path of the file.
        path: PathBuf,
        /// The unknown key.
        key: String,
        /// A known key that is similar.
        suggestion: Option<&'static str>,
    },
    /// The configuration file cannot be read.
    File {
        /// The path of the file.
        path: PathBuf,
        /// Why the file cannot be read.
        reason: String,
    },
    /// The settings as a whole cannot be used: two values contradict each other, or a value is out
    /// of range.
    Conflict(String),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::Value { place, reason } => write!(f, "{place}: {reason}"),
            SettingsError::UnknownKey { path, key, suggestion } => {
                write!(f, "{}: there is no setting {key:?}", path.display())?;
                match suggestion {
                    Some(known) => write!(f, ": did you mean {known:?}?"),
                    None => f.write_str(": `larder serve --help` lists them"),
                }
            }
            SettingsError::File { path, reason } => write!(f, "{}: {reason}", path.display()),
            SettingsError::Conflict(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for SettingsError {}
