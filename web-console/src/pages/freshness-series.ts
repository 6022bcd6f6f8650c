// Histories of several standbys on one time axis.
import type { FreshnessHistory } from '../generated/types.gen';

type Step = FreshnessHistory['standbys'][number]['steps'][number];

/** A step is a second, and a little more on a busy server. An older one is no figure of now. */
const holdMaxMs = 2500;

/** When any of them has a step, in milliseconds since 1970. */
export function timesOf(standbys: FreshnessHistory['standbys']): number[] {
  const ends = standbys.flatMap(({ steps }) => steps.map(({ at }) => Date.parse(at)));
  return [...new Set(ends)].sort((a, b) => a - b);
}

/** At each time what the newest step says, for the steps of two standbys end at different moments; null where there is none. */
export function valuesAt(times: number[], steps: Step[], valueOf: (step: Step) => number): (number | null)[] {
  const ends = steps.map(({ at }) => Date.parse(at));
  let next = 0;
  return times.map((time) => {
    while (next < ends.length && (ends[next] ?? 0) <= time) next += 1;
    const newest = steps[next - 1];
    return newest !== undefined && time - (ends[next - 1] ?? 0) <= holdMaxMs ? valueOf(newest) : null;
  });
}
