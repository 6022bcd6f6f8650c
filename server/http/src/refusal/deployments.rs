//! Refused deployments.

use reprise_api::{Problem, ProblemKind, SchemaConflict};
use reprise_base::{PartitionId, limits::MEMORY_MAX_LIMIT};
use reprise_router::{DeployError, Failure, InstallError};

use super::Refusal;
use crate::plan::without_consent;

impl Refusal {
    fn memory_exhausted(detail: String, max: u64) -> Self {
        let mut problem = Problem::new(ProblemKind::MemoryExhausted, detail);
        problem.limit = Some(MEMORY_MAX_LIMIT.to_owned());
        problem.max = Some(max);
        problem.into()
    }
}

impl From<DeployError> for Refusal {
    fn from(error: DeployError) -> Self {
        match error {
            DeployError::Invalid { reason, offset } => {
                let place = offset.map_or(String::new(), |offset| format!(" (at byte {offset})"));
                let detail = format!("{reason}{place}; build the module for this server's guest contract");
                let mut problem = Problem::new(ProblemKind::InvalidModule, detail);
                problem.reason = Some(reason);
                problem.offset = offset;
                problem.into()
            }
            DeployError::TooLarge { max } => Self::too_large("a module", max),
            DeployError::RecordTooLong { bytes, max } => {
                let detail = format!(
                    "the module needs a log record of up to {bytes} bytes. The NVRAM takes at most {max} bytes at once (a quarter of a site's ring: \
                     --nvram-size). The server changed nothing"
                );
                let mut refusal = Self::limit("log-record-bytes", detail);
                refusal.problem.max = Some(max as u64);
                refusal
            }
            DeployError::NoTable => Self::not_found("no such table; GET /v1/tables lists them as module.table"),
            DeployError::NotFound => Self::not_found("no such module is in service; GET /v1/modules lists them"),
            DeployError::BadName(detail) => Self::malformed(detail),
            DeployError::Install(error) => error.into(),
            DeployError::Log(reason) => reason.into(),
            DeployError::NotPrimary(refused) => Self::not_primary(refused.primary.as_deref()),
            DeployError::OutcomeUnknown { reason, txn_id, lsn } => Self::outcome_unknown(&reason, txn_id, lsn),
            DeployError::Unavailable(reason) => Self::unavailable(&reason),
            DeployError::CompileMemory { bytes, max } => Self::memory_exhausted(
                format!(
                    "to compile the module, the server needs about {bytes} bytes more than --memory-max leaves; it changed nothing. \
                     {MORE_MEMORY}"
                ),
                max,
            ),
        }
    }
}

impl From<InstallError> for Refusal {
    fn from(error: InstallError) -> Self {
        match error {
            InstallError::Conflicts(conflicts) => {
                let mut problem = Problem::new(
                    ProblemKind::SchemaConflict,
                    "the server changed nothing; each entry of conflicts says how to continue",
                );
                problem.conflicts = conflicts.into_iter().map(conflict).collect();
                problem.into()
            }
            InstallError::Consent { plan, given } => without_consent(&plan, &given),
            InstallError::Memory { bytes, max } => {
                let detail = format!(
                    "the module's new and rewritten tables need {} MiB more than the server has left; the server changed nothing. \
                     {MORE_MEMORY} ({} MiB)",
                    bytes.div_ceil(1 << 20),
                    max >> 20
                );
                Self::memory_exhausted(detail, max)
            }
            InstallError::Time { max_s } => Self::migration(format!(
                "the server did not finish the changed tables within {max_s} s; {MORE_TIME}"
            )),
            InstallError::Migration {
                partition,
                failure,
                max_s,
            } => {
                let exhausted = match &failure {
                    Failure::Limit { limit, max, .. } if limit == MEMORY_MAX_LIMIT => Some(*max),
                    _ => None,
                };
                let why = failed_migration(partition, failure, max_s);
                match exhausted {
                    None => Self::migration(why),
                    Some(max) => {
                        Self::memory_exhausted(format!("{why}; the server changed nothing. {MORE_MEMORY}"), max)
                    }
                }
            }
            InstallError::Replicated { table } => Self::migration(format!(
                "the module's migration wrote different rows of the replicated table {table} on different partitions. Its writes there may depend \
                 only on the table's own rows and on from_version"
            )),
            InstallError::Log(reason) => reason.into(),
        }
    }
}

const MORE_MEMORY: &str = "Delete rows, or start the server with a larger --memory-max";

const MORE_TIME: &str = "start the server with a larger --deploy-time-max-s, or deploy the change in smaller steps";

/// Says why a module's migration did not complete.
fn failed_migration(partition: PartitionId, failure: Failure, max_s: u32) -> String {
    let why = match failure {
        Failure::Aborted { code, message } => format!("aborted with {code}: {message}"),
        Failure::Limit { limit, max, .. } => format!("reached the limit {limit} of {max}"),
        Failure::Trapped { message, .. } => format!("trapped: {message}"),
        Failure::Ended(_) => format!("did not end within {max_s} s; {MORE_TIME}"),
    };
    format!("the module's migration, on partition {partition}, {why}")
}

pub(crate) fn conflict(conflict: reprise_router::Conflict) -> SchemaConflict {
    let place = match (conflict.item.is_empty(), conflict.table.is_empty()) {
        (true, _) => format!("table {}", conflict.table),
        (false, true) => format!("{} {}", conflict.what, conflict.item),
        (false, false) => format!("{} {} of table {}", conflict.what, conflict.item, conflict.table),
    };
    let message = format!("{place}: {}", conflict.difference());
    SchemaConflict {
        table: conflict.table,
        item: conflict.item,
        stored: conflict.stored,
        declared: conflict.declared,
        message,
        way_on: conflict.way_on,
    }
}
