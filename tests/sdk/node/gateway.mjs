// A simulated provider and a gateway in front of it, as separate processes, for one run of the suites. TOLLGATE_BIN is
// the path of the binary, TOLLGATE_NODE_MODULES the folder of the SDKs.

import { execFileSync, spawn } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const PATIENCE_MS = 60_000;

/** Loads a package from TOLLGATE_NODE_MODULES. */
export const load = createRequire(join(process.env.TOLLGATE_NODE_MODULES, 'x.js'));

let nextPort = 10_000 + ((process.pid % 700) * 30);

/** A free address. Its port is below the range of outgoing connections. */
async function freeAddress() {
  for (;;) {
    const port = 10_000 + ((nextPort++ - 10_000) % 21_000);
    const free = await new Promise((resolve) => {
      const probe = createServer();
      probe.once('error', () => resolve(false));
      probe.listen(port, '127.0.0.1', () => probe.close(() => resolve(true)));
    });
    if (free) return `127.0.0.1:${port}`;
  }
}

/** Calls `test` repeatedly until it returns a value. */
export async function waitFor(what, test) {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = await test();
    if (found) return found;
    if (Date.now() > end) throw new Error(`timeout: waited for ${what}`);
    await sleep(20);
  }
}

async function statusOf(url, key) {
  try {
    const answer = await fetch(url, { headers: key ? { authorization: `Bearer ${key}` } : {} });
    await answer.arrayBuffer();
    return answer.status;
  } catch {
    return 0;
  }
}

/** A running gateway and its provider. If `provider` is an address, only the gateway is started. */
export class Gateway {
  static async start(configuration = 'config.toml', provider = undefined) {
    const gateway = new Gateway();
    gateway.folder = mkdtempSync(join(tmpdir(), 'tollgate-sdk-'));
    gateway.children = [];
    const places = { provider: provider ?? (await freeAddress()), gateway: await freeAddress(), admin: await freeAddress() };
    gateway.places = places;
    gateway.url = `http://${places.gateway}`;
    let config = readFileSync(new URL(`../${configuration}`, import.meta.url), 'utf8');
    for (const [name, place] of Object.entries(places)) config = config.replaceAll(`{${name}}`, place);
    writeFileSync(join(gateway.folder, 'tollgate.toml'), config);
    if (!provider) await gateway.begin(['provider', '--listen', places.provider], `http://${places.provider}/healthz`);
    await gateway.begin(['serve'], `http://${places.admin}/readyz`);
    gateway.key = await gateway.issue();
    return gateway;
  }

  async begin(args, probe) {
    const log = join(this.folder, `${args[0]}.log`);
    const output = openSync(log, 'w');
    const child = spawn(process.env.TOLLGATE_BIN, args, { cwd: this.folder, stdio: ['ignore', output, output] });
    closeSync(output);
    this.children.push(child);
    await waitFor(`${args[0]} to be ready`, async () => {
      if (child.exitCode !== null) throw new Error(`${args[0]} ended: ${readFileSync(log, 'utf8')}`);
      return (await statusOf(probe)) === 200;
    });
  }

  /** Standard output of a command of the binary. */
  run(...args) {
    return execFileSync(process.env.TOLLGATE_BIN, args, { cwd: this.folder, encoding: 'utf8', stdio: 'pipe' });
  }

  /** A new key that the gateway already knows. */
  async issue(...args) {
    const key = this.run('keys', 'issue', '--name', 'sdk', ...args).trim();
    await waitFor('the key to be known', async () => (await statusOf(`${this.url}/v1/quota`, key)) !== 401);
    return key;
  }

  /** Revokes a key and waits until the gateway refuses it. */
  async revoke(key) {
    this.run('keys', 'revoke', key.split('live_')[1].slice(0, 12));
    await waitFor('the key to be revoked', async () => (await statusOf(`${this.url}/v1/quota`, key)) === 401);
  }

  /** The last request that the provider received. */
  async last() {
    return (await fetch(`http://${this.places.provider}/last`)).json();
  }

  /** The provider's own count. */
  async stats() {
    return (await fetch(`http://${this.places.provider}/stats`)).json();
  }

  /** Ends the processes; returns their exit codes. */
  async stop() {
    const codes = [];
    for (const child of this.children.toReversed()) {
      const ended = child.exitCode === null ? new Promise((resolve) => child.once('exit', resolve)) : child.exitCode;
      child.kill('SIGTERM');
      codes.push(await Promise.race([ended, sleep(PATIENCE_MS, 'too late', { ref: false })]));
      if (child.exitCode === null) child.kill('SIGKILL');
    }
    rmSync(this.folder, { recursive: true, force: true });
    return codes;
  }
}
