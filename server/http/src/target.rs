//! The procedure that a call names, and the answer by its type.

use std::sync::Arc;

use reprise_abi::{Type, text::TextBound, value::ValueReader};
use reprise_api::{ProblemKind, integers_are_numbers};
use reprise_base::Role;
use reprise_codec::{ArgsError, Format, Packer, first_names, push_canonical, write_value};
use reprise_router::{CallKey, CallReply, Deployed, Module, Router, ScopedKey, call_hash, has_small_result};

use crate::{principal::Principal, refusal::Refusal, roles::TokenRole};

/// Characters of an unknown name that a refusal repeats.
const NAME_SHOWN_MAX: usize = 100;

/// A procedure of a module in service.
#[derive(Clone)]
pub struct Target {
    pub module: Arc<Module>,
    pub procedure: usize,
    /// True if the result's type bounds it to some hundred bytes.
    pub has_small_result: bool,
}

impl Target {
    pub fn find(deployed: &Deployed, module: &str, procedure: &str) -> Result<Self, Refusal> {
        let module = deployed
            .current
            .get(module)
            .ok_or_else(|| no_module(deployed, module))?;
        let (position, procedure) = module.procedure(procedure).ok_or_else(|| {
            let names = module.schema.procedures.iter().map(|p| p.name.as_str());
            Refusal::not_found(format!(
                "module {} has no procedure {:?}; it has {}",
                module.name,
                shortened(procedure),
                first_names(names)
            ))
        })?;
        Ok(Self {
            module: module.clone(),
            procedure: position,
            has_small_result: has_small_result(procedure),
        })
    }

    /// Returns the procedure that a call names. If its key was used, it is the version that ran under the key, even if another one is in
    /// service. A kept outcome outlives the module. Err also if the key was used for another procedure.
    pub fn for_call(
        router: &Router,
        deployed: &Deployed,
        module: &str,
        procedure: &str,
        key: Option<ScopedKey<'_>>,
    ) -> Result<Self, Refusal> {
        let found = Self::find(deployed, module, procedure);
        let Some(key) = key else {
            return found;
        };
        let ran = router.idempotency().version_of(key).and_then(|(id, procedure)| {
            let known = deployed.module(id).cloned();
            // Deployed since `deployed` was taken.
            Some((known.or_else(|| router.deployed().module(id).cloned())?, procedure))
        });
        match (ran, found) {
            // The primary may know more.
            (None, Err(_)) if router.role() == Role::Standby => {
                Err(Refusal::not_primary(router.primary_url().as_deref()))
            }
            (None, found) => found,
            (Some((ran, position)), found) => {
                let schema = &ran.schema.procedures[position];
                match (ran.name == module && schema.name == procedure, found) {
                    (true, _) => Ok(Self {
                        procedure: position,
                        has_small_result: has_small_result(schema),
                        module: ran,
                    }),
                    // A procedure that only reads does not use the key.
                    (false, Ok(found)) if found.schema().read_only => Ok(found),
                    (false, _) => Err(Refusal::idempotency_conflict()),
                }
            }
        }
    }

    /// A key with the fingerprint of a call of this procedure, if there is a key. A procedure that only reads does not use it.
    pub fn call_key<'k>(
        &self,
        key: Option<&'k str>,
        format: Format,
        args: &[u8],
    ) -> Result<Option<CallKey<'k>>, ArgsError> {
        let Some(key) = key.filter(|_| !self.schema().read_only) else {
            return Ok(None);
        };
        let fingerprint = self.fingerprint(format, args)?;
        Ok(Some(CallKey { key, fingerprint }))
    }

    /// Digest of a call as its client sent it: of the names of module and procedure, and of the arguments in canonical form.
    pub fn fingerprint(&self, format: Format, args: &[u8]) -> Result<u128, ArgsError> {
        let mut canonical = Vec::with_capacity(args.len() + 32);
        push_canonical(format, args, &mut canonical).map_err(ArgsError::Syntax)?;
        Ok(call_hash(&self.module.name, &self.schema().name, &canonical))
    }

    pub fn schema(&self) -> &reprise_abi::ProcedureSchema {
        &self.module.schema.procedures[self.procedure]
    }

    /// Returns whether both are one procedure of one module version.
    pub fn is(&self, other: &Self) -> bool {
        self.procedure == other.procedure && Arc::ptr_eq(&self.module, &other.module)
    }

    /// Refuses a caller to whom the procedure is not granted, or that may only read, if the procedure writes.
    pub fn check_caller(&self, principal: &Principal) -> Result<(), Refusal> {
        principal.require_grant(&self.module.name, &self.schema().name)?;
        self.check_role(principal.may(TokenRole::Write))
    }

    /// Refuses a caller that may only read, if the procedure writes.
    pub fn check_role(&self, may_write: bool) -> Result<(), Refusal> {
        if may_write || self.schema().read_only {
            return Ok(());
        }
        let detail = "the procedure writes, and the token has the role read; use a token with the role write";
        Err(Refusal::new(ProblemKind::Forbidden, detail))
    }

    /// Returns the type of the result. A repeat of an idempotency key returns the result of the version that ran.
    fn returns<'r>(&'r self, reply: &CallReply<'r>) -> &'r Type {
        let name = &self.schema().name;
        let recorded = reply.recorded_by.and_then(|module| Some(module.procedure(name)?.1));
        &recorded.unwrap_or(self.schema()).returns
    }

    /// The longest that a call's answer can be as text.
    pub fn text_bytes_max(&self, reply: &CallReply<'_>) -> u64 {
        if self.has_small_result && reply.recorded_by.is_none() {
            return 0;
        }
        TextBound::of(self.returns(reply)).bytes_max(reply.result.len())
    }

    /// The `write_answer` variant that packs the four members in CBOR.
    pub fn pack_answer(&self, reply: &CallReply<'_>, out: &mut Vec<u8>) -> bool {
        let mut reader = ValueReader::new(reply.result);
        let mut packer = Packer::new(out);
        packer.text("result");
        if packer.value(self.returns(reply), &mut reader).is_err() || reader.finish().is_err() {
            return false;
        }
        packer.text("txn_id");
        packer.unsigned(reply.txn_id.0);
        packer.text("lsn");
        packer.unsigned(reply.lsn.0);
        packer.text("partition");
        match reply.partition {
            Some(partition) => packer.unsigned(partition.0.into()),
            None => packer.null(),
        }
        true
    }

    /// Writes the members `result`, `txn_id`, `lsn` and `partition` of a committed call, without the braces. False: the result's bytes are
    /// not of the procedure's type, and the caller discards the text.
    pub fn write_answer(&self, reply: &CallReply<'_>, out: &mut Vec<u8>) -> bool {
        let returns = self.returns(reply);
        let mut reader = ValueReader::new(reply.result);
        out.extend_from_slice(b"\"result\":");
        if write_value(returns, &mut reader, out).is_err() || reader.finish().is_err() {
            return false;
        }
        let mut digits = itoa::Buffer::new();
        let quote: &[u8] = if integers_are_numbers() { b"" } else { b"\"" };
        for (name, id) in [(&b",\"txn_id\":"[..], reply.txn_id.0), (b",\"lsn\":", reply.lsn.0)] {
            out.extend_from_slice(name);
            out.extend_from_slice(quote);
            out.extend_from_slice(digits.format(id).as_bytes());
            out.extend_from_slice(quote);
        }
        out.extend_from_slice(b",\"partition\":");
        match reply.partition {
            Some(partition) => out.extend_from_slice(digits.format(partition.0).as_bytes()),
            None => out.extend_from_slice(b"null"),
        }
        true
    }
}

pub fn no_module(deployed: &Deployed, name: &str) -> Refusal {
    let names = deployed.current.keys().map(String::as_str);
    let known = match names.len() {
        0 => "none is; upload one with PUT /v1/modules/{module}".into(),
        _ => format!("in service: {}", first_names(names)),
    };
    Refusal::not_found(format!("no module {:?} is in service; {known}", shortened(name)))
}

/// Shortens a client's name for a sentence: a batch may ask for names of a megabyte.
pub fn shortened(name: &str) -> String {
    name.chars().take(NAME_SHOWN_MAX).collect()
}
