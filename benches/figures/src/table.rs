//! A figure of bars in groups, with a table beside them, as CSV and as SVG.

use std::{fmt::Write, path::Path};

use anyhow::Result;

use crate::{bounds, csv_head, median, push_text, short, wrapped, write_files};

/// Rows in groups: the first column is drawn as a bar, and all are written as numbers.
pub struct Table {
    /// `peers-voter`.
    pub name: String,
    pub title: String,
    pub columns: &'static [&'static str],
    pub groups: Vec<TableGroup>,
    /// Numbers that follow from the rows.
    pub claims: Vec<TableClaim>,
    /// Notes for the reader, a sentence each.
    pub notes: Vec<String>,
    /// Machine, build, length of a run.
    pub conditions: String,
}

/// Rows that a reader compares.
pub struct TableGroup {
    pub name: String,
    pub rows: Vec<TableRow>,
}

/// A bar with its numbers.
pub struct TableRow {
    pub name: String,
    /// For each column a value of each round; empty where a number has no meaning.
    pub cells: Vec<Vec<f64>>,
}

/// A number of ours, beside the paper's if it has one.
pub struct TableClaim {
    /// Its name and unit.
    pub text: String,
    /// Least and most.
    pub paper: Option<(f64, f64)>,
    /// One for each round.
    pub ours: Vec<f64>,
}

const WIDTH: f64 = 900.0;
/// Left border of text, of bars, and of the first column.
const MARGIN: f64 = 12.0;
const BARS: f64 = 190.0;
const NUMBERS: f64 = 440.0;
const COLUMN: f64 = 76.0;
const TOP: f64 = 62.0;
const LINE: f64 = 18.0;
const CHARACTERS: usize = 140;
/// Words of a column's head that stand in one line.
const HEAD_WORDS: usize = 2;
const COLOUR: &str = "#1b6ca8";

impl Table {
    /// Writes NAME.csv and NAME.svg into a folder, which is made, and says where they are.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, out: &Path) -> Result<()> {
        write_files(out, &self.name, &self.csv(), &self.svg())
    }

    /// A line a row: each column's median, and its rounds. The numbers that follow are behind them.
    pub fn csv(&self) -> String {
        let mut csv = csv_head(&self.title, &self.conditions, &self.notes);
        let heads: Vec<_> = self.columns.iter().map(|column| format!("{column},runs")).collect();
        let _ = writeln!(csv, "group,series,{}", heads.join(","));
        for group in &self.groups {
            for row in &group.rows {
                let cells = row.cells.iter().map(|rounds| {
                    let runs: Vec<_> = rounds.iter().map(|round| format!("{round:.3}")).collect();
                    match rounds.is_empty() {
                        true => ",".to_owned(),
                        false => format!("{:.3},{}", median(rounds), runs.join(" ")),
                    }
                });
                let cells: Vec<_> = cells.collect();
                let _ = writeln!(csv, "{},{},{}", group.name, row.name, cells.join(","));
            }
        }
        csv.push_str("\nclaim,paper least,paper most,ours least,ours most\n");
        for claim in &self.claims {
            let paper = claim
                .paper
                .map_or(",".to_owned(), |(least, most)| format!("{least},{most}"));
            if let Some((least, most)) = bounds(claim.ours.iter().copied()) {
                let _ = writeln!(csv, "\"{}\",{paper},{least:.2},{most:.2}", claim.text);
            }
        }
        csv
    }

    pub fn svg(&self) -> String {
        let texts: Vec<_> = self.notes.iter().chain([&self.conditions]).cloned().collect();
        let below = wrapped(&texts, CHARACTERS);
        let lines = self.groups.iter().map(|group| group.rows.len() + 2).sum::<usize>() + below.len();
        let height = TOP + lines as f64 * LINE + LINE;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        push_text(&mut svg, MARGIN, 20.0, "start", &self.title);
        self.push_heads(&mut svg);
        let scale = self.scale();
        let mut y = TOP;
        for group in &self.groups {
            y += LINE;
            push_text(&mut svg, MARGIN, y, "start", &group.name);
            for row in &group.rows {
                y += LINE;
                push_row(&mut svg, row, y, &scale);
            }
            y += LINE;
        }
        for text in &below {
            y += LINE;
            push_text(&mut svg, MARGIN, y, "start", text);
        }
        svg + "</svg>\n"
    }

    fn push_heads(&self, svg: &mut String) {
        for (at, column) in self.columns.iter().enumerate() {
            let words: Vec<_> = column.split(' ').collect();
            for (line, words) in words.chunks(HEAD_WORDS).enumerate() {
                let (x, y) = (number_x(at), TOP - 22.0 + line as f64 * 14.0);
                push_text(svg, x, y, "end", &words.join(" "));
            }
        }
    }

    /// Powers of ten around all bars.
    fn scale(&self) -> Scale {
        let rows = self.groups.iter().flat_map(|group| &group.rows);
        let rounds = rows.filter_map(|row| row.cells.first()).flatten().copied();
        let (least, most) = bounds(rounds.filter(|round| *round > 0.0)).unwrap_or((1.0, 10.0));
        let from = least.log10().floor();
        Scale {
            from,
            to: most.log10().ceil().max(from + 1.0),
        }
    }
}

/// The ends of the bars' axis, as powers of ten.
struct Scale {
    from: f64,
    to: f64,
}

impl Scale {
    fn x(&self, value: f64) -> f64 {
        let share = (value.max(1e-9).log10() - self.from) / (self.to - self.from);
        BARS + share.clamp(0.0, 1.0) * (NUMBERS - BARS)
    }
}

/// The right border of a column's numbers.
fn number_x(column: usize) -> f64 {
    NUMBERS + COLUMN * (column as f64 + 1.0)
}

fn push_row(svg: &mut String, row: &TableRow, y: f64, scale: &Scale) {
    push_text(svg, MARGIN + 10.0, y, "start", &row.name);
    if let Some((least, most)) = row.cells.first().and_then(|rounds| bounds(rounds.iter().copied())) {
        let end = scale.x(median(&row.cells[0]));
        let _ = writeln!(
            svg,
            "<rect x=\"{BARS}\" y=\"{:.1}\" width=\"{:.1}\" height=\"10\" fill=\"{COLOUR}\"/>\n\
             <path d=\"M{:.1} {:.1}H{:.1}\" stroke=\"black\"/>",
            y - 9.0,
            end - BARS,
            scale.x(least),
            y - 4.0,
            scale.x(most)
        );
    }
    for (at, rounds) in row.cells.iter().enumerate() {
        let text = if rounds.is_empty() {
            "-".to_owned()
        } else {
            short(median(rounds), 10.0)
        };
        push_text(svg, number_x(at), y, "end", &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_medians_rounds_and_what_has_no_meaning() {
        let row = |name: &str, rates: &[f64], us: &[f64]| TableRow {
            name: name.into(),
            cells: vec![rates.to_vec(), us.to_vec()],
        };
        let table = Table {
            name: "peers-x".into(),
            title: "A & B".into(),
            columns: &["calls a second", "p50 us"],
            groups: vec![TableGroup {
                name: "durable".into(),
                rows: vec![row("a", &[100.0, 300.0, 200.0], &[5.0]), row("b", &[40_000.0], &[])],
            }],
            claims: vec![
                TableClaim {
                    text: "b to a, times".into(),
                    paper: None,
                    ours: vec![2.0, 4.0],
                },
                TableClaim {
                    text: "share, percent".into(),
                    paper: Some((3.2, 11.5)),
                    ours: vec![7.0],
                },
            ],
            notes: vec!["a note".into()],
            conditions: "a machine".into(),
        };
        let csv = table.csv();
        for expected in [
            "# A & B\n# a machine\n# a note\ngroup,series,calls a second,runs,p50 us,runs\n",
            "\ndurable,a,200.000,100.000 300.000 200.000,5.000,5.000\n",
            "\ndurable,b,40000.000,40000.000,,\n",
            "\"b to a, times\",,,2.00,4.00\n\"share, percent\",3.2,11.5,7.00,7.00\n",
        ] {
            assert!(csv.contains(expected), "{expected}: {csv}");
        }
        let svg = table.svg();
        assert!(svg.contains("A &amp; B") && svg.contains(">40000<") && svg.contains(">-<") && !svg.contains("NaN"));
        assert_eq!(svg.matches(COLOUR).count(), 2, "a bar a row");
    }
}
