// What the two pages about what happened share: the log's records, and what procedures wrote.
import { logRoute, navigate, outputRoute } from '../route';
import { Badge } from '../ui/badge';
import { PauseIcon, PlayIcon } from '../ui/icons';
import { Switch } from '../ui/switch';

export function LogHead({ view }: { view: 'records' | 'output' }) {
  return (
    <div className="filters">
      <h1>Log</h1>
      <Switch
        label="View"
        value={view}
        options={[
          { value: 'records', text: 'Records' },
          { value: 'output', text: 'Procedure output' },
        ]}
        onChange={(next) => navigate(next === 'records' ? logRoute : outputRoute)}
      />
    </div>
  );
}

type FollowProps = { following: boolean; onChange: (following: boolean) => void };

export function FollowButton({ following, onChange }: FollowProps) {
  return (
    <button className="button" type="button" onClick={() => onChange(!following)}>
      {following ? <PauseIcon /> : <PlayIcon />}
      {following ? 'Pause' : 'Follow'}
    </button>
  );
}

export function FollowBadge({ following }: { following: boolean }) {
  return following ? <Badge tone="good">follows every second</Badge> : <Badge tone="warn">paused</Badge>;
}
