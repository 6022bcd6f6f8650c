// What the pages do: install, remove and call.
import type {
  Backup,
  CallAnswer,
  CallData,
  CallResponses,
  CancelCallData,
  CancelCallResponses,
  Checkpoint,
  CreateBackupData,
  DeleteBackupData,
  DeleteModuleData,
  DropTableData,
  ModuleInstalled,
  ModulePlanned,
  ModuleUploaded,
  PromoteData,
  PromoteResponses,
  Promotion,
  PutModuleData,
  PutModuleResponses,
  RollbackModuleData,
  RollbackModuleResponses,
  RunningCall,
  TakeCheckpointData,
} from '../generated/types.gen';
import { type Place, refusal, request, send } from './client';

/** `allow`: consents to what it destroys. */
export async function deployModule(module: string, wasm: Blob, allow: string[]): Promise<ModuleInstalled> {
  const data = await putModule(module, wasm, { allow });
  if ('plan' in data) throw new Error('the server answered an upload with a plan');
  return data;
}

/** What an upload would do; nothing is installed. */
export async function planModule(module: string, wasm: Blob): Promise<ModulePlanned> {
  const data = await putModule(module, wasm, { dry_run: 'true' });
  if (!('plan' in data)) throw new Error('the server answered a question for a plan with an upload');
  return data;
}

/** Deploys the bytes of a former version. `allow`: consents to what that destroys. */
export async function rollbackModule(module: string, version: number, allow: string[]): Promise<ModuleInstalled> {
  const data = await postRollback(module, version, { allow });
  if ('plan' in data) throw new Error('the server answered a rollback with a plan');
  return data;
}

/** What a rollback would do; nothing is installed. */
export async function planRollback(module: string, version: number): Promise<ModulePlanned> {
  const data = await postRollback(module, version, { dry_run: 'true' });
  if (!('plan' in data)) throw new Error('the server answered a question for a plan with a rollback');
  return data;
}

type DeployQuery = { dry_run?: string; allow?: string[] };

async function postRollback(module: string, version: number, query: DeployQuery): Promise<ModuleUploaded> {
  const { data } = await request<RollbackModuleData, RollbackModuleResponses>(
    { url: '/v1/modules/{module}/rollback', path: { module }, query: { version: version.toString(), ...query } },
    { method: 'POST' },
  );
  return data;
}

async function putModule(module: string, wasm: Blob, query: DeployQuery): Promise<ModuleUploaded> {
  const { data } = await request<PutModuleData, PutModuleResponses>(
    { url: '/v1/modules/{module}', path: { module }, query },
    { method: 'PUT', headers: { 'Content-Type': 'application/wasm' }, body: wasm },
  );
  return data;
}

/** With its rows. */
export async function dropTable(table: string): Promise<void> {
  const place: Place<DropTableData> = { url: '/v1/tables/{table}', path: { table } };
  const response = await send(place, { method: 'DELETE' });
  if (!response.ok) throw await refusal(response);
}

/** `allow`: consents to what that destroys. */
export async function removeModule(module: string, allow: string[]): Promise<void> {
  const place: Place<DeleteModuleData> = { url: '/v1/modules/{module}', path: { module }, query: { allow } };
  const response = await send(place, { method: 'DELETE' });
  if (!response.ok) throw await refusal(response);
}

export type PromoteChoice = { force: boolean; acceptLoss: boolean };

/** Makes this server, a standby, the primary; by force: the old primary is not asked to step down; with a loss: also out of sync. */
export async function promote({ force, acceptLoss }: PromoteChoice): Promise<Promotion> {
  const query = { force: force ? 'true' : null, accept_loss: force && acceptLoss ? 'true' : null };
  const place: Place<PromoteData> = { url: '/v1/replication/promote', query };
  return (await request<PromoteData, PromoteResponses>(place, { method: 'POST' })).data;
}

/** By its own id or its transaction's; what is answered tells how far it had got. */
export async function cancelCall(call_id: string): Promise<RunningCall> {
  const place: Place<CancelCallData> = { url: '/v1/calls/{call_id}', path: { call_id } };
  return (await request<CancelCallData, CancelCallResponses>(place, { method: 'DELETE' })).data;
}

/** Begins one, or names the one that is under way. */
export async function takeCheckpoint(): Promise<Checkpoint> {
  const place: Place<TakeCheckpointData> = { url: '/v1/checkpoints' };
  const response = await send(place, { method: 'POST' });
  if (!response.ok) throw await refusal(response);
  const begun: Checkpoint = await response.json();
  return begun;
}

/** Begins one, or names the one that is under way; with the log from the older checkpoint on, where `earlier`. */
export async function createBackup(earlier: boolean): Promise<Backup> {
  const place: Place<CreateBackupData> = { url: '/v1/backups', query: { earlier: earlier ? 'true' : null } };
  const response = await send(place, { method: 'POST' });
  if (!response.ok) throw await refusal(response);
  const begun: Backup = await response.json();
  return begun;
}

/** From the server's disk. */
export async function removeBackup(id: string): Promise<void> {
  const place: Place<DeleteBackupData> = { url: '/v1/backups/{id}', path: { id } };
  const response = await send(place, { method: 'DELETE' });
  if (!response.ok) throw await refusal(response);
}

export type Call = { module: string; procedure: string; body: string; idempotencyKey: string };

export type CallOutcome = CallAnswer & { replayed: boolean; elapsedMs: number };

/** The body goes out as typed: integers wider than a double keep their digits. */
export async function callProcedure({ module, procedure, body, idempotencyKey }: Call): Promise<CallOutcome> {
  const headers = new Headers();
  if (idempotencyKey !== '') headers.set('Idempotency-Key', idempotencyKey);
  const started = performance.now();
  const answer = await request<CallData, CallResponses>(
    { url: '/v1/call/{module}/{procedure}', path: { module, procedure } },
    { method: 'POST', headers, body },
  );
  const replayed = answer.headers.get('Idempotent-Replayed') === 'true';
  return { ...answer.data, replayed, elapsedMs: performance.now() - started };
}
