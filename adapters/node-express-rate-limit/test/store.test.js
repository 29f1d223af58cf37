import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import net from 'node:net';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import express from 'express';
import { rateLimit } from 'express-rate-limit';
import { encodeKey, LarderStore } from '../index.js';
import { freePort, hammer, request, startApps, startServer } from './server.js';

const PROCESSES = 3;
const CONNECTIONS = 8;

const silent = { warn() {}, error() {} };

/** Returns a store that the test calls directly, initialised as the library does it. */
function storeOf(t, options, limits = {}) {
  const store = new LarderStore(options);
  t.after(() => store.shutdown());
  store.init({ windowMs: 60_000, limit: 5, logger: silent, ...limits });
  return store;
}

/** Starts an Express application in this process, and returns its port. */
async function serve(t, limiter) {
  const app = express().set('env', 'test').use(limiter);
  app.get('/', (_request, response) => response.end('hello'));
  app.get('/fails', (_request, response) => response.status(500).end());
  const server = app.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  return server.address().port;
}

// A busy machine must not fail tests that are not about time limits.
const PATIENT = { timeoutMs: 5000 };

describe('with a server', { concurrency: false }, () => {
  let larder;
  before(async () => {
    larder = await startServer({ after() {} });
  });
  after(() => larder.stop());

  const settings = (store, options) => ({ ...options, store: { port: larder.port, ...PATIENT, ...store } });

  for (const algorithm of ['fixed', 'sliding', 'gcra']) {
    test(`${algorithm}: processes admit exactly the limit together`, async (t) => {
      const store = { algorithm, prefix: `exact-${algorithm}:` };
      const ports = await startApps(t, PROCESSES, settings(store, { limit: 100, windowMs: 86_400_000 }));
      const { admitted } = await hammer(ports, { connections: CONNECTIONS, requests: 20 });
      assert.equal(admitted.length, 100);
    });
  }

  test('fixed: each window admits exactly the limit', async (t) => {
    const [limit, windowMs] = [50, 700];
    const ports = await startApps(t, PROCESSES, settings({ prefix: 'windows:' }, { limit, windowMs }));
    const { admitted } = await hammer(ports, { connections: CONNECTIONS, ms: 3.5 * windowMs });
    let windows = 0;
    for (let i = 0; i + limit < admitted.length; i += limit, windows++) {
      // A window begins after its first request was sent. The next window begins at least windowMs
      // later.
      const first = Math.min(...admitted.slice(i, i + limit).map(({ sent }) => sent));
      assert.ok(admitted[i + limit].received >= first + windowMs, `window ${windows} admitted too many`);
    }
    assert.ok(windows >= 2);
  });

  test('sliding: any window admits less than twice the limit', async (t) => {
    const [limit, windowMs] = [50, 700];
    const store = { prefix: 'slides:', algorithm: 'sliding' };
    const ports = await startApps(t, PROCESSES, settings(store, { limit, windowMs }));
    const { admitted } = await hammer(ports, { connections: CONNECTIONS, ms: 4 * windowMs });
    assert.ok(admitted.length > 2 * limit, `${admitted.length} admitted`);
    for (const { sent: from } of admitted) {
      const within = admitted.filter(({ sent, received }) => sent >= from && received <= from + windowMs);
      assert.ok(within.length < 2 * limit, `${within.length} in a window`);
    }
  });

  test('gcra: any interval admits at most the burst and the refill', async (t) => {
    const [limit, windowMs, burst] = [100, 1000, 20];
    const store = { prefix: 'gcra:', algorithm: 'gcra', burst };
    const ports = await startApps(t, PROCESSES, settings(store, { limit, windowMs }));
    const { admitted, lasted } = await hammer(ports, { connections: CONNECTIONS, ms: 2000 });
    assert.ok(admitted.length <= burst + Math.floor((lasted * limit) / windowMs), `${admitted.length} admitted`);
    assert.ok(admitted.length > 2 * burst, `${admitted.length} admitted`);
    for (const { sent: from } of admitted) {
      const within = admitted.filter(({ sent, received }) => sent >= from && received <= from + 500);
      assert.ok(within.length <= burst + limit / 2, `${within.length} in half a second`);
    }
  });

  test('headers tell the limit, the remaining units and the reset time', async (t) => {
    const store = { prefix: 'headers:', algorithm: 'sliding' };
    const [port] = await startApps(t, 1, settings(store, { limit: 2, windowMs: 60_000, identifier: 'api' }));
    const first = await request(port);
    assert.match(first.headers['ratelimit-policy'], /^"api"; q=2; w=60; pk=/);
    assert.match(first.headers.ratelimit, /^"api"; r=1; t=1[12]\d$/);
    assert.equal((await request(port)).status, 200);
    const refused = await request(port);
    assert.equal(refused.status, 429);
    // Until half of the next window has passed, a sliding window still counts more than one of the
    // two units. So the next unit is free after 1.5 windows.
    const wait = Number(refused.headers['retry-after']);
    assert.ok(wait >= 89 && wait <= 90, `retry-after ${wait}`);
  });

  test('get looks, resetKey resets, decrement gives back', async (t) => {
    for (const algorithm of ['fixed', 'sliding', 'gcra']) {
      const store = storeOf(t, { port: larder.port, ...PATIENT, algorithm, prefix: `verbs-${algorithm}:` });
      assert.equal(await store.get('k'), undefined);
      for (let hits = 1; hits <= 3; hits++) assert.equal((await store.increment('k')).totalHits, hits);
      assert.equal((await store.get('k')).totalHits, 3);
      await store.decrement('k');
      assert.equal((await store.get('k')).totalHits, 2);
      assert.equal((await store.increment('k')).totalHits, 3);
      await store.resetKey('k');
      assert.equal(await store.get('k'), undefined);
    }
  });

  test('skipFailedRequests gives failed and refused requests back, and no more', async (t) => {
    const store = { prefix: 'skip:' };
    const options = { limit: 3, windowMs: 60_000, skipFailedRequests: true };
    const [port] = await startApps(t, 1, settings(store, options));
    const peek = storeOf(t, { port: larder.port, ...PATIENT, ...store }, options);
    const used = async (wanted) => {
      for (let i = 0; ((await peek.get('127.0.0.1'))?.totalHits ?? 0) !== wanted; i++) {
        assert.ok(i < 200, `never ${wanted} hits`); // Hits come back after the response.
        await sleep(5);
      }
    };
    assert.equal((await request(port, { path: '/fails' })).status, 500);
    await used(0);
    for (let i = 1; i <= 3; i++) {
      assert.equal((await request(port)).status, 200);
      await used(i);
    }
    for (let i = 0; i < 5; i++) {
      assert.equal((await request(port)).status, 429);
      await used(3);
    }
  });

  test('a hit is never given back to a later window', async (t) => {
    const windowMs = 2500;
    const options = { port: larder.port, ...PATIENT, prefix: 'ends:' };
    const store = storeOf(t, options, { windowMs, skipFailedRequests: true });
    const plain = storeOf(t, options, { windowMs });
    const began = Date.now();
    let latest; // The latest time at which the window may have begun.
    for (let hits = 1; hits <= 8; hits++) {
      const { totalHits, resetTime } = await store.increment('k');
      latest ??= Date.now();
      assert.equal(totalHits, hits);
      assert.ok(resetTime <= latest + windowMs, `${resetTime - latest} ms after the window began`);
      assert.ok((await plain.get('k')).resetTime >= began + windowMs);
      await sleep(150);
    }
  });

  test('options that the server cannot decide are refused by name', async (t) => {
    for (const options of [{ limit: () => 5 }, { skipSuccessfulRequests: true }, { skipFailedRequests: true }]) {
      const errors = [];
      const store = new LarderStore({ port: larder.port, ...PATIENT, algorithm: 'sliding' });
      t.after(() => store.shutdown());
      const logger = { ...silent, error: (error) => errors.push(error) };
      const port = await serve(t, rateLimit({ ...options, store, logger }));
      assert.equal(errors[0].code, 'ERR_LARDER_UNSUPPORTED');
      assert.match(errors[0].message, new RegExp(Object.keys(options)[0]));
      assert.equal((await request(port)).status, 500);
    }
    assert.throws(() => new LarderStore({ algorithm: 'moving' }), /fixed, sliding or gcra/);
    assert.throws(() => new LarderStore({ burst: 5 }), /gcra only/);
    assert.throws(() => new LarderStore({ fail: 'ajar' }), /open or closed/);
  });

  test('a limit that depends on the request works with fixed windows', async (t) => {
    const store = new LarderStore({ port: larder.port, ...PATIENT, prefix: 'dynamic:' });
    t.after(() => store.shutdown());
    const port = await serve(t, rateLimit({ limit: ({ path }) => (path === '/' ? 2 : 0), store }));
    const statuses = [];
    for (const path of ['/', '/', '/', '/fails']) statuses.push((await request(port, { path })).status);
    assert.deepEqual(statuses, [200, 200, 429, 429]);
  });

  test('keys: spaces, control bytes, Unicode, long and empty ones are separate limiters', async (t) => {
    const store = storeOf(t, { port: larder.port, ...PATIENT, prefix: '' });
    const long = 'x'.repeat(249);
    const keys = ['a b', 'a\tb', 'a\r\nb', 'ab', 'ä', '\0', '日本', long, `${long}y`, `${long}yy`, `${long}yz`, ''];
    keys.push(' '.repeat(186), ' '.repeat(187), ' '.repeat(250), 'é'.repeat(93), 'é'.repeat(94));
    for (const key of keys) assert.equal((await store.increment(key)).totalHits, 1, JSON.stringify(key));
    for (const key of keys) assert.equal((await store.increment(key)).totalHits, 2, JSON.stringify(key));
    assert.equal(encodeKey('a b'), 'YSBi b');
    assert.match(encodeKey('x'.repeat(251)), /^sha256:[0-9a-f]{64}$/);
  });

  test('replies that arrive in pieces or together reach their own requests', async (t) => {
    const store = storeOf(t, { port: larder.port, ...PATIENT, prefix: 'many:' });
    const replies = await Promise.all(Array.from({ length: 2000 }, (_, i) => store.increment(`${i % 4}`)));
    replies.forEach(({ totalHits }, i) => assert.equal(totalHits, Math.floor(i / 4) + 1));

    const slow = net.createServer((socket) => {
      socket.setNoDelay().on('error', () => {});
      const bytes = async () => {
        for (const byte of 'VA 2 r1 t60 w0\r\n41\r\nVA 2 r1 t60 w0\r\n42\r\n') {
          socket.write(byte);
          await sleep(1);
        }
      };
      socket.once('data', bytes);
    });
    await once(slow.listen(0, '127.0.0.1'), 'listening');
    t.after(() => slow.close());
    const other = storeOf(t, { port: slow.address().port, ...PATIENT });
    const hits = await Promise.all([other.increment('k'), other.increment('k')]);
    assert.deepEqual(hits.map(({ totalHits }) => totalHits), [41, 42]);
  });

  test('a busy process does not take an answer that is there for a late one', async (t) => {
    const store = storeOf(t, { port: larder.port, ...PATIENT, prefix: 'busy:', fail: 'closed', timeoutMs: 500 });
    await store.increment('k');
    const second = store.increment('k');
    await new Promise((resolve) => setImmediate(resolve)); // The socket sends the command.
    for (const end = performance.now() + 1000; performance.now() < end; );
    assert.equal((await second).totalHits, 2);
  });
});

describe('without a server', { concurrency: false }, () => {
  const limiterOf = (t, port, fail) => {
    const warnings = [];
    const logger = { ...silent, warn: (error, message) => warnings.push(`${message}: ${error.message}`) };
    const store = new LarderStore({ port, fail, backoffMs: 60_000 });
    t.after(() => store.shutdown());
    return { warnings, store, limiter: rateLimit({ limit: 5, windowMs: 60_000, store, logger }) };
  };

  for (const [fail, status] of [['open', 200], ['closed', 503]]) {
    test(`no server: fails ${fail}, with one warning a second`, async (t) => {
      const { limiter, warnings } = limiterOf(t, await freePort(), fail);
      const port = await serve(t, limiter);
      for (let i = 0; i < 20; i++) assert.equal((await request(port)).status, status);
      assert.equal(warnings.length, 1);
      assert.match(warnings[0], new RegExp(`rate limits fail ${fail}: Larder is unavailable: .*ECONNREFUSED`));
    });

    test(`a server that never answers: fails ${fail} within the time limit`, async (t) => {
      const sockets = new Set();
      const mute = net.createServer((socket) => sockets.add(socket.on('error', () => {}).resume()));
      await once(mute.listen(0, '127.0.0.1'), 'listening');
      t.after(() => mute.close() && sockets.forEach((socket) => socket.destroy()));
      const { limiter, warnings } = limiterOf(t, mute.address().port, fail);
      const port = await serve(t, limiter);
      const first = await Promise.all(Array.from({ length: 10 }, () => request(port)));
      for (const answer of first) {
        assert.equal(answer.status, status);
        const took = answer.received - answer.sent;
        assert.ok(took > 50 && took < 1000, `took ${took} ms`);
      }
      const again = await request(port); // Answered at once, because the back-off still lasts.
      assert.equal(again.status, status);
      assert.match(warnings[0], /no answer within 100 ms/);
      assert.equal(sockets.size, 1);
      for (const socket of sockets) if (!socket.destroyed) await once(socket, 'close');
    });
  }

  test('a late answer never reaches a later request', async (t) => {
    const sockets = [];
    let commands = 0;
    const late = net.createServer((socket) => {
      sockets.push(socket);
      socket.on('error', () => {}).on('data', () => {
        // The server answers the first command only when the second one arrives.
        if (++commands > 1) sockets.forEach((each, i) => each.write(`VA 2 r1 t60 w0\r\n${i + 1}0\r\n`));
      });
    });
    await once(late.listen(0, '127.0.0.1'), 'listening');
    t.after(() => late.close());
    const store = storeOf(t, { port: late.address().port, fail: 'closed', backoffMs: 0 });
    await assert.rejects(store.increment('k'), { code: 'ERR_LARDER_UNAVAILABLE', status: 503 });
    assert.equal((await store.increment('k')).totalHits, 20);
    assert.equal((await store.increment('k')).totalHits, 20);
  });

  test('a server that answers nonsense is unavailable', async (t) => {
    const nonsense = ['', 'HD', 'VA 1 r1 t1 w0\r\nx', 'VA x', 'HD r t w', 'SERVER_ERROR full', 'ERROR busy', 'x'.repeat(9999)];
    for (const text of nonsense) {
      const odd = net.createServer((socket) => {
        socket.on('error', () => {}).on('data', () => socket.write(`${text}\r\n`));
      });
      await once(odd.listen(0, '127.0.0.1'), 'listening');
      t.after(() => odd.close());
      const store = storeOf(t, { port: odd.address().port, fail: 'closed' });
      await assert.rejects(store.increment('k'), { code: 'ERR_LARDER_UNAVAILABLE' }, text);
    }
  });

  test('counts again when the server is back; an idle connection that ends is no failure', async (t) => {
    const port = await freePort();
    let server = await startServer(t, { port });
    const store = storeOf(t, { port, ...PATIENT, fail: 'closed', backoffMs: 0 });
    assert.equal((await store.increment('k')).totalHits, 1);
    await server.stop();
    await assert.rejects(store.increment('k'), { code: 'ERR_LARDER_UNAVAILABLE' });
    server = await startServer(t, { port });
    assert.equal((await store.increment('k')).totalHits, 1);

    const patient = storeOf(t, { port, ...PATIENT, fail: 'closed', backoffMs: 60_000 });
    assert.equal((await patient.increment('k')).totalHits, 2);
    await server.stop();
    await startServer(t, { port });
    assert.equal((await patient.increment('k')).totalHits, 1);
  });

  test('hits that were not counted are not given back', async (t) => {
    const store = storeOf(t, { port: await freePort() }, { skipFailedRequests: true });
    assert.ok((await store.increment('k')).resetTime <= new Date());
  });

  test('the middleware gives back only hits that were counted', async (t) => {
    const lines = [];
    const server = net.createServer((socket) => {
      socket.on('error', () => {}).on('data', (data) => {
        for (const line of String(data).split('\r\n').slice(0, -1)) {
          lines.push(line);
          const away = lines.length === 1; // The server does not count the first hit.
          socket.write(away ? 'SERVER_ERROR out of memory\r\n' : 'VA 1 r1 t60 w0\r\n1\r\n');
        }
      });
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    t.after(() => server.close());
    const store = new LarderStore({ port: server.address().port, ...PATIENT });
    t.after(() => store.shutdown());
    const keyGenerator = ({ query }) => query.key;
    const options = { skipFailedRequests: true, keyGenerator, logger: silent };
    const port = await serve(t, rateLimit({ limit: 5, windowMs: 60_000, store, ...options }));
    const givenBack = () => lines.filter((line) => line.endsWith(' MD'));
    for (const key of ['lost', 'counted']) {
      assert.equal((await request(port, { path: `/fails?key=${key}` })).status, 500);
    }
    for (let i = 0; givenBack().length === 0; i++) {
      assert.ok(i < 200, 'the counted hit is never given back'); // Hits come back after the response.
      await sleep(5);
    }
    assert.deepEqual(givenBack(), ['ma rl:counted MD']);
  });

  const memcached = process.env.MEMCACHED ?? '/usr/bin/memcached';
  test('memcached is told apart', { skip: !existsSync(memcached) && `no ${memcached}` }, async (t) => {
    const user = process.getuid() === 0 ? ['-u', 'nobody'] : [];
    const command = (port) => [memcached, '-l', '127.0.0.1', '-p', port, '-U', 0, ...user];
    const { port } = await startServer(t, { command });
    for (const fail of ['open', 'closed']) {
      const store = storeOf(t, { port, ...PATIENT, fail });
      await assert.rejects(store.increment('k'), {
        code: 'ERR_LARDER_NO_LIMITS',
        message: 'this server has no rate limits; it is not Larder, or too old',
      });
    }
  });
});
