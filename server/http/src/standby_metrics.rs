//! How far each standby is, for Prometheus: on a primary those it knows of, on a standby itself.

use std::sync::{Arc, Mutex};

use opentelemetry::{KeyValue, metrics::Meter};
use reprise_router::{StandbyInfo, StandbyState};

use crate::state::Parts;

/// Standbys at the moment of a scrape.
pub type Standbys = Arc<Mutex<Vec<StandbyInfo>>>;

/// Name, meaning, value; none where it was not measured yet.
type Instrument = (&'static str, &'static str, fn(&StandbyInfo) -> Option<f64>);

#[rustfmt::skip]
const GAUGES: [Instrument; 13] = [
    ("reprise.standby.streaming", "1 while the `standby` gets each group as it is sealed", |s| Some((s.state == StandbyState::Streaming) as u64 as f64)),
    ("reprise.standby.in.sync", "1 while the `standby` has everything that was answered, 0 where it may lack some of it; on itself, as its primary told last, and no value where it does not know", |s| s.in_sync.map(|is_in| is_in as u64 as f64)),
    ("reprise.standby.freshness", "Freshness of the `standby`'s reads, from 0 to 1", |s| s.freshness),
    ("reprise.standby.lag.seconds", "For so long at most the primary may have had something that readers on the `standby` do not see", |s| Some(s.lag_us as f64 / 1e6)),
    ("reprise.standby.lag.known", "0 where the lag is so much at least", |s| Some(s.is_lag_known as u64 as f64)),
    ("reprise.standby.lag.bytes", "Bytes of log that readers on the `standby` do not see", |s| Some(s.lag_bytes as f64)),
    ("reprise.standby.lag.records", "Records that readers on the `standby` do not see", |s| Some(s.lag_records as f64)),
    ("reprise.standby.persisted.lsn", "Everything below is durable on the `standby`", |s| Some(s.persisted.0 as f64)),
    ("reprise.standby.replayed.lsn", "Everything below is in the tables of the `standby`", |s| Some(s.replayed.0 as f64)),
    ("reprise.standby.compared.lsn", "Everything below was in the tables of the `standby` when they were compared with its primary's last", |s| s.compared.as_ref().map(|c| c.lsn.0 as f64)),
    ("reprise.standby.compared.timestamp.seconds", "When the tables of the `standby` were compared last, in seconds since 1970", |s| s.compared.as_ref().map(|c| c.at_us as f64 / 1e6)),
    ("reprise.standby.differs", "1 where the tables of the `standby` are not its primary's, 0 where all were equal", |s| s.compared.as_ref().map(|c| c.difference.is_some() as u64 as f64)),
    ("reprise.standby.view.lsn", "Readers on the `standby` see everything below", |s| Some(s.view.0 as f64)),
];

/// Those that this node knows of.
pub fn standbys(parts: &Parts) -> Vec<StandbyInfo> {
    let Some(service) = parts.router.replication() else {
        return Vec::new();
    };
    match service.own() {
        Some(own) => vec![own],
        None => service.info().standbys,
    }
}

pub fn register(meter: &Meter, standbys: &Standbys) {
    for (name, description, read) in GAUGES {
        let standbys = standbys.clone();
        let gauge = meter.f64_observable_gauge(name).with_description(description);
        let observed = gauge.with_callback(move |observer| {
            let standbys = standbys.lock().expect("held for a store or a read");
            for standby in standbys.iter() {
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
    let described = GAUGES
        .iter()
        .map(|(name, what, _)| (name.replace('.', "_"), "gauge", *what));
    described.collect()
}
