// What the replication page says of a standby in more than one place.
import type { StandbyState } from '../generated/types.gen';
import type { Tone } from '../ui/badge';

export function freshText(freshness: number | null | undefined): string {
  return freshness == null ? 'not measured' : `${(freshness * 100).toFixed(1)} %`;
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
