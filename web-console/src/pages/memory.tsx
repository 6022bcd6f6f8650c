// What holds the server's memory, and where its limit lies.
import { formatBytes } from '../format';
import type { MemoryStatus } from '../generated/types.gen';
import { Table } from '../ui/table';

const NAMES: Record<string, string> = {
  rows: 'Rows',
  indexes: 'Indexes',
  undo: 'Undo',
  snapshots: 'Checkpoint copies',
  views: 'Old rows for open reads',
  idempotency: 'Idempotency results',
  requests: 'Requests in progress',
  connections: 'Open connections',
  answers: 'Answers in progress',
  guests: 'Instances of modules',
  modules: 'Modules',
  ready: 'Made ready ahead',
};

export function Memory({ memory }: { memory: MemoryStatus }) {
  const max = memory.max_bytes ?? null;
  return (
    <>
      {max === null ? null : <LimitLine memory={memory} max={max} />}
      <Table headings={['Kind', { number: 'Bytes' }, { number: 'Of all' }]}>
        {memory.kinds.map(({ kind, bytes }) => (
          <tr key={kind}>
            <th scope="row">{NAMES[kind] ?? kind}</th>
            <td className="number">{formatBytes(bytes)}</td>
            <td className="number">{percent(bytes, memory.used_bytes)}</td>
          </tr>
        ))}
      </Table>
    </>
  );
}

/** The part of the limit that is used, and the line behind which the data may not grow. */
function LimitLine({ memory, max }: { memory: MemoryStatus; max: number }) {
  const growsTo = max - memory.kept_back_bytes;
  return (
    <div className="panel-body">
      <meter
        className="limit"
        aria-label="Memory used of the limit"
        min={0}
        max={max}
        high={growsTo}
        optimum={0}
        value={memory.used_bytes}
      />
      <p className="note">
        {formatBytes(memory.used_bytes)} of {formatBytes(max)}; the data may grow to {formatBytes(growsTo)}. Maximum so
        far:{' '}
        {formatBytes(memory.peak_bytes)}.
      </p>
    </div>
  );
}

function percent(part: number, whole: number): string {
  return whole === 0 ? '–' : `${Math.round((100 * part) / whole)} %`;
}
