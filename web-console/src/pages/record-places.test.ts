import { describe, expect, it } from 'vitest';
import { replicationNow, standbyNow } from '../../mock/replication';
import type { Standby } from '../generated/types.gen';
import { placesOf, placeText } from './record-places';

const [like] = replicationNow().standbys;
if (like === undefined) throw new Error('the mock has standbys');

const standby = (name: string, replayed: number, persisted: number, shipped: number): Standby => ({
  ...like,
  name,
  replayed_lsn: replayed.toString(),
  persisted_lsn: persisted.toString(),
  shipped_lsn: shipped.toString(),
});

describe('where a record is', () => {
  const standbys = [standby('a', 5, 7, 9), standby('b', 9007199254740993, 9007199254740993, 9007199254740993)];
  const node = { ...replicationNow(), standbys };
  const texts = (lsn: string) => placesOf(lsn, node).map((place) => placeText(place, node));

  it('is told by the standbys’ positions, which are behind their last record', () => {
    expect(texts('4')).toEqual(['replayed: a, b']);
    expect(texts('5')).toEqual(['replayed: b', 'durable: a']);
    expect(texts('7')).toEqual(['replayed: b', 'sent: a']);
    expect(texts('9')).toEqual(['replayed: b', 'not there yet: a']);
  });

  it('is not told where there are no standbys, or nothing is known of them', () => {
    expect(placesOf('4', undefined)).toEqual([]);
    expect(placesOf('4', { ...replicationNow(), standbys: [] })).toEqual([]);
  });

  it('is on a standby whether it replayed the record', () => {
    const own = { ...standbyNow(), standbys: [standby('a', 5, 7, 9)] };
    const text = (lsn: string) => placesOf(lsn, own).map((place) => placeText(place, own));
    expect(text('4')).toEqual(['replayed']);
    expect(text('5')).toEqual(['not replayed yet']);
  });
});
