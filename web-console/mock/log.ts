// The mock's log: records that grow with the clock, so that nothing needs to be kept.
import type { LogPage, LogRecord, ProcedureLogLine } from '../src/generated/types.gen';
import { hexOf } from './modules';

const recordBytes = 72;
const commandKind: LogRecord['kind'] = 'command';
const started = Date.now() - 3_720_000;

export function newestPosition(): number {
  return 4_812 + Math.floor((Date.now() - started) / 700);
}

export function lsnOf(position: number): string {
  return (4096 + position * recordBytes).toString();
}

export function positionOf(lsn: string): number | null {
  const position = (Number(lsn) - 4096) / recordBytes;
  return Number.isInteger(position) && position >= 0 && position <= newestPosition() ? position : null;
}

export function recordAt(position: number): LogRecord {
  const place = {
    lsn: lsnOf(position),
    bytes: position === 0 ? 128 : recordBytes,
    segment: `${Math.floor(position / 4096)
      .toString(16)
      .padStart(16, '0')}.log`,
    offset: 4096 + (position % 4096) * recordBytes,
    durable: position < newestPosition() - 1,
    time: new Date(started + position * 700).toISOString().replace('Z', '000Z'),
  };
  const txnId = (7_281_934_000_000_000_000n + BigInt(position) * 4096n).toString();
  if (position === 0) return { ...place, kind: 'genesis', database_id: hexOf('database', 32), partition_count: 4 };
  if (position === 1 || position % 97 === 0) {
    const deployed = { module: 'voter', version: 1 + Math.floor(position / 97), hash: hexOf('voter', 64) };
    return { ...place, kind: 'deploy', txn_id: txnId, ...deployed, wasm_bytes: 10_240 };
  }
  const digest = hexOf(`${position}`, 16);
  const command = { ...place, kind: commandKind, txn_id: txnId, version: 2, digest };
  if (position === 2) {
    return {
      ...command,
      partitions: [],
      module: 'voter',
      procedure: 'initialize',
      args: { contestants: ['Ada', 'Grace'] },
    };
  }
  const phone = 2_015_550_100 + ((position * 7919) % 9_000_000);
  const args = { phone_number: phone.toString(), contestant_number: (position % 6) + 1, max_votes_per_phone: '2' };
  const idempotency_key = position % 11 === 0 ? `t-${position}` : null;
  return { ...command, partitions: [position % 4], module: 'voter', procedure: 'vote', args, idempotency_key };
}

export function logPage(query: URLSearchParams): LogPage {
  const kind = query.get('kind');
  const partition = query.get('partition');
  const limit = Number(query.get('limit') ?? '100');
  const from = query.get('from');
  const records: LogRecord[] = [];
  let position = from === null ? newestPosition() : (positionOf(from) ?? 0) - 1;
  for (; position >= 0 && records.length < limit; position -= 1) {
    const record = recordAt(position);
    if (kind !== null && record.kind !== kind) continue;
    if (partition !== null && !touches(record, Number(partition))) continue;
    if (!isWanted(record, query)) continue;
    records.push(record);
  }
  return { records, next: position < 0 ? null : lsnOf(position + 1), oldest: lsnOf(0), end: lsnOf(newestPosition() + 1) };
}

function isWanted(record: LogRecord, query: URLSearchParams): boolean {
  const [procedure, key] = [query.get('procedure'), query.get('key')];
  const [since, until] = [query.get('since'), query.get('until')];
  const time = Date.parse(record.time ?? '');
  const args = Object.entries(record.args ?? {}).map(([name, value]) => `${name}:${value}`);
  return (
    (procedure === null || record.procedure === procedure) &&
    (key === null || record.idempotency_key === key) &&
    (since === null || time >= Date.parse(since)) &&
    (until === null || time < Date.parse(until)) &&
    query.getAll('argument').every((argument) => args.includes(argument))
  );
}

export function outputLines(): ProcedureLogLine[] {
  const newest = newestPosition();
  return Array.from({ length: 30 }, (_, back) => {
    const { time, txn_id } = recordAt(newest - back);
    const level = ['info', 'info', 'warn', 'debug', 'error'][back % 5] ?? 'info';
    const text = `phone ${2_015_550_100 + back * 37} has voted ${back % 3} times, limit 2`;
    const procedure = { module: 'voter', procedure: 'vote' };
    return { number: newest - back, txn_id: txn_id ?? '0', time: time ?? '', ...procedure, level, text };
  });
}

function touches({ partitions }: LogRecord, partition: number): boolean {
  if (partitions === undefined || partitions === null) return false;
  return partitions.length === 0 || partitions.includes(partition);
}
