// What every page must say first: no connection, recovery, a log that can't be written.
import { type UseQueryResult, useQuery, useQueryClient } from '@tanstack/react-query';
import { useEffect } from 'react';
import { ProblemError, UnreachableError } from '../api/problem';
import { readinessQuery } from '../api/queries';
import { formatBytes, formatCount } from '../format';
import type { Phase, Status } from '../generated/types.gen';
import { ProblemNotice } from '../ui/problem-notice';

const archiveFails = 'The archive fails: the data directory keeps its files meanwhile, and grows';
const archiveEnded = 'The archive failed for too long, and the server gave it up: you can’t restore later points from it';

export function Attention({ status }: { status: UseQueryResult<Status> }) {
  const { data, error } = status;
  const away = error instanceof UnreachableError;
  const settled = data?.phase.name === 'ready' && !status.isError;
  // A server that recovers may refuse everything but /readyz, so it is asked whenever the status is not plainly good.
  const readiness = useQuery({ ...readinessQuery, enabled: !settled && !away && !status.isPending });
  const phase = settled ? data.phase : (readiness.data?.phase ?? data?.phase);
  const logError = data?.log_error ?? null;
  const archiveError = data?.archive?.error ?? null;
  const queries = useQueryClient();
  useEffect(() => {
    // What was refused while the server was away or recovering is asked for again now.
    if (settled) void queries.invalidateQueries();
  }, [settled, queries]);
  return (
    <>
      {error !== null && !isSaidElsewhere(error, phase) && <ProblemNotice error={error} />}
      {phase !== undefined && <PhaseNotice phase={phase} />}
      {logError !== null && (
        <div className="notice" role="alert">
          <strong>The server can’t write its log: it refuses writes, and reads work</strong>
          <p className="mono">{logError}</p>
          <p className="muted">
            If the disk is full, make room: the server then takes writes again. If a write failed, repair the disk and
            restart the server. Every acknowledged write is kept.
          </p>
        </div>
      )}
      {archiveError !== null && (
        <div className="notice" role="alert">
          <strong>{data?.archive?.ends_at_lsn == null ? archiveFails : archiveEnded}</strong>
          <p className="mono">{archiveError}</p>
          {data?.archive?.ends_at_lsn == null && (
            <p className="muted">
              Make room in {data?.archive?.directory}. The next checkpoint moves the waiting files there (
              {formatBytes(data?.archive?.held_bytes ?? 0)} now; beyond{' '}
              {formatBytes(data?.archive?.held_bytes_max ?? 0)} the server gives the archive up). Calls run meanwhile.
            </p>
          )}
        </div>
      )}
    </>
  );
}

/** By the token dialog, or by the progress of the recovery. */
function isSaidElsewhere(error: Error, phase: Phase | undefined): boolean {
  if (!(error instanceof ProblemError)) return false;
  return error.slug === 'unauthorized' || (error.status === 503 && phase?.name === 'recovering');
}

function PhaseNotice({ phase }: { phase: Phase }) {
  switch (phase.name) {
    case 'ready':
      return null;
    case 'recovering':
      return <Recovering {...phase} />;
    case 'failed':
      return (
        <div className="notice" role="alert">
          <strong>Recovery stopped</strong>
          <pre className="lines">{phase.report}</pre>
        </div>
      );
    case 'stopping':
      return (
        <div className="notice warn" role="status">
          <strong>The server is stopping: it finishes its calls and takes no new ones</strong>
        </div>
      );
  }
}

type Progress = Extract<Phase, { name: 'recovering' }>;

function Recovering({ step, percent, replayed, bytes_done, bytes_total }: Progress) {
  const sizes = `${formatBytes(bytes_done)} of ${formatBytes(bytes_total)}`;
  return (
    <section className="notice warn" aria-label="Recovery">
      <strong>
        Recovering: {Math.floor(percent)} % of the {step === 'checkpoint' ? 'checkpoint loaded' : 'log replayed'}
      </strong>
      <progress max={Math.max(bytes_total, 1)} value={bytes_done} aria-label="Recovery" />
      <p className="muted">
        {step === 'checkpoint'
          ? `${sizes} of rows. Next, the server replays the log after the checkpoint.`
          : `${formatCount(replayed)} transactions, ${sizes}. The server answers calls once it reaches the end of the log.`}
      </p>
    </section>
  );
}
