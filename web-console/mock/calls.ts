// The mock's calls: one that runs for long, two that wait for it, one on its way to the disk. Those that were ended are gone.
import type { CallList, RunningCall } from '../src/generated/types.gen';

const started = Date.now() - 4_200;
const ended = new Set<string>();

function callsNow(): RunningCall[] {
  const age_ms = Date.now() - started;
  const call = (id: number, procedure: string, phase: RunningCall['phase'], partition: number | null): RunningCall => ({
    call_id: id.toString(),
    txn_id: phase === 'queued' ? null : (734_003_200_000 + id).toString(),
    module: 'voter',
    procedure,
    partition,
    age_ms: age_ms - id,
    phase,
  });
  const calls = [
    call(41, 'results', 'running', 2),
    call(57, 'vote', 'queued', 2),
    call(58, 'initialize', 'queued', null),
    call(63, 'vote', 'committing', 1),
  ];
  return calls.filter(({ call_id }) => !ended.has(call_id));
}

export function callList(): CallList {
  const calls = callsNow();
  return { calls, total: calls.length };
}

/** None: no such call, or it has run. */
export function endCall(id: string): RunningCall | null {
  const found = callsNow().find(({ call_id, phase }) => call_id === id && phase !== 'committing');
  if (found === undefined) return null;
  ended.add(id);
  return found;
}
