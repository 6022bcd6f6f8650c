// The way to make a standby the primary, and what is said once it is.
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { promote } from '../api/commands';
import { ProblemError } from '../api/problem';
import { replicationQuery } from '../api/queries';
import { formatCount, plural } from '../format';
import type { LostRange, Promotion, Replication, Standby } from '../generated/types.gen';
import { ProblemNotice } from '../ui/problem-notice';
import { lagText } from './standby-text';

type PromoteProps = { node: Replication; onClose: () => void; onPromoted: (promotion: Promotion) => void };

export function Promote({ node, onClose, onPromoted }: PromoteProps) {
  const queries = useQueryClient();
  const promoting = useMutation({
    mutationFn: promote,
    onSuccess: onPromoted,
    onSettled: () => queries.invalidateQueries({ queryKey: replicationQuery.queryKey }),
  });
  const own = node.standbys[0];
  const [force, setForce] = useState(false);
  const [acceptLoss, setAcceptLoss] = useState(false);
  // The server says why: another standby has more, too few can be asked, or the primary alone answers.
  const isRefused = promoting.error instanceof ProblemError && promoting.error.slug === 'out-of-sync';
  return (
    <div className="dialog-body">
      <h2 id="promote-title">Make this server the primary?</h2>
      {!force && (
        <p>
          The old primary steps down and sends its last records. This server replays them and then takes writes in
          epoch{' '}
          {formatCount(node.epoch + 1)}. Nothing is lost.
        </p>
      )}
      {own !== undefined && own.lag_txns > 0 && (
        <p className="notice">
          This server is at least {plural(own.lag_txns, 'record')} behind its primary, {lagText(own)}.
        </p>
      )}
      <label className="inline-field">
        <input type="checkbox" checked={force} onChange={(event) => setForce(event.target.checked)} />
        I have stopped the old primary: do not ask it
      </label>
      {force && (
        <p className="notice">
          Writes that the old primary acknowledged and did not send are lost. If it still runs, both servers
          acknowledge writes, and one of them loses its own.
        </p>
      )}
      {force && own !== undefined && (own.in_sync !== true || isRefused) && (
        <>
          <p className="notice">{lossText(own)}</p>
          <label className="inline-field">
            <input type="checkbox" checked={acceptLoss} onChange={(event) => setAcceptLoss(event.target.checked)} />
            Lose acknowledged writes from LSN {formatCount(own.persisted_lsn)} on that this server does not have
          </label>
        </>
      )}
      {promoting.isError && <ProblemNotice error={promoting.error} />}
      <div className="dialog-actions">
        <button className="button" type="button" onClick={onClose}>
          Keep it a standby
        </button>
        <button
          className="button danger"
          type="button"
          disabled={promoting.isPending}
          onClick={() => promoting.mutate({ force, acceptLoss })}
        >
          Make it the primary
        </button>
      </div>
    </div>
  );
}

function lossText({ in_sync }: Standby): string {
  switch (in_sync) {
    case true:
      return 'This server was in sync, but it can’t know whether it has every acknowledged write.';
    case false:
      return 'This server is out of sync, as its primary said last.';
    default:
      return 'This server does not know whether it is in sync: its primary may have continued without it.';
  }
}

function knownText({ known_to_lsn }: LostRange): string {
  return known_to_lsn == null
    ? 'The last LSN of the old primary is not known.'
    : `The old primary had everything before LSN ${formatCount(known_to_lsn)}.`;
}

export function Promoted({ promotion }: { promotion: Promotion }) {
  return (
    <div className="notice good" role="status">
      <strong>This server is the primary, in epoch {formatCount(promotion.epoch)}</strong>
      <p className="muted">It takes writes from LSN {formatCount(promotion.lsn)} on. Point clients and standbys here.</p>
      {promotion.may_be_lost != null && (
        <p>
          Writes that the old primary acknowledged from LSN {formatCount(promotion.may_be_lost.from_lsn)} on {promotion.may_be_lost.proven ? 'are' : 'may be'} lost.{' '}
          {knownText(promotion.may_be_lost)}
        </p>
      )}
    </div>
  );
}
