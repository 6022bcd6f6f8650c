// What became of each procedure's calls since the server started, and what one of them waits for.
import { formatCount, formatMicros } from '../format';
import type { ProcedureInfo } from '../generated/types.gen';
import { Scroll } from '../ui/scroll';

type Calls = ProcedureInfo['calls'];

/** Name, meaning, what is shown of a procedure's calls. */
const columns: [string, string, (calls: Calls) => string][] = [
  ['Committed', 'Calls that committed', ({ committed }) => formatCount(committed)],
  ['Aborted', 'Calls that the procedure rolled back', ({ aborted }) => formatCount(aborted)],
  ['Trapped', 'Calls that trapped', ({ trapped }) => formatCount(trapped)],
  ['Limit', 'Calls that reached a limit of a transaction', ({ limit }) => formatCount(limit)],
  ['Ended', 'Calls that a time limit, a cancellation or the memory limit ended', ({ ended }) => formatCount(ended)],
  ['Refused', 'Calls that did not run, or of which the server kept nothing', ({ refused }) => formatCount(refused)],
  ['Queued', 'Average time that a call waits for its partition', (calls) => formatMicros(calls.mean_queued_us)],
  ['Runs', 'Average time that a call runs', (calls) => formatMicros(calls.mean_running_us)],
  ['Log', 'Average time that a call waits for the log', (calls) => formatMicros(calls.mean_logging_us)],
];

export function ProcedureCalls({ procedures }: { procedures: ProcedureInfo[] }) {
  return (
    <Scroll label="Calls since the start">
      <table>
        <thead>
          <tr>
            <th scope="col">Procedure</th>
            {columns.map(([name, meaning]) => (
              <th key={name} scope="col" className="number" title={meaning}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {procedures.map(({ name, calls }) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              {columns.map(([column, , show]) => (
                <td key={column} className="number">
                  {show(calls)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
