// One module: its procedures with a form to call each, its tables and versions.
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useRef } from 'react';
import { removeModule } from '../api/commands';
import { planIn } from '../api/problem';
import { moduleQuery } from '../api/queries';
import { formatBytes, formatTime, plural } from '../format';
import type { ModuleDetail, ModuleVersion } from '../generated/types.gen';
import { hrefOf, navigate, tableRoute } from '../route';
import { Badge } from '../ui/badge';
import { Crumbs } from '../ui/crumbs';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { ProblemNotice } from '../ui/problem-notice';
import { Scroll } from '../ui/scroll';
import { Table } from '../ui/table';
import { Destruction } from './plan';
import { confirmText, consentsOf } from './plan-text';
import { Procedure } from './procedure';
import { ProcedureCalls } from './procedure-calls';
import { Rollback } from './rollback';
import { Upload } from './upload';

export function ModulePage({ module, procedure }: { module: string; procedure: string | null }) {
  const query = useQuery(moduleQuery(module));
  return (
    <>
      <div className="page-head">
        <Crumbs to={{ page: 'modules' }} section="Modules" name={module} />
        {query.data !== undefined && <Remove module={module} />}
      </div>
      <Loaded query={query}>{(detail) => <Detail detail={detail} open={procedure} />}</Loaded>
    </>
  );
}

function Detail({ detail, open }: { detail: ModuleDetail; open: string | null }) {
  const { module, procedures, tables, versions } = detail;
  return (
    <>
      <Panel title="Procedures" side={plural(procedures.length, 'procedure')}>
        {procedures.map((procedure) => (
          <Procedure key={procedure.name} module={module} procedure={procedure} open={procedure.name === open} />
        ))}
        {procedures.length === 0 && <p className="loading">This module has no procedures.</p>}
      </Panel>
      <Panel title="Calls since the start">
        <ProcedureCalls procedures={procedures} />
      </Panel>
      <div className="halves">
        <Panel title="Tables" side={plural(tables.length, 'table')}>
          {tables.length === 0 ? (
            <p className="loading">This module declares no tables.</p>
          ) : (
            <ul className="panel-body badges">
              {tables.map((table) => (
                <li key={table}>
                  <a className="button" href={hrefOf(tableRoute(table))}>
                    {table}
                  </a>
                </li>
              ))}
            </ul>
          )}
        </Panel>
        <Panel title="Versions" side={plural(versions.length, 'version')}>
          <Versions module={module} versions={versions} />
        </Panel>
      </div>
      <Upload module={module} />
    </>
  );
}

function Versions({ module, versions }: { module: string; versions: ModuleVersion[] }) {
  return (
    <Scroll label="Versions">
      <Table headings={[{ number: 'Version' }, 'Hash', { number: 'Size' }, 'Installed', 'State', '']}>
        {[...versions].reverse().map(({ version, hash, wasm_bytes, installed_at, in_service, kept }) => (
          <tr key={version}>
            <td className="number">{version}</td>
            <td>
              <code title={hash}>{hash.slice(0, 12)}</code>
            </td>
            <td className="number">{formatBytes(wasm_bytes)}</td>
            <td className="nowrap">{formatTime(installed_at)}</td>
            <td>
              {in_service && <Badge tone="good">in service</Badge>}
              {!in_service && kept && <Badge title="The server keeps its bytes for a rollback">kept</Badge>}
            </td>
            <td>{!in_service && kept && <Rollback module={module} version={version} />}</td>
          </tr>
        ))}
      </Table>
    </Scroll>
  );
}

function Remove({ module }: { module: string }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const queries = useQueryClient();
  const remove = useMutation({
    mutationFn: (allow: string[]) => removeModule(module, allow),
    onSuccess: () => {
      navigate({ page: 'modules' });
      // The list alone: this page, still shown, would ask for the module that is gone.
      void queries.invalidateQueries({ queryKey: ['modules'], exact: true });
    },
  });
  // Refused for want of consent: the plan says to what, and the next click gives it.
  const plan = remove.isError ? planIn(remove.error) : null;
  return (
    <>
      <button className="button danger" type="button" onClick={() => dialog.current?.showModal()}>
        Remove from service…
      </button>
      <dialog ref={dialog} aria-labelledby="remove-title" onClose={() => remove.reset()}>
        <div className="dialog-body">
          <h2 id="remove-title">Remove {module} from service?</h2>
          <p className="muted">
            Clients can no longer call its procedures. Its tables and rows stay, and the log still replays. To put it
            back, upload it again.
          </p>
          {remove.isError && plan === null && <ProblemNotice error={remove.error} />}
          {plan !== null && <Destruction plan={plan} />}
          <div className="dialog-actions">
            <button className="button" type="button" onClick={() => dialog.current?.close()}>
              Keep it
            </button>
            <button
              className="button danger"
              type="button"
              disabled={remove.isPending}
              onClick={() => remove.mutate(plan === null ? [] : consentsOf(plan))}
            >
              {plan === null ? 'Remove from service' : confirmText(plan, 'Remove from service')}
            </button>
          </div>
        </div>
      </dialog>
    </>
  );
}
