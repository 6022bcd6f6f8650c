//! Stacked bars as CSV and SVG, with a table below them: the work of each bar beside the paper's.

use std::{fmt::Write, path::Path};

use anyhow::Result;
use reprise_bench_figures::{wrapped, write_files};

/// A bar: its portions from the bottom up, and a cell of each row of the table.
pub struct Stack {
    /// Below the bar.
    pub name: String,
    /// Name and height of each portion.
    pub portions: Vec<(String, f64)>,
    /// A cell for each of the chart's rows.
    pub cells: Vec<String>,
}

/// A figure of stacked bars.
pub struct StackChart {
    /// `looking-glass-5`.
    pub name: String,
    /// On top.
    pub title: String,
    /// Unit of the heights.
    pub unit: &'static str,
    /// From left to right.
    pub stacks: Vec<Stack>,
    /// Name of each row of the table, and what the paper has.
    pub rows: Vec<(String, String)>,
    /// Numbers of the paper beside ours.
    pub claims: Vec<StackClaim>,
    /// Notes for the reader, a sentence each.
    pub notes: Vec<String>,
}

/// A number of the paper, and the same of ours.
pub struct StackClaim {
    /// The number's name, with its unit.
    pub text: String,
    /// None where the paper's text has no number.
    pub paper: Option<f64>,
    /// Our number.
    pub ours: f64,
}

const BAR: f64 = 96.0;
const LEFT: f64 = 120.0;
const TOP: f64 = 74.0;
const BOTTOM: f64 = 428.0;
/// The left border of title, unit and notes.
const MARGIN: f64 = 12.0;
const LEGEND: f64 = 210.0;
const LINE: f64 = 17.0;
/// A bar that is taller than the divided ones by this factor is cut off.
const CUT_FROM: f64 = 1.5;
/// Width of a character, at least.
const CHARACTER: f64 = 6.0;
const COLOURS: [&str; 12] = [
    "#1b6ca8", "#d1495b", "#3a7d44", "#8f5db7", "#e08e0b", "#4b5563", "#00798c", "#b5651d", "#9fb8ad", "#c9a227",
    "#7b2d26", "#aab2bd",
];

impl Stack {
    /// The height of the drawn portions.
    fn drawn(&self) -> f64 {
        self.portions.iter().map(|(_, height)| height.max(0.0)).sum()
    }
}

impl StackChart {
    /// Writes NAME.csv and NAME.svg into a folder, and says where they are.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, out: &Path) -> Result<()> {
        write_files(out, &self.name, &self.csv(), &self.svg())
    }

    /// The portions' names, in the order of their first coming.
    fn portions(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.stacks.iter().flat_map(|stack| &stack.portions) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }

    /// A line for each portion, with its bar's total; then the table, and the claims as `Chart` has them.
    pub fn csv(&self) -> String {
        let mut csv = format!("# {}\n", self.title);
        for note in &self.notes {
            let _ = writeln!(csv, "# {note}");
        }
        let _ = writeln!(csv, "bar,portion,{},total", self.unit);
        for stack in &self.stacks {
            let total: f64 = stack.portions.iter().map(|(_, height)| height).sum();
            for (name, height) in &stack.portions {
                let _ = writeln!(csv, "{},{name},{height:.3},{total:.3}", stack.name);
            }
        }
        let names: Vec<_> = self.stacks.iter().map(|stack| stack.name.as_str()).collect();
        let _ = writeln!(csv, "\nrow,paper,{}", names.join(","));
        for (at, (name, paper)) in self.rows.iter().enumerate() {
            let cells: Vec<_> = self.stacks.iter().map(|stack| stack.cells[at].as_str()).collect();
            let _ = writeln!(csv, "{name},{paper},{}", cells.join(","));
        }
        csv.push_str("\nclaim,paper least,paper most,ours least,ours most\n");
        for claim in &self.claims {
            let paper = claim.paper.map(|paper| paper.to_string()).unwrap_or_default();
            let _ = writeln!(
                csv,
                "\"{}\",{paper},{paper},{:.2},{:.2}",
                claim.text, claim.ours, claim.ours
            );
        }
        csv
    }

    /// The bars, their legend, and the table below.
    pub fn svg(&self) -> String {
        let width = LEFT + BAR * (self.stacks.len() as f64 + 1.0) + LEGEND;
        let notes = wrapped(&self.notes, (width / CHARACTER) as usize);
        let lines = self.rows.len() + notes.len();
        let height = BOTTOM + 70.0 + lines as f64 * LINE;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        let most = self.scale();
        text(&mut svg, MARGIN, 18.0, "start", &self.title);
        text(&mut svg, MARGIN, 36.0, "start", self.unit);
        for quarter in 0..=4 {
            let share = f64::from(quarter) / 4.0;
            let y = BOTTOM - share * (BOTTOM - TOP);
            text(&mut svg, LEFT - 6.0, y + 4.0, "end", &short(most * share));
        }
        for at in 0..self.stacks.len() {
            self.bar(&mut svg, at, most);
        }
        let names = self.portions();
        let right = LEFT + BAR * (self.stacks.len() as f64 + 1.0);
        for (at, name) in names.iter().enumerate() {
            let y = TOP + at as f64 * LINE;
            let _ = writeln!(
                svg,
                "<rect x=\"{right}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{}\"/>",
                y - 9.0,
                COLOURS[at % COLOURS.len()]
            );
            text(&mut svg, right + 16.0, y, "start", name);
        }
        self.table(&mut svg, &notes);
        svg + "</svg>\n"
    }

    /// The height of the axis: that of the tallest bar that is divided. Others that reach higher are cut off, so that portions stay readable.
    fn scale(&self) -> f64 {
        let tallest = |is_asked: fn(&Stack) -> bool| {
            let asked = self.stacks.iter().filter(|stack| is_asked(stack));
            asked.map(Stack::drawn).fold(0.0, f64::max)
        };
        let (divided, most) = (tallest(|stack| stack.portions.len() > 1), tallest(|_| true));
        match divided > 0.0 && most > CUT_FROM * divided {
            true => divided,
            false => most.max(f64::MIN_POSITIVE),
        }
    }

    /// Draws a bar with its total above and its name below.
    fn bar(&self, svg: &mut String, at: usize, most: f64) {
        let (stack, names) = (&self.stacks[at], self.portions());
        let x = LEFT + BAR * at as f64;
        let mut y = BOTTOM;
        for (name, height) in &stack.portions {
            let tall = (height.max(0.0) / most).min(1.0) * (BOTTOM - TOP);
            y -= tall;
            let colour = names.iter().position(|other| other == name).unwrap_or(0) % COLOURS.len();
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"{}\"/>",
                x + 8.0,
                BAR - 16.0,
                COLOURS[colour]
            );
        }
        if stack.drawn() > most {
            let (from, to) = (x + 4.0, x + BAR - 4.0);
            let _ = writeln!(
                svg,
                "<path d=\"M{from:.1} {:.1}L{to:.1} {:.1}\" stroke=\"white\" stroke-width=\"6\"/>",
                y + 34.0,
                y + 22.0
            );
        }
        let whole: f64 = stack.portions.iter().map(|(_, height)| height).sum();
        text(svg, x + BAR / 2.0, y - 4.0, "middle", &short(whole));
        // Long names take two lines.
        let (first, second) = stack.name.split_once(' ').unwrap_or((&stack.name, ""));
        text(svg, x + BAR / 2.0, BOTTOM + 14.0, "middle", first);
        text(svg, x + BAR / 2.0, BOTTOM + 27.0, "middle", second);
    }

    fn table(&self, svg: &mut String, notes: &[String]) {
        let mut y = BOTTOM + 48.0;
        if self.rows.iter().any(|(_, paper)| !paper.is_empty()) {
            let x = LEFT + BAR * self.stacks.len() as f64 + BAR / 2.0;
            text(svg, x, BOTTOM + 14.0, "middle", "paper");
        }
        for (at, (name, paper)) in self.rows.iter().enumerate() {
            text(svg, LEFT - 6.0, y, "end", name);
            let cells = self.stacks.iter().map(|stack| stack.cells[at].as_str());
            for (at, cell) in cells.chain([paper.as_str()]).enumerate() {
                text(svg, LEFT + BAR * at as f64 + BAR / 2.0, y, "middle", cell);
            }
            y += LINE;
        }
        for note in notes {
            text(svg, MARGIN, y, "start", note);
            y += LINE;
        }
    }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>"
    );
}

fn short(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        at_least if at_least >= 10_000.0 => format!("{:.1}k", at_least / 1_000.0),
        at_least if at_least >= 100.0 => format!("{at_least:.0}"),
        at_least if at_least >= 10.0 => format!("{at_least:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_names_its_portions_its_total_and_its_work() {
        let stack = |name: &str, heights: [f64; 2]| Stack {
            name: name.into(),
            portions: vec![("a & b".into(), heights[0]), ("rest".into(), heights[1])],
            cells: vec!["7".into()],
        };
        let chart = StackChart {
            name: "looking-glass-0".into(),
            title: "Title".into(),
            unit: "instructions",
            stacks: vec![
                stack("all", [300.0, 100.0]),
                stack("none at all", [0.0, 100.0]),
                Stack {
                    portions: vec![("rest".into(), 900.0)],
                    ..stack("other", [0.0; 2])
                },
            ],
            rows: vec![("locks".into(), "9".into())],
            claims: vec![StackClaim {
                text: "locking, percent".into(),
                paper: Some(16.0),
                ours: 12.346,
            }],
            notes: vec!["A note.".into()],
        };
        let csv = chart.csv();
        assert!(
            csv.contains("all,a & b,300.000,400.000\n")
                && csv.contains("locks,9,7,7,7\n")
                && csv.contains("\"locking, percent\",16,16,12.35,12.35\n"),
            "{csv}"
        );
        let svg = chart.svg();
        assert_eq!(svg.matches("<rect").count(), 1 + 5 + 2);
        assert_eq!(
            svg.matches("<path").count(),
            1,
            "the bar above the divided ones is cut off: {svg}"
        );
        let whole = StackChart {
            stacks: chart.stacks.into_iter().skip(2).collect(),
            rows: Vec::new(),
            ..chart
        };
        assert!(!whole.svg().contains("<path"), "none is cut off where none is divided");
        assert!(svg.contains(">400</text>") && svg.contains(">900</text>"), "{svg}");
        assert!(
            svg.contains("a &amp; b") && svg.contains("A note.") && !svg.contains("NaN"),
            "{svg}"
        );
    }
}
