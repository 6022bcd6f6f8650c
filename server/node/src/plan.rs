//! The plan of a deployment, printed for people.

use clap::Args;
use reprise_api::{DeployPlan, Destroyed, ModulePlanned, PlanStep, TablePlan, WayBack};
use reprise_client::ClientError;

use crate::{
    cli::Output,
    escape::escaped,
    output::{VerbFailure, VerbResult, grouped, print_json, print_text},
    remote::failure,
};

/// The flags that a deployment takes.
#[derive(Args)]
pub struct PlanArgs {
    /// Print what the deployment would change and destroy, and how long it would take. The server installs nothing, and no call waits.
    /// Exit status 1 if the server would refuse the deployment
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub consents: ConsentArgs,
}

/// Consents to everything that a deployment, a rollback or a removal destroys.
#[derive(Args)]
pub struct ConsentArgs {
    /// Consent to destroy one thing, as the plan names it: drop-column:MODULE.TABLE.COLUMN, drop-procedure:MODULE.PROCEDURE or
    /// abandon-table:MODULE.TABLE. You may give it more than once
    #[arg(long, value_name = "CONSENT")]
    pub allow: Vec<String>,
}

/// Shows a plan. The exit status is 1 if the module would be refused.
pub fn show(module: &str, planned: &ModulePlanned, output: Output) -> VerbResult {
    match output {
        Output::Json => print_json(planned)?,
        Output::Text => print_text(&text(module, planned))?,
    }
    match planned.plan.conflicts.is_empty() && planned.plan.missing.is_empty() {
        true => Ok(()),
        false => Err(VerbFailure::No),
    }
}

/// The failure of a deployment, a rollback or a removal. Where consent is missing, the plan and the flags to add go to standard output
/// first.
pub fn refused(module: &str, error: ClientError, output: Output) -> VerbFailure {
    let plan = match &error {
        ClientError::Problem(problem) => problem.plan.clone(),
        _ => None,
    };
    if let (Some(plan), Output::Text) = (plan, output) {
        let mut lines = vec![format!("{module} needs consent; nothing was changed")];
        lines.extend(change_lines(&plan));
        lines.extend(consent_lines(&plan));
        return match print_text(&shown_lines(&lines)) {
            Ok(()) => VerbFailure::No,
            Err(error) => VerbFailure::Other(error.into()),
        };
    }
    failure(error)
}

fn text(module: &str, planned: &ModulePlanned) -> String {
    let plan = &planned.plan;
    if !plan.conflicts.is_empty() {
        let head = format!("the server would refuse {module}; nothing was changed");
        let conflicts = plan.conflicts.iter();
        let conflicts = conflicts.map(|conflict| format!("  {}: {}", conflict.message, conflict.way_on));
        return shown_lines(&std::iter::once(head).chain(conflicts).collect::<Vec<_>>());
    }
    let procedures = planned.procedures.join(", ");
    let bytes = planned
        .rolled_back_to
        .map_or_else(String::new, |version| format!(", with the bytes of version {version}"));
    let verdict = match plan.missing.is_empty() {
        true => "can be installed",
        false => "needs consent",
    };
    let mut lines = vec![format!(
        "{module} {verdict}{bytes}, with {procedures}; nothing was changed"
    )];
    lines.extend(change_lines(plan));
    lines.extend(migration_lines(plan));
    lines.push(match plan.tables.is_empty() && !plan.migrates {
        true => "no table would change".into(),
        false => format!("all partitions would pause for about {} ms", grouped(plan.estimated_ms)),
    });
    lines.extend(plan.way_back.as_ref().map(way_back_line));
    lines.extend(consent_lines(plan));
    shown_lines(&lines)
}

/// Escapes texts of a module or a server, so that none makes a line of its own.
fn shown_lines(lines: &[String]) -> String {
    let shown: Vec<_> = lines.iter().map(|line| escaped(line)).collect();
    shown.join("\n")
}

/// Tables, procedures, tables that are left, likely renames.
fn change_lines(plan: &DeployPlan) -> Vec<String> {
    let mut lines: Vec<String> = plan.tables.iter().flat_map(table_lines).collect();
    lines.extend(plan.procedures.iter().map(|procedure| {
        let words = [
            &*procedure.action,
            "procedure",
            &*procedure.procedure,
            &*procedure.detail,
        ];
        format!("  {}", joined(&words))
    }));
    lines.extend(plan.abandoned.iter().map(|left| {
        format!(
            "  no module in service would own table {} ({})",
            left.table,
            counted(left.rows, "row")
        )
    }));
    lines.extend(plan.likely_renames.iter().map(|likely| {
        format!(
            "  if {}.{} is the new name of {}, declare the old name with `was` to keep its values",
            likely.table, likely.to, likely.from
        )
    }));
    lines
}

fn migration_lines(plan: &DeployPlan) -> Vec<String> {
    let name = plan
        .migration
        .as_deref()
        .map_or(String::new(), |name| format!(" {name}"));
    match (plan.migrates, &plan.migration) {
        (false, None) => Vec::new(),
        (false, Some(_)) => vec![format!(
            "the migration{name} has run on these tables before, and would not run again"
        )],
        (true, _) => {
            let head = format!("the migration{name} would run over copies of the module's tables");
            let retiring = plan.retiring.iter().map(|seen| {
                let columns = seen.columns.join(", ");
                format!("  it would read {} as before the deployment ({columns})", seen.table)
            });
            std::iter::once(head).chain(retiring).collect()
        }
    }
}

fn way_back_line(way: &WayBack) -> String {
    let version = way.version;
    if !way.is_open {
        let reasons = way.conflicts.iter().map(|conflict| format!("\n  {}", conflict.message));
        return format!(
            "you could not roll it back to version {version}:{}",
            reasons.collect::<String>()
        );
    }
    let needs = match &way.needs[..] {
        [] => String::new(),
        needs => format!(" as long as {}", needs.join(" and ")),
    };
    match way.drops.is_empty() {
        true => format!("you could roll it back to version {version}{needs}"),
        false => format!(
            "you could roll it back to version {version}{needs}, which would drop {}",
            way.drops.join(", ")
        ),
    }
}

/// Returns the items that the plan would destroy, and the flags that are missing.
fn consent_lines(plan: &DeployPlan) -> Vec<String> {
    let mut lines = Vec::new();
    if !plan.destroyed.is_empty() {
        lines.push("it would destroy:".to_owned());
        lines.extend(
            plan.destroyed
                .iter()
                .map(|found| format!("  {}", destroyed_line(found))),
        );
    }
    if !plan.missing.is_empty() {
        let flags = plan.missing.iter().map(|consent| format!(" --allow {consent}"));
        lines.push(format!("to consent, add{}", flags.collect::<String>()));
    }
    lines
}

/// Its consent and count.
pub fn destroyed_line(found: &Destroyed) -> String {
    let what = match found.allow.split_once(':') {
        Some(("drop-column", _)) => "value",
        Some(("drop-procedure", _)) => return found.allow.clone(),
        _ => "row",
    };
    let most = if found.is_exact { "" } else { "at most " };
    format!("{} ({most}{})", found.allow, counted(found.count, what))
}

fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(count))
}

fn joined(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().copied().filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

fn table_lines(table: &TablePlan) -> Vec<String> {
    let rows = match (table.rows, table.reads_rows) {
        (0, _) => "no rows".to_owned(),
        (rows, true) => format!("{}; the server reads all of them", counted(rows, "row")),
        (rows, false) => format!("{}; the server reads none of them", counted(rows, "row")),
    };
    let head = format!("  table {} ({rows})", table.table);
    let steps = table.steps.iter().map(|step| format!("    {}", step_line(step)));
    std::iter::once(head).chain(steps).collect()
}

fn step_line(step: &PlanStep) -> String {
    let is_unique = step.what == "index" && step.action != "drop" && step.detail.starts_with("unique");
    let unread = match is_unique {
        true => "; the deployment fails if rows have equal keys, which a plan does not check",
        false => "",
    };
    format!(
        "{}{unread}",
        joined(&[&step.action, &step.what, &step.item, &step.detail])
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprise_api::{LikelyRename, ProcedurePlan, RetiringTable, SchemaConflict};

    fn planned(conflicts: Vec<SchemaConflict>) -> ModulePlanned {
        let step = |action: &str, what: &str, item: &str, detail: &str| PlanStep {
            action: action.into(),
            what: what.into(),
            item: item.into(),
            detail: detail.into(),
        };
        ModulePlanned {
            procedures: vec!["put".into(), "get".into()],
            tables: vec!["shop.items".into()],
            rolled_back_to: Some(4),
            plan: DeployPlan {
                tables: vec![TablePlan {
                    table: "shop.items".into(),
                    steps: vec![step("drop", "column", "price", "i64"), step("create", "table", "", "")],
                    rows: 12_345,
                    reads_rows: true,
                }],
                conflicts,
                migrates: true,
                retiring: vec![RetiringTable {
                    table: "shop.items".into(),
                    columns: vec!["id".into(), "price".into()],
                }],
                procedures: vec![ProcedurePlan {
                    procedure: "list".into(),
                    action: "drop".into(),
                    detail: String::new(),
                }],
                destroyed: vec![Destroyed {
                    allow: "drop-column:shop.items.price".into(),
                    count: 12_345,
                    is_exact: false,
                }],
                missing: vec!["drop-column:shop.items.price".into()],
                likely_renames: vec![LikelyRename {
                    table: "shop.items".into(),
                    from: "price".into(),
                    to: "cost".into(),
                }],
                way_back: Some(WayBack {
                    version: 3,
                    is_open: true,
                    conflicts: Vec::new(),
                    needs: vec!["shop.items.count fits i32 in every row".into()],
                    drops: vec!["shop.items.cost".into()],
                }),
                migration: Some("split-name".into()),
                estimated_ms: 7,
                ..DeployPlan::default()
            },
        }
    }

    #[test]
    fn count_of_one_has_no_plural() {
        assert_eq!(
            (counted(1, "row"), counted(2, "row")),
            ("1 row".into(), "2 rows".into())
        );
    }

    #[test]
    fn a_plan_names_tables_steps_rows_and_time() {
        let text = text("shop", &planned(Vec::new()));
        for part in [
            "put, get",
            "shop.items (12,345 rows; the server reads all of them)",
            "drop column price i64",
            "about 7 ms",
            "with the bytes of version 4",
            "read shop.items as before the deployment (id, price)",
            "migration split-name would run",
            "drop procedure list",
            "if shop.items.cost is the new name of price, declare",
            "version 3 as long as shop.items.count fits i32 in every row, which would drop shop.items.cost",
            "drop-column:shop.items.price (at most 12,345 values)",
            "add --allow drop-column:shop.items.price",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_refusal_names_each_conflict_with_its_way_on() {
        let conflict = SchemaConflict {
            table: "items".into(),
            item: "price".into(),
            stored: "i64".into(),
            declared: "text".into(),
            message: "column price of table items: stored i64, declared text".into(),
            way_on: "add a column".into(),
        };
        let planned = planned(vec![conflict]);
        let text = text("shop", &planned);
        assert!(
            text.contains("would refuse") && text.contains("declared text: add a column"),
            "{text}"
        );
        assert!(matches!(show("shop", &planned, Output::Json), Err(VerbFailure::No)));
    }
}
