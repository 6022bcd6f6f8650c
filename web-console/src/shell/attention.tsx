// What every page must say first: no connection, recovery, a log that can't be written.
import { type UseQueryResult, useQuery, useQueryClient } from '@tanstack/react-query';
import { useEffect } from 'react';
import { ProblemError, UnreachableError } from '../api/problem';
import { readinessQuery } from '../api/queries';
import { formatBytes, formatCount } from '../format';
import type { Phase, Status } from '../generated/types.gen';
import { ProblemNotice } from '../ui/problem-notice';

const archiveFails = 'The archive takes nothing: the data directory keeps what was to go, and grows';
const archiveEnded = 'The archive took nothing for too long and was given up: points from there on can’t be gone back to';

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
          <strong>The log can’t be written: writes are refused, reads go on</strong>
          <p className="mono">{logError}</p>
          <p className="muted">
            Make space or mend the device that holds the data directory, then restart the server. Everything that was
            acknowledged is kept.
          </p>
        </div>
      )}
      {archiveError !== null && (
        <div className="notice" role="alert">
          <strong>{data?.archive?.ends_at_lsn == null ? archiveFails : archiveEnded}</strong>
          <p className="mono">{archiveError}</p>
          {data?.archive?.ends_at_lsn == null && (
            <p className="muted">
              Make space in {data?.archive?.directory}. The next checkpoint puts there whatever waits (
              {formatBytes(data?.archive?.held_bytes ?? 0)} now; with more than{' '}
              {formatBytes(data?.archive?.held_bytes_max ?? 0)} the archive is given up); calls go on meanwhile.
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
          <strong>The server is stopping: it finishes what it has begun and takes nothing new</strong>
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
          ? `${sizes} of rows. The log behind the checkpoint is replayed next.`
          : `${formatCount(replayed)} transactions, ${sizes}. Calls are answered once the log’s end is reached.`}
      </p>
    </section>
  );
}
