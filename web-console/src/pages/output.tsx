// What procedures wrote with `log`, newest first. It lies in memory, within bounds; the records are on the log's page.
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { procedureLogQuery } from '../api/queries';
import { formatTime } from '../format';
import type { ProcedureLogLine } from '../generated/types.gen';
import { hrefOf, navigate, type Route } from '../route';
import { Badge, type Tone } from '../ui/badge';
import { Empty } from '../ui/empty';
import { FilterForm } from '../ui/filter-form';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { Scroll } from '../ui/scroll';
import { Table } from '../ui/table';
import { FollowBadge, FollowButton, LogHead } from './log-head';

type OutputRoute = Extract<Route, { page: 'output' }>;

const levels = ['debug', 'info', 'warn', 'error'];

export function OutputPage({ route }: { route: OutputRoute }) {
  const [following, setFollowing] = useState(true);
  const { procedure, level, transaction } = route;
  const lines = useQuery(procedureLogQuery({ procedure, level, transaction }, following));
  return (
    <>
      <div className="page-head">
        <LogHead view="output" />
        <FollowButton following={following} onChange={setFollowing} />
      </div>
      <Panel title="Newest lines" side={<FollowBadge following={following} />}>
        <FilterForm
          key={`${procedure} ${transaction}`}
          label="Lines to show"
          fields={[
            { name: 'procedure', label: 'Procedure', placeholder: 'name' },
            { name: 'transaction', label: 'Transaction', placeholder: 'id' },
          ]}
          values={{ procedure, transaction }}
          onApply={(values) => navigate({ ...route, ...values })}
        >
          <label className="inline-field">
            Level
            <select value={level ?? ''} onChange={(event) => navigate({ ...route, level: event.target.value || null })}>
              <option value="">all</option>
              {levels.map((name) => (
                <option key={name} value={name}>
                  {name} and above
                </option>
              ))}
            </select>
          </label>
        </FilterForm>
        <Loaded query={lines}>{(list) => (list.length === 0 ? <NoLines /> : <LineTable lines={list} />)}</Loaded>
      </Panel>
    </>
  );
}

function LineTable({ lines }: { lines: ProcedureLogLine[] }) {
  return (
    <Scroll label="Lines">
      <Table headings={['Time', 'Level', 'Procedure', 'Text', 'Transaction']}>
        {lines.map(({ number, time, level, module, procedure, text, txn_id }) => (
          <tr key={number}>
            <td className="nowrap">{formatTime(time)}</td>
            <td>
              <Badge tone={toneOf(level)}>{level}</Badge>
            </td>
            <td className="nowrap">
              <a href={hrefOf({ page: 'module', module, procedure })}>
                {module}.{procedure}
              </a>
            </td>
            <td className="mono line-text">{text}</td>
            <td className="mono">{txn_id}</td>
          </tr>
        ))}
      </Table>
    </Scroll>
  );
}

function NoLines() {
  return (
    <Empty title="No procedure has written a line">
      <p>Procedures write lines with the host call log. This page shows the newest lines of all procedures.</p>
    </Empty>
  );
}

function toneOf(level: string): Tone {
  if (level === 'error') return 'bad';
  return level === 'warn' ? 'warn' : 'plain';
}
