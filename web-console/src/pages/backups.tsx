// Backups on the server's disk, newest first: made, looked at, removed. Their files are downloaded by the command line.
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { createBackup, removeBackup } from '../api/commands';
import { backupsQuery } from '../api/queries';
import { formatBytes, formatCount, formatTime } from '../format';
import type { Backup } from '../generated/types.gen';
import { Badge } from '../ui/badge';
import { Command, serverUrl } from '../ui/command';
import { Empty } from '../ui/empty';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { ProblemNotice } from '../ui/problem-notice';
import { Scroll } from '../ui/scroll';
import { Table } from '../ui/table';
import { secondsText } from '../values/restart';

export function BackupsPage() {
  const list = useQuery(backupsQuery);
  const queries = useQueryClient();
  const onSettled = () => queries.invalidateQueries({ queryKey: backupsQuery.queryKey });
  const [earlier, setEarlier] = useState(false);
  const making = useMutation({ mutationFn: createBackup, onSettled });
  const removing = useMutation({ mutationFn: removeBackup, onSettled });
  const running = list.data?.find(({ state }) => state === 'running');
  return (
    <>
      <div className="page-head">
        <h1>Backups</h1>
        <div className="filters">
          <label className="inline-field">
            <input type="checkbox" checked={earlier} onChange={(event) => setEarlier(event.target.checked)} />
            with earlier log
          </label>
          <button
            className="button"
            type="button"
            disabled={making.isPending || running !== undefined}
            onClick={() => making.mutate(earlier)}
          >
            Make a backup
          </button>
        </div>
      </div>
      {making.isError && <ProblemNotice error={making.error} />}
      {removing.isError && <ProblemNotice error={removing.error} />}
      {running !== undefined && (
        <section className="notice good" aria-label="Running backup">
          <strong>A backup is in progress: {formatBytes(running.bytes)} copied</strong>
          <p className="muted">In {secondsText(running.seconds ?? 0)}. Transactions run meanwhile.</p>
        </section>
      )}
      <Panel title="Newest first">
        <Loaded query={list}>
          {(backups) =>
            backups.length === 0 ? (
              <None />
            ) : (
              <BackupTable backups={backups} isBusy={removing.isPending} onRemove={(id) => removing.mutate(id)} />
            )
          }
        </Loaded>
      </Panel>
      <Panel title="To another machine, and back">
        <div className="panel-body stack">
          <p className="muted">
            The first command creates a backup, downloads it and checks each byte. The second one restores it into a
            new data directory.
          </p>
          <Command text={`reprise backup create --url ${serverUrl()} --to ./backup`} />
          <Command text="reprise backup restore ./backup --to ./new-data" />
        </div>
      </Panel>
    </>
  );
}

type TableProps = { backups: Backup[]; isBusy: boolean; onRemove: (id: string) => void };

function BackupTable({ backups, isBusy, onRemove }: TableProps) {
  return (
    <Scroll label="Backups">
      <Table
        headings={[
          'Backup',
          'Began',
          'State',
          { number: 'From LSN' },
          { number: 'To LSN' },
          { number: 'Size' },
          'On the server',
          'Room',
        ]}
      >
        {backups.map((backup) => (
          <tr key={`${backup.id} ${backup.state}`}>
            <th scope="row" className="mono">
              {backup.id}
            </th>
            <td className="nowrap">{formatTime(backup.began_at)}</td>
            <td>
              <State backup={backup} />
            </td>
            <td className="number">{lsnText(backup.checkpoint_lsn)}</td>
            <td className="number">{lsnText(backup.end_lsn)}</td>
            <td className="number">{formatBytes(backup.bytes)}</td>
            <td className="mono">{backup.directory}</td>
            <td>
              {backup.state === 'published' && (
                <Remove backup={backup} isBusy={isBusy} onRemove={() => onRemove(backup.id)} />
              )}
            </td>
          </tr>
        ))}
      </Table>
    </Scroll>
  );
}

/** Asks once more: nothing brings a backup back. */
function Remove({ backup, isBusy, onRemove }: { backup: Backup; isBusy: boolean; onRemove: () => void }) {
  const [isAsked, setAsked] = useState(false);
  if (!isAsked) {
    return (
      <button
        className="button plain"
        type="button"
        disabled={isBusy}
        aria-label={`Remove backup ${backup.id}`}
        onClick={() => setAsked(true)}
      >
        Remove
      </button>
    );
  }
  return (
    <span className="nowrap">
      <button className="button" type="button" disabled={isBusy} onClick={onRemove}>
        Remove for good
      </button>
      <button className="button plain" type="button" onClick={() => setAsked(false)}>
        Keep
      </button>
    </span>
  );
}

function State({ backup }: { backup: Backup }) {
  switch (backup.state) {
    case 'running':
      return <Badge tone="accent">running</Badge>;
    case 'published':
      return <Badge tone="good">published</Badge>;
    case 'failed':
      return (
        <Badge tone="bad" title={backup.error ?? ''}>
          failed
        </Badge>
      );
  }
}

function lsnText(lsn: string | null | undefined): string {
  return lsn === null || lsn === undefined ? '' : formatCount(lsn);
}

function None() {
  return (
    <Empty title="There are no backups on the server">
      <p>
        A backup has the newest checkpoint and the log after it. The server’s settings backup_dir and backup_max set
        their directory and largest size.
      </p>
    </Empty>
  );
}
