// Puts a module in service: drop a file or choose one, check the name, upload.
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { type DragEvent, useId, useRef, useState } from 'react';
import { deployModule, planModule } from '../api/commands';
import { formatBytes, plural } from '../format';
import type { ModuleInstalled } from '../generated/types.gen';
import { hrefOf } from '../route';
import { UploadIcon } from '../ui/icons';
import { ProblemNotice } from '../ui/problem-notice';
import { Plan } from './plan';
import { asksFirst, consentsOf, destroyedText } from './plan-text';

/** The form of every module's name. */
const namePattern = /^[a-z][a-z0-9_]{0,62}$/;

type Chosen = { target: string; wasm: File };
type Confirmed = Chosen & { allow: string[] };

/** `module` fixes the name, on the page of a module. */
export function Upload({ module }: { module: string | null }) {
  const [file, setFile] = useState<File | null>(null);
  const [name, setName] = useState('');
  const [over, setOver] = useState(false);
  const chooser = useRef<HTMLInputElement>(null);
  const nameId = useId();
  const queries = useQueryClient();
  const upload = useMutation({
    mutationFn: ({ target, wasm, allow }: Confirmed) => deployModule(target, wasm, allow),
    onSuccess: () => {
      setFile(null);
      plan.reset();
      void queries.invalidateQueries();
    },
  });

  const plan = useMutation({
    mutationFn: ({ target, wasm }: Chosen) => planModule(target, wasm),
    onSuccess: (planned, chosen) => {
      if (!asksFirst(planned.plan)) upload.mutate({ ...chosen, allow: [] });
    },
  });

  // A reset does not stop a request. Until the request has ended, the page takes no other file or name.
  const isBusy = plan.isPending || upload.isPending;

  const take = (chosen: File | undefined) => {
    if (chosen === undefined || isBusy) return;
    setFile(chosen);
    setName(module ?? nameFrom(chosen.name));
    plan.reset();
    upload.reset();
  };
  const onDrop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    take(event.dataTransfer.files[0]);
  };
  const target = module ?? name;
  return (
    <>
      <div
        className={over ? 'drop over' : 'drop'}
        onDragOver={(event) => {
          event.preventDefault();
          setOver(!isBusy);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={onDrop}
      >
        <UploadIcon />
        <div>
          <h2>{file === null ? 'Drop a .wasm file here' : file.name}</h2>
          <p className="muted">{file === null ? purpose(module) : formatBytes(file.size)}</p>
        </div>
        <div className="actions">
          <input
            ref={chooser}
            type="file"
            accept=".wasm,application/wasm"
            aria-label="Module file"
            hidden
            onChange={(event) => {
              take(event.target.files?.[0]);
              event.target.value = ''; // the same file, built anew, must count as a choice again
            }}
          />
          {file !== null && module === null && (
            <div className="field">
              <label className="label" htmlFor={nameId}>
                Name
              </label>
              <input
                id={nameId}
                className="mono"
                value={name}
                spellCheck={false}
                autoComplete="off"
                disabled={isBusy}
                aria-invalid={!namePattern.test(name)}
                title="Lower-case letters, digits and underscores; a letter first; at most 63"
                onChange={(event) => {
                  setName(event.target.value);
                  plan.reset(); // it is the plan of the former name
                }}
              />
            </div>
          )}
          <button className="button" type="button" disabled={isBusy} onClick={() => chooser.current?.click()}>
            {file === null ? 'Choose a file…' : 'Another file…'}
          </button>
          {file !== null && (
            <button
              className="button primary"
              type="button"
              disabled={!namePattern.test(target) || isBusy}
              onClick={() => {
                upload.reset();
                plan.mutate({ target, wasm: file });
              }}
            >
              {isBusy ? 'Uploading…' : 'Upload'}
            </button>
          )}
        </div>
      </div>
      {plan.isError && <ProblemNotice error={plan.error} />}
      {plan.isSuccess && asksFirst(plan.data.plan) && (
        <Plan
          module={plan.variables.target}
          planned={plan.data}
          isPending={upload.isPending}
          onInstall={() => upload.mutate({ ...plan.variables, allow: consentsOf(plan.data.plan) })}
          onCancel={() => plan.reset()}
        />
      )}
      {upload.isError && <ProblemNotice error={upload.error} />}
      {upload.isSuccess && <Installed installed={upload.data} />}
    </>
  );
}

function Installed({ installed }: { installed: ModuleInstalled }) {
  const { module, version, procedures, tables, destroyed } = installed;
  return (
    <div className="notice good" role="status">
      <strong>{outcome(installed)}</strong>
      <p>
        <a href={hrefOf({ page: 'module', module, procedure: null })}>
          {module} version {version}
        </a>
        {`: ${plural(procedures.length, 'procedure')} (${procedures.join(', ')}), ${plural(tables.length, 'table')}`}
      </p>
      {destroyed !== undefined && destroyed.length > 0 && <p>Destroyed: {destroyed.map(destroyedText).join(', ')}.</p>}
    </div>
  );
}

function outcome({ unchanged, replaced }: ModuleInstalled): string {
  if (unchanged) return 'This version was in service already: nothing changed';
  if (replaced === undefined || replaced === null) return 'The module is in service on all partitions';
  return `The new version replaced version ${replaced} on all partitions at once`;
}

function purpose(module: string | null): string {
  return module === null
    ? 'The server checks and compiles it, and puts it in service on all partitions in one step.'
    : 'The server installs a new version between two transactions. Tables may gain columns and indexes.';
}

function nameFrom(fileName: string): string {
  return fileName
    .replace(/\.wasm$/i, '')
    .toLowerCase()
    .replace(/[^a-z0-9_]+/g, '_')
    .replace(/^[^a-z]+/, '')
    .slice(0, 63);
}
