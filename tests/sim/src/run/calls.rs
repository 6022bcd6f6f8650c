//! Calls of clients: with keys and without, repeated, or under the key of another call; and the second version of the module.

use std::time::Duration;

use reprise_router::EndedControl;

use super::{Life, Run};
use crate::{
    ledger::{Attempt, Call, Fate, Ledger},
    module::{BYTES, NAME},
    mutant::Mutant,
    op::Op,
};

impl Run {
    pub(super) fn call(&mut self, world: &Life) {
        let mut chosen = Vec::new();
        for _ in 0..1 + self.below(4) {
            let op = Op::random(&mut self.random, self.notes_max);
            let has_key = !op.is_read() && self.below(4) == 0;
            self.ledger.calls.push(Call {
                key: has_key.then(|| format!("key {}", self.ledger.calls.len())),
                op,
                fate: Fate::Unknown,
                flying: 0,
                is_doubtful: false,
                refused_at: None,
            });
            chosen.push(self.ledger.calls.len() - 1);
        }
        self.send(world, &chosen, false);
    }

    pub(super) fn send(&mut self, world: &Life, chosen: &[usize], conflicts: bool) {
        let mut attempts = Vec::new();
        let mut calls = Vec::new();
        for at in chosen {
            let call = &mut self.ledger.calls[*at];
            let is_known = matches!(call.fate, Fate::Committed { .. });
            attempts.push(Attempt {
                call: *at,
                is_repeat: is_known,
                conflicts,
            });
            call.flying += 1;
            if call.fate == Fate::Absent && !conflicts {
                call.fate = Fate::Unknown;
            }
            let mut args = Vec::new();
            call.op.encode(Ledger::nonce(*at), &mut args);
            let forgets = is_known && self.options.mutant == Some(Mutant::ForgottenKey);
            calls.push((call.op.procedure(), call.key.clone().filter(|_| !forgets), args));
        }
        let calls: Vec<_> = calls
            .iter()
            .map(|(name, key, args)| (*name, key.as_deref(), args.clone()))
            .collect();
        self.note(|| {
            format!(
                "send {chosen:?} {:?}",
                calls.iter().map(|call| call.0).collect::<Vec<_>>()
            )
        });
        world.submit(&calls, attempts);
    }

    /// Sends a call with a key once more, as a client does that got no answer, or lost it.
    pub(super) fn send_again(&mut self, world: &Life) {
        let calls = self.ledger.calls.iter().enumerate();
        let keyed: Vec<_> = calls.filter(|(_, call)| call.key.is_some()).map(|(at, _)| at).collect();
        if !keyed.is_empty() {
            let at = keyed[self.below(keyed.len() as u64) as usize];
            self.send(world, &[at], false);
        }
    }

    /// Uses a key of a committed call for another one.
    pub(super) fn conflict(&mut self, world: &Life) {
        let calls = self.ledger.calls.iter();
        let committed = calls.filter(|call| matches!(call.fate, Fate::Committed { .. }));
        let keys: Vec<_> = committed.filter_map(|call| call.key.clone()).collect();
        if keys.is_empty() {
            return;
        }
        let key = keys[self.below(keys.len() as u64) as usize].clone();
        self.ledger.calls.push(Call {
            op: Op::Announce { value: 1_000_000 },
            key: Some(key),
            fate: Fate::Absent,
            flying: 0,
            is_doubtful: false,
            refused_at: None,
        });
        let at = self.ledger.calls.len() - 1;
        self.send(world, &[at], true);
        // The call must not be sent again as one of its own.
        self.ledger.calls[at].key = None;
    }

    pub(super) fn upgrade(&mut self, world: &Life) {
        if self.is_upgraded || self.upgraded_at.is_some() || self.stats.checks < 2 {
            return;
        }
        let deployed = world.router().deploy(NAME, BYTES[1]);
        self.note(|| format!("deploy: {:?}", deployed.as_ref().map(|deployed| deployed.lsn)));
        let ended = EndedControl {
            principal: "anonymous".to_owned(),
            operation: "deploy-module",
            subject: NAME.to_owned(),
            outcome: "done",
            took: Duration::ZERO,
        };
        let logged = world.router().log_control(ended, Duration::from_millis(1));
        self.note(|| format!("audit: {logged:?}"));
        self.look_at_versions(world);
        if deployed.is_ok() {
            self.upgraded_at = Some(world.disk.ops_count());
            self.stats.upgrades += 1;
        }
    }
}
