// The one translator of errors: whatever went wrong becomes an `Explanation` that a person can act on.
import type { DeployPlan } from '../generated/types.gen';

export type Slug =
  | 'invalid-arguments'
  | 'malformed-request'
  | 'unauthorized'
  | 'forbidden'
  | 'not-found'
  | 'method-not-allowed'
  | 'request-timeout'
  | 'schema-conflict'
  | 'idempotency-conflict'
  | 'log-released'
  | 'too-large'
  | 'unsupported-media-type'
  | 'not-primary'
  | 'not-standby'
  | 'primary-not-stopped'
  | 'out-of-sync'
  | 'invalid-module'
  | 'migration-failed'
  | 'procedure-aborted'
  | 'limit-exceeded'
  | 'cancelled'
  | 'procedure-trapped'
  | 'internal-error'
  | 'overloaded'
  | 'too-stale'
  | 'log-unavailable'
  | 'standby-unavailable'
  | 'lease-lost'
  | 'outcome-unknown'
  | 'recovering'
  | 'read-only'
  | 'quarantined'
  | 'unavailable'
  | 'deadline-exceeded'
  | 'memory-exhausted';

export const slugs: Slug[] = [
  'invalid-arguments',
  'malformed-request',
  'unauthorized',
  'forbidden',
  'not-found',
  'method-not-allowed',
  'request-timeout',
  'schema-conflict',
  'idempotency-conflict',
  'log-released',
  'too-large',
  'unsupported-media-type',
  'not-primary',
  'not-standby',
  'primary-not-stopped',
  'out-of-sync',
  'invalid-module',
  'migration-failed',
  'procedure-aborted',
  'limit-exceeded',
  'cancelled',
  'procedure-trapped',
  'internal-error',
  'overloaded',
  'too-stale',
  'log-unavailable',
  'standby-unavailable',
  'lease-lost',
  'outcome-unknown',
  'recovering',
  'read-only',
  'quarantined',
  'unavailable',
  'deadline-exceeded',
  'memory-exhausted',
];

export type Fields = Record<string, unknown>;

/** An answer of the server that is not a success. `slug` is null where it is not one of the contract's problems. */
export class ProblemError extends Error {
  readonly status: number;
  readonly slug: Slug | null;
  readonly title: string;
  readonly fields: Fields;

  constructor(status: number, title: string, detail: string, slug: Slug | null, fields: Fields) {
    super(detail);
    this.name = 'ProblemError';
    this.status = status;
    this.title = title;
    this.slug = slug;
    this.fields = fields;
  }
}

/** The request got no answer at all: the server is down, restarting, or the network is. */
export class UnreachableError extends Error {
  constructor(cause: unknown) {
    super('The server does not answer.', { cause });
    this.name = 'UnreachableError';
  }
}

/** Whether a request waited in vain for its whole time limit. */
export function isTimeout(error: unknown): boolean {
  return error instanceof UnreachableError && error.cause instanceof Error && error.cause.name === 'TimeoutError';
}

export type Explanation = {
  title: string;
  detail: string;
  /** What to do next, where the server's own detail does not say it. */
  hint: string | null;
  facts: { label: string; value: string }[];
  /** One line each: argument errors, schema conflicts, backtrace frames. */
  lines: string[];
};

export function toProblem(status: number, body: unknown): ProblemError {
  const fields = isFields(body) ? body : {};
  const type = textOf(fields, 'type') ?? '';
  const slug = slugs.find((known) => type === known || type.endsWith(`/problems/${known}`)) ?? null;
  const title = textOf(fields, 'title') ?? `The server answered ${status}`;
  const detail = textOf(fields, 'detail') ?? (typeof body === 'string' ? body.slice(0, 500) : '');
  return new ProblemError(status, title, detail, slug, fields);
}

export function explain(error: unknown): Explanation {
  if (error instanceof ProblemError) return explainProblem(error);
  if (error instanceof UnreachableError) {
    const hint = 'Check that the server runs, and that this page has its address. The console keeps trying.';
    return { title: 'No connection', detail: error.message, hint, facts: [], lines: [] };
  }
  const detail = error instanceof Error ? error.message : String(error);
  return { title: 'The console failed', detail, hint: 'Reload the page.', facts: [], lines: [] };
}

function explainProblem(problem: ProblemError): Explanation {
  const { title, fields } = problem;
  const plain = { title, detail: problem.message, hint: hintFor(problem.slug), facts: [], lines: [] };
  switch (problem.slug) {
    case 'invalid-arguments':
      return { ...plain, lines: itemsOf(fields, 'errors').map(describeItem) };
    case 'schema-conflict':
      return { ...plain, lines: itemsOf(fields, 'conflicts').map(describeItem) };
    case 'invalid-module':
      return { ...plain, facts: factsOf(fields, ['reason', 'offset']) };
    case 'procedure-aborted':
      return { ...plain, facts: factsOf(fields, ['code', 'message']) };
    case 'procedure-trapped':
      return { ...plain, facts: factsOf(fields, ['trap', 'message']), lines: linesOf(fields, 'backtrace') };
    case 'limit-exceeded':
      return { ...plain, facts: factsOf(fields, ['limit', 'max']) };
    case 'too-large':
      return { ...plain, facts: factsOf(fields, ['limit', 'max']) };
    case 'not-primary':
      return { ...plain, facts: factsOf(fields, ['primary']) };
    case 'out-of-sync':
      return { ...plain, facts: factsOf(isFields(fields.may_be_lost) ? fields.may_be_lost : {}, ['from_lsn', 'known_to_lsn']) };
    case 'log-released':
      return { ...plain, facts: factsOf(fields, ['oldest']) };
    case 'outcome-unknown':
      return { ...plain, facts: factsOf(fields, ['txn_id', 'lsn']) };
    case 'overloaded':
    case 'log-unavailable':
    case 'standby-unavailable':
    case 'lease-lost':
    case 'too-stale':
    case 'recovering':
    case 'unavailable':
      return { ...plain, facts: factsOf(fields, ['retry_after_ms']) };
    case 'memory-exhausted':
      return { ...plain, facts: factsOf(fields, ['limit', 'max']) };
    case 'malformed-request':
    case 'migration-failed':
    case 'not-standby':
    case 'primary-not-stopped':
    case 'unauthorized':
    case 'forbidden':
    case 'not-found':
    case 'method-not-allowed':
    case 'request-timeout':
    case 'unsupported-media-type':
    case 'idempotency-conflict':
    case 'cancelled':
    case 'internal-error':
    case 'read-only':
    case 'quarantined':
    case 'deadline-exceeded':
    case null:
      return plain;
  }
}

function hintFor(slug: Slug | null): string | null {
  switch (slug) {
    case 'unauthorized':
      return 'Enter a bearer token of this server.';
    case 'forbidden':
      return 'Use a token whose role allows this.';
    case 'idempotency-conflict':
      return 'Send the arguments of the first call again, or use another idempotency key for a new call.';
    case 'procedure-aborted':
      return 'The server rolled the transaction back.';
    case 'procedure-trapped':
      return 'The procedure failed, and the server rolled the transaction back. The backtrace names its functions.';
    case 'log-unavailable':
      return 'Reads work. If the disk is full, make room, and the server takes writes again. If a write failed, repair the disk and restart the server.';
    case 'standby-unavailable':
      return 'Reads work. The safety level needs standbys that are missing. The page Replication shows them.';
    case 'lease-lost':
      return 'Reads work. Another server may be the primary now. The page Replication shows the lease.';
    case 'overloaded':
      return 'Try again in a moment.';
    case 'schema-conflict':
      return 'The server changed nothing. Each line names the stored and the declared definition, and how to continue.';
    case 'outcome-unknown':
      return 'After a restart, repeat the call with the same idempotency key, or look for its transaction in the log.';
    case 'quarantined':
      return 'Deploy a version of the module whose outcome depends on its arguments and rows alone.';
    case 'memory-exhausted':
      return 'Reads and deletes work. Delete rows, or start the server with a larger --memory-max.';
    case 'invalid-arguments':
    case 'malformed-request':
    case 'not-found':
    case 'method-not-allowed':
    case 'request-timeout':
    case 'log-released':
    case 'too-large':
    case 'unsupported-media-type':
    case 'not-primary':
    case 'not-standby':
    case 'primary-not-stopped':
    case 'out-of-sync':
    case 'invalid-module':
    case 'migration-failed':
    case 'limit-exceeded':
    case 'cancelled':
    case 'internal-error':
    case 'too-stale':
    case 'recovering':
    case 'read-only':
    case 'unavailable':
    case 'deadline-exceeded':
    case null:
      return null;
  }
}

export function isFields(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function textOf(fields: Fields, name: string): string | null {
  const value = fields[name];
  return typeof value === 'string' && value !== '' ? value : null;
}

function itemsOf(fields: Fields, name: string): unknown[] {
  const value = fields[name];
  return Array.isArray(value) ? value : [];
}

function linesOf(fields: Fields, name: string): string[] {
  return itemsOf(fields, name).map((item) => (typeof item === 'string' ? item : JSON.stringify(item)));
}

function factsOf(fields: Fields, names: string[]): { label: string; value: string }[] {
  return names.flatMap((name) => {
    const value = fields[name];
    if (value === undefined || value === null) return [];
    return [{ label: name.replaceAll('_', ' '), value: typeof value === 'string' ? value : JSON.stringify(value) }];
  });
}

/** `votes.state: stored text, declared i32` or `/amount: must be an integer`, from the item's own fields. */
function describeItem(item: unknown): string {
  if (!isFields(item)) return typeof item === 'string' ? item : JSON.stringify(item);
  const place =
    textOf(item, 'pointer') ??
    [textOf(item, 'table'), textOf(item, 'column') ?? textOf(item, 'item')].filter(isText).join('.');
  const text = textOf(item, 'message') ?? textOf(item, 'detail');
  const compared = ['stored', 'declared'].flatMap((name) => {
    const value = textOf(item, name);
    return value === null ? [] : [`${name} ${value}`];
  });
  const said = [text, compared.join(', '), textOf(item, 'way_on')].filter(isText).join('; ');
  return place === '' ? said : `${place}: ${said}`;
}

function isText(text: string | null): text is string {
  return text !== null && text !== '';
}

/** The plan of what was refused for want of consent. */
export function planIn(error: unknown): DeployPlan | null {
  const plan = error instanceof ProblemError ? error.fields.plan : null;
  return isPlan(plan) ? plan : null;
}

function isPlan(value: unknown): value is DeployPlan {
  return typeof value === 'object' && value !== null && 'destroyed' in value;
}
