// What the pages do: install, remove and call.
import type {
  CallAnswer,
  CallData,
  CallResponses,
  Checkpoint,
  DeleteModuleData,
  ModuleInstalled,
  PutModuleData,
  PutModuleResponses,
  TakeCheckpointData,
} from '../generated/types.gen';
import { type Place, refusal, request, send } from './client';

export async function deployModule(module: string, wasm: Blob): Promise<ModuleInstalled> {
  const { data } = await request<PutModuleData, PutModuleResponses>(
    { url: '/v1/modules/{module}', path: { module } },
    { method: 'PUT', headers: { 'Content-Type': 'application/wasm' }, body: wasm },
  );
  return data;
}

export async function removeModule(module: string): Promise<void> {
  const place: Place<DeleteModuleData> = { url: '/v1/modules/{module}', path: { module } };
  const response = await send(place, { method: 'DELETE' });
  if (!response.ok) throw await refusal(response);
}

/** Begins one, or names the one that is under way. */
export async function takeCheckpoint(): Promise<Checkpoint> {
  const place: Place<TakeCheckpointData> = { url: '/v1/checkpoints' };
  const response = await send(place, { method: 'POST' });
  if (!response.ok) throw await refusal(response);
  const begun: Checkpoint = await response.json();
  return begun;
}

export type Call = { module: string; procedure: string; body: string; idempotencyKey: string };

export type CallOutcome = CallAnswer & { replayed: boolean; elapsedMs: number };

/** The body goes out as typed: integers wider than a double keep their digits. */
export async function callProcedure({ module, procedure, body, idempotencyKey }: Call): Promise<CallOutcome> {
  const headers = new Headers({ 'Content-Type': 'application/json' });
  if (idempotencyKey !== '') headers.set('Idempotency-Key', idempotencyKey);
  const started = performance.now();
  const answer = await request<CallData, CallResponses>(
    { url: '/v1/call/{module}/{procedure}', path: { module, procedure } },
    { method: 'POST', headers, body },
  );
  const replayed = answer.headers.get('Idempotent-Replayed') === 'true';
  return { ...answer.data, replayed, elapsedMs: performance.now() - started };
}
