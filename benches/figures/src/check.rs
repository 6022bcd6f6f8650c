//! The test of a program of figures: a short run draws its figures and leaves nothing else.

use std::{fs, path::Path, process::Command};

/// A program that draws figures, under test.
#[derive(Clone, Copy)]
pub struct FigureProgram {
    /// Its executable.
    pub executable: &'static str,
    /// Flags of a short run.
    pub flags: &'static [&'static str],
    /// Flags that take the folder for a run's files.
    pub folder_flags: &'static [&'static str],
    /// Beginning of its files' names.
    pub prefix: &'static str,
    /// Text in each drawn figure.
    pub drawn: &'static str,
    /// Whether a series may have the median 0.
    pub may_be_zero: bool,
}

impl FigureProgram {
    /// Runs the program. Returns its output, or its errors if it failed.
    ///
    /// # Errors
    /// The text that the program wrote about its failure.
    pub fn run(&self, args: &[&str]) -> Result<String, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut command = Command::new(self.executable);
        command.arg("--modules").arg(root.join("target/procedures")).args(args);
        let output = command.output().expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }

    /// Draws figures by a short run, and searches for these files and their series.
    pub fn check_drawn(&self, asked: &[&str], expected: &[(&str, &[&str])]) {
        let dir = tempfile::tempdir().expect("a directory");
        let (out, place) = (dir.path().join("figures"), dir.path().join("place"));
        fs::create_dir(&place).expect("a directory");
        let (out_text, place_text) = (out.to_str().expect("text"), place.to_str().expect("text"));
        let mut args = [&["--short", "--build", "a test", "--out", out_text], self.flags].concat();
        self.folder_flags
            .iter()
            .for_each(|flag| args.extend([*flag, place_text]));
        asked.iter().for_each(|figure| args.extend(["--figure", *figure]));
        let printed = self.run(&args).expect("drawn");
        assert_eq!(printed.lines().count(), 2 * expected.len(), "{printed}");
        for (name, series) in expected {
            self.check_figure(&out, name, series);
        }
        assert_eq!(fs::read_dir(&place).expect("a folder").count(), 0, "something is left");
    }

    fn check_figure(&self, out: &Path, name: &str, series: &[&str]) {
        let read =
            |ending: &str| fs::read_to_string(out.join(format!("{}{name}.{ending}", self.prefix))).expect("a file");
        let (csv, svg) = (read("csv"), read("svg"));
        assert!(
            csv.contains("a short run: no figure") && csv.contains("; a test;"),
            "{csv}"
        );
        assert!(svg.contains(self.drawn) && !svg.contains("NaN"), "{svg}");
        for series in series {
            // The name stands first in a line of a chart, and behind the group's in a row of a table.
            let line = csv
                .lines()
                .find(|line| line.split(',').take(2).any(|name| name == *series));
            let median = line.and_then(|line| line.split(',').nth(2)?.parse::<f64>().ok());
            let is_there = median.is_some_and(|median| median > 0.0 || self.may_be_zero && median == 0.0);
            assert!(is_there, "{series}: {csv}");
        }
    }
}
