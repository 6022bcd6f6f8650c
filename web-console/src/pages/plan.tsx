// What an upload would do to the tables, and the question whether it shall.
import type { ModulePlanned } from '../generated/types.gen';
import { rowsText, stepText, timeText } from './plan-text';

type Props = { module: string; planned: ModulePlanned; isPending: boolean; onInstall: () => void; onCancel: () => void };

export function Plan({ module, planned, isPending, onInstall, onCancel }: Props) {
  const { conflicts, tables } = planned.plan;
  if (conflicts.length > 0) {
    return (
      <div className="notice" role="alert">
        <strong>{module} would be refused; nothing was changed</strong>
        <ul>
          {conflicts.map(({ table, item, message, way_on }) => (
            <li key={`${table} ${item} ${message}`}>
              {message}: {way_on}
            </li>
          ))}
        </ul>
      </div>
    );
  }
  return (
    <section className="notice" aria-label="Plan">
      <strong>Tables would change</strong>
      <ul>
        {tables.map((table) => (
          <li key={table.table}>
            {table.table} ({rowsText(table)})
            <ul>
              {table.steps.map((step) => (
                <li key={stepText(step)}>{stepText(step)}</li>
              ))}
            </ul>
          </li>
        ))}
      </ul>
      <p>{timeText(planned.plan)}</p>
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
