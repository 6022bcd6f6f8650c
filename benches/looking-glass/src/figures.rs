//! The figures of the paper, from what was counted here: nothing is copied, and nothing is drawn of a run that failed.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use crate::{
    bars::{ADDING, COMPONENTS, REMOVAL, Step, builds},
    callgrind::CallgrindCounts,
    chart::{Stack, StackChart, StackClaim},
    parts::{ALL, SMALL_PAGES},
    run::{Bar, Report},
    work::Kind,
};

/// The portions of a transaction (the right half of figures 5 and 6), with the function that each is counted in.
pub const PORTIONS: [(&str, &str); 7] = [
    ("begin", "::begin"),
    ("look-ups", "::look_up"),
    ("pin and unpin", "::pin_row"),
    ("updates", "::update_row"),
    ("creation", "::create_record"),
    ("index insertion", "::insert_key"),
    ("commit", "::commit"),
];

/// A kind of work, as the table below a figure has it.
struct Work {
    name: &'static str,
    /// Functions whose calls are counted; none for sizes, which the run reports.
    functions: &'static [&'static str],
    /// The paper's, of a New-Order and a Payment (figure 4, sections 4.3.2 and 4.3.3).
    paper: [&'static str; 2],
}

const fn work(name: &'static str, functions: &'static [&'static str], paper: [&'static str; 2]) -> Work {
    Work { name, functions, paper }
}

const WORK: [Work; 9] = [
    work("look-ups", &["tree::Tree::find"], ["23", "3"]),
    work("index inserts", &["tree::Tree::insert"], ["13", "0"]),
    work("creations", &["heap::Heap::insert"], ["12", "1"]),
    work("updates", &["heap::Heap::write"], ["11", "3"]),
    work("locks", &["::acquire"], ["-", "-"]),
    work("latches", &["Latch::lock_shared", "Latch::lock_exclusive"], ["-", "-"]),
    work("pins of pages", &["::pin_in_pool"], ["23 of rows", "3 of rows"]),
    work("log bytes", &[], ["-", "-"]),
    work("new pages", &[], ["-", "-"]),
];

/// Two runs of one bar may differ by this share.
const DIFFERENCE_MAX: f64 = 0.001;

/// A machine with more load than this is busy: its times are marked.
const LOAD_MAX: f64 = 0.5;

/// Counts and times of one bar.
#[derive(Clone, Debug, Default)]
pub struct BarResult {
    /// By kind.
    pub counted: [CallgrindCounts; 2],
    /// Report of a run outside of callgrind.
    pub report: Report,
}

/// Everything that figures are drawn from.
pub struct Evaluation {
    /// By the parts of a build.
    pub builds: BTreeMap<u32, BarResult>,
    /// Other engines, with their names.
    pub others: Vec<(String, BarResult)>,
    /// Transactions of each kind.
    pub transactions: [u64; 2],
    /// Transactions that callgrind counted.
    pub counted: [u64; 2],
    /// Threads that wanted a processor before the first run; none where the system does not tell.
    pub load: Option<f64>,
    /// Machine, build, scale.
    pub conditions: String,
}

/// Whether two counts of one bar are as near as they must be.
///
/// # Errors
/// They are not.
pub fn check_repeat(bar: &Bar, one: &[CallgrindCounts; 2], other: &[CallgrindCounts; 2]) -> Result<()> {
    for (one, other) in one.iter().zip(other) {
        let difference = one.total.abs_diff(other.total) as f64 / one.total as f64;
        ensure!(
            difference <= DIFFERENCE_MAX,
            "two runs of {bar:?} differ by {:.2} %: {} and {} instructions",
            difference * 100.0,
            one.total,
            other.total
        );
    }
    Ok(())
}

impl Evaluation {
    /// Instructions or calls of one transaction.
    fn per_counted(&self, count: u64, kind: Kind) -> f64 {
        count as f64 / self.counted[kind as usize] as f64
    }

    /// Sizes or times of one transaction.
    fn per_txn(&self, count: u64, kind: Kind) -> f64 {
        count as f64 / self.transactions[kind as usize] as f64
    }

    fn of(&self, parts: u32) -> Result<&BarResult> {
        self.builds
            .get(&parts)
            .with_context(|| format!("the build {parts} was not run"))
    }

    fn instructions(&self, parts: u32, kind: Kind) -> Result<f64> {
        Ok(self.per_counted(self.of(parts)?.counted[kind as usize].total, kind))
    }

    /// The share of each step of an order, by the difference of two builds.
    fn steps(&self, order: &[Step], kind: Kind, of: &dyn Fn(u32, Kind) -> Result<f64>) -> Result<Vec<(Step, f64)>> {
        let builds = builds(order);
        let mut at = 0;
        let mut steps = Vec::new();
        for step in order {
            if step.parts == 0 {
                steps.push((*step, 0.0));
                continue;
            }
            let (one, other) = (of(builds[at], kind)?, of(builds[at + 1], kind)?);
            let is_removal = builds[at] > builds[at + 1];
            steps.push((*step, if is_removal { one - other } else { other - one }));
            at += 1;
        }
        Ok(steps)
    }

    fn components(
        &self,
        order: &[Step],
        kind: Kind,
        of: &dyn Fn(u32, Kind) -> Result<f64>,
    ) -> Result<Vec<(String, f64)>> {
        let steps = self.steps(order, kind, of)?;
        let rest = of(0, kind)?;
        let height = |component: &str| {
            let of_component = steps.iter().filter(|(step, _)| step.component == component);
            let sum: f64 = of_component.map(|(_, height)| height).sum();
            if component == "remaining" { sum + rest } else { sum }
        };
        let portions: Vec<_> = COMPONENTS
            .iter()
            .map(|name| ((*name).to_owned(), height(name)))
            .collect();
        Ok(portions.into_iter().rev().collect())
    }

    /// The other engines that callgrind counted.
    fn counted_others(&self) -> impl Iterator<Item = &(String, BarResult)> {
        let others = self.others.iter();
        others.filter(|(_, measured)| measured.counted.iter().all(|counted| counted.total > 0))
    }

    fn chart(&self, number: u32, title: &str, unit: &'static str) -> StackChart {
        StackChart {
            name: format!("looking-glass-{number}"),
            title: format!("Figure {number}: {title}"),
            unit,
            stacks: Vec::new(),
            rows: Vec::new(),
            claims: Vec::new(),
            notes: vec![
                self.conditions.clone(),
                "Two engines: the paged one, from which parts are removed, and ours, in the bars named after it."
                    .into(),
            ],
        }
    }

    /// Figure 1: New-Order by component, in both orders.
    ///
    /// # Errors
    /// A build was not run.
    pub fn figure_1(&self) -> Result<StackChart> {
        let title = "instructions of a New-Order by component";
        let mut chart = self.chart(1, title, "instructions a transaction");
        let of = |parts, kind| self.instructions(parts, kind);
        for (name, order) in [("by removal", &REMOVAL[..]), ("by adding", &ADDING[..])] {
            chart.stacks.push(Stack {
                name: name.into(),
                portions: self.components(order, Kind::NewOrder, &of)?,
                cells: Vec::new(),
            });
        }
        for (name, measured) in self.counted_others() {
            let total = self.per_counted(measured.counted[0].total, Kind::NewOrder);
            chart.stacks.push(Stack {
                name: name.clone(),
                portions: vec![("whole transaction".into(), total)],
                cells: Vec::new(),
            });
        }
        self.add_shares(&mut chart, Kind::NewOrder)?;
        self.add_kernel(&mut chart, Kind::NewOrder)?;
        Ok(chart)
    }

    /// Figures 5 (Payment) and 6 (New-Order): each build by portion, with its work below.
    ///
    /// # Errors
    /// A build was not run.
    pub fn figure_5_or_6(&self, kind: Kind) -> Result<StackChart> {
        let (number, name) = match kind {
            Kind::Payment => (5, "Payment"),
            Kind::NewOrder => (6, "New-Order"),
        };
        let title = format!("instructions of a {name}, as parts are removed, by portion");
        let mut chart = self.chart(number, &title, "instructions a transaction");
        let names =
            std::iter::once("everything").chain(REMOVAL.iter().filter(|step| step.parts != 0).map(|step| step.name));
        for (parts, name) in builds(&REMOVAL).into_iter().zip(names) {
            let counted = &self.of(parts)?.counted[kind as usize];
            let mut rest = counted.total;
            let mut portions = Vec::new();
            for (portion, function) in PORTIONS {
                let found = counted.of(function);
                let is_done = found.calls > 0 || (kind == Kind::Payment && portion == "index insertion");
                ensure!(is_done, "callgrind saw no call of {function} in the build {parts}");
                rest = rest
                    .checked_sub(found.instructions)
                    .context("portions within their whole")?;
                portions.push((portion.to_owned(), self.per_counted(found.instructions, kind)));
            }
            portions.insert(0, ("procedure and calls".to_owned(), self.per_counted(rest, kind)));
            let name = match name {
                "everything" => name.to_owned(),
                removed => format!("without {removed}"),
            };
            chart.stacks.push(Stack {
                name,
                portions,
                cells: self.work_cells(parts, kind)?,
            });
        }
        for (name, measured) in self.counted_others() {
            let total = self.per_counted(measured.counted[kind as usize].total, kind);
            chart.stacks.push(Stack {
                name: name.clone(),
                portions: vec![("whole transaction".into(), total)],
                cells: vec![String::new(); WORK.len()],
            });
        }
        chart
            .notes
            .push("Each bar lacks the parts that the bars to its left lack, and one more.".into());
        self.add_shares(&mut chart, kind)?;
        let paper = |work: &Work| work.paper[kind as usize].to_owned();
        chart.rows = WORK.iter().map(|work| (work.name.to_owned(), paper(work))).collect();
        Ok(chart)
    }

    /// Adds how far the whole engine, and ours, are from the useful work.
    fn add_kernel(&self, chart: &mut StackChart, kind: Kind) -> Result<()> {
        let count = |measured: &BarResult| measured.counted[kind as usize].total as f64;
        let other = |name: &str| self.others.iter().find(|(of, _)| of == name);
        let Some((_, kernel)) = other("typed kernel") else {
            return Ok(());
        };
        let everything = count(self.of(ALL)?) / count(kernel);
        chart.claims.push(StackClaim {
            text: "everything to the kernel, times".into(),
            paper: (kind == Kind::NewOrder).then_some(60.0),
            ours: everything,
        });
        if let Some((_, ours)) = other("ours native") {
            chart.claims.push(StackClaim {
                text: "our engine to the kernel, times".into(),
                paper: None,
                ours: count(ours) / count(kernel),
            });
        }
        Ok(())
    }

    /// Calls of each kind of work in a transaction; of the last two, bytes and pages.
    fn work_cells(&self, parts: u32, kind: Kind) -> Result<Vec<String>> {
        let measured = self.of(parts)?;
        let counted = &measured.counted[kind as usize];
        let calls = |work: &Work| work.functions.iter().map(|end| counted.of(end).calls).sum::<u64>();
        let mut counts: Vec<f64> = WORK.iter().map(|work| self.per_counted(calls(work), kind)).collect();
        if let [.., bytes, pages] = &mut counts[..] {
            [*bytes, *pages] = measured.report.grown[kind as usize].map(|grown| self.per_txn(grown, kind));
        }
        let cells = counts.into_iter().map(|count| format!("{count:.2}"));
        Ok(cells.collect())
    }

    /// Adds the components' shares in the order of removal, each beside the paper's: as a note, and as claims.
    fn add_shares(&self, chart: &mut StackChart, kind: Kind) -> Result<()> {
        let of = |parts, kind| self.instructions(parts, kind);
        let components = self.components(&REMOVAL, kind, &of)?;
        let total: f64 = components.iter().map(|(_, height)| height).sum();
        let mut shares = Vec::new();
        for (name, height) in components.iter().rev() {
            let (paper, ours) = (paper_share(name, kind), height * 100.0 / total);
            let known = paper.map_or("no number".into(), |share| format!("{share} %"));
            shares.push(format!("{name} {ours:.1} % (paper: {known})"));
            chart.claims.push(StackClaim {
                text: format!("{name}, percent of the instructions"),
                paper: paper.map(f64::from),
                ours,
            });
        }
        chart.notes.push(format!("Shares of the whole: {}.", shares.join(", ")));
        let all = of(ALL, kind)?;
        let times = match kind {
            Kind::NewOrder => 15.0,
            Kind::Payment => 20.0,
        };
        chart.claims.push(StackClaim {
            text: "everything to nothing, times".into(),
            paper: Some(times),
            ours: all / of(0, kind)?,
        });
        Ok(())
    }

    /// Figure 7: every step of New-Order, in both orders.
    ///
    /// # Errors
    /// A build was not run.
    pub fn figure_7(&self) -> Result<StackChart> {
        let title = "every step of a New-Order, in the paper's order of removal and in the order of adding";
        let mut chart = self.chart(7, title, "instructions a transaction");
        let of = |parts, kind| self.instructions(parts, kind);
        for (name, order) in [("by removal", &REMOVAL[..]), ("by adding", &ADDING[..])] {
            let mut portions = vec![("remaining".to_owned(), of(0, Kind::NewOrder)?)];
            let steps = self.steps(order, Kind::NewOrder, &of)?;
            let mut heights: Vec<_> = steps
                .iter()
                .map(|(step, height)| (step.name.to_owned(), *height))
                .collect();
            if order[0].parts == REMOVAL[0].parts {
                heights.reverse();
            }
            portions.extend(heights);
            chart.stacks.push(Stack {
                name: name.into(),
                portions,
                cells: Vec::new(),
            });
        }
        for stack in &chart.stacks {
            for (name, height) in stack.portions.iter().filter(|(_, height)| *height < 0.0) {
                let saved = format!(
                    "{}: {name} saves {:.0} instructions, and is not drawn.",
                    stack.name, -height
                );
                chart.notes.push(saved);
            }
        }
        let removed = self.steps(&REMOVAL, Kind::NewOrder, &of)?;
        let all = of(ALL, Kind::NewOrder)?;
        for (step, height) in removed.iter().filter(|(step, _)| step.parts != 0) {
            chart.claims.push(StackClaim {
                text: format!("{}, percent of the instructions", step.name),
                paper: (step.parts == SMALL_PAGES).then_some(14.0),
                ours: height * 100.0 / all,
            });
        }
        let empty = REMOVAL.iter().filter(|step| step.parts == 0);
        chart
            .notes
            .extend(empty.map(|step| format!("{}: {}.", step.name, step.reason)));
        Ok(chart)
    }

    /// Figure 8: shares of instructions against shares of processor time.
    ///
    /// # Errors
    /// A build was not run.
    pub fn figure_8(&self) -> Result<StackChart> {
        let title = "shares of a New-Order's instructions against shares of its processor time";
        let mut chart = self.chart(8, title, "percent");
        let instructions = |parts, kind| self.instructions(parts, kind);
        let time = |parts: u32, kind: Kind| -> Result<f64> {
            Ok(self.per_txn(self.of(parts)?.report.ns[kind as usize], kind))
        };
        let ways: [(&str, &dyn Fn(u32, Kind) -> Result<f64>); 2] =
            [("instructions", &instructions), ("processor time", &time)];
        for (name, of) in ways {
            let portions = self.components(&REMOVAL, Kind::NewOrder, of)?;
            let total: f64 = portions.iter().map(|(_, height)| height).sum();
            for (component, height) in portions.iter().rev() {
                chart.claims.push(StackClaim {
                    text: format!("{component}, percent of the {name}"),
                    paper: paper_share_of(name, component),
                    ours: height * 100.0 / total,
                });
            }
            chart.stacks.push(Stack {
                name: name.into(),
                portions: portions
                    .into_iter()
                    .map(|(name, height)| (name, height * 100.0 / total))
                    .collect(),
                cells: Vec::new(),
            });
        }
        chart
            .notes
            .push("Processor time stands where the paper has cycles: this machine does not count them. It is the least of several runs.".into());
        if self.load.is_none_or(|load| load > LOAD_MAX) {
            chart.notes.push(
                "The machine was busy with other work, which falsifies processor time: draw this figure anew on an idle one."
                    .into(),
            );
        }
        Ok(chart)
    }

    /// Instructions of each build and engine, a line each.
    ///
    /// # Errors
    /// A build was not run.
    pub fn table(&self) -> Result<String> {
        let mut table = format!(
            "{:28} {:>12} {:>12} {:>12}\n",
            "build", "new-order", "payment", "processor ns"
        );
        let mut line = |name: &str, measured: &BarResult| {
            let of = |kind: Kind| self.per_counted(measured.counted[kind as usize].total, kind);
            let ns: u64 = measured.report.ns.iter().sum();
            let both: u64 = self.transactions.iter().sum();
            table += &format!(
                "{name:28} {:12.0} {:12.0} {:12.0}\n",
                of(Kind::NewOrder),
                of(Kind::Payment),
                ns as f64 / both as f64
            );
        };
        let steps = REMOVAL.iter().filter(|step| step.parts != 0);
        let names = std::iter::once("everything".to_owned()).chain(steps.map(|step| format!("- {}", step.name)));
        for (parts, name) in builds(&REMOVAL).into_iter().zip(names) {
            line(&name, self.of(parts)?);
        }
        let names = ADDING.iter().map(|step| format!("+ {}", step.name));
        for (parts, name) in builds(&ADDING).into_iter().skip(1).zip(names) {
            line(&name, self.of(parts)?);
        }
        for (name, measured) in &self.others {
            line(name, measured);
        }
        Ok(table)
    }
}

/// The share of a component that the paper's text names (sections 1.3, 4.3.2 and 4.3.3).
fn paper_share(component: &str, kind: Kind) -> Option<u32> {
    match (component, kind) {
        ("B-tree keys", Kind::NewOrder) => Some(16),
        ("logging", Kind::NewOrder) => Some(12),
        ("locking", Kind::NewOrder) => Some(16),
        ("remaining", Kind::NewOrder) => Some(7),
        ("logging", Kind::Payment) => Some(18),
        ("locking", Kind::Payment) => Some(25),
        ("latching", Kind::Payment) => Some(13),
        ("buffer manager", Kind::Payment) => Some(30),
        ("remaining", Kind::Payment) => Some(5),
        _ => None,
    }
}

/// The share of a component in the paper's figure 8, as far as its text has it (sections 4.3.3 and 5.1 to 5.3).
fn paper_share_of(unit: &str, component: &str) -> Option<f64> {
    match (unit, component) {
        ("instructions", _) => paper_share(component, Kind::NewOrder).map(f64::from),
        (_, "logging") => Some(20.0),
        (_, "locking") => Some(19.0),
        (_, "latching") => Some(10.0),
        _ => None,
    }
}
