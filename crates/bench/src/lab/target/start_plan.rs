//! How to start a system: its command line with the reasons for its settings, its configuration
//! files, and the preparations before the first start.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest word of a command line that reports show, in bytes. In place of a longer word, they
/// show `…`.
const WORD_MAX: usize = 200;

/// A part of a command line, or a line of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    words: Vec<String>,
    /// Why the system gets this setting. Empty for settings that need no reason, such as the port.
    why: &'static str,
}

/// An account of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) user: u32,
    pub(super) group: u32,
}

/// A command that must succeed before the first start of a server in its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Preparation {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
}

/// How to start a system.
#[derive(Clone, Debug)]
pub(super) struct StartPlan {
    pub(super) program: PathBuf,
    /// The command line.
    pub(super) settings: Vec<Setting>,
    /// Directories to create before the first start.
    pub(super) directories: Vec<PathBuf>,
    /// Files to write before the first start. After the command line, reports list those settings
    /// of the files that have a reason.
    pub(super) files: Vec<ConfigFile>,
    pub(super) preparation: Vec<Preparation>,
    /// The account that the server runs as, if it is not that of the lab.
    pub(super) account: Option<Account>,
    /// The signal that makes the server stop without waiting for its clients to disconnect.
    pub(super) stop_signal: libc::c_int,
    /// The longest time that a start may take until the server answers.
    pub(super) patience: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct ConfigFile {
    pub(super) path: PathBuf,
    pub(super) settings: Vec<Setting>,
}

impl Setting {
    /// Returns a setting that figures may depend on, with the reason for it.
    pub(super) fn new<W: Into<String>>(
        words: impl IntoIterator<Item = W>,
        why: &'static str,
    ) -> Setting {
        Setting { words: words.into_iter().map(Into::into).collect(), why }
    }

    /// Returns settings that need no reason.
    pub(super) fn plain<W: Into<String>>(words: impl IntoIterator<Item = W>) -> Setting {
        Setting::new(words, "")
    }

    fn line(&self) -> String {
        self.words.join(" ")
    }

    /// Returns `text` and the reason of the setting, or `None` if it has no reason.
    fn explained(&self, text: String) -> Option<String> {
        (!self.why.is_empty()).then(|| format!("{text}: {}", self.why))
    }

    /// Returns the setting as a shell reads it.
    fn shell_line(&self) -> String {
        let words: Vec<String> = self.words.iter().map(|word| quoted(word)).collect();
        words.join(" ")
    }
}

impl ConfigFile {
    /// Returns the text of the file, one setting a line.
    pub(super) fn text(&self) -> String {
        self.settings.iter().map(|setting| setting.line() + "\n").collect()
    }
}

impl StartPlan {
    /// Returns a plan for a program that needs nothing but its command line.
    pub(super) fn new(program: PathBuf, settings: Vec<Setting>) -> StartPlan {
        StartPlan {
            program,
            settings,
            directories: Vec::new(),
            files: Vec::new(),
            preparation: Vec::new(),
            account: None,
            stop_signal: libc::SIGTERM,
            patience: Duration::from_secs(30),
        }
    }

    pub(super) fn arguments(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().flat_map(|setting| setting.words.iter().map(String::as_str))
    }

    /// Returns the command line, and then each setting that has a reason, with the reason. Each
    /// path in `names` is replaced by its name.
    pub(super) fn explained(&self, names: &[(&Path, &str)]) -> Vec<String> {
        let mut line = quoted(&self.program.display().to_string());
        for word in self.arguments() {
            line.push(' ');
            line.push_str(&quoted(if word.len() > WORD_MAX { "…" } else { word }));
        }
        let options = self.settings.iter().map(|setting| (setting, setting.shell_line()));
        let files = self.files.iter().flat_map(|file| &file.settings);
        let settings = options.chain(files.map(|setting| (setting, setting.line())));
        let explained = settings.filter_map(|(setting, text)| setting.explained(text));
        let lines = std::iter::once(line).chain(explained);
        let named = |line: String| {
            names
                .iter()
                .fold(line, |line, (path, name)| line.replace(&*path.to_string_lossy(), name))
        };
        lines.map(named).collect()
    }
}

/// Quotes a word for a shell, if it needs quotes.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_+=:,./@%*…".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_explains_itself() {
        let mut plan = StartPlan::new(
            "/bin/server".into(),
            vec![
                Setting::plain(["-p", "1"]),
                Setting::plain(["-cp".to_owned(), "x".repeat(WORD_MAX + 1)]),
                Setting::new(["-t", "2"], "one thread per processor"),
                Setting::plain(["-d", "/users/a/lab-7/data", "-s", ""]),
            ],
        );
        plan.files.push(ConfigFile {
            path: "/etc/server".into(),
            settings: vec![
                Setting::plain(["port: 1"]),
                Setting::new(["sync: batch"], "writes wait for the device"),
            ],
        });
        assert_eq!(plan.files[0].text(), "port: 1\nsync: batch\n");
        assert_eq!(
            plan.explained(&[(Path::new("/users/a/lab-7"), "DIR")]),
            [
                "/bin/server -p 1 -cp … -t 2 -d DIR/data -s ''",
                "-t 2: one thread per processor",
                "sync: batch: writes wait for the device"
            ]
        );
    }
}
