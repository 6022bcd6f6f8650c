// The mock's backups: two that are there, and one that failed.
import type { Backup, BackupList } from '../src/generated/types.gen';
import { lsnOf } from './log';

const started = Date.now() - 7_200_000;
let removed: string[] = [];
let made = 0;

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

export function backupList(empty: boolean): BackupList {
  const fresh = Array.from({ length: made }, (_, at) => backupOf(60 + at, 'published')).reverse();
  const stored = empty ? [] : [backupOf(40, 'published'), backupOf(20, 'published'), backupOf(30, 'failed')];
  return { backups: [...fresh, ...stored].filter(({ id }) => !removed.includes(id)) };
}

export function makeBackup(): Backup {
  made += 1;
  return backupOf(59 + made, 'published');
}

/** False where there is none. */
export function removeBackup(id: string): boolean {
  const known = backupList(false).backups.some((backup) => backup.id === id);
  removed = [...removed, id];
  return known;
}
