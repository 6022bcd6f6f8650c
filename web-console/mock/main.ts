// The command line of the mock: `npm run mock -- [--port N] [--state STATE]`.
import { parseArgs } from 'node:util';
import { startMock, stateNamed } from './server';

export async function main(args: string[]): Promise<void> {
  const { values } = parseArgs({
    args,
    options: { port: { type: 'string', default: '8080' }, state: { type: 'string', default: 'ready' } },
  });
  const mock = await startMock({ port: Number(values.port), state: stateNamed(values.state) });
  console.log(`mock listening on ${mock.url} (the console is at ${mock.url}/console/ once it is built)`);
}
