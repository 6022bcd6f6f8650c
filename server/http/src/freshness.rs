//! `/v1/replication/freshness`: how fresh standbys were, in steps.

use axum::{Json, extract::State};
use reprise_api::{FreshnessHistory, FreshnessStep, StandbyFreshness};
use reprise_codec::rfc3339;
use reprise_router::{FreshnessPoint, Router};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{front::Params, permits::Operation, refusal::Refusal, state::AppState};

const SECOND_US: i64 = 1_000_000;
/// Steps of an answer at most, for each standby; an hour has 3,600 seconds.
const STEP_S_MAX: u32 = 3_600;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FreshnessParams {
    /// Seconds since 1970: from there on; what is kept, unless given.
    #[param(value_type = Option<i64>, minimum = 0, maximum = 4_294_967_295_u32)]
    from: Option<u32>,
    /// Seconds since 1970: up to there; until now, unless given.
    #[param(value_type = Option<i64>, minimum = 0, maximum = 4_294_967_295_u32)]
    to: Option<u32>,
    /// Seconds that a step spans, 1 to 3600; 1 unless given.
    #[param(minimum = 1, maximum = 3600)]
    step: Option<u32>,
}

/// Shows the freshness of standbys
///
/// Returns statistics for each step. The server takes a sample each 20 ms and keeps one hour of them, second by second. It leaves out
/// steps without samples.
#[utoipa::path(
    get,
    path = "/v1/replication/freshness",
    tag = "Replication",
    params(FreshnessParams),
    responses((status = 200, description = "Freshness and lag of each standby in each step", body = FreshnessHistory))
)]
pub async fn freshness(
    State(state): State<AppState>,
    Params(params): Params<FreshnessParams>,
) -> Result<Json<FreshnessHistory>, Refusal> {
    let step_s = params.step.unwrap_or(1);
    if !(1..=STEP_S_MAX).contains(&step_s) {
        let detail = format!("step must be a number of seconds from 1 to {STEP_S_MAX}");
        return Err(Refusal::malformed(detail));
    }
    let (from, to) = (params.from.unwrap_or(0), params.to.unwrap_or(u32::MAX));
    if from > to {
        return Err(Refusal::malformed("from must not be later than to"));
    }
    let spans =
        move |point: &FreshnessPoint| (i64::from(from) * SECOND_US..=i64::from(to) * SECOND_US).contains(&point.at_us);
    let asked = state.blocking(Operation::ReadStats, move |parts| {
        histories(&parts.router, step_s, spans)
    });
    let standbys = asked.await?;
    Ok(Json(FreshnessHistory { step_s, standbys }))
}

fn histories(router: &Router, step_s: u32, spans: impl Fn(&FreshnessPoint) -> bool) -> Vec<StandbyFreshness> {
    let Some(service) = router.replication() else {
        return Vec::new();
    };
    let names = service.info().standbys.into_iter().map(|standby| standby.name);
    let history = |name: String| {
        let mut points = service.freshness(&name)?.points;
        points.retain(&spans);
        let steps = points.chunk_by(|a, b| step_of(a, step_s) == step_of(b, step_s));
        Some(StandbyFreshness {
            name,
            steps: steps.map(step).collect(),
        })
    };
    names.filter_map(history).collect()
}

/// Which step since 1970.
fn step_of(point: &FreshnessPoint, step_s: u32) -> i64 {
    // A point is named by its end.
    (point.at_us - 1).div_euclid(i64::from(step_s) * SECOND_US)
}

/// Summarizes at least one point.
fn step(points: &[FreshnessPoint]) -> FreshnessStep {
    let least = |score: fn(&FreshnessPoint) -> f32| points.iter().map(score).fold(f32::INFINITY, f32::min);
    let most = |lag: fn(&FreshnessPoint) -> u64| points.iter().map(lag).max().unwrap_or(0) as f64 / 1e3;
    let mut scores: Vec<_> = points.iter().map(|point| point.samples.score_median).collect();
    let mut lags: Vec<_> = points.iter().map(|point| point.samples.lag_us_median).collect();
    scores.sort_unstable_by(f32::total_cmp);
    lags.sort_unstable();
    let last = points.last().expect("a step has a point");
    FreshnessStep {
        at: rfc3339(last.at_us),
        samples: points.iter().map(|point| point.samples.count as u64).sum(),
        freshness_min: rounded(least(|point| point.samples.score_min)),
        freshness_median: rounded(scores[scores.len() / 2]),
        freshness_p95: rounded(least(|point| point.samples.score_p95)),
        freshness_p99: rounded(least(|point| point.samples.score_p99)),
        lag_ms_median: lags[lags.len() / 2] as f64 / 1e3,
        lag_ms_p95: most(|point| point.samples.lag_us_p95),
        lag_ms_p99: most(|point| point.samples.lag_us_p99),
        lag_ms_max: most(|point| point.samples.lag_us_max),
        lag_bytes_max: points
            .iter()
            .map(|point| point.samples.lag_bytes_max)
            .max()
            .unwrap_or(0),
    }
}

/// Rounds to four digits after the point, never up to fresh.
fn rounded(score: f32) -> f64 {
    (f64::from(score) * 1e4).floor() / 1e4
}

#[cfg(test)]
mod tests {
    use reprise_router::FreshnessSummary;

    use super::*;

    fn point(second: i64, score: f32, lag_us: u64) -> FreshnessPoint {
        FreshnessPoint {
            at_us: second * SECOND_US,
            samples: FreshnessSummary {
                count: 50,
                score_min: score / 2.0,
                score_median: score,
                score_p95: score,
                score_p99: score,
                lag_us_median: lag_us,
                lag_us_p95: lag_us,
                lag_us_p99: lag_us,
                lag_us_max: 2 * lag_us,
                lag_bytes_max: lag_us,
            },
        }
    }

    #[test]
    fn a_step_tells_the_worst_of_its_seconds_and_the_median() {
        let points = [point(1, 1.0, 1_000), point(2, 0.99999, 9_000), point(3, 0.5, 2_000)];
        let summary = step(&points);
        assert_eq!(
            (summary.samples, summary.freshness_median, summary.freshness_min),
            (150, 0.9999, 0.25)
        );
        assert_eq!(
            (summary.lag_ms_median, summary.lag_ms_p99, summary.lag_ms_max),
            (2.0, 9.0, 18.0)
        );
        let steps: Vec<_> = points
            .chunk_by(|a, b| step_of(a, 2) == step_of(b, 2))
            .map(<[_]>::len)
            .collect();
        assert_eq!(steps, [2, 1], "a point is named by its end");
    }
}
