// Committed rows of a table in the order of an index, one consistent snapshot a page.
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { rowsPerPage, rowsQuery } from '../api/queries';
import { formatCount, plural } from '../format';
import type { RowsPage, TableInfo } from '../generated/types.gen';
import { hrefOf, navigate, type Route } from '../route';
import { Badge } from '../ui/badge';
import { Empty } from '../ui/empty';
import { FilterForm } from '../ui/filter-form';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { Scroll } from '../ui/scroll';
import { Download } from './download';

type TableRoute = Extract<Route, { page: 'table' }>;
type Props = { table: TableInfo; route: TableRoute };

export function Rows({ table, route }: Props) {
  const { index, prefix, from, to, where, reverse, cursor } = route;
  const rows = useQuery(rowsQuery({ table: table.name, index, prefix, from, to, where, reverse, cursor }));
  const filtered = where.length > 0 || [prefix, from, to, cursor].some((value) => value !== null);
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
          <Download wanted={{ table: table.name, index, prefix, from, to, where, reverse }} />
          <button className="button" type="button" onClick={() => rows.refetch()}>
            Refresh
          </button>
        </>
      }
    >
      <Filters key={JSON.stringify([index, prefix, from, to, where])} table={table} route={route} onApply={(target) => goTo(target, [])} />
      <Loaded query={rows}>
        {(page) =>
          page.rows.length === 0 ? (
            <NoRows table={table} filtered={filtered} continued={cursor !== null} more={next !== null} />
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
  // Without a primary key the rows come as they are stored, unless an index is named.
  const hasPrimary = table.primary_key.length > 0;
  const name = route.index ?? (hasPrimary ? table.indexes[0]?.name : undefined);
  const chosen = table.indexes.find((index) => index.name === name);
  const { prefix, from, to, where, reverse } = route;
  const columns = chosen?.columns.join(', ') ?? '';
  const title = "Values of the index's columns, separated by commas or as a JSON array";
  const ranges = [
    { name: 'prefix', label: 'Begins with', placeholder: columns, title },
    { name: 'from', label: 'From', placeholder: 'what follows', title },
    { name: 'to', label: 'To', placeholder: 'what follows', title },
  ];
  // A field for each condition, and one for another.
  const conditions = [...where, ''].map((text, position) => ({
    name: `where ${position}`,
    label: position === 0 ? 'Where' : 'and',
    placeholder: 'column:op:value',
    title: whereTitle,
    text,
  }));
  const isOrdered = chosen?.ordered === true;
  return (
    <FilterForm
      label="Rows to show"
      fields={isOrdered ? [...ranges, ...conditions] : conditions}
      values={{ prefix, from, to, ...Object.fromEntries(conditions.map(({ name, text }) => [name, text])) }}
      onApply={(values: Record<string, string | null>) =>
        onApply({
          prefix: values.prefix ?? null,
          from: values.from ?? null,
          to: values.to ?? null,
          where: conditions.map(({ name }) => values[name] ?? '').filter((text) => text !== ''),
          cursor: null,
        })
      }
    >
      <label className="inline-field">
        Order of
        <select
          value={name ?? ''}
          onChange={(event) =>
            onApply({ index: event.target.value || null, prefix: null, from: null, to: null, reverse: null, cursor: null })
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
      {isOrdered && (
        <label className="inline-field">
          <input
            type="checkbox"
            checked={reverse === 'true'}
            onChange={(event) => onApply({ reverse: event.target.checked ? 'true' : null, cursor: null })}
          />
          Last first
        </label>
      )}
    </FilterForm>
  );
}

const whereTitle = 'A row must meet all conditions. The op is eq, ne, lt, le, gt or ge; for text also starts';

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

type NoRowsProps = { table: TableInfo; filtered: boolean; continued: boolean; more: boolean };

/** `continued`: the page has others before it. `more`: the server read a part of the table, and rows behind it may match. */
function NoRows({ table, filtered, continued, more }: NoRowsProps) {
  if (more) {
    return (
      <Empty title="No row matches in the part that was read">
        <p>The table has more rows. “Next {rowsPerPage}” reads on.</p>
      </Empty>
    );
  }
  if (filtered) return <Empty title={continued ? 'No more rows match' : 'No row matches'} />;
  const module = table.modules[0];
  return (
    <Empty title="This table is empty">
      <p>
        Procedures write rows.{' '}
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
