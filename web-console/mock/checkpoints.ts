// The mock's checkpoints: one under way, two published, one that failed.
import type { Checkpoint, CheckpointList, Status } from '../src/generated/types.gen';
import { lsnOf } from './log';

const started = Date.now() - 3_720_000;
const rowsTotal = 4_812_000;

function at(minutes: number): string {
  return new Date(started + minutes * 60_000).toISOString();
}

function published(position: number, minutes: number, rows: number): Checkpoint {
  const lsn = lsnOf(position);
  return {
    id: lsn,
    lsn,
    state: 'published',
    began_at: at(minutes),
    seconds: 3.2,
    rows,
    rows_total: rows,
    row_bytes: rows * 61,
    file_bytes: rows * 24,
    file: `checkpoint-${Number(lsn).toString(16).padStart(16, '0')}.ckpt`,
    error: null,
  };
}

function running(): Checkpoint {
  const rows = Math.floor((rowsTotal * (Date.now() % 8000)) / 8000);
  const part = { rows, rows_total: rowsTotal, row_bytes: rows * 61, file_bytes: rows * 24 };
  return { ...published(4_700, 60, rows), ...part, state: 'running', seconds: (Date.now() % 8000) / 1000 };
}

/** What status and list say alike. */
export function checkpointFigures(): Pick<Status, 'restart' | 'restart_seconds' | 'checkpoint_failure'> {
  const error = 'write checkpoint.tmp: no space left on device';
  return {
    restart_seconds: 3.43,
    restart: {
      load_bytes: rowsTotal * 61,
      load_seconds: 0.7,
      replay_bytes: 96_000_000,
      replay_seconds: 2.2,
      check_bytes: 240_000_000,
      check_seconds: 0.5,
      other_seconds: 0.03,
      target_seconds: 10,
    },
    checkpoint_failure: { at: at(50), error },
  };
}

export function checkpointsNow(): CheckpointList {
  const { restart = null, restart_seconds = null, checkpoint_failure = null } = checkpointFigures();
  const failed: Checkpoint = { ...published(3_900, 50, 0), state: 'failed', error: checkpoint_failure?.error ?? null };
  const checkpoints = [running(), published(1_200, 40, 4_700_000), published(600, 20, 4_500_000), failed];
  return { checkpoints, restart, restart_seconds, last_failure: checkpoint_failure };
}
