//! Query parameters of a deployment, and its plan as the API shows it.

use std::collections::BTreeSet;

use axum::{
    extract::{FromRequestParts, Query},
    http::request::Parts,
};
use reprise_api::{
    AbandonedTable, DeployPlan, Destroyed, LikelyRename, PlanStep, Problem, ProblemKind, ProcedurePlan, RetiringTable,
    TablePlan, WayBack,
};
use reprise_router::{Consent, PlanSummary};

use crate::refusal::{Refusal, conflict};

/// Consents that one request may give.
const ALLOW_MAX: usize = 10_000;

/// The query of a deployment, a rollback or a removal. `allow` may stand more than once.
#[derive(Default)]
pub struct DeployQuery {
    pub dry_run: bool,
    pub version: Option<u32>,
    pub allow: Vec<Consent>,
}

impl<S: Send + Sync> FromRequestParts<S> for DeployQuery {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Query(pairs) = Query::<Vec<(String, String)>>::from_request_parts(parts, state)
            .await
            .map_err(|error| Refusal::malformed(format!("the server can't read the query: {}", error.body_text())))?;
        let is_rollback = parts.uri.path().ends_with("/rollback");
        let known: &[&str] = match (is_rollback, parts.method.as_str()) {
            (true, _) => &["version", "dry_run", "allow"],
            (false, "DELETE") => &["allow"],
            (false, _) => &["dry_run", "allow"],
        };
        let (mut query, mut seen) = (Self::default(), BTreeSet::new());
        for (name, value) in pairs {
            if !known.contains(&&*name) {
                let known = known.join(", ");
                return Err(Refusal::malformed(format!(
                    "the query has no parameter {name:?}; it has {known}"
                )));
            }
            if name != "allow" && !seen.insert(name.clone()) {
                return Err(Refusal::malformed(format!("the query has {name} more than once")));
            }
            query.take(&name, &value)?;
        }
        Ok(query)
    }
}

impl DeployQuery {
    fn take(&mut self, name: &str, value: &str) -> Result<(), Refusal> {
        match name {
            "dry_run" => {
                let flag = value.parse();
                self.dry_run = flag.map_err(|_| Refusal::malformed("dry_run must be true or false"))?;
            }
            "version" => {
                let number = value.parse();
                let number = number.map_err(|_| Refusal::malformed(format!("version {value:?} is not a number")))?;
                self.version = Some(number);
            }
            _ if self.allow.len() >= ALLOW_MAX => {
                return Err(Refusal::malformed(format!(
                    "a request may have at most {ALLOW_MAX} consents"
                )));
            }
            _ => self.allow.push(Consent::parse(value).map_err(Refusal::malformed)?),
        }
        Ok(())
    }
}

/// Returns the plan in the form of the API, with the consents that it lacks beside the given ones.
pub fn plan_info(plan: &PlanSummary, retiring: Vec<RetiringTable>, given: &[Consent]) -> DeployPlan {
    let plan = plan.clone();
    DeployPlan {
        missing: plan.missing(given).map(|needed| needed.consent.to_string()).collect(),
        destroyed: plan.destroyed.iter().map(destroyed).collect(),
        tables: plan.tables.into_iter().map(table).collect(),
        procedures: plan.procedures.into_iter().map(procedure).collect(),
        abandoned: plan
            .abandoned
            .into_iter()
            .map(|left| AbandonedTable {
                table: left.table,
                rows: left.rows,
            })
            .collect(),
        likely_renames: plan
            .renames
            .into_iter()
            .map(|likely| LikelyRename {
                table: likely.table,
                from: likely.from,
                to: likely.to,
            })
            .collect(),
        conflicts: plan.conflicts.into_iter().map(conflict).collect(),
        migrates: plan.migrates,
        migration: plan.migration.filter(|name| !name.is_empty()),
        retiring,
        way_back: plan.way_back.map(|way| WayBack {
            version: way.version,
            is_open: way.conflicts.is_empty(),
            conflicts: way.conflicts.into_iter().map(conflict).collect(),
            needs: way.needs,
            drops: way.drops,
        }),
        estimated_ms: plan.estimated_ms,
    }
}

/// Converts it for the API.
pub fn destroyed(found: &reprise_router::DestroyedItem) -> Destroyed {
    Destroyed {
        allow: found.consent.to_string(),
        count: found.count,
        is_exact: found.is_exact,
    }
}

fn table(table: reprise_router::TableChangePlan) -> TablePlan {
    let step = |step: reprise_router::ChangeStep| PlanStep {
        action: step.action.name().to_owned(),
        what: step.what.to_owned(),
        item: step.item,
        detail: step.detail,
    };
    TablePlan {
        table: table.table,
        steps: table.steps.into_iter().map(step).collect(),
        rows: table.rows,
        reads_rows: table.reads_rows,
    }
}

fn procedure(plan: reprise_router::ProcedureChange) -> ProcedurePlan {
    ProcedurePlan {
        procedure: plan.procedure,
        action: plan.action.name().to_owned(),
        detail: plan.detail,
    }
}

/// The refusal of what would destroy something without consent: the plan, and each consent that is missing as a conflict.
pub fn without_consent(plan: &PlanSummary, given: &[Consent]) -> Refusal {
    let info = plan_info(plan, Vec::new(), given);
    let allow: Vec<_> = info.missing.iter().map(|text| format!("allow={text}")).collect();
    let detail = format!(
        "the server changed nothing, because this would destroy what plan.destroyed names. To consent to exactly that, add {}{}",
        allow.join("&"),
        match &info.likely_renames[..] {
            [] => String::new(),
            all => {
                let renames = all
                    .iter()
                    .map(|likely| format!("{}.{} to {}", likely.table, likely.from, likely.to));
                let renames: Vec<_> = renames.collect();
                format!(
                    ". If you renamed a column ({}?), declare its old name with `was` instead",
                    renames.join(", ")
                )
            }
        }
    );
    let mut problem = Problem::new(ProblemKind::SchemaConflict, detail);
    problem.conflicts = plan
        .missing(given)
        .map(|needed| conflict(needed.as_conflict()))
        .collect();
    problem.plan = Some(Box::new(info));
    problem.into()
}
