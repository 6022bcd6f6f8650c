import { hrefOf } from '../route';
import { Empty } from '../ui/empty';

export function UnknownPage({ path }: { path: string }) {
  return (
    <>
      <h1>No such page</h1>
      <section className="panel">
        <Empty title={`Nothing is at “${path}”`}>
          <a href={hrefOf({ page: 'overview' })}>Go to the overview</a>
        </Empty>
      </section>
    </>
  );
}
