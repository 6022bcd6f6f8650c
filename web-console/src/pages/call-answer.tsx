import type { CallOutcome } from '../api/commands';
import type { ProcedureInfo } from '../generated/types.gen';
import { hrefOf } from '../route';
import { Badge } from '../ui/badge';
import { Facts } from '../ui/facts';
import { Json } from '../ui/json';

/** What a committed call answered. */
export function CallAnswer({ outcome, procedure }: { outcome: CallOutcome; procedure: ProcedureInfo }) {
  const { result, read_only } = procedure;
  const partition = outcome.partition ?? null;
  return (
    <>
      <div className="badges">
        <Badge tone="good">committed</Badge>
        {outcome.replayed && (
          <Badge tone="warn" title="The stored outcome of this idempotency key. The server ran nothing.">
            stored outcome of the key
          </Badge>
        )}
      </div>
      {result.kind === 'unit' ? <p className="muted">No result.</p> : <Json value={outcome.result} label="Result" />}
      <Facts
        inline
        facts={[
          { label: 'Transaction', value: <code>{outcome.txn_id}</code> },
          {
            label: 'LSN',
            // A read leaves no record: its LSN says how new the data was.
            value:
              read_only || outcome.lsn === '0' ? (
                <code>{outcome.lsn}</code>
              ) : (
                <a className="mono" href={hrefOf({ page: 'record', lsn: outcome.lsn })}>
                  {outcome.lsn}
                </a>
              ),
          },
          { label: 'Partition', value: partition === null ? 'several' : partition },
          { label: 'Round trip', value: `${outcome.elapsedMs.toFixed(1)} ms` },
        ]}
      />
    </>
  );
}
