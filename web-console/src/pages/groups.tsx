// Counts and sums of a table's rows, by the first column of the index that gives their order.
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { groupsQuery } from '../api/queries';
import { formatCount, plural } from '../format';
import type { GroupsPage, TableInfo } from '../generated/types.gen';
import type { Route } from '../route';
import { Empty } from '../ui/empty';
import { FilterForm } from '../ui/filter-form';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { Scroll } from '../ui/scroll';

type Props = { table: TableInfo; route: Extract<Route, { page: 'table' }> };

export function Groups({ table, route }: Props) {
  const [sum, setSum] = useState<string | null>(null);
  const { index, prefix, from, to, where } = route;
  const groups = useQuery(groupsQuery({ table: table.name, index, prefix, from, to, where, sum }));
  const rest = groups.data === undefined ? null : restText(groups.data);
  return (
    <Panel
      title="Counts"
      side={
        <button className="button" type="button" onClick={() => groups.refetch()}>
          Refresh
        </button>
      }
    >
      <FilterForm
        label="What to sum"
        fields={[{ name: 'sum', label: 'Sum of', placeholder: 'numeric columns', title: 'Names, separated by commas' }]}
        values={{ sum }}
        onApply={(values) => setSum(values.sum)}
      />
      <Loaded query={groups}>
        {(page) =>
          page.groups.length === 0 ? (
            <Empty title={page.next_cursor == null ? 'No row matches' : 'No row matches in the part that was read'} />
          ) : (
            <GroupTable page={page} />
          )
        }
      </Loaded>
      {rest !== null && <p className="muted">{rest}</p>}
      <div className="pager">
        <span className="muted" aria-live="polite">
          {groups.data === undefined ? '' : `${plural(groups.data.groups.length, 'group')} on this page`}
          {groups.isPlaceholderData && ', loading…'}
        </span>
      </div>
    </Panel>
  );
}

/** The rows or groups that the page lacks, and the command that reads them. Null if it lacks none. */
function restText({ groups, continues, next_cursor }: GroupsPage): string | null {
  if (next_cursor == null) return null;
  if (groups.length === 0) return 'The table has more rows. `reprise table groups` reads all of them.';
  if (!continues) return 'The table has more groups. `reprise table groups` lists all of them.';
  return 'The last group may have more rows, and more groups may follow. `reprise table groups` counts all of them.';
}

function GroupTable({ page }: { page: GroupsPage }) {
  const first = page.groups[0];
  const keys = Object.keys(first?.key ?? {});
  const sums = Object.keys(first?.sums ?? {});
  // If the last group may have more rows on the next page, its figures are those of the rows that the server read.
  const part = page.continues ? page.groups.length - 1 : null;
  return (
    <Scroll label="Groups">
      <table className="rows">
        <thead>
          <tr>
            {keys.map((name) => (
              <th scope="col" key={name}>
                {name}
              </th>
            ))}
            <th scope="col" className="number">
              Rows
            </th>
            {sums.map((name) => (
              <th scope="col" className="number" key={name}>
                Sum of {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {page.groups.map((group, position) => (
            <tr key={position}>
              {keys.map((name) => (
                <td key={name}>{textOf(group.key[name])}</td>
              ))}
              <td className="number">
                {position === part && 'at least '}
                {formatCount(group.count)}
              </td>
              {sums.map((name) => (
                <td className="number" key={name}>
                  {textOf(group.sums[name])}
                  {position === part && ' (of rows read)'}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value ?? null);
}
