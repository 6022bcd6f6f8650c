// What runs and waits now, longest first, and the end of one of it.
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useRef, useState } from 'react';
import { cancelCall } from '../api/commands';
import { callsQuery } from '../api/queries';
import { formatCount, formatMicros, plural } from '../format';
import type { CallList, CallPhase, RunningCall } from '../generated/types.gen';
import { hrefOf } from '../route';
import { Badge, type Tone } from '../ui/badge';
import { Empty } from '../ui/empty';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { ProblemNotice } from '../ui/problem-notice';
import { Scroll } from '../ui/scroll';
import { Table } from '../ui/table';

export function CallsPage() {
  const list = useQuery(callsQuery);
  const [chosen, setChosen] = useState<RunningCall | null>(null);
  const [told, setTold] = useState<RunningCall | null>(null);
  const dialog = useRef<HTMLDialogElement>(null);
  const choose = (call: RunningCall) => {
    setChosen(call);
    setTold(null);
    dialog.current?.showModal();
  };
  return (
    <>
      <div className="page-head">
        <h1>Calls</h1>
      </div>
      {told !== null && <Told call={told} />}
      <Panel title="Longest first" side={<Total list={list.data} />}>
        <Loaded query={list}>
          {({ calls }) => (calls.length === 0 ? <None /> : <CallTable calls={calls} onEnd={choose} />)}
        </Loaded>
      </Panel>
      <dialog ref={dialog} aria-labelledby="end-title">
        {chosen !== null && (
          <End
            key={chosen.call_id}
            call={chosen}
            onClose={() => dialog.current?.close()}
            onEnded={(ended) => {
              setTold(ended);
              dialog.current?.close();
            }}
          />
        )}
      </dialog>
    </>
  );
}

function None() {
  return (
    <Empty title="Nothing runs or waits">
      <p>This page lists calls while they run or wait.</p>
    </Empty>
  );
}

function Total({ list }: { list: CallList | undefined }) {
  if (list === undefined || list.total === 0) return null;
  const { calls, total } = list;
  return (
    <span className="muted">
      {calls.length < total ? `${formatCount(calls.length)} of ${plural(total, 'call')}` : plural(total, 'call')}
    </span>
  );
}

/** The call's own answer says how it ended: it may have ended by itself meanwhile. */
function Told({ call }: { call: RunningCall }) {
  return (
    <div className="notice good" role="status">
      <strong>
        {call.module}.{call.procedure} is being ended
      </strong>
      <p className="muted">
        Call {call.call_id} was {call.phase}. Its client gets the error “cancelled”, unless the call ended by itself
        before: only its own answer says.
      </p>
    </div>
  );
}

function CallTable({ calls, onEnd }: { calls: RunningCall[]; onEnd: (call: RunningCall) => void }) {
  return (
    <Scroll label="Calls">
      <Table
        headings={[
          'Procedure',
          'State',
          { number: 'Partition' },
          { number: 'Since it came' },
          { number: 'Call' },
          { number: 'Transaction' },
          'End it',
        ]}
      >
        {calls.map((call) => (
          <tr key={call.call_id}>
            <th scope="row">
              <a href={hrefOf({ page: 'module', module: call.module, procedure: call.procedure })}>
                {call.module}.{call.procedure}
              </a>
            </th>
            <td>
              <Badge tone={toneOf(call.phase)}>{call.phase}</Badge>
            </td>
            <td className="number">{call.partition ?? 'several'}</td>
            <td className="number">{formatMicros(call.age_ms * 1000)}</td>
            <td className="number mono">{call.call_id}</td>
            <td className="number mono">{call.txn_id ?? <span className="muted">–</span>}</td>
            <td>
              {call.phase !== 'committing' && (
                <button
                  className="button danger"
                  type="button"
                  aria-label={`End call ${call.call_id}…`}
                  onClick={() => onEnd(call)}
                >
                  End…
                </button>
              )}
            </td>
          </tr>
        ))}
      </Table>
    </Scroll>
  );
}

type EndProps = { call: RunningCall; onClose: () => void; onEnded: (call: RunningCall) => void };

function End({ call, onClose, onEnded }: EndProps) {
  const queries = useQueryClient();
  const end = useMutation({
    mutationFn: () => cancelCall(call.call_id),
    onSuccess: onEnded,
    onSettled: () => queries.invalidateQueries({ queryKey: callsQuery.queryKey }),
  });
  return (
    <div className="dialog-body">
      <h2 id="end-title">
        End {call.module}.{call.procedure}?
      </h2>
      <p className="muted">
        Call {call.call_id} ends with the error “cancelled”, and the server keeps nothing of it, unless it has run by
        then.
      </p>
      {end.isError && <ProblemNotice error={end.error} />}
      <div className="dialog-actions">
        <button className="button" type="button" onClick={onClose}>
          Keep it running
        </button>
        <button className="button danger" type="button" disabled={end.isPending} onClick={() => end.mutate()}>
          End the call
        </button>
      </div>
    </div>
  );
}

function toneOf(phase: CallPhase): Tone {
  switch (phase) {
    case 'running':
      return 'accent';
    case 'queued':
      return 'plain';
    case 'committing':
      return 'good';
  }
}
