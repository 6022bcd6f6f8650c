import { useQuery } from '@tanstack/react-query';
import { tablesQuery } from '../api/queries';
import { formatBytes, formatCount, plural } from '../format';
import type { TableInfo } from '../generated/types.gen';
import { hrefOf, tableRoute } from '../route';
import { Empty } from '../ui/empty';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { Scroll } from '../ui/scroll';
import { Table } from '../ui/table';
import { placementText } from './placement';

export function TablesPage() {
  const tables = useQuery(tablesQuery);
  return (
    <>
      <div className="page-head">
        <h1>Tables</h1>
      </div>
      <Panel title="Stored" side={tables.data === undefined ? undefined : totals(tables.data)}>
        <Loaded query={tables}>{(list) => (list.length === 0 ? <NoTables /> : <TableList tables={list} />)}</Loaded>
      </Panel>
    </>
  );
}

function TableList({ tables }: { tables: TableInfo[] }) {
  return (
    <Scroll label="Tables">
      <Table
        headings={[
          'Table',
          { number: 'Rows' },
          { number: 'Memory' },
          { number: 'of it indexes' },
          'Primary key',
          'Placement',
          'Module',
        ]}
      >
        {tables.map((table) => (
          <tr key={table.name}>
            <th scope="row">
              <a href={hrefOf(tableRoute(table.name))}>{table.name}</a>
            </th>
            <td className="number">{formatCount(table.rows)}</td>
            <td className="number">{formatBytes(table.bytes)}</td>
            <td className="number">{formatBytes(table.index_bytes)}</td>
            <td>
              {table.primary_key.length === 0 ? <span className="muted">none</span> : table.primary_key.join(', ')}
            </td>
            <td>{placementText(table)}</td>
            <td>
              {table.modules.length === 0 ? (
                <span className="muted">none in service</span>
              ) : (
                table.modules.map((module) => (
                  <a key={module} href={hrefOf({ page: 'module', module, procedure: null })}>
                    {module}{' '}
                  </a>
                ))
              )}
            </td>
          </tr>
        ))}
      </Table>
    </Scroll>
  );
}

function NoTables() {
  return (
    <Empty title="There are no tables yet">
      <p>
        Modules declare tables. The server creates a table when it installs a module that declares it.{' '}
        <a href={hrefOf({ page: 'modules' })}>Upload a module</a>
      </p>
    </Empty>
  );
}

function totals(tables: TableInfo[]): string {
  const rows = tables.reduce((sum, table) => sum + table.rows, 0);
  const bytes = tables.reduce((sum, table) => sum + table.bytes, 0);
  return `${plural(tables.length, 'table')}, ${plural(rows, 'row')}, ${formatBytes(bytes)}`;
}
