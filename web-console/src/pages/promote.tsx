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
  // The server says why: at quorum another standby has more, or too few can be asked; at 1-safe the primary alone answers.
  const isRefused = promoting.error instanceof ProblemError && promoting.error.slug === 'out-of-sync';
  return (
    <div className="dialog-body">
      <h2 id="promote-title">Make this server the primary?</h2>
      {!force && (
        <p>
          The old primary steps down, this server gets its last records and replays them, then takes writes in epoch{' '}
          {formatCount(node.epoch + 1)}. Nothing is lost.
        </p>
      )}
      {own !== undefined && own.lag_txns > 0 && (
        <p className="notice">
          It is behind by {plural(own.lag_txns, 'record')} that it knows of, {lagText(own)}.
        </p>
      )}
      <label className="inline-field">
        <input type="checkbox" checked={force} onChange={(event) => setForce(event.target.checked)} />
        The old primary is stopped: do not ask it
      </label>
      {force && (
        <p className="notice">
          What the old primary answered and has not shipped is lost. While it runs, both answer, and one of the two loses
          what it answers.
        </p>
      )}
      {force && own !== undefined && (own.in_sync !== true || isRefused) && (
        <>
          <p className="notice">{lossText(own)}</p>
          <label className="inline-field">
            <input type="checkbox" checked={acceptLoss} onChange={(event) => setAcceptLoss(event.target.checked)} />
            It may lack what the old primary answered from LSN {formatCount(own.persisted_lsn)} on: lose what is not here
          </label>
        </>
      )}
      {promoting.isError && <ProblemNotice error={promoting.error} />}
      <div className="dialog-actions">
        <button className="button" type="button" onClick={onClose}>
          Leave it a standby
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
      return 'It was in sync, and still can’t know that it has everything: see below.';
    case false:
      return 'Its primary told it that it is out of sync.';
    default:
      return 'It does not know whether it is in sync: its primary may have gone on without it.';
  }
}

function knownText({ known_to_lsn }: LostRange): string {
  return known_to_lsn == null
    ? 'How far that one was is not known.'
    : `It is known to have had everything before LSN ${formatCount(known_to_lsn)}.`;
}

export function Promoted({ promotion }: { promotion: Promotion }) {
  return (
    <div className="notice good" role="status">
      <strong>This server is the primary, in epoch {formatCount(promotion.epoch)}</strong>
      <p className="muted">It takes writes from LSN {formatCount(promotion.lsn)} on. Point clients and standbys here.</p>
      {promotion.may_be_lost != null && (
        <p>
          What the old primary answered from LSN {formatCount(promotion.may_be_lost.from_lsn)} on{' '}
          {promotion.may_be_lost.proven ? 'is' : 'may be'} lost. {knownText(promotion.may_be_lost)}
        </p>
      )}
    </div>
  );
}
