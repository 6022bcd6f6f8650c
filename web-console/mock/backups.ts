// The mock's backups: two that are there, and one that failed.
import type { Backup, BackupList } from '../src/generated/types.gen';
import { lsnOf } from './log';

const started = Date.now() - 7_200_000;

function backupOf(number: number, state: Backup['state']): Backup {
  const id = String(1_795_622_795_793_615 + number * 60_000_000);
  return {
    id,
    state,
    began_at: new Date(started + number * 60_000).toISOString(),
    seconds: 4.1,
    bytes: 118_000_000 + number * 1_000_000,
    checkpoint_lsn: lsnOf(1_000 + number),
    end_lsn: lsnOf(1_200 + number),
    directory: `/var/lib/reprise/backups/backup-${id}`,
    files: [],
    error: state === 'failed' ? 'write backup: no space left on device' : null,
  };
}

export function backupList(): BackupList {
  return { backups: [backupOf(40, 'published'), backupOf(20, 'published'), backupOf(30, 'failed')] };
}
