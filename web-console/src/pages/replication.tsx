// Who is the primary, how far each standby is, and the way to make a standby the primary.
import { useQuery } from '@tanstack/react-query';
import { useRef, useState } from 'react';
import { freshnessQuery, replicationQuery } from '../api/queries';
import { formatBytes, formatCount, formatMicros, formatTime, plural } from '../format';
import type { Comparison, Cut, FreshnessHistory, Lease, LeaseState, OtherPrimary, Promotion, Replication, Standby } from '../generated/types.gen';
import { Badge } from '../ui/badge';
import { Chart, type Series } from '../ui/chart';
import { Command } from '../ui/command';
import { Empty } from '../ui/empty';
import { Facts } from '../ui/facts';
import { Loaded } from '../ui/loaded';
import { Panel } from '../ui/panel';
import { Scroll } from '../ui/scroll';
import { Table } from '../ui/table';
import { timesOf, valuesAt } from './freshness-series';
import { Promote, Promoted } from './promote';
import { freshText, lagText, syncText, toneOf } from './standby-text';
import { Topology } from './topology';

export function ReplicationPage() {
  const replication = useQuery(replicationQuery);
  const history = useQuery(freshnessQuery);
  const [told, setTold] = useState<Promotion | null>(null);
  const dialog = useRef<HTMLDialogElement>(null);
  const [asks, setAsks] = useState(0);
  const isStandby = replication.data?.role === 'standby';
  const ask = () => {
    setAsks(asks + 1);
    dialog.current?.showModal();
  };
  return (
    <>
      <div className="page-head">
        <h1>Replication</h1>
        {isStandby && (
          <button className="button danger" type="button" onClick={ask}>
            Make this the primary…
          </button>
        )}
      </div>
      {told !== null && <Promoted promotion={told} />}
      <Panel title="This server">
        <div className="panel-body">
          <Loaded query={replication}>{(node) => <Node node={node} />}</Loaded>
        </div>
      </Panel>
      {replication.data !== undefined && replication.data.standbys.length > 0 && (
        <Panel title="Topology">
          <Topology node={replication.data} />
        </Panel>
      )}
      <Panel title={isStandby ? 'This standby' : 'Standbys'}>
        <Loaded query={replication}>
          {(node) =>
            node.standbys.length === 0 ? (
              <None takes={node.ship_address !== null && node.ship_address !== undefined} />
            ) : (
              <StandbyTable standbys={node.standbys} />
            )
          }
        </Loaded>
      </Panel>
      {replication.data !== undefined && replication.data.cuts.length > 0 && <Cuts cuts={replication.data.cuts} />}
      {history.data !== undefined && history.data.standbys.length > 0 && <Charts history={history.data} />}
      <dialog ref={dialog} aria-labelledby="promote-title">
        {replication.data !== undefined && (
          <Promote
            key={asks}
            node={replication.data}
            onClose={() => dialog.current?.close()}
            onPromoted={(promotion) => {
              setTold(promotion);
              dialog.current?.close();
            }}
          />
        )}
      </dialog>
    </>
  );
}

/** A standby has its own level once it is the primary. */
function safetyText({ role, safety, reached }: Replication): string {
  return role !== 'primary' || reached === safety ? safety : `${safety}, now ${reached}: standbys are missing`;
}

function Node({ node }: { node: Replication }) {
  return (
    <Facts
      facts={[
        { label: 'Role', value: node.role },
        { label: 'Epoch', value: formatCount(node.epoch) },
        { label: 'Safety level', value: safetyText(node) },
        { label: 'Writes go to', value: node.primary ?? (node.role === 'primary' ? 'this server' : 'not known') },
        { label: 'Standbys connect to', value: node.ship_address ?? 'no address' },
        { label: 'Shipped form', value: node.ship ?? 'as-logged' },
        { label: 'Durable here, before LSN', value: formatCount(node.durable_lsn) },
        { label: 'Committed, before LSN', value: formatCount(node.committed_lsn) },
        ...(node.lease == null ? [] : [{ label: `Lease in ${node.lease.store}`, value: leaseText(node.lease) }]),
        ...(node.other_primary == null ? [] : [{ label: 'Another server leads, too', value: otherText(node.other_primary) }]),
        ...(node.out_of_sync ?? []).map(({ name, from_lsn }) => ({
          label: `Out of sync: ${name}`,
          value: `it may lack acknowledged writes from LSN ${formatCount(from_lsn)} on`,
        })),
      ]}
    />
  );
}

function otherText({ name, url, epoch }: OtherPrimary): string {
  return `${name} at ${url}, in epoch ${formatCount(epoch)}: stop one of them`;
}

function leaseText({ state, holder, in_sync, left_ms, error }: Lease): string {
  // The last primary may have what nobody else has.
  const nobody = state === 'free' ? 'only the last primary can take it over, by force' : 'no standby may take it over';
  const may = in_sync.length === 0 ? nobody : `${in_sync.join(', ')} may take it over`;
  const why = error == null ? '' : `; ${error}`;
  return `${leaseState(state, holder ?? 'no server', left_ms)}; ${may}${why}`;
}

function leaseState(state: LeaseState, holder: string, left_ms: number): string {
  switch (state) {
    case 'held':
      return `held, for ${formatCount(left_ms)} ms from now`;
    case 'over':
      return 'over: this server acknowledges nothing alone';
    case 'elsewhere':
      return `${holder} has it`;
    case 'free':
      return 'no server has it';
    case 'unknown':
      return `not known; ${holder} had it last`;
  }
}

const colours: Series['colour'][] = ['--series-1', '--series-2', '--series-3'];

/** Of the first standbys, as many as there are colours to tell them apart. */
function Charts({ history }: { history: FreshnessHistory }) {
  const shown = history.standbys.slice(0, colours.length);
  const times = timesOf(shown);
  const series = (figure: 'freshness_median' | 'lag_ms_p99', scale: number): Series[] =>
    shown.map(({ name, steps }, number) => ({
      label: name,
      colour: colours[number] ?? '--series-1',
      values: valuesAt(times, steps, (step) => step[figure] * scale),
    }));
  const seconds = times.map((time) => time / 1000);
  return (
    <>
      <Chart
        title="Freshness, median of a second"
        times={seconds}
        series={series('freshness_median', 100)}
        format={(value) => `${Math.round(value * 10) / 10} %`}
      />
      <Chart
        title="Lag, 99 of 100 samples"
        times={seconds}
        series={series('lag_ms_p99', 1000)}
        format={formatMicros}
      />
    </>
  );
}

function None({ takes }: { takes: boolean }) {
  return (
    <Empty title="No standby follows this server">
      <p>
        {takes
          ? 'Start another server that receives the log, replays it and serves reads:'
          : 'Start this server with an address for standbys, and then another server that follows it:'}
      </p>
      {!takes && <Command text="reprise serve --ship-listen 127.0.0.1:7000" />}
      <Command text="reprise serve --standby-of http://127.0.0.1:8080 --name b --data-dir ./standby --listen 127.0.0.1:8081" />
    </Empty>
  );
}

function StandbyTable({ standbys }: { standbys: Standby[] }) {
  return (
    <Scroll label="Standbys">
      <Table
        headings={[
          'Name',
          'State',
          { number: 'Fresh' },
          { number: 'Lag' },
          { number: 'Behind' },
          { number: 'Received' },
          { number: 'Durable' },
          { number: 'Replayed' },
          { number: 'Readers see' },
        ]}
      >
        {standbys.map((standby) => (
          <tr key={standby.name}>
            <th scope="row">{standby.name}</th>
            <td>
              <Badge tone={toneOf(standby.state)}>{`${standby.state}, ${syncText(standby.in_sync)}`}</Badge>
              <p className="muted">{standby.encrypted ? `${standby.transport}, encrypted` : standby.transport}</p>
              {standby.path !== null && standby.path !== undefined && <p className="muted">{standby.path}</p>}
              {standby.error !== null && standby.error !== undefined && (
                <p className="muted">{standby.error}</p>
              )}
              {standby.compared !== null && standby.compared !== undefined && <Compared told={standby.compared} />}
            </td>
            <td className="number">{freshText(standby.freshness)}</td>
            <td className="number">{lagText(standby)}</td>
            <td className="number nowrap">
              {plural(standby.lag_txns, 'record')}, {formatBytes(standby.lag_bytes)}
            </td>
            <td className="number">{formatCount(standby.shipped_lsn)}</td>
            <td className="number">{formatCount(standby.persisted_lsn)}</td>
            <td className="number">{formatCount(standby.replayed_lsn)}</td>
            <td className="number">{formatCount(standby.view_lsn)}</td>
          </tr>
        ))}
      </Table>
    </Scroll>
  );
}

/** The last comparison of all tables with the primary's. */
function Compared({ told }: { told: Comparison }) {
  if (told.equal) {
    return (
      <p className="muted">
        tables equal at LSN {formatCount(told.lsn)}, {formatTime(told.at)}
      </p>
    );
  }
  return (
    <>
      <Badge tone="bad">tables differ</Badge>
      <p>{told.difference ?? `at LSN ${formatCount(told.lsn)}`}</p>
    </>
  );
}

/** What the primary did not have. */
function Cuts({ cuts }: { cuts: Cut[] }) {
  return (
    <Panel title="Removed from this server’s log">
      <Scroll label="Removed from the log">
        <Table headings={['In the directory “cuts”', 'Records', 'Acknowledged', 'When']}>
          {cuts.map((cut) => (
            <tr key={cut.name}>
              <th scope="row">{cut.name}</th>
              <td>
                {formatCount(cut.from_lsn)} to {formatCount(cut.to_lsn)}
              </td>
              <td>{cut.acknowledged ? 'perhaps some' : 'none'}</td>
              <td className="nowrap">{formatTime(cut.at)}</td>
            </tr>
          ))}
        </Table>
      </Scroll>
    </Panel>
  );
}
