// What an upload would do to the tables, and the question whether it shall.
import type { DeployPlan, ModulePlanned } from '../generated/types.gen';
import { retiringText, rowsText, stepText, timeText } from './plan-text';

type Props = { module: string; planned: ModulePlanned; isPending: boolean; onInstall: () => void; onCancel: () => void };

export function Plan({ module, planned, isPending, onInstall, onCancel }: Props) {
  if (planned.plan.conflicts.length > 0) return <Conflicts module={module} plan={planned.plan} />;
  return (
    <section className="notice warn" aria-label="Plan">
      <strong>Tables would change</strong>
      <PlanSteps plan={planned.plan} />
      <div className="actions">
        <button className="button" type="button" onClick={onCancel}>
          Leave it
        </button>
        <button className="button primary" type="button" disabled={isPending} onClick={onInstall}>
          Install
        </button>
      </div>
    </section>
  );
}

export function Conflicts({ module, plan }: { module: string; plan: DeployPlan }) {
  return (
    <div className="notice" role="alert">
      <strong>{module} would be refused; nothing was changed</strong>
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

export function PlanSteps({ plan }: { plan: DeployPlan }) {
  return (
    <>
      <ul>
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
            What the module runs at its deployment changes copies of its tables
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
