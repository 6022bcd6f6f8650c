import type { UseQueryResult } from '@tanstack/react-query';
import { ProblemError } from '../api/problem';
import { formatUptime } from '../format';
import type { Phase, Status } from '../generated/types.gen';
import { Badge, type Tone } from '../ui/badge';

/** Role, phase, durability and uptime, on every page. */
export function Vitals({ status }: { status: UseQueryResult<Status> }) {
  const { data, isError, error } = status;
  if (data === undefined || isError) {
    return (
      <div className="vitals" role="status">
        {isError ? <Badge tone="bad">{trouble(error)}</Badge> : <span>connecting…</span>}
      </div>
    );
  }
  return (
    <dl className="vitals">
      <div>
        <dt className="visually-hidden">Role and phase</dt>
        <dd className="badges">
          <Badge tone="accent">{data.role}</Badge>
          <Badge tone={toneOf(data.phase)}>{data.phase.name}</Badge>
        </dd>
      </div>
      <div className="wide-only">
        <dt>durability</dt>
        <dd title={durabilityMeaning(data)}>
          {data.log === 'none' ? 'no log' : `${data.log} log, ${data.commit} commit`}
        </dd>
      </div>
      <div className="minor">
        <dt>up</dt>
        <dd>{formatUptime(data.uptime_s)}</dd>
      </div>
    </dl>
  );
}

function trouble(error: Error): string {
  if (!(error instanceof ProblemError)) return 'no connection';
  return error.slug === 'unauthorized' ? 'token needed' : 'not ready';
}

function durabilityMeaning(status: Status): string {
  if (status.log === 'none') return 'The server keeps no log: after a restart it is empty.';
  return status.commit === 'sync'
    ? 'The server answers a write after it is durable on the device.'
    : 'The server answers a write before it is durable on the device: a crash may lose the last moment.';
}

function toneOf(phase: Phase): Tone {
  switch (phase.name) {
    case 'ready':
      return 'good';
    case 'recovering':
    case 'stopping':
      return 'warn';
    case 'failed':
      return 'bad';
  }
}
