// Counts and sums of a table's rows, by the first column of the index that gives their order.
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { groupsQuery } from '../api/queries';
import { formatCount } from '../format';
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
        {(page) => (page.groups.length === 0 ? <Empty title="No row matches" /> : <GroupTable page={page} />)}
      </Loaded>
      {groups.data?.next_cursor != null && (
        <p className="muted">The table has more groups. `reprise table groups` lists all of them.</p>
      )}
    </Panel>
  );
}

function GroupTable({ page }: { page: GroupsPage }) {
  const first = page.groups[0];
  const keys = Object.keys(first?.key ?? {});
  const sums = Object.keys(first?.sums ?? {});
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
              <td className="number">{formatCount(group.count)}</td>
              {sums.map((name) => (
                <td className="number" key={name}>
                  {textOf(group.sums[name])}
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
