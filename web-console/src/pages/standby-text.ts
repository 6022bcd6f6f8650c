// What the replication page says of a standby in more than one place.
import { formatMicros } from '../format';
import type { Standby, StandbyState } from '../generated/types.gen';
import type { Tone } from '../ui/badge';

export function freshText(freshness: number | null | undefined): string {
  return freshness == null ? 'not measured' : `${(freshness * 100).toFixed(1)} %`;
}

export function syncText(inSync: boolean | null | undefined): string {
  if (inSync == null) {
    return 'sync unknown';
  }
  return inSync ? 'in sync' : 'out of sync';
}

/** A lag that is not known is so much at least. */
export function lagText({ lag_ms, lag_known }: Standby): string {
  const lag = formatMicros(lag_ms * 1000);
  return lag_known ? lag : `at least ${lag}`;
}

export function toneOf(state: StandbyState): Tone {
  switch (state) {
    case 'streaming':
      return 'good';
    case 'joining':
    case 'catching-up':
      return 'accent';
    case 'lost':
      return 'bad';
  }
}
