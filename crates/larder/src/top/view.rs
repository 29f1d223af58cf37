//! The terminal view: a panel for each server.

use std::collections::VecDeque;

use larder_client::Address;
use larder_server::condition::Level;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table, Wrap};

use super::figures::Figures;
use super::poller::Answer;
use super::sample::Sample;
use super::table;

/// The largest number of intervals in the chart.
const HISTORY: usize = 300;
/// The least width of a panel, in columns.
const WIDTH: u16 = 40;

/// What is known about one server.
#[derive(Debug)]
pub(super) struct Panel {
    name: String,
    last: Option<Sample>,
    figures: Option<Figures>,
    /// The reason why the last request got no answer. `None` if it got one, or before the first.
    error: Option<String>,
    /// Requests per second in each interval, the newest interval last. An interval without an
    /// answer has 0.
    history: VecDeque<u64>,
}

impl Panel {
    pub(super) fn new(address: &Address) -> Panel {
        Panel {
            name: address.to_string(),
            last: None,
            figures: None,
            error: None,
            history: VecDeque::new(),
        }
    }

    /// Takes the next answer of the server.
    pub(super) fn take(&mut self, answer: Answer) {
        match answer {
            Ok(sample) => {
                if let Some(before) = &self.last {
                    let figures = Figures::between(before, &sample);
                    self.remember(requests(&figures));
                    self.figures = Some(figures);
                }
                self.last = Some(sample);
                self.error = None;
            }
            Err(why) => {
                self.error = Some(why);
                self.remember(0);
            }
        }
    }

    fn remember(&mut self, rate: u64) {
        self.history.push_back(rate);
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }
}

fn requests(figures: &Figures) -> u64 {
    let rates = [
        figures.reads_per_second,
        figures.writes_per_second,
        figures.deletes_per_second,
        figures.counts_per_second,
        figures.touches_per_second,
    ];
    rates.into_iter().flatten().sum::<f64>() as u64
}

/// Draws the panels, side by side as far as their least width allows.
pub(super) fn draw(frame: &mut Frame<'_>, panels: &[Panel], paused: bool) {
    let [body, foot] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    let columns = usize::from((body.width / WIDTH).max(1)).min(panels.len().max(1));
    let rows = panels.len().div_ceil(columns).max(1);
    let bands = Layout::vertical(vec![Constraint::Fill(1); rows]).split(body);
    for (band, panels) in bands.iter().zip(panels.chunks(columns)) {
        let areas = Layout::horizontal(vec![Constraint::Fill(1); columns]).split(*band);
        areas.iter().zip(panels).for_each(|(area, panel)| draw_panel(frame, *area, panel));
    }
    let help = if paused { "paused: space goes on   q quit" } else { "space pause   q quit" };
    frame.render_widget(Paragraph::new(help).dim(), foot);
}

fn draw_panel(frame: &mut Frame<'_>, area: Rect, panel: &Panel) {
    let version = panel.figures.as_ref().map_or("", |figures| figures.version.as_str());
    let title = Line::from(vec![
        Span::styled(format!(" {} ", panel.name), Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!("{version} ")),
    ]);
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let (color, text) = sentence(panel);
    let rows = panel.figures.as_ref().map(table::rows);
    let count = rows.as_ref().map_or(0, |rows| rows.len() as u16);
    let [head, chart, gauge, list] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(if inner.height > count + 8 { 4 } else { 0 }),
        Constraint::Length(1),
        Constraint::Min(0),
    ])
    .areas(inner);
    let text = Paragraph::new(text).style(Style::new().fg(color)).wrap(Wrap { trim: true });
    frame.render_widget(text, head);
    let width = usize::from(chart.width);
    let from = panel.history.len().saturating_sub(width);
    let shown: Vec<u64> = panel.history.iter().skip(from).copied().collect();
    frame
        .render_widget(Sparkline::default().data(shown).style(Style::new().fg(Color::Cyan)), chart);
    if let Some((used, limit)) = memory(panel) {
        let ratio = (used / limit).clamp(0.0, 1.0);
        let label = format!("memory {:.0} %", ratio * 100.0);
        frame.render_widget(Gauge::default().ratio(ratio).label(label).fg(Color::Blue), gauge);
    }
    if let Some(rows) = rows {
        let rows = rows.into_iter().map(|(name, value)| {
            Row::new([Line::from(name).dim(), Line::from(value).right_aligned()])
        });
        let widths = [Constraint::Length(17), Constraint::Fill(1)];
        frame.render_widget(Table::new(rows, widths), list);
    }
}

/// Returns a sentence on the state of a server, and the colour of the sentence.
fn sentence(panel: &Panel) -> (Color, String) {
    match (&panel.error, &panel.figures) {
        (Some(why), _) => (Color::Red, format!("No answer: {why}. Trying again.")),
        (None, None) => (Color::Reset, "Asking …".to_owned()),
        (None, Some(figures)) => {
            let color = match figures.condition.level {
                Level::Good => Color::Green,
                Level::Notice => Color::Yellow,
                Level::Alarm => Color::Red,
            };
            (color, figures.condition.text.clone())
        }
    }
}

fn memory(panel: &Panel) -> Option<(f64, f64)> {
    let figures = panel.figures.as_ref()?;
    let limit = figures.memory_limit_bytes.filter(|&limit| limit > 0)?;
    Some((figures.memory_used_bytes? as f64, limit as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::{Duration, Instant};

    fn panel(name: &str) -> Panel {
        Panel::new(&name.parse().unwrap())
    }

    fn sample(taken: Instant, gets: u64) -> Answer {
        let row = |name: &str, value: u64| (name.to_owned(), value.to_string());
        let rows = vec![
            row("cmd_get", gets),
            row("limit_maxbytes", 1000),
            row("bytes", 250),
            ("version".to_owned(), "1.6.18".to_owned()),
        ];
        Ok(Sample::new(taken, rows))
    }

    fn screen(panels: &[Panel], width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, panels, false)).unwrap();
        let buffer = terminal.backend().buffer();
        let cell = |x: u16, y: u16| buffer[(x, y)].symbol().to_owned();
        (0..height).map(|y| (0..width).map(|x| cell(x, y)).collect()).collect()
    }

    #[test]
    fn two_servers_stand_side_by_side() {
        let mut first = panel("127.0.0.1:11211");
        let start = Instant::now();
        first.take(sample(start, 0));
        first.take(sample(start + Duration::from_secs(10), 700));
        let mut second = panel("127.0.0.1:11212");
        second.take(Err("connection refused".to_owned()));
        let lines = screen(&[first, second], 100, 30);
        let all = lines.join("\n");
        assert!(lines[0].contains("11211 1.6.18") && lines[0].contains("11212"), "{all}");
        assert!(lines[1].contains("All is well") && lines[1].contains("No answer"), "{all}");
        let reads = lines.iter().find(|line| line.contains("reads/s")).unwrap();
        assert!(reads.contains(" 70│"), "{reads}");
        assert!(all.contains("memory 25 %"), "{all}");
    }

    #[test]
    fn any_size_of_terminal_is_drawn() {
        let panels: Vec<Panel> = (1..6).map(|number| panel(&format!("h:{number}"))).collect();
        for (width, height) in [(1, 1), (10, 3), (39, 24), (40, 24), (200, 8), (400, 100)] {
            screen(&panels, width, height);
        }
    }
}
