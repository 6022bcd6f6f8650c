// One table: its rows page by page, its columns and indexes.
import { useQuery } from '@tanstack/react-query';
import { tableQuery } from '../api/queries';
import type { ColumnInfo, IndexInfo, TableInfo } from '../api/types';
import { formatBytes, formatCount, plural } from '../format';
import { hrefOf, type Route } from '../route';
import { Badge } from '../ui/badge';
import { Facts } from '../ui/facts';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { Scroll } from '../ui/scroll';
import { typeText } from '../values/type-text';
import { placementText } from './placement';
import { Rows } from './rows';

type Props = { route: Extract<Route, { page: 'table' }> };

export function TablePage({ route }: Props) {
  const query = useQuery(tableQuery(route.table));
  return (
    <>
      <div className="page-head">
        <div className="crumbs">
          <a href={hrefOf({ page: 'tables' })}>Tables</a>
          <span className="sep" aria-hidden="true">
            /
          </span>
          <h1>{route.table}</h1>
        </div>
        {query.data !== undefined && <Facts inline facts={factsOf(query.data)} />}
      </div>
      <Loaded query={query}>
        {(table) => (
          <>
            <Rows table={table} route={route} />
            <div className="halves">
              <Panel title="Columns" side={plural(table.columns.length, 'column')}>
                <Columns columns={table.columns} table={table} />
              </Panel>
              <Panel title="Keys and indexes" side={plural(table.indexes.length, 'index', 'indexes')}>
                <Indexes indexes={table.indexes} />
              </Panel>
            </div>
          </>
        )}
      </Loaded>
    </>
  );
}

function Columns({ columns, table }: { columns: ColumnInfo[]; table: TableInfo }) {
  return (
    <Scroll label="Columns">
      <table>
        <thead>
          <tr>
            <th scope="col">Column</th>
            <th scope="col">Type</th>
            <th scope="col">Nullable</th>
            <th scope="col">Default</th>
            <th scope="col">Role</th>
          </tr>
        </thead>
        <tbody>
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
        </tbody>
      </table>
    </Scroll>
  );
}

function Indexes({ indexes }: { indexes: IndexInfo[] }) {
  if (indexes.length === 0) return <p className="loading">No primary key and no index: rows are kept as they came.</p>;
  return (
    <Scroll label="Indexes">
      <table>
        <thead>
          <tr>
            <th scope="col">Index</th>
            <th scope="col">Columns</th>
            <th scope="col">Kind</th>
          </tr>
        </thead>
        <tbody>
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
        </tbody>
      </table>
    </Scroll>
  );
}

function factsOf(table: TableInfo) {
  return [
    { label: 'Rows', value: formatCount(table.rows) },
    { label: 'Memory', value: formatBytes(table.bytes) },
    { label: 'Placement', value: placementText(table) },
  ];
}
