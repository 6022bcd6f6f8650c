// Real servers for the browser tests: a process for each, with data directories that end with the test.
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

const startMs = 60_000;

export type Server = {
  url: string;
  /** Ends the process as a power failure would. */
  kill: () => Promise<void>;
};

/** The tree's file, from the folder of the console. A test without it would check nothing, so it fails. */
function built(path: string, remedy: string): string {
  const file = resolve(path);
  if (!existsSync(file)) throw new Error(`${file} is missing: ${remedy}`);
  return file;
}

/** The sample module of this name. */
export function moduleFile(name: string): string {
  return built(`../target/procedures/${name}.wasm`, 'run `make wasm`');
}

export class Servers {
  readonly #binary = built(process.env['REPRISE_BIN'] || '../target/release/reprise', 'run `make build`, or set REPRISE_BIN');
  readonly #directory = mkdtempSync(join(tmpdir(), 'reprise-servers-'));
  readonly #running = new Set<ChildProcess>();

  constructor() {
    // The test runner may leave without the tests' own clean-up.
    process.once('exit', () => this.#killAll());
  }

  /** Starts a server on a free port and waits for its address. A second start under a name opens the same data. */
  async start(name: string, ...flags: string[]): Promise<Server> {
    const data = join(this.#directory, name);
    const args = ['serve', '--name', name, '--data-dir', data, '--listen', '127.0.0.1:0', ...flags];
    const child = spawn(this.#binary, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    this.#running.add(child);
    child.once('exit', () => this.#running.delete(child));
    const url = await addressOf(name, child);
    return { url, kill: () => ended(child) };
  }

  async close(): Promise<void> {
    await Promise.all([...this.#running].map(ended));
    rmSync(this.#directory, { recursive: true, force: true });
  }

  #killAll(): void {
    for (const child of this.#running) child.kill('SIGKILL');
  }
}

function addressOf(name: string, child: ChildProcess): Promise<string> {
  return new Promise((found, fail) => {
    let said = '';
    const give = (why: string) => fail(new Error(`server ${name} ${why}:\n${said}`));
    const timer = setTimeout(() => give(`named no address within ${startMs} ms`), startMs);
    const hear = (text: Buffer) => {
      said += text.toString();
      const url = /^listening on (http:\S+)\n/m.exec(said)?.[1];
      if (url === undefined) return;
      clearTimeout(timer);
      found(url);
    };
    child.stdout?.on('data', hear);
    child.stderr?.on('data', hear);
    child.once('error', (error) => give(`did not start, ${error.message}`));
    child.once('exit', (code, signal) => give(`ended with ${code ?? signal}`));
  });
}

function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve();
  return new Promise((done) => {
    child.once('exit', () => done());
    child.kill('SIGKILL');
  });
}
