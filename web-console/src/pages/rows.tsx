// Committed rows of a table in the order of an index, one consistent snapshot a page.
import { useQuery } from '@tanstack/react-query';
import { type FormEvent, useState } from 'react';
import { rowsPerPage, rowsQuery } from '../api/queries';
import { formatCount, plural } from '../format';
import type { RowsPage, TableInfo } from '../generated/types.gen';
import { hrefOf, navigate, type Route } from '../route';
import { Badge } from '../ui/badge';
import { Empty } from '../ui/empty';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { Scroll } from '../ui/scroll';

type TableRoute = Extract<Route, { page: 'table' }>;
type Props = { table: TableInfo; route: TableRoute };

export function Rows({ table, route }: Props) {
  const { index, prefix, cursor } = route;
  const rows = useQuery(rowsQuery({ table: table.name, index, prefix, cursor }));
  // The pages before this one; a page opened by its address knows only the first.
  const [before, setBefore] = useState<(string | null)[]>([]);
  const next = rows.data?.next_cursor ?? null;

  const goTo = (target: Partial<TableRoute>, trail: (string | null)[]) => {
    setBefore(trail);
    navigate({ ...route, ...target });
  };
  return (
    <Panel
      title="Rows"
      side={
        <>
          {rows.data !== undefined && <span>as of LSN {formatCount(rows.data.lsn)}</span>}
          <button className="button" type="button" onClick={() => rows.refetch()}>
            Refresh
          </button>
        </>
      }
    >
      <Filters key={`${index} ${prefix}`} table={table} route={route} onApply={(target) => goTo(target, [])} />
      <Loaded query={rows}>
        {(page) =>
          page.rows.length === 0 ? (
            <NoRows table={table} filtered={prefix !== null || cursor !== null} />
          ) : (
            <RowTable table={table} page={page} />
          )
        }
      </Loaded>
      <div className="pager">
        <span className="muted" aria-live="polite">
          {rows.data === undefined ? '' : `${plural(rows.data.rows.length, 'row')} on this page`}
          {rows.isPlaceholderData && ', loading…'}
        </span>
        <span className="badges">
          <button
            className="button"
            type="button"
            disabled={cursor === null}
            onClick={() => goTo({ cursor: before.at(-1) ?? null }, before.slice(0, -1))}
          >
            {before.length > 0 || cursor === null ? 'Previous' : 'First page'}
          </button>
          <button
            className="button"
            type="button"
            disabled={next === null || rows.isPlaceholderData}
            onClick={() => goTo({ cursor: next }, [...before, cursor])}
          >
            Next {rowsPerPage}
          </button>
        </span>
      </div>
    </Panel>
  );
}

type FilterProps = Props & { onApply: (target: Partial<TableRoute>) => void };

function Filters({ table, route, onApply }: FilterProps) {
  const [prefix, setPrefix] = useState(route.prefix ?? '');
  // Without a primary key the rows come as they are stored, unless an index is named.
  const hasPrimary = table.primary_key.length > 0;
  const name = route.index ?? (hasPrimary ? table.indexes[0]?.name : undefined);
  const chosen = table.indexes.find((index) => index.name === name);
  if (table.indexes.length === 0) return null;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onApply({ prefix: prefix.trim() === '' ? null : prefix.trim(), cursor: null });
  };
  return (
    <form className="filters toolbar" onSubmit={submit} aria-label="Rows to show">
      <label className="inline-field">
        Order of
        <select
          value={name ?? ''}
          onChange={(event) =>
            onApply({ index: event.target.value === '' ? null : event.target.value, prefix: null, cursor: null })
          }
        >
          {!hasPrimary && <option value="">storage</option>}
          {table.indexes.map((index) => (
            <option key={index.name} value={index.name}>
              {index.name} ({index.columns.join(', ')})
            </option>
          ))}
        </select>
      </label>
      {chosen?.ordered === true && (
        <label className="inline-field">
          Begins with
          <input
            className="mono"
            value={prefix}
            placeholder={chosen.columns.join(', ')}
            title="Values of the index's first columns: with commas between them, or as a JSON array"
            spellCheck={false}
            autoComplete="off"
            onChange={(event) => setPrefix(event.target.value)}
          />
        </label>
      )}
      {chosen?.ordered === true && (
        <button className="button" type="submit">
          Apply
        </button>
      )}
    </form>
  );
}

function RowTable({ table, page }: { table: TableInfo; page: RowsPage }) {
  return (
    <Scroll label={`Rows of ${table.name}`}>
      <table className="rows">
        <thead>
          <tr>
            {table.columns.map(({ name, type }) => (
              <th scope="col" key={name} className={isNumber(type.kind) ? 'number' : undefined}>
                {name} {table.primary_key.includes(name) && <Badge>key</Badge>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {page.rows.map((row, position) => (
            <tr key={position}>
              {table.columns.map(({ name, type }) => (
                <Cell key={name} value={row[name]} number={isNumber(type.kind)} />
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Cell({ value, number }: { value: unknown; number: boolean }) {
  if (value === null || value === undefined) return <td className="null">null</td>;
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  return (
    <td className={number ? 'number' : undefined} title={text.length > 40 ? text : undefined}>
      {text}
    </td>
  );
}

function NoRows({ table, filtered }: { table: TableInfo; filtered: boolean }) {
  if (filtered) return <Empty title="No row matches" />;
  const module = table.modules[0];
  return (
    <Empty title="This table is empty">
      <p>
        Rows are written by procedures.{' '}
        {module !== undefined && (
          <a href={hrefOf({ page: 'module', module, procedure: null })}>Call a procedure of {module}</a>
        )}
      </p>
    </Empty>
  );
}

const numberKinds = new Set(['i8', 'i16', 'i32', 'i64', 'u8', 'u16', 'u32', 'u64', 'f64', 'decimal']);

function isNumber(kind: string): boolean {
  return numberKinds.has(kind);
}
