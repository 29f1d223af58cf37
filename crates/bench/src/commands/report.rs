//! `larder bench report`: draws the report of `larder bench all` again from its results, for
//! example those of an older version or of another machine.

use std::path::PathBuf;

use clap::Args;

use crate::lab::files;
use crate::lab::record::Results;
use crate::lab::report::html;
use crate::{Result, say};

/// The results to draw.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
The report is one file that any browser can open from disk.

Example:
  larder bench report larder-lab/report.json --html report.html")]
pub struct ReportArguments {
    /// Results: a report.json of `larder bench all`
    #[arg(value_name = "FILE")]
    results: PathBuf,
    /// Report to write; the default is FILE with the ending .html
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl ReportArguments {
    pub(super) fn run(self) -> Result<()> {
        let ReportArguments { results, html: report } = self;
        let (json, _) = Results::read(&results)?;
        let report = report.unwrap_or_else(|| results.with_extension("html"));
        files::require_page(&report)?;
        files::replace(&report, &html(&json))?;
        say!("{}", report.display());
        Ok(())
    }
}
