//! `reprise advise`: which log suits which procedure, by the costs that the server measured in its own calls.

use clap::Args;
use reprise_api::{LogCosts, ModuleDetail, ProcedureInfo};
use serde::Serialize;

use crate::{
    cli::{Output, ServerArgs},
    output::{VerbResult, print_json, print_table, print_text, table},
    remote::{connect, failure},
};

pub const EXAMPLE: &str = "Examples:\n  reprise advise\n  reprise advise bank --output json\n\n\
    The server measures one call of 100 of each procedure that writes. Run it under your usual load first.";

#[derive(Args)]
pub struct AdviseArgs {
    /// Module whose procedures to judge [default: all modules in service]
    pub module: Option<String>,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// The advice for one procedure.
#[derive(Debug, Serialize)]
struct LogAdvice {
    procedure: String,
    /// Form in which its calls are logged now.
    log: String,
    declared: Option<String>,
    /// Form that costs less. Null: not known yet, or the server's setting leaves no choice.
    better: Option<String>,
    /// Why, for people.
    reason: String,
    costs: Option<LogCosts>,
}

pub fn run(args: &AdviseArgs, output: Output) -> VerbResult {
    let client = connect(&args.server)?;
    let names = match &args.module {
        Some(name) => vec![name.clone()],
        None => {
            let list = client.modules().map_err(failure)?;
            list.modules.into_iter().map(|module| module.module).collect()
        }
    };
    let mut found = Vec::new();
    for name in names {
        let module = client.module(&name).map_err(failure)?;
        let writing = module.procedures.iter().filter(|procedure| !procedure.read_only);
        found.extend(writing.map(|procedure| advice(&module, procedure)));
    }
    match output {
        Output::Json => print_json(&found)?,
        Output::Text => print(&found)?,
    }
    Ok(())
}

fn advice(module: &ModuleDetail, procedure: &ProcedureInfo) -> LogAdvice {
    let log = &procedure.log;
    let (better, reason) = match (&log.costs, log.measured_calls) {
        (Some(costs), _) => (Some(costs.better.clone()), reason(costs, &log.kind)),
        (None, Some(measured)) => (
            None,
            format!("{} of {} calls measured", measured.measured, measured.window),
        ),
        (None, None) => (None, format!("--log {} leaves no choice", log.kind)),
    };
    LogAdvice {
        procedure: format!("{}.{}", module.module, procedure.name),
        log: log.kind.clone(),
        declared: log.declared.clone(),
        better,
        reason,
        costs: log.costs.clone(),
    }
}

fn reason(costs: &LogCosts, now: &str) -> String {
    let times = |many: f64, few: f64| format!("{:.1} x", many / few.max(1e-3));
    match (costs.better.as_str(), now) {
        ("physiological", "command") => format!(
            "take physiological: recovery takes {} as long by commands, the log is {} as long by changes",
            times(costs.command_us, costs.changes_us),
            times(costs.changes_bytes, costs.command_bytes)
        ),
        ("command", "physiological") => format!(
            "take command: it costs {:.1} us in place of {:.1} us, the log is {} as long by changes",
            costs.command_us,
            costs.changes_us,
            times(costs.changes_bytes, costs.command_bytes)
        ),
        (better, "auto") => format!("auto has chosen {better}"),
        (better, _) => format!("keep {better}"),
    }
}

fn print(found: &[LogAdvice]) -> VerbResult {
    if found.is_empty() {
        return Ok(print_text("no module in service has a procedure that writes")?);
    }
    let header = [
        "procedure",
        "log",
        "run us",
        "rows",
        "bytes: command",
        "changes",
        "cost us: command",
        "changes",
        "advice",
    ];
    let mut lines = table(&header);
    for advice in found {
        let number = |value: fn(&LogCosts) -> f64, digits: usize| {
            let costs = advice.costs.as_ref();
            costs.map_or("-".to_owned(), |costs| format!("{:.digits$}", value(costs)))
        };
        lines.add_row([
            advice.procedure.clone(),
            advice.log.clone(),
            number(|costs| costs.run_us, 1),
            number(|costs| costs.rows, 1),
            number(|costs| costs.command_bytes, 0),
            number(|costs| costs.changes_bytes, 0),
            number(|costs| costs.command_us, 2),
            number(|costs| costs.changes_us, 2),
            advice.reason.clone(),
        ]);
    }
    print_table(&lines)?;
    let is_other = |advice: &&LogAdvice| advice.better.as_ref().is_some_and(|better| *better != advice.log);
    if found.iter().filter(is_other).any(|advice| advice.log != "auto") {
        print_text(
            "Declare it with #[procedure(log = \"...\")], or start the server with --log auto, which follows these costs.",
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(better: &str) -> LogCosts {
        LogCosts {
            calls: 16,
            run_us: 30.0,
            rows: 2.0,
            command_bytes: 40.0,
            changes_bytes: 80.0,
            make_us: 0.1,
            redo_us: 0.4,
            byte_ns: 0.25,
            command_us: 30.0,
            changes_us: 0.5,
            better: better.to_owned(),
        }
    }

    #[test]
    fn advice_names_the_other_form_with_what_it_brings_and_keeps_the_better_one() {
        for (better, now, expected) in [
            (
                "physiological",
                "command",
                "take physiological: recovery takes 60.0 x as long by commands, the log is 2.0 x as long by changes",
            ),
            ("command", "command", "keep command"),
            ("physiological", "auto", "auto has chosen physiological"),
        ] {
            assert_eq!(reason(&costs(better), now), expected);
        }
        assert!(reason(&costs("command"), "physiological").starts_with("take command: it costs 30.0 us"));
    }
}
