import type { RecordKind, LogRecord } from '../generated/types.gen';
import { Badge, type Tone } from '../ui/badge';

const tones: Record<RecordKind, Tone> = {
  command: 'plain',
  changes: 'plain',
  checkpoint: 'accent',
  deploy: 'accent',
  remove: 'warn',
  drop_table: 'warn',
  genesis: 'accent',
  void: 'plain',
  quarantine: 'warn',
  part: 'plain',
  principal: 'plain',
  control: 'accent',
};

export const kinds = Object.keys(tones);

export function KindBadge({ kind }: { kind: RecordKind }) {
  return <Badge tone={tones[kind]}>{kind.replace('_', ' ')}</Badge>;
}

/** What a record is about, in a few words. */
export function subjectOf(record: LogRecord): string {
  const module = record.module ?? 'unknown module';
  switch (record.kind) {
    case 'command':
    case 'changes':
    case 'quarantine':
    case 'part':
      return `${module}.${record.procedure ?? 'unknown procedure'}`;
    case 'deploy':
      return record.version === undefined || record.version === null ? module : `${module} version ${record.version}`;
    case 'remove':
      return module;
    case 'drop_table':
      return record.table ?? 'unknown table';
    case 'checkpoint':
      return 'a checkpoint of everything before this record';
    case 'genesis':
      return 'the log’s first record';
    case 'principal':
      return record.principal ?? 'unknown name';
    case 'control': {
      const { operation, subject, outcome } = record.control ?? {};
      if (operation === undefined) return 'shown to tokens with the role admin';
      const object = subject === undefined || subject === '' ? '' : ` ${subject}`;
      return `${operation}${object} by ${record.principal ?? 'unknown name'}: ${outcome ?? 'unknown end'}`;
    }
    case 'void':
      return 'an LSN without a record, lost in a crash';
  }
}

/** Transactions on all partitions are written with an empty list. */
export function partitionsText({ partitions }: LogRecord): string {
  if (partitions === undefined || partitions === null) return '';
  return partitions.length === 0 ? 'all' : partitions.join(', ');
}
