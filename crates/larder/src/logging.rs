//! Log lines on the standard error output or in a file. Each line is one event, with the time in
//! UTC, as `key=value` pairs or JSON. In an event of Larder itself, the field `event` names the
//! event and has a fixed text. The other fields give the details.

use std::fmt::{self, Write};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_server::settings::{LogFormat, LogLevel};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;

/// Changes the log level of the running process.
pub(crate) type SetLevel = Box<dyn Fn(LogLevel) + Send + Sync>;

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// A file to which log lines are appended.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
}

impl LogFile {
    /// Opens the log file, and creates it if it is missing.
    ///
    /// # Errors
    /// Returns errors of the file system.
    pub(crate) fn open(path: &Path) -> io::Result<LogFile> {
        // The working directory may change later, when the server goes to the background.
        let path = std::path::absolute(path)?;
        let file = Mutex::new(Self::append(&path)?);
        Ok(LogFile { path, file })
    }

    fn append(path: &Path) -> io::Result<File> {
        File::options().append(true).create(true).open(path)
    }

    /// Opens the path again, after log rotation has moved the old file away. If that fails, lines
    /// still go to the old file.
    ///
    /// # Errors
    /// Returns errors of the file system.
    pub(crate) fn reopen(&self) -> io::Result<()> {
        let file = Self::append(&self.path)?;
        *self.lock() = file;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes log lines to the log file, or to the standard error output if there is none. A write
/// never returns an error, because a lost log line must not end the server.
struct Output(Option<Arc<LogFile>>);

impl io::Write for Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // If the disk is full or nothing reads the pipe, the line is lost.
        let _ = match &self.0 {
            Some(file) => file.lock().write_all(line),
            None => io::stderr().lock().write_all(line),
        };
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts logging, and returns the function that changes the log level. Must be called only once.
pub(crate) fn start(level: LogLevel, format: LogFormat, file: Option<Arc<LogFile>>) -> SetLevel {
    let (filter, handle) = reload::Layer::new(filter(level));
    let lines = tracing_subscriber::fmt::layer()
        .event_format(Lines { format })
        .with_writer(move || Output(file.clone()));
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    // Fails only if a subscriber is already set, and this function is called only once.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Box::new(move |level| {
        // Fails only if the subscriber is gone, and then there are no log lines.
        let _ = handle.reload(self::filter(level));
    })
}

/// Formats an event as one log line.
struct Lines {
    format: LogFormat,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = Fields { format: self.format, text: String::new() };
        fields.put("time", &time, false);
        fields.put("level", &event.metadata().level().as_str().to_ascii_lowercase(), false);
        event.record(&mut fields);
        match self.format {
            LogFormat::Logfmt => writeln!(writer, "{}", fields.text),
            LogFormat::Json => writeln!(writer, "{{{}}}", fields.text),
        }
    }
}

/// Collects the fields of one line.
struct Fields {
    format: LogFormat,
    text: String,
}

impl Fields {
    fn put(&mut self, name: &str, value: &str, number: bool) {
        let json = self.format == LogFormat::Json;
        if !self.text.is_empty() {
            self.text.push(if json { ',' } else { ' ' });
        }
        if json {
            quote(&mut self.text, name);
            self.text.push(':');
        } else {
            self.text.push_str(name);
            self.text.push('=');
        }
        let plain = !value.is_empty()
            && value.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"=\\".contains(&byte));
        if number || (!json && plain) {
            self.text.push_str(value);
        } else {
            quote(&mut self.text, value);
        }
    }
}

/// Quotes `text` as JSON does. Control characters are escaped, so a client's input cannot start a
/// new line.
fn quote(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field.name(), &format!("{value:?}"), false);
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value, false);
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), &value.to_string(), true);
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), &value.to_string(), true);
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), &value.to_string(), true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(format: LogFormat) -> String {
        let mut fields = Fields { format, text: String::new() };
        fields.put("event", "serving", false);
        fields.put("count", "3", true);
        fields.put("reason", "a \"quoted\"\nline\u{1}", false);
        fields.put("empty", "", false);
        fields.text
    }

    #[test]
    fn logfmt() {
        assert_eq!(
            line(LogFormat::Logfmt),
            "event=serving count=3 reason=\"a \\\"quoted\\\"\\nline\\u0001\" empty=\"\""
        );
    }

    #[test]
    fn json() {
        assert_eq!(
            line(LogFormat::Json),
            "\"event\":\"serving\",\"count\":3,\
             \"reason\":\"a \\\"quoted\\\"\\nline\\u0001\",\"empty\":\"\""
        );
    }
}
