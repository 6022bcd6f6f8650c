// What a restart would take, in words: how much of what, and how long.
import { formatBytes } from '../format';
import type { CheckpointFailure, Checkpoint, RestartEstimate } from '../generated/types.gen';

/** Null while something that it takes was not measured yet. */
export function restartSeconds(estimate: RestartEstimate): number | null {
  const { load_seconds: load = null, replay_seconds: replay = null, other_seconds: other = null } = estimate;
  return load === null || replay === null || other === null ? null : load + replay + other + (estimate.check_seconds ?? 0);
}

/** `0.4 s`, `12 s`, `3 min 20 s`. */
export function secondsText(seconds: number): string {
  if (seconds < 10) return `${(Math.ceil(seconds * 10) / 10).toString()} s`;
  const whole = Math.ceil(seconds);
  return whole < 120 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** One part of a restart: `1.2 GiB in 12 s`. */
export function partText(bytes: number, seconds: number | null | undefined): string {
  if (bytes === 0) return 'nothing';
  if (seconds === null || seconds === undefined) return `${formatBytes(bytes)}, at an unknown speed`;
  return `${formatBytes(bytes)} in ${secondsText(seconds)}`;
}

/** What an opening took beside its parts. */
export function otherText(seconds: number | null | undefined): string {
  return seconds === null || seconds === undefined ? 'not known yet' : secondsText(seconds);
}

/** Whether a restart takes longer than it may. */
export function isBeyondTarget(estimate: RestartEstimate): boolean {
  const seconds = restartSeconds(estimate);
  const target = estimate.target_seconds ?? null;
  return seconds !== null && target !== null && seconds > target;
}

/** A failure that no later success has made up for. */
export function standingFailure(
  failure: CheckpointFailure | null | undefined,
  checkpoints: Checkpoint[],
): CheckpointFailure | null {
  if (failure === null || failure === undefined) return null;
  const failedAt = Date.parse(failure.at);
  const isMadeUp = checkpoints.some(({ state, began_at }) => state === 'published' && Date.parse(began_at) > failedAt);
  return isMadeUp ? null : failure;
}

/** Percent of a running checkpoint's rows that are written. */
export function writtenPercent({ rows, rows_total }: Checkpoint): number {
  return rows_total === 0 ? 0 : Math.floor((100 * rows) / rows_total);
}
