// One table: its rows page by page, its columns and indexes.
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useRef } from 'react';
import { dropTable } from '../api/commands';
import { tableQuery } from '../api/queries';
import { formatBytes, formatCount, plural } from '../format';
import type { ColumnInfo, IndexInfo, TableInfo } from '../generated/types.gen';
import { navigate, type Route } from '../route';
import { Badge } from '../ui/badge';
import { Crumbs } from '../ui/crumbs';
import { Facts } from '../ui/facts';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { ProblemNotice } from '../ui/problem-notice';
import { Scroll } from '../ui/scroll';
import { Switch } from '../ui/switch';
import { Table } from '../ui/table';
import { typeText } from '../values/type-text';
import { Groups } from './groups';
import { placementText } from './placement';
import { Rows } from './rows';

type Props = { route: Extract<Route, { page: 'table' }> };

export function TablePage({ route }: Props) {
  const query = useQuery(tableQuery(route.table));
  return (
    <>
      <div className="page-head">
        <Crumbs to={{ page: 'tables' }} section="Tables" name={route.table} />
        <Switch
          label="View"
          value={route.view}
          options={[
            { value: 'rows', text: 'Rows' },
            { value: 'counts', text: 'Counts' },
            { value: 'schema', text: 'Columns and indexes' },
          ]}
          onChange={(view) => navigate({ ...route, view })}
        />
      </div>
      <Loaded query={query}>
        {(table) => (
          <>
            <section className="panel panel-body" aria-label="Facts">
              <Facts facts={factsOf(table)} />
            </section>
            <View table={table} route={route} />
            <Drop name={route.table} table={table} />
          </>
        )}
      </Loaded>
    </>
  );
}

function View({ table, route }: Props & { table: TableInfo }) {
  switch (route.view) {
    case 'rows':
      return <Rows table={table} route={route} />;
    case 'counts':
      return <Groups table={table} route={route} />;
    case 'schema':
      return (
        <div className="halves">
          <Panel title="Columns" side={plural(table.columns.length, 'column')}>
            <Columns columns={table.columns} table={table} />
          </Panel>
          <Panel title="Keys and indexes" side={plural(table.indexes.length, 'index', 'indexes')}>
            <Indexes indexes={table.indexes} />
          </Panel>
        </div>
      );
  }
}

/** Of a table that no module in service declares. */
function Drop({ name, table }: { name: string; table: TableInfo }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const queries = useQueryClient();
  const drop = useMutation({
    mutationFn: () => dropTable(name),
    onSuccess: () => {
      navigate({ page: 'tables' });
      // The list alone: this page, still shown, would ask for the table that is gone.
      void queries.invalidateQueries({ queryKey: ['tables'], exact: true });
    },
  });
  if (table.modules.length > 0) return null;
  return (
    <>
      <p className="muted">
        No module in service declares this table.{' '}
        <button className="button danger" type="button" onClick={() => dialog.current?.showModal()}>
          Drop it…
        </button>
      </p>
      <dialog ref={dialog} aria-labelledby="drop-title" onClose={() => drop.reset()}>
        <div className="dialog-body">
          <h2 id="drop-title">Drop {name}?</h2>
          <p className="muted">The drop deletes {plural(table.rows, 'row')} for good.</p>
          {drop.isError && <ProblemNotice error={drop.error} />}
          <div className="dialog-actions">
            <button className="button" type="button" onClick={() => dialog.current?.close()}>
              Keep it
            </button>
            <button className="button danger" type="button" disabled={drop.isPending} onClick={() => drop.mutate()}>
              Drop the table
            </button>
          </div>
        </div>
      </dialog>
    </>
  );
}

function Columns({ columns, table }: { columns: ColumnInfo[]; table: TableInfo }) {
  return (
    <Scroll label="Columns">
      <Table headings={['Column', 'Type', 'Nullable', 'Default', 'Role']}>
        {columns.map(({ name, type, nullable, default: value }) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td className="mono nowrap">{typeText(type)}</td>
            <td>{nullable ? 'yes' : <span className="muted">no</span>}</td>
            <td className="mono">{value === undefined ? <span className="muted">–</span> : JSON.stringify(value)}</td>
            <td>
              <span className="badges">
                {table.primary_key.includes(name) && <Badge tone="accent">primary key</Badge>}
                {table.partition_column === name && <Badge>partition</Badge>}
              </span>
            </td>
          </tr>
        ))}
      </Table>
    </Scroll>
  );
}

function Indexes({ indexes }: { indexes: IndexInfo[] }) {
  if (indexes.length === 0) return <p className="loading">No primary key and no index: rows are kept as they came.</p>;
  return (
    <Scroll label="Indexes">
      <Table headings={['Index', 'Columns', 'Kind']}>
        {indexes.map(({ name, columns, unique, ordered }) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>{columns.join(', ')}</td>
            <td>
              <span className="badges">
                {unique && <Badge tone="accent">unique</Badge>}
                <Badge>{ordered ? 'ordered' : 'hash'}</Badge>
              </span>
            </td>
          </tr>
        ))}
      </Table>
    </Scroll>
  );
}

function factsOf(table: TableInfo) {
  const perRow = table.rows === 0 ? 'none yet' : `${(table.bytes / table.rows).toFixed(1)} B`;
  return [
    { label: 'Rows', value: formatCount(table.rows) },
    { label: 'Memory', value: formatBytes(table.bytes) },
    { label: 'Rows take', value: formatBytes(table.row_bytes) },
    { label: 'Indexes take', value: formatBytes(table.index_bytes) },
    { label: 'Memory for each row', value: perRow },
    { label: 'Primary key', value: table.primary_key.length === 0 ? 'none' : table.primary_key.join(', ') },
    { label: 'Placement', value: placementText(table) },
    { label: 'Declared by', value: table.modules.length === 0 ? 'no module in service' : table.modules.join(', ') },
  ];
}
