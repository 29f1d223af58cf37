// Compares the time of a hit through express-rate-limit: in memcached, with rate-limit-memcached,
// and in Larder.
// usage: npm run bench   ($SERVER and $MEMCACHED name the binaries)
import { LarderStore } from './index.js';
import { MemcachedStore } from 'rate-limit-memcached';
import { LARDER, startServer } from './test/server.js';
import { rateLimit } from 'express-rate-limit';

const SECONDS = 1;
const ROUNDS = 7;
const memcached = process.env.MEMCACHED ?? '/usr/bin/memcached';
const user = process.getuid() === 0 ? ['-u', 'nobody'] : [];
const stops = [];
const start = (command) => startServer({ after: (stop) => stops.push(stop) }, { command });

const old = await start((port) => [memcached, '-l', '127.0.0.1', '-p', port, '-U', 0, ...user]);
const larder = await start((port) => [LARDER, 'serve', '-p', port, '--admin', 'off']);
const stores = {
  'rate-limit-memcached': () => new MemcachedStore({ locations: [`127.0.0.1:${old.port}`] }),
  LarderStore: () => new LarderStore({ port: larder.port, timeoutMs: 5000, fail: 'closed' }),
};

// Calls the library's middleware without HTTP, because the cost of HTTP would hide that of the store.
async function measure(store, callers) {
  const limiter = rateLimit({ limit: 1e9, windowMs: 600_000, validate: false, legacyHeaders: false, store });
  const response = { once() {}, setHeader() {} };
  const times = [];
  const end = performance.now() + SECONDS * 1000;
  const caller = async (_, i) => {
    for (let n = 0; performance.now() < end; n++) {
      const began = performance.now();
      await new Promise((next, fail) => {
        limiter({ ip: `10.0.${i}.${n % 50}`, app: { get() {} }, headers: {} }, response, (error) =>
          error ? fail(error) : next(),
        );
      });
      times.push(performance.now() - began);
    }
  };
  await Promise.all(Array.from({ length: callers }, caller));
  return times.sort((a, b) => a - b);
}

// Other work on the machine disturbs some rounds, so the best round of each case counts.
for (const callers of [1, 32]) {
  const best = Object.fromEntries(Object.keys(stores).map((name) => [name, { median: Infinity, rate: 0 }]));
  for (let round = 1; round <= ROUNDS; round++) {
    for (const [name, make] of Object.entries(stores)) {
      const store = make();
      const times = await measure(store, callers);
      best[name].median = Math.min(best[name].median, times[Math.floor(times.length / 2)]);
      best[name].rate = Math.max(best[name].rate, times.length / SECONDS);
      store.shutdown?.();
      store.client?.end();
    }
  }
  for (const [name, { median, rate }] of Object.entries(best)) {
    console.log(`${name}, ${callers} at a time: median ${Math.round(median * 1000)} µs, ${Math.round(rate)} hits/s`);
  }
}
for (const stop of stops) await stop();
