// The API's types, written by hand after the server's until the generated ones replace them.

export type Status = {
  role: string;
  epoch: number;
  phase: Phase;
  log: string;
  device: string;
  commit: string;
  partitions: number;
  sites: number;
  committed_lsn: string;
  durable_lsn: string;
  log_error?: string | null;
  started_at: string;
  uptime_s: number;
  version: string;
  database_id: string;
  settings_hash: string;
  idempotency_keys: number;
  waiting: number;
};

export type Phase =
  | { name: 'recovering'; replayed: number; bytes_done: number; bytes_total: number }
  | { name: 'ready' }
  | { name: 'failed'; report: string }
  | { name: 'stopping' };

export type Readiness = { ready: boolean; phase: Phase };

export type MetricsEvent = {
  time: string;
  interval_ms: number;
  committed_per_s: number;
  aborted_per_s: number;
  failed_per_s: number;
  refused_per_s: number;
  log_bytes_per_s: number;
  latency_us: LatencyUs;
  commit_wait_us: LatencyUs;
  waiting: number;
  committed_lsn: string;
  durable_lsn: string;
};

export type LatencyUs = { p50: number; p95: number; p99: number; max: number };

export type TypeInfo =
  | { kind: 'unit' }
  | { kind: 'bool' }
  | { kind: 'i8' }
  | { kind: 'i16' }
  | { kind: 'i32' }
  | { kind: 'i64' }
  | { kind: 'u8' }
  | { kind: 'u16' }
  | { kind: 'u32' }
  | { kind: 'u64' }
  | { kind: 'f64' }
  | { kind: 'decimal'; scale: number }
  | { kind: 'text' }
  | { kind: 'bytes' }
  | { kind: 'timestamp' }
  | { kind: 'uuid' }
  | { kind: 'option'; item: TypeInfo }
  | { kind: 'list'; item: TypeInfo }
  | { kind: 'struct'; fields: FieldInfo[] }
  | { kind: 'enum'; variants: string[] };

export type FieldInfo = { name: string; type: TypeInfo };

export type ParameterInfo = { name: string; type: TypeInfo; required: boolean };

export type PartitioningInfo = { kind: 'by'; parameters: string[] } | { kind: 'all' } | { kind: 'any' };

export type ProcedureInfo = {
  name: string;
  parameters: ParameterInfo[];
  result: TypeInfo;
  read_only: boolean;
  partitioning: PartitioningInfo;
  signature: string;
};

export type ModuleSummary = {
  module: string;
  version: number;
  hash: string;
  wasm_bytes: number;
  installed_at: string;
  procedures: string[];
  tables: string[];
};

export type ModuleList = { modules: ModuleSummary[] };

export type ModuleDetail = {
  module: string;
  version: number;
  hash: string;
  wasm_bytes: number;
  installed_at: string;
  versions: ModuleVersion[];
  procedures: ProcedureInfo[];
  tables: string[];
};

export type ModuleVersion = {
  version: number;
  hash: string;
  wasm_bytes: number;
  installed_at: string;
  txn_id: string;
  in_service: boolean;
};

export type ModuleInstalled = {
  module: string;
  version: number;
  hash: string;
  procedures: string[];
  tables: string[];
  replaced?: number | null;
  unchanged: boolean;
  lsn: string;
};

export type CallAnswer = { result: unknown; txn_id: string; lsn: string; partition?: number | null };

export type ColumnInfo = { name: string; type: TypeInfo; nullable: boolean; default?: unknown };

export type IndexInfo = { name: string; columns: string[]; unique: boolean; ordered: boolean };

export type Placement = 'by_column' | 'replicated' | 'local';

export type TableInfo = {
  name: string;
  columns: ColumnInfo[];
  primary_key: string[];
  indexes: IndexInfo[];
  placement: Placement;
  partition_column?: string | null;
  modules: string[];
  rows: number;
  bytes: number;
  row_bytes: number;
  index_bytes: number;
};

export type TableList = { tables: TableInfo[] };

export type RowsPage = { rows: Record<string, unknown>[]; next_cursor?: string | null; lsn: string };

export type LogKind = 'genesis' | 'deploy' | 'remove' | 'command';

export type LogRecord = {
  lsn: string;
  kind: LogKind;
  bytes: number;
  segment: string;
  offset: number;
  durable: boolean;
  txn_id?: string | null;
  time?: string | null;
  partitions?: number[] | null;
  module?: string | null;
  version?: number | null;
  hash?: string | null;
  wasm_bytes?: number | null;
  procedure?: string | null;
  args?: Record<string, unknown> | null;
  digest?: string | null;
  idempotency_key?: string | null;
  database_id?: string | null;
  partition_count?: number | null;
};

export type ProcedureLog = { lines: ProcedureLogLine[] };

export type ProcedureLogLine = {
  number: number;
  txn_id: string;
  time: string;
  module: string;
  procedure: string;
  level: string;
  text: string;
};

export type LogPage = { records: LogRecord[]; next?: string | null };
