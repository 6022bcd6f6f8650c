// Checkpoints, newest first, and what a restart would take.
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { takeCheckpoint } from '../api/commands';
import { checkpointsQuery } from '../api/queries';
import { formatBytes, formatCount, formatTime } from '../format';
import type { Checkpoint, CheckpointList, RestartEstimate } from '../generated/types.gen';
import { Badge } from '../ui/badge';
import { Command } from '../ui/command';
import { Empty } from '../ui/empty';
import { Facts } from '../ui/facts';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { ProblemNotice } from '../ui/problem-notice';
import { Scroll } from '../ui/scroll';
import { Table } from '../ui/table';
import {
  isBeyondTarget,
  otherText,
  partText,
  restartSeconds,
  secondsText,
  standingFailure,
  writtenPercent,
} from '../values/restart';

export function CheckpointsPage() {
  const list = useQuery(checkpointsQuery);
  const queries = useQueryClient();
  const taking = useMutation({
    mutationFn: takeCheckpoint,
    onSettled: () => queries.invalidateQueries({ queryKey: checkpointsQuery.queryKey }),
  });
  const running = list.data?.checkpoints.find(({ state }) => state === 'running');
  return (
    <>
      <div className="page-head">
        <h1>Checkpoints</h1>
        <button
          className="button"
          type="button"
          disabled={taking.isPending || running !== undefined}
          onClick={() => taking.mutate()}
        >
          Take a checkpoint
        </button>
      </div>
      {taking.isError && <ProblemNotice error={taking.error} />}
      {list.data !== undefined && <Failure list={list.data} />}
      {running !== undefined && <Running checkpoint={running} />}
      <Panel title="Restart" side={<RestartBadge estimate={list.data?.restart ?? null} />}>
        <div className="panel-body">
          <Loaded query={list}>{({ restart }) => <Restart estimate={restart ?? null} />}</Loaded>
        </div>
      </Panel>
      <Panel title="Newest first">
        <Loaded query={list}>
          {({ checkpoints }) => (checkpoints.length === 0 ? <None /> : <CheckpointTable checkpoints={checkpoints} />)}
        </Loaded>
      </Panel>
    </>
  );
}

function Failure({ list }: { list: CheckpointList }) {
  const failure = standingFailure(list.last_failure, list.checkpoints);
  if (failure === null) return null;
  return (
    <div className="notice" role="alert">
      <strong>The last checkpoint failed, {formatTime(failure.at)}</strong>
      <p className="mono">{failure.error}</p>
      <p className="muted">The server keeps the checkpoint before it and more of the log. Nothing is lost, but a restart takes longer.</p>
    </div>
  );
}

function Running({ checkpoint }: { checkpoint: Checkpoint }) {
  const { rows, rows_total, file_bytes, seconds } = checkpoint;
  return (
    <section className="notice good" aria-label="Running checkpoint">
      <strong>
        A checkpoint is in progress: {writtenPercent(checkpoint)} % of {formatCount(rows_total)} rows
      </strong>
      <progress max={Math.max(rows_total, 1)} value={rows} aria-label="Running checkpoint" />
      <p className="muted">
        {formatBytes(file_bytes)} written in {secondsText(seconds ?? 0)}. Transactions run meanwhile.
      </p>
    </section>
  );
}

function RestartBadge({ estimate }: { estimate: RestartEstimate | null }) {
  if (estimate === null) return null;
  const target = estimate.target_seconds ?? null;
  if (target === null) return <span className="muted">no target</span>;
  return isBeyondTarget(estimate) ? (
    <Badge tone="warn">longer than {secondsText(target)}</Badge>
  ) : (
    <Badge tone="good">target {secondsText(target)}</Badge>
  );
}

function Restart({ estimate }: { estimate: RestartEstimate | null }) {
  if (estimate === null) return <p className="muted">The server keeps no log: after a restart it is empty.</p>;
  const seconds = restartSeconds(estimate);
  return (
    <Facts
      facts={[
        { label: 'Restart time', value: seconds === null ? 'not known yet' : `about ${secondsText(seconds)}` },
        { label: 'Check the log', value: partText(estimate.check_bytes, estimate.check_seconds) },
        { label: 'Load the newest checkpoint', value: partText(estimate.load_bytes, estimate.load_seconds) },
        { label: 'Replay the log after it', value: partText(estimate.replay_bytes, estimate.replay_seconds) },
        { label: 'Open files, threads and modules', value: otherText(estimate.other_seconds) },
      ]}
    />
  );
}

function CheckpointTable({ checkpoints }: { checkpoints: Checkpoint[] }) {
  return (
    <Scroll label="Checkpoints">
      <Table
        headings={[
          { number: 'LSN' },
          'Began',
          'State',
          { number: 'Rows' },
          { number: 'Size' },
          { number: 'of rows' },
          { number: 'Duration' },
          'File',
        ]}
      >
        {checkpoints.map((checkpoint) => (
          <tr key={`${checkpoint.id} ${checkpoint.state}`}>
            <th scope="row" className="number">
              {formatCount(checkpoint.lsn)}
            </th>
            <td className="nowrap">{formatTime(checkpoint.began_at)}</td>
            <td>
              <State checkpoint={checkpoint} />
            </td>
            <td className="number">{formatCount(checkpoint.rows)}</td>
            <td className="number">{formatBytes(checkpoint.file_bytes)}</td>
            <td className="number">{formatBytes(checkpoint.row_bytes)}</td>
            <td className="number">
              {checkpoint.seconds === null || checkpoint.seconds === undefined ? (
                <span className="muted" title="The server took this checkpoint before its last start.">
                  earlier
                </span>
              ) : (
                secondsText(checkpoint.seconds)
              )}
            </td>
            <td className="mono">{checkpoint.file}</td>
          </tr>
        ))}
      </Table>
    </Scroll>
  );
}

function State({ checkpoint }: { checkpoint: Checkpoint }) {
  const title = checkpoint.error ?? undefined;
  switch (checkpoint.state) {
    case 'running':
      return <Badge tone="accent">{writtenPercent(checkpoint)} %</Badge>;
    case 'published':
      return title === undefined ? (
        <Badge tone="good">published</Badge>
      ) : (
        <Badge tone="warn" title={title}>
          published
        </Badge>
      );
    case 'failed':
      return (
        <Badge tone="bad" title={title ?? ''}>
          failed
        </Badge>
      );
  }
}

function None() {
  return (
    <Empty title="There are no checkpoints yet">
      <p>The server takes one at regular times, when the log grows, or when a restart would take too long. To take one now:</p>
      <Command text="reprise checkpoint take" />
    </Empty>
  );
}
