//! The tables, read whole and compared with the model.

use reprise_router::ReplyOutcome;

use super::{Life, Run};
use crate::{
    ledger::Fate,
    model::{Item, Model, Tables, difference},
    module::{BYTES, NAME},
    op::{decode_everywhere, decode_here},
};

impl Run {
    /// Reads every table on every partition.
    pub(super) fn read_all(&self, world: &Life) -> Result<Option<Tables>, String> {
        let model = Model::new(self.settings.partitions);
        let ids = (0..self.settings.partitions)
            .map(|place| (0..10_000i64).find(|id| model.place(*id).0 == place).expect("spread"));
        let mut calls = vec![("everywhere", None, Vec::new())];
        calls.extend(ids.map(|id| ("here", None, id.to_le_bytes().to_vec())));
        world.submit(&calls, Vec::new());
        let reply = loop {
            let mut arrived = world.take_arrived();
            match arrived.pop() {
                Some(arrived) => break arrived.reply,
                None => world.stepper.help(),
            }
        };
        let is_refused = |at: usize| matches!(reply.get(at).outcome, ReplyOutcome::LogUnavailable(_));
        if world.is_log_stopped() && (0..reply.len()).any(is_refused) {
            return Ok(None); // the answer would include a record that the log just failed to save
        }
        let answer = |at: usize| match reply.get(at) {
            answer if *answer.outcome == ReplyOutcome::Committed => Ok(answer.result),
            answer => Err(format!("a read of everything ended with {:?}", answer.outcome)),
        };
        let mut tables = Tables::default();
        let everywhere = decode_everywhere(answer(0)?).map_err(|error| error.to_string())?;
        tables.items = (everywhere.items.into_iter())
            .map(|item| {
                (
                    item.id,
                    Item {
                        value: item.value,
                        note_bytes: item.note_bytes,
                        total: item.total,
                        later: item.later,
                    },
                )
            })
            .collect();
        tables.marks = everywhere
            .marks
            .iter()
            .map(|mark| ((mark.a, mark.b), mark.c as u64))
            .collect();
        for place in 0..self.settings.partitions {
            let here = decode_here(answer(1 + place as usize)?).map_err(|error| error.to_string())?;
            let announcements = here
                .announcements
                .iter()
                .map(|row| (row.a, (row.b as u64, row.c)))
                .collect();
            let settings = here.settings.iter().map(|row| (row.a, row.b)).collect();
            if place > 0 && (tables.announcements != announcements || tables.settings != settings) {
                return Err(format!(
                    "partition {place} has other replicated rows than those before it"
                ));
            }
            (tables.announcements, tables.settings) = (announcements, settings);
            let draws: Vec<_> = here.draws.iter().map(|row| (row.a, row.b as u64)).collect();
            if !draws.is_empty() {
                tables.draws.insert(place, draws);
            }
        }
        Ok(Some(tables))
    }

    pub(super) fn compare(&mut self, found: &Tables, when: &str) -> Result<(), String> {
        self.stats.checks += 1;
        let mut expected = self.ledger.expected(self.settings.partitions, found)?;
        expected.draws.retain(|_, draws| !draws.is_empty());
        match difference(&expected, found) {
            None => Ok(()),
            Some(difference) => Err(format!("{when}: {difference}")),
        }
    }

    /// The version in service, and since when the second one is.
    pub(super) fn look_at_versions(&mut self, world: &Life) -> Option<u32> {
        let deployed = world.router().deployed();
        let second = deployed.versions.iter().find(|module| module.version == 2);
        self.ledger.second_from = second.map(|module| module.installed_by.0);
        deployed.current.get(NAME).map(|module| module.version)
    }

    /// After an opening: nothing acknowledged is lost, nothing is there twice or by half.
    pub(super) fn check_restart(&mut self, world: &Life) -> Result<(), String> {
        let version = self.look_at_versions(world);
        if self.is_upgraded && version != Some(2) {
            return Err(format!("version 2 was in service, and now {version:?} is"));
        }
        self.is_upgraded |= version == Some(2);
        if version.is_none() {
            if self
                .ledger
                .calls
                .iter()
                .any(|call| matches!(call.fate, Fate::Committed { .. }))
            {
                return Err("the module is gone, though calls of it were committed".into());
            }
            self.ledger.resolve(&Tables::default());
            let deployed = world.router().deploy(NAME, BYTES[0]);
            return deployed.map(drop).map_err(|error| format!("deploy: {error}"));
        }
        let found = self.read_all(world)?.ok_or("the log stopped at once")?;
        self.ledger.resolve(&found);
        self.compare(&found, "after the opening")
    }
}
