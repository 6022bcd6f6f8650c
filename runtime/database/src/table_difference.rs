//! A standby whose tables differ from its primary's. It serves no reads, is not promoted, and its directory says so from then on.

use std::sync::Arc;

use reprise_base::Role;
use reprise_observe::{Notice, NoticeKind};
use reprise_router::NodePhase;

use crate::{database::Database, node_file::DirHealth, standby_comparer::StandbyComparer};

impl Database {
    /// Compares the tables here with the primary's digests, once both exist.
    pub(crate) fn compare(&self) {
        let Some(standby) = &self.upkeep.standby else {
            return;
        };
        if self.router.role() == Role::Standby
            && let Some(difference) = standby.comparison.compare(self.router.view())
        {
            self.record_difference(&difference);
        }
    }

    pub(crate) fn comparison(&self) -> Option<Arc<StandbyComparer>> {
        let standby = self.upkeep.standby.as_ref();
        standby.map(|standby| standby.comparison.clone())
    }

    /// Stops all reads of this standby and excludes it from promotion.
    fn record_difference(&self, what: &str) {
        let Some(standby) = &self.upkeep.standby else {
            return;
        };
        let report = format!(
            "this standby's tables are not its primary's: {what}. They are not served, and its replay has ended; what is received is kept in the log"
        );
        standby.keep_failure(&report.as_str().into());
        self.router.set_phase(NodePhase::Failed { report: report.clone() });
        let health = DirHealth::TablesDiffer(what.to_owned());
        let kept = self.node().map(|node| node.set_health(health));
        let text = match kept {
            Some(Err(error)) => {
                format!("{report}. That can't be saved, so a restart does not know: {error}")
            }
            _ => report,
        };
        let notice = || Notice::Standby {
            name: String::new(),
            what: text,
        };
        self.shared.notices.publish(NoticeKind::Standby, notice);
        standby.request_stop();
    }
}
