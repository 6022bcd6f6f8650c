// What an upload would do to the tables, and the question whether it shall.
import type { DeployPlan, ModulePlanned } from '../generated/types.gen';
import {
  confirmText,
  destroyedBy,
  destroyedText,
  procedureText,
  retiringText,
  rowsText,
  stepText,
  timeText,
} from './plan-text';

type Props = { module: string; planned: ModulePlanned; isPending: boolean; onInstall: () => void; onCancel: () => void };

export function Plan({ module, planned, isPending, onInstall, onCancel }: Props) {
  if (planned.plan.conflicts.length > 0) return <Conflicts module={module} plan={planned.plan} />;
  return (
    <section className="notice warn" aria-label="Plan">
      <strong>{destroyedBy(planned.plan).length > 0 ? 'The deployment would destroy data or procedures' : 'The deployment would change tables'}</strong>
      <PlanSteps plan={planned.plan} />
      <div className="actions">
        <button className="button" type="button" onClick={onCancel}>
          Cancel
        </button>
        <button
          className={destroyedBy(planned.plan).length > 0 ? 'button danger' : 'button primary'}
          type="button"
          disabled={isPending}
          onClick={onInstall}
        >
          {confirmText(planned.plan, 'Install')}
        </button>
      </div>
    </section>
  );
}

export function Conflicts({ module, plan }: { module: string; plan: DeployPlan }) {
  return (
    <div className="notice" role="alert">
      <strong>The server would refuse {module}; nothing was changed</strong>
      <ul>
        {plan.conflicts.map(({ table, item, message, way_on }) => (
          <li key={`${table} ${item} ${message}`}>
            {message}: {way_on}
          </li>
        ))}
      </ul>
    </div>
  );
}

/** What would be destroyed, with counts, and columns that may have been renamed. */
export function Destruction({ plan }: { plan: DeployPlan }) {
  return (
    <>
      {destroyedBy(plan).length > 0 && (
        <ul aria-label="Destroyed">
          {destroyedBy(plan).map((destroyed) => (
            <li key={destroyed.allow}>{destroyedText(destroyed)}</li>
          ))}
        </ul>
      )}
      {plan.likely_renames?.map(({ table, from, to }) => (
        <p key={`${table} ${from}`}>
          If {table}.{to} is the new name of {from}, declare the old name with <code>was</code> to keep its values.
        </p>
      ))}
    </>
  );
}

export function PlanSteps({ plan }: { plan: DeployPlan }) {
  return (
    <>
      <Destruction plan={plan} />
      <ul>
        {plan.procedures?.map((procedure) => (
          <li key={procedure.procedure}>{procedureText(procedure)}</li>
        ))}
        {plan.tables.map((table) => (
          <li key={table.table}>
            {table.table} ({rowsText(table)})
            <ul>
              {table.steps.map((step) => (
                <li key={stepText(step)}>{stepText(step)}</li>
              ))}
            </ul>
          </li>
        ))}
        {plan.migrates && (
          <li>
            The migration {plan.migration ?? ''} changes copies of the module’s tables
            <ul>
              {plan.retiring?.map((table) => (
                <li key={table.table}>{retiringText(table)}</li>
              ))}
            </ul>
          </li>
        )}
      </ul>
      <p>{timeText(plan)}</p>
    </>
  );
}
