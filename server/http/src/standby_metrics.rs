//! How far each standby is, for Prometheus: on a primary those it knows of, on a standby itself.

use std::sync::{Arc, Mutex};

use opentelemetry::{KeyValue, metrics::Meter};
use reprise_base::Role;
use reprise_router::{StandbyInfo, StandbyPhase};

use crate::state::Parts;

/// Standbys at the moment of a scrape.
#[derive(Default)]
pub struct StandbySample {
    standbys: Vec<StandbyInfo>,
    missing: u64,
}

pub type SharedStandbys = Arc<Mutex<StandbySample>>;

const MISSING: (&str, &str) = (
    "reprise.standbys.missing",
    "Known standbys that have no connection to this primary. 0 on a standby",
);

/// Name, meaning and value. The value is None if it was not measured yet.
type StandbyInstrument = (&'static str, &'static str, fn(&StandbyInfo) -> Option<f64>);

#[rustfmt::skip]
const GAUGES: [StandbyInstrument; 13] = [
    ("reprise.standby.streaming", "1 while the `standby` gets each group of records at once", |s| Some((s.state == StandbyPhase::Streaming) as u64 as f64)),
    ("reprise.standby.in.sync", "1 while the primary counts the `standby` as in sync: at 2-safe and very-safe it has every acknowledged write. The standby itself shows what its primary \
     said last, or no value if it does not know", |s| s.in_sync.map(|is_in| is_in as u64 as f64)),
    ("reprise.standby.freshness", "Freshness of the `standby`'s reads, from 0 to 1", |s| s.freshness),
    ("reprise.standby.lag.seconds", "Age of the oldest primary record that readers on the `standby` do not see yet, at most", |s| Some(s.lag_us as f64 / 1e6)),
    ("reprise.standby.lag.known", "0 if the lag is a lower bound", |s| Some(s.is_lag_known as u64 as f64)),
    ("reprise.standby.lag.bytes", "Bytes of log that readers on the `standby` do not see", |s| Some(s.lag_bytes as f64)),
    ("reprise.standby.lag.records", "Records that readers on the `standby` do not see", |s| Some(s.lag_records as f64)),
    ("reprise.standby.persisted.lsn", "LSN up to which everything is durable on the `standby`", |s| Some(s.persisted.0 as f64)),
    ("reprise.standby.replayed.lsn", "LSN up to which everything is in the tables of the `standby`", |s| Some(s.replayed.0 as f64)),
    ("reprise.standby.compared.lsn", "LSN of the last comparison of the tables of the `standby` with its primary's", |s|
     s.compared.as_ref().map(|c| c.lsn.0 as f64)),
    ("reprise.standby.compared.timestamp.seconds", "Time of the last comparison of the tables of the `standby`, in seconds since 1970", |s|
     s.compared.as_ref().map(|c| c.at_us as f64 / 1e6)),
    ("reprise.standby.differs", "1 if the last comparison found a difference between the tables of the `standby` and its primary's, else 0", |s|
     s.compared.as_ref().map(|c| c.difference.is_some() as u64 as f64)),
    ("reprise.standby.view.lsn", "LSN up to which readers on the `standby` see everything", |s| Some(s.view.0 as f64)),
];

/// Returns the standbys that this node knows.
pub fn take_sample(parts: &Parts) -> StandbySample {
    let Some(service) = parts.router.replication() else {
        return StandbySample::default();
    };
    if let Some(own) = service.own() {
        let standbys = vec![own];
        return StandbySample { standbys, missing: 0 };
    }
    let info = service.info();
    let is_missing = |standby: &&StandbyInfo| info.role == Role::Primary && standby.state == StandbyPhase::Lost;
    StandbySample {
        missing: info.standbys.iter().filter(is_missing).count() as u64,
        standbys: info.standbys,
    }
}

pub fn register(meter: &Meter, sample: &SharedStandbys) {
    let (name, description) = MISSING;
    let standbys = sample.clone();
    let gauge = meter.u64_observable_gauge(name).with_description(description);
    let observed = gauge.with_callback(move |observer| {
        observer.observe(standbys.lock().expect("held for a store or a read").missing, &[]);
    });
    observed.build();
    for (name, description, read) in GAUGES {
        let standbys = sample.clone();
        let gauge = meter.f64_observable_gauge(name).with_description(description);
        let observed = gauge.with_callback(move |observer| {
            let standbys = standbys.lock().expect("held for a store or a read");
            for standby in &standbys.standbys {
                if let Some(value) = read(standby) {
                    observer.observe(value, &[KeyValue::new("standby", standby.name.clone())]);
                }
            }
        });
        observed.build();
    }
}

/// Name, kind and meaning of each, for the documentation.
#[cfg(test)]
pub fn described() -> Vec<(String, &'static str, &'static str)> {
    let gauges = GAUGES.iter().map(|(name, what, _)| (*name, *what));
    let described = gauges
        .chain([MISSING])
        .map(|(name, what)| (name.replace('.', "_"), "gauge", what));
    described.collect()
}
