// Where a record of the log is: durable here, and how far on each standby.
import type { Replication, Standby } from '../generated/types.gen';

/** From the farthest on: readers of the standby may see it, it is on its disk, on its way, or neither. */
const states = ['replayed', 'durable', 'sent', 'not there yet'] as const;
type PlaceState = (typeof states)[number];

/** A state with the standbys that are in it, the farthest first: “replayed: east, west”. On a standby only its own, unnamed. */
export type Place = { state: PlaceState; names: string[] };

export function placesOf(lsn: string, node: Replication | undefined): Place[] {
  const standbys = node?.standbys ?? [];
  return states.flatMap((state) => {
    const names = standbys.filter((standby) => stateOn(standby, BigInt(lsn)) === state).map(({ name }) => name);
    return names.length === 0 ? [] : [{ state, names }];
  });
}

/** In one line. */
export function placeText({ state, names }: Place, node: Replication | undefined): string {
  if (node?.role === 'standby') return state === 'replayed' ? 'replayed' : 'not replayed yet';
  return `${state}: ${names.join(', ')}`;
}

function stateOn(standby: Standby, lsn: bigint): PlaceState {
  if (lsn < BigInt(standby.replayed_lsn)) return 'replayed';
  if (lsn < BigInt(standby.persisted_lsn)) return 'durable';
  return lsn < BigInt(standby.shipped_lsn) ? 'sent' : 'not there yet';
}
