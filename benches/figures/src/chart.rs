//! A figure as CSV and as SVG.

use std::{fmt::Write, path::Path};

use anyhow::Result;

use crate::{csv_head, push_text, short, write_files};

/// Measured points, and what the paper says of them.
pub struct Chart {
    /// `figure-9`.
    pub name: String,
    pub title: String,
    pub x: &'static str,
    pub y: &'static str,
    /// Both axes by powers of ten.
    pub is_log: bool,
    pub points: Vec<Point>,
    /// The paper's reading.
    pub paper: Vec<Claim>,
    /// Facts that a reader must know, a sentence each: the meaning of a series, the omitted runs.
    pub notes: Vec<String>,
    /// Series, and whose way each one is. The legend says it.
    pub ways: &'static [(&'static str, &'static str)],
    /// Machine, build, length of a run.
    pub conditions: String,
}

pub struct Point {
    pub series: String,
    pub x: f64,
    /// One for each run.
    pub y: Vec<f64>,
}

/// The paper's measurement, and ours.
pub struct Claim {
    pub text: &'static str,
    /// Least and most.
    pub paper: (f64, f64),
    pub ours: Option<(f64, f64)>,
}

impl Point {
    pub fn of(series: &str, x: f64, y: impl Iterator<Item = f64>) -> Self {
        Self {
            series: series.into(),
            x,
            y: y.collect(),
        }
    }

    pub fn median(&self) -> f64 {
        median(&self.y)
    }
}

/// The middle of some values; none of them: no number.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len => (sorted[(len - 1) / 2] + sorted[len / 2]) / 2.0,
    }
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 50.0;
const LEGEND: f64 = 210.0;
const LINE: f64 = 18.0;
const TICKS_MAX: usize = 12;
/// The left border of the text below a plot, and what fits a line of it.
const MARGIN: f64 = 12.0;
const CHARACTERS: usize = 116;
const COLOURS: [&str; 8] = [
    "#1b6ca8", "#d1495b", "#3a7d44", "#8f5db7", "#e08e0b", "#4b5563", "#00798c", "#b5651d",
];

impl Chart {
    /// A chart without points, over these axes: x, then y.
    pub fn new(name: String, title: &str, [x, y]: [&'static str; 2], conditions: &str) -> Self {
        Self {
            name,
            title: title.into(),
            x,
            y,
            is_log: false,
            points: Vec::new(),
            paper: Vec::new(),
            notes: Vec::new(),
            ways: &[],
            conditions: conditions.to_owned(),
        }
    }

    /// How many times one series is the other, at the points that `is_in` takes.
    pub fn claim(
        &self,
        text: &'static str,
        paper: (f64, f64),
        (one, other): (&str, &str),
        is_in: &dyn Fn(f64) -> bool,
    ) -> Claim {
        let of = |series: &str, x: f64| {
            let mut points = self.points.iter();
            points
                .find(|point| point.series == series && point.x == x)
                .map(Point::median)
        };
        let points = self.points.iter();
        let xs = points.filter(|point| point.series == one && is_in(point.x));
        let ratios = xs.filter_map(|point| Some(point.median() / of(other, point.x)?));
        let ours = bounds(ratios);
        Claim { text, paper, ours }
    }

    /// Writes NAME.csv and NAME.svg into a folder, which is made, and says where they are.
    pub fn write(&self, out: &Path) -> Result<()> {
        write_files(out, &self.name, &self.csv(), &self.svg())
    }

    /// A line a point; the paper's reading behind them.
    pub fn csv(&self) -> String {
        let mut csv = csv_head(&self.title, &self.conditions, &self.notes);
        let _ = writeln!(csv, "series,{},{},runs", self.x, self.y);
        for point in &self.points {
            let runs: Vec<_> = point.y.iter().map(|y| format!("{y:.3}")).collect();
            let _ = writeln!(
                csv,
                "{},{},{:.3},{}",
                point.series,
                point.x,
                point.median(),
                runs.join(" ")
            );
        }
        csv.push_str("\nclaim,paper least,paper most,ours least,ours most\n");
        for claim in &self.paper {
            let ours = claim
                .ours
                .map_or_else(|| ",".into(), |(least, most)| format!("{least:.2},{most:.2}"));
            let _ = writeln!(csv, "\"{}\",{},{},{ours}", claim.text, claim.paper.0, claim.paper.1);
        }
        csv
    }

    fn legend(&self, series: &str) -> String {
        match self.ways.iter().find(|(name, _)| *name == series) {
            Some((name, whose)) => format!("{name} ({whose})"),
            None => series.to_owned(),
        }
    }

    pub fn svg(&self) -> String {
        let texts: Vec<_> = self.notes.iter().chain([&self.conditions]).cloned().collect();
        let lines = wrapped(&texts, CHARACTERS);
        let below = (self.paper.len() + lines.len()) as f64 * LINE + 72.0;
        let mut plot = Plot::new(self, HEIGHT + below);
        plot.axes(self);
        let mut names: Vec<&str> = Vec::new();
        for point in &self.points {
            if !names.contains(&point.series.as_str()) {
                names.push(&point.series);
            }
        }
        for (n, name) in names.into_iter().enumerate() {
            let mut points: Vec<_> = self.points.iter().filter(|point| point.series == name).collect();
            points.sort_by(|one, other| one.x.total_cmp(&other.x));
            plot.series(n, &self.legend(name), &points);
        }
        let mut y = HEIGHT + 58.0;
        for claim in &self.paper {
            let (least, most) = claim.paper;
            let ours = claim
                .ours
                .map_or_else(|| "not run".into(), |(least, most)| format!("{least:.2} to {most:.2}"));
            let words = format!("{}: paper {least} to {most}, here {ours}", claim.text);
            plot.text((MARGIN, y), "start", &words);
            y += LINE;
        }
        for text in &lines {
            plot.text((MARGIN, y), "start", text);
            y += LINE;
        }
        plot.svg + "</svg>\n"
    }
}

/// Texts in lines of at most this many characters, so that a picture shows them whole.
pub fn wrapped(texts: &[String], characters: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for text in texts {
        let mut line = String::new();
        for word in text.split(' ') {
            if !line.is_empty() && line.len() + word.len() >= characters {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

/// Least and most; none of no value. A ratio of zero to zero is none.
pub fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let values = values.filter(|value| value.is_finite());
    values.fold(None, |bounds: Option<(f64, f64)>, value| {
        Some(bounds.map_or((value, value), |(least, most)| (least.min(value), most.max(value))))
    })
}

/// A chart while it is drawn.
struct Plot {
    svg: String,
    is_log: bool,
    /// Least and most on each axis, as they are scaled.
    xs: (f64, f64),
    ys: (f64, f64),
}

impl Plot {
    fn new(chart: &Chart, height: f64) -> Self {
        let is_log = chart.is_log;
        let bounds = |values: &mut dyn Iterator<Item = f64>| {
            let all = values.map(|value| scale(is_log, value));
            let (least, most) = all.fold((f64::MAX, f64::MIN), |(least, most), value| {
                (least.min(value), most.max(value))
            });
            let least = if is_log { least } else { least.min(0.0) };
            (least, if most > least { most } else { least + 1.0 })
        };
        Self {
            svg: format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
                 <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
            ),
            is_log,
            xs: bounds(&mut chart.points.iter().map(|point| point.x)),
            ys: bounds(&mut chart.points.iter().map(Point::median)),
        }
    }

    fn at_x(&self, x: f64) -> f64 {
        let share = (scale(self.is_log, x) - self.xs.0) / (self.xs.1 - self.xs.0);
        LEFT + share * (WIDTH - LEFT - LEGEND)
    }

    fn at_y(&self, y: f64) -> f64 {
        let share = (scale(self.is_log, y) - self.ys.0) / (self.ys.1 - self.ys.0);
        HEIGHT - share * (HEIGHT - TOP)
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: &str, words: &str) {
        push_text(&mut self.svg, x, y, anchor, words);
    }

    fn axes(&mut self, chart: &Chart) {
        let right = WIDTH - LEGEND;
        self.text((LEFT, 20.0), "start", &chart.title);
        self.text((LEFT, 38.0), "start", chart.y);
        self.text((right, HEIGHT + 34.0), "end", chart.x);
        let _ = writeln!(
            self.svg,
            "<path d=\"M{LEFT} {TOP}V{HEIGHT}H{right}\" fill=\"none\" stroke=\"#444\"/>"
        );
        let mut ticks: Vec<f64> = chart.points.iter().map(|point| point.x).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        // The number of ticks that have room for their text.
        let step = ticks.len().div_ceil(TICKS_MAX).max(1);
        for x in ticks.into_iter().step_by(step) {
            self.text((self.at_x(x), HEIGHT + 16.0), "middle", &short(x, 1.0));
        }
        for step in 0..=4 {
            let value = self.ys.0 + (self.ys.1 - self.ys.0) * f64::from(step) / 4.0;
            let value = if self.is_log { 10_f64.powf(value) } else { value };
            self.text((LEFT - 6.0, self.at_y(value) + 4.0), "end", &short(value, 1.0));
        }
    }

    fn series(&mut self, n: usize, name: &str, points: &[&Point]) {
        let colour = COLOURS[n % COLOURS.len()];
        let places = points
            .iter()
            .map(|point| (self.at_x(point.x), self.at_y(point.median())));
        let places: Vec<_> = places.collect();
        let line: Vec<_> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            self.svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        for (x, y) in places {
            let _ = writeln!(
                self.svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            );
        }
        let (left, y) = (WIDTH - LEGEND + 14.0, TOP + n as f64 * LINE);
        let _ = writeln!(
            self.svg,
            "<rect x=\"{left}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>",
            y - 9.0
        );
        self.text((left + 16.0, y), "start", name);
    }
}

fn scale(is_log: bool, value: f64) -> f64 {
    if is_log { value.max(1e-9).log10() } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_names_its_series_and_the_papers_reading() {
        let point = |series: &str, x: f64, y: &[f64]| Point {
            series: series.into(),
            x,
            y: y.to_vec(),
        };
        let chart = Chart {
            name: "figure-0".into(),
            title: "A & B".into(),
            x: "threads",
            y: "us",
            is_log: true,
            points: vec![
                point("a", 1.0, &[3.0, 1.0, 2.0]),
                point("a", 2.0, &[4.0]),
                point("b", 1.0, &[5.0]),
            ],
            paper: vec![Claim {
                text: "b of a",
                paper: (1.5, 2.5),
                ours: Some((2.5, 2.5)),
            }],
            notes: vec!["b is half".into(), "word ".repeat(40).trim().into()],
            ways: &[("b", "the paper's")],
            conditions: "a machine".into(),
        };
        let ratio = chart.claim("b of a", (1.5, 2.5), ("b", "a"), &|_| true);
        assert_eq!(ratio.ours, Some((2.5, 2.5)));
        assert_eq!(chart.claim("a of c", (1.0, 1.0), ("a", "c"), &|_| true).ours, None);
        let csv = chart.csv();
        assert!(
            csv.contains("\na,1,2.000,3.000 1.000 2.000\n") && csv.contains("\"b of a\",1.5,2.5,2.50,2.50"),
            "{csv}"
        );
        let svg = chart.svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.lines().all(|line| line.matches("word").count() < 30), "{svg}");
        assert!(
            csv.contains("# b is half\n")
                && svg.contains("b is half")
                && svg.contains("A &amp; B")
                && svg.contains("b (the paper's)")
                && svg.contains("paper 1.5 to 2.5, here 2.50 to 2.50")
                && !svg.contains("NaN"),
            "{svg}"
        );
    }
}
