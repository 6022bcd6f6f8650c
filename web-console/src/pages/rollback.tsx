// Puts the bytes of a former version back in service, once its plan was looked at.
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useRef } from 'react';
import { planRollback, rollbackModule } from '../api/commands';
import type { DeployPlan } from '../generated/types.gen';
import { ProblemNotice } from '../ui/problem-notice';
import { Conflicts, PlanSteps } from './plan';
import { asksFirst, confirmText, consentsOf } from './plan-text';

export function Rollback({ module, version }: { module: string; version: number }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const queries = useQueryClient();
  const titleId = `rollback-${version}`;
  const plan = useMutation({ mutationFn: () => planRollback(module, version) });
  const rollback = useMutation({
    mutationFn: (allow: string[]) => rollbackModule(module, version, allow),
    onSuccess: () => {
      dialog.current?.close();
      void queries.invalidateQueries();
    },
  });
  const open = () => {
    rollback.reset();
    plan.mutate();
    dialog.current?.showModal();
  };
  const isRefused = plan.isSuccess && plan.data.plan.conflicts.length > 0;
  return (
    <>
      <button className="button nowrap" type="button" aria-label={`Roll back to version ${version}…`} onClick={open}>
        Roll back…
      </button>
      <dialog ref={dialog} aria-labelledby={titleId}>
        <div className="dialog-body">
          <h2 id={titleId}>
            Roll {module} back to version {version}?
          </h2>
          <p className="muted">
            The server deploys version {version} again as a new version, between two transactions. Rows stay as they
            are, except for the table changes below.
          </p>
          {plan.isPending && <p className="loading">Preparing the plan…</p>}
          {plan.isError && <ProblemNotice error={plan.error} />}
          {plan.isSuccess && <Change module={module} plan={plan.data.plan} />}
          {rollback.isError && <ProblemNotice error={rollback.error} />}
          <div className="dialog-actions">
            <button className="button" type="button" onClick={() => dialog.current?.close()}>
              Cancel
            </button>
            <button
              className="button danger"
              type="button"
              disabled={!plan.isSuccess || isRefused || rollback.isPending}
              onClick={() => rollback.mutate(plan.isSuccess ? consentsOf(plan.data.plan) : [])}
            >
              {plan.isSuccess && !isRefused ? confirmText(plan.data.plan, 'Roll back') : 'Roll back'}
            </button>
          </div>
        </div>
      </dialog>
    </>
  );
}

function Change({ module, plan }: { module: string; plan: DeployPlan }) {
  if (plan.conflicts.length > 0) return <Conflicts module={module} plan={plan} />;
  return asksFirst(plan) ? <PlanSteps plan={plan} /> : <p>No table changes.</p>;
}
