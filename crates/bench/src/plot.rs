//! Plots over time as inline SVG: stacked panels that share one time axis. There is no script and
//! no library, so a report is one file that any browser opens, now and later.

use std::fmt::Write;

/// Space for the labels to the left of a panel. The unit of all lengths in this file is that of the
/// SVG's `viewBox`.
const LEFT: f64 = 72.0;
/// Width of the panels.
const WIDTH: f64 = 880.0;
/// Height of a panel.
const HEIGHT: f64 = 130.0;
/// Height of the title line above a panel.
const TITLE: f64 = 40.0;
/// Space for the time axis below the last panel.
const AXIS: f64 = 40.0;

/// A plot of one or more lines.
#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    pub(crate) scale: AxisScale,
    pub(crate) unit: Unit,
    pub(crate) lines: Vec<Line>,
}

/// The scale of the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AxisScale {
    /// Starts at 0.
    Linear,
    /// Logarithmic, with labels at powers of ten. Values of 0 or less are not drawn.
    Log,
}

/// The format of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A number, with thousands and millions abbreviated.
    Count,
    /// Microseconds.
    Micros,
}

/// A named series with one value per second. A constant level has the same value in every second.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// The style-sheet class that sets its colour and dashes.
    pub(crate) class: &'static str,
    pub(crate) values: Vec<f64>,
}

/// Draws the panels as one `<svg>` element.
pub(crate) fn svg(panels: &[Panel]) -> String {
    let seconds = panels
        .iter()
        .flat_map(|panel| &panel.lines)
        .map(|line| line.values.len())
        .max()
        .unwrap_or(0)
        .max(1);
    let bottom = panels.len() as f64 * (HEIGHT + TITLE);
    let (width, height) = (LEFT + WIDTH + 24.0, bottom + AXIS);
    let mut out = format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\">\n");
    // The value of a second is drawn at the second's end.
    let x = |time: f64| LEFT + WIDTH * time / seconds as f64;
    for tick in linear_ticks(seconds as f64, 10) {
        let at = x(tick);
        let label = bottom + 16.0;
        put(&mut out, format_args!("<text class=\"x\" x=\"{at:.1}\" y=\"{label}\">{tick}</text>"));
        for index in 0..panels.len() {
            let top = index as f64 * (HEIGHT + TITLE) + TITLE;
            let end = top + HEIGHT;
            put(&mut out, format_args!("<path class=\"grid\" d=\"M{at:.1} {top}V{end}\"/>"));
        }
    }
    let (middle, label) = (LEFT + WIDTH / 2.0, bottom + 34.0);
    put(&mut out, format_args!("<text class=\"x\" x=\"{middle}\" y=\"{label}\">seconds</text>"));
    for (index, panel) in panels.iter().enumerate() {
        panel.draw(&mut out, index as f64 * (HEIGHT + TITLE) + TITLE, &x);
    }
    hover(&mut out, panels, seconds, bottom, &x);
    out + "</svg>\n"
}

/// Appends a line. Writing into a string cannot fail.
fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = writeln!(out, "{text}");
}

/// Adds one transparent strip per second, across all panels. While the pointer is on a strip, the
/// browser shows the values of its second.
fn hover(out: &mut String, panels: &[Panel], seconds: usize, bottom: f64, x: &impl Fn(f64) -> f64) {
    let width = WIDTH / seconds as f64;
    for second in 0..seconds {
        let left = x(second as f64 + 0.5);
        let _ = write!(
            out,
            "<rect class=\"hover\" x=\"{left:.2}\" y=\"0\" width=\"{width:.2}\" height=\"{bottom}\">\
             <title>second {}",
            second + 1
        );
        for panel in panels {
            for line in &panel.lines {
                if let Some(value) = line.values.get(second) {
                    let _ = write!(out, "\n{}: {}", escape(&line.name), panel.unit.show(*value));
                }
            }
        }
        put(out, format_args!("</title></rect>"));
    }
}

impl Panel {
    fn draw(&self, out: &mut String, top: f64, x: &impl Fn(f64) -> f64) {
        let (low, high) = self.range();
        let place = |value: f64| match self.scale {
            AxisScale::Linear => value / high,
            AxisScale::Log => (value / low).log10() / (high / low).log10(),
        };
        let y = |value: f64| top + HEIGHT * (1.0 - place(value).clamp(0.0, 1.0));
        put(
            out,
            format_args!(
                "<text class=\"title\" x=\"{LEFT}\" y=\"{:.1}\">{}</text>",
                top - 10.0,
                escape(self.title)
            ),
        );
        let ticks = match self.scale {
            AxisScale::Linear => linear_ticks(high, 4),
            AxisScale::Log => log_ticks(low, high),
        };
        for tick in ticks {
            let (at, end) = (y(tick), LEFT + WIDTH);
            put(out, format_args!("<path class=\"grid\" d=\"M{LEFT} {at:.1}H{end}\"/>"));
            put(
                out,
                format_args!(
                    "<text class=\"y\" x=\"{}\" y=\"{:.1}\">{}</text>",
                    LEFT - 8.0,
                    at + 4.0,
                    self.unit.show(tick)
                ),
            );
        }
        self.legend(out, top - 10.0);
        for line in &self.lines {
            let path = path(&line.values, self.scale, x, &y);
            put(out, format_args!("<path class=\"line {}\" d=\"{path}\"/>", line.class));
        }
    }

    /// Draws the legend so that it ends at the right edge of the panel. From left to right, its
    /// entries have the order of the lines.
    fn legend(&self, out: &mut String, y: f64) {
        let mut right = LEFT + WIDTH;
        for line in self.lines.iter().rev() {
            let begin = right - 7.0 * line.name.chars().count() as f64;
            put(
                out,
                format_args!("<text x=\"{begin:.1}\" y=\"{y}\">{}</text>", escape(&line.name)),
            );
            put(
                out,
                format_args!(
                    "<path class=\"line {}\" d=\"M{:.1} {}h20\"/>",
                    line.class,
                    begin - 26.0,
                    y - 4.0
                ),
            );
            right = begin - 42.0;
        }
    }

    /// Returns the lower and the upper end of the vertical axis. All drawn values lie between them.
    /// Both are multiples of the axis step; on a logarithmic axis, they are powers of ten.
    fn range(&self) -> (f64, f64) {
        let values = || self.lines.iter().flat_map(|line| &line.values).copied();
        let high = values().fold(0.0, f64::max);
        match self.scale {
            AxisScale::Linear if high > 0.0 => {
                let step = step(high, 4);
                (0.0, (high / step).ceil() * step)
            }
            AxisScale::Linear => (0.0, 1.0),
            AxisScale::Log => {
                let low = values().filter(|value| *value > 0.0).fold(f64::MAX, f64::min);
                let low = if low > high { 1.0 } else { 10f64.powf(low.log10().floor()) };
                (low, 10f64.powf(high.max(low * 1.01).log10().ceil()))
            }
        }
    }
}

/// Returns the path of a line. A value without a logarithm leaves a gap on a logarithmic axis.
fn path(
    values: &[f64],
    scale: AxisScale,
    x: &impl Fn(f64) -> f64,
    y: &impl Fn(f64) -> f64,
) -> String {
    let mut path = String::new();
    let mut pen = 'M';
    for (second, &value) in values.iter().enumerate() {
        if scale == AxisScale::Log && value <= 0.0 {
            pen = 'M';
            continue;
        }
        let _ = write!(path, "{pen}{:.1} {:.1}", x(second as f64 + 1.0), y(value));
        pen = 'L';
    }
    path
}

/// Returns a round step width, such that about `count` steps reach `high`.
fn step(high: f64, count: u32) -> f64 {
    let rough = high / f64::from(count);
    let power = 10f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|digit| digit * power >= rough);
    digit.unwrap_or(10.0) * power
}

fn linear_ticks(high: f64, count: u32) -> Vec<f64> {
    let step = step(high.max(f64::MIN_POSITIVE), count);
    (0..).map(|index| f64::from(index) * step).take_while(|tick| *tick <= high * 1.001).collect()
}

fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let mut ticks = vec![low];
    while ticks[ticks.len() - 1] * 9.9 < high {
        ticks.push(ticks[ticks.len() - 1] * 10.0);
    }
    ticks
}

impl Unit {
    fn show(self, value: f64) -> String {
        let steps: &[(f64, &str)] = match self {
            Unit::Count => &[(1e6, " M"), (1e3, " K"), (1.0, "")],
            Unit::Micros => &[(1e6, " s"), (1e3, " ms"), (1.0, " µs")],
        };
        let last = steps[steps.len() - 1];
        let (size, name) = *steps.iter().find(|step| value >= step.0).unwrap_or(&last);
        // Shows at most three significant digits of numbers below 1000.
        let scaled = value / size;
        let decimals = match scaled {
            scaled if scaled >= 100.0 => 0,
            scaled if scaled >= 10.0 => 1,
            _ => 2,
        };
        let number = format!("{scaled:.decimals$}");
        let number = match number.contains('.') {
            true => number.trim_end_matches('0').trim_end_matches('.'),
            false => &number,
        };
        format!("{number}{name}")
    }
}

/// Escapes text for use between HTML tags.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_round() {
        assert_eq!(
            linear_ticks(300.0, 10),
            (0..=6).map(|n| f64::from(n) * 50.0).collect::<Vec<_>>()
        );
        assert_eq!(log_ticks(10.0, 10_000.0), [10.0, 100.0, 1000.0, 10_000.0]);
        let panel = |scale, values: &[f64]| Panel {
            title: "t",
            scale,
            unit: Unit::Count,
            lines: vec![Line { name: "a".into(), class: "a", values: values.to_vec() }],
        };
        assert_eq!(panel(AxisScale::Linear, &[1.0, 41_000.0]).range(), (0.0, 60_000.0));
        assert_eq!(panel(AxisScale::Log, &[0.0, 150.0, 4000.0]).range(), (100.0, 10_000.0));
        for nothing in [&[][..], &[0.0, 0.0]] {
            for scale in [AxisScale::Linear, AxisScale::Log] {
                assert!(!svg(&[panel(scale, nothing)]).contains("NaN"));
            }
        }
    }

    #[test]
    fn values_are_short() {
        let micros = |value| Unit::Micros.show(value);
        assert_eq!([micros(0.0), micros(100.0), micros(1500.0)], ["0 µs", "100 µs", "1.5 ms"]);
        assert_eq!(micros(2_340_000.0), "2.34 s");
        assert_eq!(Unit::Count.show(40_000.0), "40 K");
        assert_eq!(Unit::Count.show(31_234.5), "31.2 K");
    }

    #[test]
    fn a_gap_and_a_name_that_could_be_a_tag() {
        let line = Line { name: "<a&b>".into(), class: "a", values: vec![10.0, 0.0, 100.0, 100.0] };
        let panel =
            Panel { title: "t", scale: AxisScale::Log, unit: Unit::Micros, lines: vec![line] };
        let text = svg(&[panel]);
        let drawn = text.lines().rfind(|line| line.contains("class=\"line a\"")).unwrap();
        assert_eq!((drawn.matches('M').count(), drawn.matches('L').count()), (2, 1), "{drawn}");
        assert!(text.contains("&lt;a&amp;b&gt;: 100 µs") && !text.contains("<a&b>"));
    }
}
