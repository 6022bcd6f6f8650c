import { useQuery } from '@tanstack/react-query';
import { modulesQuery } from '../api/queries';
import { formatBytes, formatTime, plural } from '../format';
import type { ModuleSummary } from '../generated/types.gen';
import { hrefOf } from '../route';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { Scroll } from '../ui/scroll';
import { Table } from '../ui/table';
import { FirstModule } from './first-module';
import { Upload } from './upload';

export function ModulesPage() {
  const modules = useQuery(modulesQuery);
  const count = modules.data?.length;
  return (
    <>
      <div className="page-head">
        <h1>Modules</h1>
      </div>
      <Upload module={null} />
      <Panel title="In service" side={count === undefined ? undefined : plural(count, 'module')}>
        <Loaded query={modules}>
          {(list) => (list.length === 0 ? <FirstModule /> : <ModuleTable modules={list} />)}
        </Loaded>
      </Panel>
    </>
  );
}

function ModuleTable({ modules }: { modules: ModuleSummary[] }) {
  return (
    <Scroll label="Modules">
      <Table
        headings={['Module', { number: 'Version' }, 'Procedures', 'Tables', { number: 'Size' }, 'Hash', 'Installed']}
      >
        {modules.map((item) => (
          <tr key={item.module}>
            <th scope="row">
              <a href={hrefOf({ page: 'module', module: item.module, procedure: null })}>{item.module}</a>
            </th>
            <td className="number">{item.version}</td>
            <td>{item.procedures.join(', ')}</td>
            <td>{item.tables.join(', ')}</td>
            <td className="number">{formatBytes(item.wasm_bytes)}</td>
            <td>
              <code title={item.hash}>{item.hash.slice(0, 12)}</code>
            </td>
            <td className="nowrap">{formatTime(item.installed_at)}</td>
          </tr>
        ))}
      </Table>
    </Scroll>
  );
}
