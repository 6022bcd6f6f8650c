//! The choice of the record that a transaction leaves in the log: its command, its changes, or both.
//!
//! A procedure's own declaration overrides the server's setting. `auto` compares both forms by measurements of the procedure's calls
//! (`log_costs`).

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU8, Ordering},
    },
};

use reprise_abi::{LogDeclaration, ProcedureSchema};
use reprise_base::limits::PART_BYTES;
use reprise_observe::FlushStats;
use reprise_storage::AfterImage;
use reprise_txn::{Deployed, Module, ModuleId};

use crate::{
    log_costs::{Choice, CostMeter, MeasuredCosts, SampleRate},
    log_form::{LogForm, LogPolicy, ShipForm},
};

/// The log's settings, and the measurements for `auto`. All sites share them.
pub struct LogSettings {
    /// The server's setting.
    pub rule: LogPolicy,
    /// How changed rows are written.
    pub images: AfterImage,
    /// The sampling of `LogPolicy::Auto`.
    pub sampling: SampleRate,
    /// Changes of a transaction that take more bytes are logged in parts of this many bytes, or of one change.
    pub part_bytes: usize,
    /// The form that standbys get of transactions that begin from now on.
    shipped: AtomicU8,
    meters: Mutex<BTreeMap<(ModuleId, u16), Arc<CostMeter>>>,
    /// The writes to the log's device. None without a log.
    writes: OnceLock<Arc<FlushStats>>,
}

/// Nanoseconds that a byte costs at least: it is copied and summed, at the run and at a recovery.
const BYTE_NS_LEAST: f64 = 0.25;

impl Default for LogSettings {
    fn default() -> Self {
        Self::new(LogPolicy::default(), AfterImage::default(), SampleRate::default())
    }
}

impl LogSettings {
    /// Makes settings without measurements.
    pub fn new(rule: LogPolicy, images: AfterImage, sampling: SampleRate) -> Self {
        Self {
            rule,
            images,
            sampling,
            part_bytes: PART_BYTES,
            shipped: AtomicU8::new(0),
            meters: Mutex::default(),
            writes: OnceLock::new(),
        }
    }

    /// Sets the size of the parts in which large changes are logged.
    pub fn with_parts_of(self, part_bytes: usize) -> Self {
        Self { part_bytes, ..self }
    }

    /// Sets the writes by which the cost of a byte is measured. The caller does so once.
    pub fn set_writes(&self, writes: Arc<FlushStats>) {
        assert!(self.writes.set(writes).is_ok(), "a log has one flusher");
    }

    /// Returns the nanoseconds that one more byte of the log costs.
    pub(crate) fn byte_ns(&self) -> f64 {
        let measured = self.writes.get().and_then(|writes| writes.byte_ns());
        measured.unwrap_or_default().max(BYTE_NS_LEAST)
    }

    /// Sets the form that standbys get of transactions that begin from now on. Only for a log that consists of files and holds one form.
    pub fn set_shipped(&self, form: ShipForm) {
        self.shipped.store(form as u8, Ordering::Relaxed);
    }

    /// Returns the form that standbys get of a transaction that begins now.
    #[inline]
    pub fn shipped(&self) -> ShipForm {
        match self.shipped.load(Ordering::Relaxed) {
            0 => ShipForm::AsLogged,
            1 => ShipForm::Changes,
            _ => ShipForm::Command,
        }
    }

    /// Returns the form in which a procedure's calls are logged now, with the reason if it was chosen by measurement.
    pub fn explain(&self, module: &Module, procedure: u16) -> (&'static str, Option<String>) {
        let reason = || self.costs(module, procedure).map(|costs| costs.explain());
        let declared = module.schema.procedures[procedure as usize].log;
        match (self.rule, declared) {
            (LogPolicy::None, _) => ("none", None),
            (LogPolicy::Both, _) => ("both", None),
            (_, LogDeclaration::Command) | (LogPolicy::Command, LogDeclaration::Server) => ("command", None),
            (_, LogDeclaration::Physiological) | (LogPolicy::Physiological, LogDeclaration::Server) => {
                ("physiological", None)
            }
            (LogPolicy::Auto, LogDeclaration::Server) | (_, LogDeclaration::Auto) => ("auto", reason()),
        }
    }

    /// Returns what calls of a procedure cost in either form, by measurement. None: its calls are not measured, because they write nothing or the
    /// server's setting allows no choice.
    pub fn costs(&self, module: &Module, procedure: u16) -> Option<MeasuredCosts> {
        let form = self.form_of(&module.schema.procedures[procedure as usize]);
        form.measured
            .then(|| self.meter(module.id, procedure, form.kind).costs())
    }

    fn meter(&self, module: ModuleId, procedure: u16, begins: LogForm) -> Arc<CostMeter> {
        let mut meters = self.meters.lock().expect("held for a short time");
        let new = || Arc::new(CostMeter::new(self.sampling, begins));
        meters.entry((module, procedure)).or_insert_with(new).clone()
    }

    /// Drops the measurements of versions that are out of service. Without this each deployment would leave some behind.
    pub(crate) fn release_meters(&self, deployed: &Deployed) {
        let mut meters = self.meters.lock().expect("held for a short time");
        meters.retain(|(module, _), _| deployed.is_current(*module));
    }

    fn form_of(&self, procedure: &ProcedureSchema) -> ProcedureForm {
        let (kind, is_auto) = match (self.rule, procedure.log) {
            (LogPolicy::None, _) => (LogForm::Nothing, false),
            (LogPolicy::Both, _) => (LogForm::Both, false),
            (_, LogDeclaration::Command) => (LogForm::Command, false),
            (_, LogDeclaration::Physiological) => (LogForm::Changes, false),
            (_, LogDeclaration::Auto) | (LogPolicy::Auto, LogDeclaration::Server) => (LogForm::Command, true),
            (LogPolicy::Command, LogDeclaration::Server) => (LogForm::Command, false),
            (LogPolicy::Physiological, LogDeclaration::Server) => (LogForm::Changes, false),
        };
        ProcedureForm {
            kind,
            is_auto,
            measured: !procedure.read_only && matches!(kind, LogForm::Command | LogForm::Changes),
        }
    }

    /// Returns the choices by position in the module's schema.
    pub(crate) fn choices_of(&self, module: &Module) -> Vec<Choice> {
        let procedures = module.schema.procedures.iter().enumerate();
        let choices = procedures.map(|(at, procedure)| {
            let form = self.form_of(procedure);
            let meter = form.measured.then(|| self.meter(module.id, at as u16, form.kind));
            Choice::new(form.kind, form.is_auto, meter, self.sampling.every)
        });
        choices.collect()
    }
}

/// The form of a procedure's calls by the settings.
struct ProcedureForm {
    kind: LogForm,
    /// Measurements may change the form.
    is_auto: bool,
    measured: bool,
}

#[cfg(test)]
mod tests {
    use reprise_abi::ModuleSchema;
    use reprise_base::TxnId;
    use reprise_txn::{Code, Executor, RestoredModule, TablePast, restore};

    use super::*;

    struct NoCode;

    impl Code for NoCode {
        fn instantiate(&self) -> Result<Box<dyn Executor>, String> {
            Err("no call runs here".into())
        }
    }

    fn version(version: u32, in_service: bool) -> RestoredModule {
        RestoredModule {
            name: "m".into(),
            version,
            hash: [version as u8; 32],
            wasm_bytes: 0,
            installed_by: TxnId(u64::from(version)),
            in_service,
            migrations: Vec::new(),
            origins: None,
            schema: ModuleSchema::default(),
            description: Arc::default(),
            code: Arc::new(NoCode),
        }
    }

    #[test]
    fn measurements_go_with_a_version_when_it_leaves_service() {
        let modules = vec![version(1, false), version(2, true)];
        let deployed = restore(1, Vec::new(), TablePast::default(), modules).expect("versions without tables");
        let settings = LogSettings::default();
        let meters = [0, 1].map(|module| settings.meter(ModuleId(module), 0, LogForm::Command));
        settings.release_meters(&deployed);
        assert_eq!(
            Arc::strong_count(&meters[0]),
            1,
            "the version out of service is measured no more"
        );
        assert_eq!(
            Arc::strong_count(&meters[1]),
            2,
            "the version in service keeps its measurements"
        );
    }
}
