// Calls one procedure: a field for each parameter, or the arguments as JSON.
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { type FormEvent, useId, useState } from 'react';
import { callProcedure } from '../api/commands';
import type { ProcedureInfo } from '../generated/types.gen';
import { Command, serverUrl } from '../ui/command';
import { ProblemNotice } from '../ui/problem-notice';
import { Switch } from '../ui/switch';
import { encodeBody, initialText, type Typed } from '../values/encode';
import { ArgumentField } from './argument-field';
import { CallAnswer } from './call-answer';

type Props = { module: string; procedure: ProcedureInfo };

export function CallForm({ module, procedure }: Props) {
  const { name, parameters } = procedure;
  const [mode, setMode] = useState<'form' | 'json'>('form');
  const [typed, setTyped] = useState<Typed>({});
  const [json, setJson] = useState('{}');
  const [idempotencyKey, setIdempotencyKey] = useState('');
  const [tried, setTried] = useState(false);
  const queries = useQueryClient();
  const call = useMutation({
    mutationFn: callProcedure,
    onSettled: () => {
      void queries.invalidateQueries({ queryKey: ['tables'] });
      void queries.invalidateQueries({ queryKey: ['log'] });
    },
  });

  const encoded = mode === 'form' ? encodeBody(parameters, typed) : { json, complaints: jsonComplaints(json) };
  const isSound = Object.keys(encoded.complaints).length === 0;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setTried(true);
    if (isSound) call.mutate({ module, procedure: name, body: encoded.json, idempotencyKey });
  };
  const switchTo = (next: 'form' | 'json') => {
    if (next === 'json') setJson(pretty(encoded.json));
    setMode(next);
  };

  return (
    <div className="call">
      <form className="call-form" onSubmit={submit} noValidate aria-label={`Call ${name}`}>
        {parameters.length > 0 && (
          <div>
            <Switch
              label="Arguments"
              value={mode}
              options={[
                { value: 'form', text: 'Fields' },
                { value: 'json', text: 'JSON' },
              ]}
              onChange={switchTo}
            />
          </div>
        )}
        {mode === 'json' && (
          <JsonField json={json} complaint={tried ? encoded.complaints['json'] : undefined} onChange={setJson} />
        )}
        {mode === 'form' &&
          parameters.map((parameter) => (
            <ArgumentField
              key={parameter.name}
              parameter={parameter}
              text={typed[parameter.name] ?? initialText(parameter.type)}
              complaint={tried ? encoded.complaints[parameter.name] : undefined}
              onChange={(text) => setTyped((before) => ({ ...before, [parameter.name]: text }))}
            />
          ))}
        {parameters.length === 0 && <p className="muted">This procedure takes no arguments.</p>}
        {!procedure.read_only && (
          <label className="field">
            <span className="label">
              Idempotency key <span className="mono">optional</span>
            </span>
            <input
              className="mono"
              value={idempotencyKey}
              spellCheck={false}
              autoComplete="off"
              onChange={(event) => setIdempotencyKey(event.target.value)}
            />
          </label>
        )}
        <div className="call-actions">
          <button className="button primary" type="submit" disabled={call.isPending}>
            {call.isPending ? 'Calling…' : `Call ${name}`}
          </button>
          {tried && !isSound && <span className="complaint">Some arguments are still wrong.</span>}
        </div>
      </form>
      <div className="call-answer" aria-live="polite">
        {call.isError && <ProblemNotice error={call.error} />}
        {call.isSuccess && <CallAnswer outcome={call.data} procedure={procedure} />}
        {call.isIdle && <p className="muted">The same call from a shell:</p>}
        {call.isIdle && <Command text={curl(module, name, isSound ? encoded.json : '{…}', idempotencyKey)} />}
      </div>
    </div>
  );
}

type JsonProps = { json: string; complaint: string | undefined; onChange: (json: string) => void };

function JsonField({ json, complaint, onChange }: JsonProps) {
  const id = useId();
  return (
    <div className="field">
      <label className="label" htmlFor={id}>
        Arguments
      </label>
      <textarea
        id={id}
        rows={Math.min(Math.max(json.split('\n').length, 4), 14)}
        value={json}
        spellCheck={false}
        aria-invalid={complaint !== undefined}
        onChange={(event) => onChange(event.target.value)}
      />
      {complaint !== undefined && <span className="complaint">{complaint}</span>}
    </div>
  );
}

function jsonComplaints(json: string): Record<string, string> {
  try {
    JSON.parse(json);
    return {};
  } catch (error) {
    return { json: error instanceof Error ? error.message : 'not JSON' };
  }
}

/** Safe for 64-bit integers, because the form writes them as strings. */
function pretty(json: string): string {
  const complaints = jsonComplaints(json);
  return Object.keys(complaints).length === 0 && !/\d{16}/.test(json.replaceAll(/"[^"]*"/g, ''))
    ? JSON.stringify(JSON.parse(json), null, 2)
    : json;
}

function curl(module: string, procedure: string, json: string, key: string): string {
  const header = key === '' ? '' : ` -H ${quoted(`Idempotency-Key: ${key}`)}`;
  return `curl ${serverUrl()}/v1/call/${module}/${procedure}${header} --json ${quoted(json)}`;
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
