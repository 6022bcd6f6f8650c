// The mock's module and tables: `voter`, as the sample module declares it.
import type {
  ColumnInfo,
  IndexInfo,
  ModuleDetail,
  ParameterInfo,
  ProcedureInfo,
  TableInfo,
  TypeInfo,
} from '../src/generated/types.gen';

export function hexOf(seed: string, digits: number): string {
  let state = 2166136261;
  let hex = '';
  for (let turn = 0; hex.length < digits; turn += 1) {
    for (const char of `${seed}${turn}`) state = Math.imul(state ^ char.charCodeAt(0), 16777619) >>> 0;
    hex += state.toString(16).padStart(8, '0');
  }
  return hex.slice(0, digits);
}

function parameter(name: string, type: TypeInfo): ParameterInfo {
  return { name, type, required: type.kind !== 'option' };
}

const mockCalls = {
  committed: 1_284_022,
  aborted: 312,
  trapped: 0,
  limit: 1,
  ended: 0,
  refused: 4,
  mean_queued_us: 41,
  mean_running_us: 6,
  mean_logging_us: 118,
};

function procedure(
  name: string,
  parameters: ParameterInfo[],
  result: TypeInfo,
  more: Pick<ProcedureInfo, 'read_only' | 'partitioning'> & Partial<Pick<ProcedureInfo, 'log'>>,
): ProcedureInfo {
  const log = { kind: 'command', declared: null, reason: null };
  return { name, parameters, result, log, calls: mockCalls, ...more, signature: `${name}(${parameters.map((p) => p.name).join(', ')})` };
}

const tally: TypeInfo = {
  kind: 'list',
  item: {
    kind: 'struct',
    fields: [
      { name: 'contestant_number', type: { kind: 'i32' } },
      { name: 'contestant_name', type: { kind: 'text' } },
      { name: 'votes', type: { kind: 'i64' } },
    ],
  },
};

const voterProcedures: ProcedureInfo[] = [
  procedure(
    'initialize',
    [parameter('contestants', { kind: 'list', item: { kind: 'text' } })],
    { kind: 'unit' },
    {
      read_only: false,
      partitioning: { kind: 'all' },
    },
  ),
  procedure(
    'vote',
    [
      parameter('phone_number', { kind: 'i64' }),
      parameter('contestant_number', { kind: 'i32' }),
      parameter('max_votes_per_phone', { kind: 'i64' }),
    ],
    {
      kind: 'struct',
      fields: [{ name: 'outcome', type: { kind: 'enum', variants: ['accepted', 'invalid_contestant', 'over_limit'] } }],
    },
    {
      read_only: false,
      partitioning: { kind: 'by', parameters: ['phone_number'] },
      log: {
        kind: 'auto',
        declared: 'auto',
        reason:
          'command: of the last 256 measured calls, one runs 0.8 us on 20 bytes of arguments and changes 2.0 rows in 57 bytes; ' +
          'at the log’s and recovery’s expense that is 1.1 us by command and 1.3 us by changes',
      },
    },
  ),
  procedure('results', [], tally, { read_only: true, partitioning: { kind: 'all' } }),
];

export function moduleOf(version: number, wasmBytes: number): ModuleDetail {
  const installedAt = (of: number) => new Date(Date.now() - (version - of + 1) * 3_600_000).toISOString();
  const versions = Array.from({ length: version }, (_, before) => ({
    version: before + 1,
    hash: hexOf(`voter ${before + 1}`, 64),
    wasm_bytes: wasmBytes - (version - before - 1) * 311,
    installed_at: installedAt(before + 1),
    txn_id: `17${hexOf('voter', 15).replace(/[a-f]/g, '4')}`,
    in_service: before + 1 === version,
    kept: before + 5 >= version,
  }));
  return {
    module: 'voter',
    version,
    hash: hexOf(`voter ${version}`, 64),
    wasm_bytes: wasmBytes,
    installed_at: installedAt(version),
    versions,
    procedures: voterProcedures,
    tables: tables.map((table) => table.name),
  };
}

function column(name: string, type: TypeInfo, nullable = false): ColumnInfo {
  return { name, type, nullable };
}

function primary(...columns: string[]): IndexInfo {
  return { name: 'primary', columns, unique: true, ordered: true };
}

function table(more: Omit<TableInfo, 'bytes'>): TableInfo {
  return { ...more, bytes: more.row_bytes + more.index_bytes };
}

export const tables: TableInfo[] = [
  table({
    name: 'area_codes',
    columns: [column('area_code', { kind: 'i32' }), column('state', { kind: 'text' })],
    primary_key: ['area_code'],
    indexes: [primary('area_code')],
    placement: 'replicated',
    partition_column: null,
    modules: ['voter'],
    rows: 610,
    row_bytes: 18_300,
    index_bytes: 9_760,
  }),
  table({
    name: 'contestants',
    columns: [column('contestant_number', { kind: 'i32' }), column('contestant_name', { kind: 'text' })],
    primary_key: ['contestant_number'],
    indexes: [primary('contestant_number')],
    placement: 'replicated',
    partition_column: null,
    modules: ['voter'],
    rows: 24,
    row_bytes: 840,
    index_bytes: 384,
  }),
  table({
    name: 'votes',
    columns: [
      column('phone_number', { kind: 'i64' }),
      column('state', { kind: 'text' }),
      column('contestant_number', { kind: 'i32' }),
      column('cast_at', { kind: 'timestamp' }),
      { ...column('note', { kind: 'text' }, true), default: null },
    ],
    primary_key: [],
    indexes: [{ name: 'by_phone', columns: ['phone_number'], unique: false, ordered: true }],
    placement: 'by_column',
    partition_column: 'phone_number',
    modules: ['voter'],
    rows: 1_284_231,
    row_bytes: 71_916_936,
    index_bytes: 33_390_006,
  }),
];

export function rowOf(name: string, position: number): Record<string, unknown> {
  const contestants = ['Ada Lovelace', 'Grace Hopper', 'Edsger Dijkstra', 'Barbara Liskov'];
  switch (name) {
    case 'area_codes':
      return { area_code: 201 + position, state: ['NJ', 'DC', 'CT', 'MB', 'AL'][position % 5] };
    case 'contestants':
      return { contestant_number: position + 1, contestant_name: contestants[position % contestants.length] };
    default:
      return {
        phone_number: (2_015_550_100 + position * 37).toString(),
        state: ['NJ', 'NY', 'CA', 'TX'][position % 4],
        contestant_number: (position % 6) + 1,
        cast_at: new Date(1_790_000_000_000 + position * 137).toISOString().replace('Z', '000Z'),
        note: position % 5 === 0 ? 'a second call from the same household, counted once more' : null,
      };
  }
}
