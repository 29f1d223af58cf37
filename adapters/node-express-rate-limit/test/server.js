// Helpers of the tests: they start servers and applications, and send load.
import { fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import http from 'node:http';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
export const LARDER = process.env.SERVER ?? here('../../../target/release/larder');

const kill = async (child) => {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill();
  await once(child, 'exit');
};

export async function freePort() {
  const probe = net.createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address();
  probe.close();
  await once(probe, 'close');
  return port;
}

/** Starts a server and waits until it accepts connections. The server stops after the test `t`. */
export async function startServer(t, { port, command } = {}) {
  port ??= await freePort();
  const [program, ...flags] = command?.(port) ?? [LARDER, 'serve', '-p', port, '--admin', 'off'];
  const child = spawn(program, flags.map(String), { stdio: 'ignore' });
  t.after(() => kill(child));
  const failed = once(child, 'error').then(([error]) => Promise.reject(error));
  const ready = async () => {
    for (;;) {
      const socket = net.connect(port, '127.0.0.1');
      const [connected] = await Promise.all([
        new Promise((resolve) => {
          socket.once('connect', () => resolve(true)).once('error', () => resolve(false));
        }),
        sleep(10),
      ]);
      socket.destroy();
      if (connected) return;
      if (child.exitCode !== null) throw new Error(`${program} ended with ${child.exitCode}`);
    }
  };
  await Promise.race([ready(), failed]);
  return { port, stop: () => kill(child) };
}

/** Starts processes that serve one limiter each, and returns their ports. */
export async function startApps(t, count, settings) {
  return Promise.all(
    Array.from({ length: count }, async () => {
      const child = fork(here('./app.js'), [JSON.stringify(settings)]);
      t.after(() => kill(child));
      const [port] = await once(child, 'message');
      return port;
    }),
  );
}

export function request(port, { path = '/', agent } = {}) {
  return new Promise((resolve, reject) => {
    const sent = performance.now();
    const call = http.get({ host: '127.0.0.1', port, path, agent }, (response) => {
      response.resume().once('end', () => {
        const { statusCode: status, headers } = response;
        resolve({ status, headers, sent, received: performance.now() });
      });
    });
    call.once('error', reject);
  });
}

/** Sends requests to all ports over `connections` connections each, and returns those that were admitted.
 * Each connection sends `requests` requests, or as many as it can in `ms` milliseconds. */
export async function hammer(ports, { connections, requests = Infinity, ms = Infinity }) {
  const admitted = [];
  const began = performance.now();
  const agent = new http.Agent({ keepAlive: true, maxSockets: connections });
  const connection = async (port) => {
    for (let i = 0; i < requests && performance.now() - began < ms; i++) {
      const answer = await request(port, { agent });
      if (answer.status === 200) admitted.push(answer);
      else if (answer.status !== 429) throw new Error(`status ${answer.status}`);
    }
  };
  await Promise.all(ports.flatMap((port) => Array.from({ length: connections }, () => connection(port))));
  agent.destroy();
  const ended = performance.now();
  return { admitted: admitted.sort((a, b) => a.received - b.received), lasted: ended - began };
}
