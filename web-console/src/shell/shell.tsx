// The frame of every page: who the server is, where to go, what needs attention.
import { useQuery } from '@tanstack/react-query';
import { useEffect, useRef } from 'react';
import { statusQuery } from '../api/queries';
import { BackupsPage } from '../pages/backups';
import { CallsPage } from '../pages/calls';
import { CheckpointsPage } from '../pages/checkpoints';
import { LogPage } from '../pages/log';
import { ModulePage } from '../pages/module';
import { ModulesPage } from '../pages/modules';
import { OutputPage } from '../pages/output';
import { OverviewPage } from '../pages/overview';
import { RecordPage } from '../pages/record';
import { ReplicationPage } from '../pages/replication';
import { TablePage } from '../pages/table';
import { TablesPage } from '../pages/tables';
import { UnknownPage } from '../pages/unknown';
import { hrefOf, logRoute, type Route, useRoute } from '../route';
import { Mark } from '../ui/icons';
import { Attention } from './attention';
import { ThemeButton } from './theme-button';
import { TokenButton, TokenDialog } from './token-dialog';
import { Vitals } from './vitals';

const sections: { route: Route; name: string; pages: Route['page'][] }[] = [
  { route: { page: 'overview' }, name: 'Overview', pages: ['overview'] },
  { route: { page: 'modules' }, name: 'Modules', pages: ['modules', 'module'] },
  { route: { page: 'tables' }, name: 'Tables', pages: ['tables', 'table'] },
  { route: { page: 'calls' }, name: 'Calls', pages: ['calls'] },
  { route: logRoute, name: 'Log', pages: ['log', 'record', 'output'] },
  { route: { page: 'checkpoints' }, name: 'Checkpoints', pages: ['checkpoints'] },
  { route: { page: 'backups' }, name: 'Backups', pages: ['backups'] },
  { route: { page: 'replication' }, name: 'Replication', pages: ['replication'] },
];

export function Shell() {
  const route = useRoute();
  const status = useQuery(statusQuery);
  const main = useRef<HTMLElement>(null);
  const title = titleOf(route);

  useEffect(() => {
    document.title = `${title} · Reprise console`;
  }, [title]);

  return (
    <>
      <button className="skip" type="button" onClick={() => main.current?.focus()}>
        Skip to content
      </button>
      <header className="topbar">
        <div className="topbar-inner">
          <a className="brand" href={hrefOf({ page: 'overview' })}>
            <Mark />
            Reprise
          </a>
          <nav className="nav" aria-label="Pages">
            {sections.map(({ route: target, name, pages }) => (
              <a key={name} href={hrefOf(target)} aria-current={pages.includes(route.page) ? 'page' : undefined}>
                {name}
              </a>
            ))}
            <a href="../docs/">API</a>
            <a href="../docs/guide/">Guide</a>
          </nav>
          <Vitals status={status} />
          <div className="tools">
            <TokenButton />
            <ThemeButton />
          </div>
        </div>
      </header>
      <main className="page" ref={main} tabIndex={-1}>
        <Attention status={status} />
        <Page route={route} />
      </main>
      <TokenDialog />
    </>
  );
}

function Page({ route }: { route: Route }) {
  switch (route.page) {
    case 'overview':
      return <OverviewPage />;
    case 'modules':
      return <ModulesPage />;
    case 'module':
      return <ModulePage key={route.module} module={route.module} procedure={route.procedure} />;
    case 'tables':
      return <TablesPage />;
    case 'table':
      return <TablePage key={route.table} route={route} />;
    case 'log':
      return <LogPage route={route} />;
    case 'record':
      return <RecordPage key={route.lsn} lsn={route.lsn} />;
    case 'calls':
      return <CallsPage />;
    case 'checkpoints':
      return <CheckpointsPage />;
    case 'backups':
      return <BackupsPage />;
    case 'replication':
      return <ReplicationPage />;
    case 'output':
      return <OutputPage route={route} />;
    case 'unknown':
      return <UnknownPage path={route.path} />;
  }
}

function titleOf(route: Route): string {
  switch (route.page) {
    case 'overview':
      return 'Overview';
    case 'modules':
      return 'Modules';
    case 'module':
      return route.module;
    case 'tables':
      return 'Tables';
    case 'table':
      return route.table;
    case 'log':
      return 'Log';
    case 'record':
      return `Record ${route.lsn}`;
    case 'calls':
      return 'Calls';
    case 'checkpoints':
      return 'Checkpoints';
    case 'backups':
      return 'Backups';
    case 'replication':
      return 'Replication';
    case 'output':
      return 'Procedure output';
    case 'unknown':
      return 'No such page';
  }
}
