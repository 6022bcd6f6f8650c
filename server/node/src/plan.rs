//! What a deployment would do, told for people.

use reprise_api::{ModulePlanned, PlanStep, TablePlan};

use crate::{
    cli::Output,
    output::{Failure, Outcome, grouped, print_json, print_text},
};

/// Exit status 1 where the module would be refused.
pub fn show(module: &str, planned: &ModulePlanned, output: Output) -> Outcome {
    match output {
        Output::Json => print_json(planned)?,
        Output::Text => print_text(&text(module, planned))?,
    }
    match planned.plan.conflicts.is_empty() {
        true => Ok(()),
        false => Err(Failure::No),
    }
}

fn text(module: &str, planned: &ModulePlanned) -> String {
    let plan = &planned.plan;
    let mut lines: Vec<String> = Vec::new();
    if plan.conflicts.is_empty() {
        let procedures = planned.procedures.join(", ");
        let bytes = planned
            .rolled_back_to
            .map_or_else(String::new, |version| format!(", with the bytes of version {version}"));
        lines.push(format!(
            "{module} would be installed{bytes}, with {procedures}; nothing was changed"
        ));
        lines.extend(plan.tables.iter().flat_map(table_lines));
        if plan.migrates {
            lines.push("what it runs when it is deployed would run over copies of its tables".to_owned());
        }
        let retiring = plan.retiring.iter();
        lines.extend(retiring.map(|seen| {
            let columns = seen.columns.join(", ");
            format!(
                "  it would read {} as it is now ({columns}), for the last time",
                seen.table
            )
        }));
        lines.push(match plan.tables.is_empty() {
            true => "no table would change".into(),
            false => format!(
                "all partitions would stand still for about {} ms",
                grouped(plan.estimated_ms)
            ),
        });
    } else {
        lines.push(format!("{module} would be refused; nothing was changed"));
        for conflict in &plan.conflicts {
            lines.push(format!("  {}: {}", conflict.message, conflict.way_on));
        }
    }
    lines.join("\n")
}

fn table_lines(table: &TablePlan) -> Vec<String> {
    let rows = match (table.rows, table.reads_rows) {
        (0, _) => "no rows".to_owned(),
        (rows, true) => format!("{} rows, all of them read", grouped(rows)),
        (rows, false) => format!("{} rows, none of them read", grouped(rows)),
    };
    let head = format!("  table {} ({rows})", table.table);
    let steps = table.steps.iter().map(|step| format!("    {}", step_line(step)));
    std::iter::once(head).chain(steps).collect()
}

fn step_line(step: &PlanStep) -> String {
    let parts = [&step.action, &step.what, &step.item, &step.detail];
    let parts: Vec<&str> = parts
        .into_iter()
        .map(String::as_str)
        .filter(|part| !part.is_empty())
        .collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprise_api::{DeployPlan, RetiringTable, SchemaConflict};

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
                estimated_ms: 7,
            },
        }
    }

    #[test]
    fn a_plan_names_tables_steps_rows_and_time() {
        let text = text("shop", &planned(Vec::new()));
        for part in [
            "put, get",
            "shop.items (12,345 rows, all of them read)",
            "drop column price i64",
            "about 7 ms",
            "with the bytes of version 4",
            "read shop.items as it is now (id, price)",
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
            text.contains("refused") && text.contains("declared text: add a column"),
            "{text}"
        );
        assert!(matches!(show("shop", &planned, Output::Json), Err(Failure::No)));
    }
}
