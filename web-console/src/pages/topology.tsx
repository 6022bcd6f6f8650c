// Who sends its log to whom: the primary, its standbys, and how each line between them is.
import { formatCount } from '../format';
import type { Replication, Standby } from '../generated/types.gen';
import { Badge } from '../ui/badge';
import { freshText, lagText, syncText, toneOf } from './standby-text';

export function Topology({ node }: { node: Replication }) {
  const isPrimary = node.role === 'primary';
  return (
    <div className="topology">
      <div className={isPrimary ? 'node own' : 'node'}>
        <strong>{isPrimary ? 'this server' : (node.primary ?? 'the primary')}</strong>
        <Badge tone="accent">{isPrimary ? `primary, epoch ${formatCount(node.epoch)}` : 'primary'}</Badge>
        {isPrimary && <span className="muted">{node.primary ?? node.ship_address}</span>}
      </div>
      <ul>
        {node.standbys.map((standby) => (
          <li key={standby.name}>
            <Line standby={standby} />
            <div className={isPrimary ? 'node' : 'node own'}>
              <strong>{isPrimary ? standby.name : `this server, ${standby.name}`}</strong>
              <Badge tone={toneOf(standby.state)}>{syncText(standby.in_sync)}</Badge>
              <span className="muted">
                freshness {freshText(standby.freshness)}, {lagText(standby)} behind
              </span>
            </div>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Line({ standby }: { standby: Standby }) {
  const isWhole = standby.state === 'streaming';
  return (
    <span className={isWhole ? 'line' : 'line broken'}>
      <span>{standby.encrypted ? `${standby.transport}, encrypted` : standby.transport}</span>
      <span>{standby.state}</span>
    </span>
  );
}
