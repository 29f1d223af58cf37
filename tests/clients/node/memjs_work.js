// Uses memjs as an application does: every verb, through its public API. memjs speaks only the binary protocol.
// usage: node memjs_work.js HOST:PORT
'use strict';

const assert = require('assert');
const memjs = require('memjs');

const address = process.argv[2];
const client = memjs.Client.create(address, { timeout: 5, retries: 0 });
let failed = false;

async function check(name, body) {
  try {
    await body();
    console.log(`ok ${name}`);
  } catch (error) {
    failed = true;
    console.log(`FAIL ${name}: ${String(error.message).split('\n').join(' ')}`);
  }
}

const get = async (key) => {
  const { value, flags } = await client.get(key);
  return value === null ? null : { text: value.toString(), flags };
};

async function counts() {
  await check('increment creates with the initial value', async () => {
    assert.strictEqual((await client.increment('hits', 1, { initial: 5, expires: 60 })).value, 5);
    assert.strictEqual((await client.increment('hits', 3, { initial: 5 })).value, 8);
  });
  await check('decrement', async () => {
    assert.strictEqual((await client.decrement('hits', 2, { initial: 0 })).value, 6);
    assert.strictEqual((await client.decrement('hits', 100, { initial: 0 })).value, 0);
  });
  await check('four clients do not lose increments', async () => {
    const work = [...Array(4)].map(async () => {
      const own = memjs.Client.create(address, { timeout: 5, retries: 0 });
      const all = [...Array(500)].map(() => own.increment('shared', 1, { initial: 1 }));
      for (const { success } of await Promise.all(all)) assert.strictEqual(success, true);
      own.close();
    });
    await Promise.all(work);
    assert.strictEqual((await get('shared')).text, '2000');
  });
}

async function stores() {
  await check('get of a missing key', async () => assert.strictEqual(await get('missing'), null));
  await check('set and get', async () => {
    assert.strictEqual(await client.set('a', 'value', { expires: 600 }), true);
    assert.strictEqual((await get('a')).text, 'value');
  });
  await check('binary value', async () => {
    const bytes = Buffer.from([...Array(4096)].map((_, i) => i & 255));
    await client.set('bytes', bytes, {});
    assert.ok((await client.get('bytes')).value.equals(bytes));
  });
  await check('value of 1,000,000 bytes', async () => {
    await client.set('big', 'x'.repeat(1000000), {});
    assert.strictEqual((await get('big')).text.length, 1000000);
  });
  await check('value over the limit', async () => {
    await assert.rejects(client.set('huge', Buffer.alloc(2 << 20), {}));
    assert.strictEqual((await get('a')).text, 'value');
  });
  await check('add', async () => {
    assert.strictEqual(await client.add('new', '1', {}), true);
    assert.strictEqual(await client.add('new', '2', {}), false);
    assert.strictEqual((await get('new')).text, '1');
  });
  await check('replace', async () => {
    assert.strictEqual(await client.replace('new', '3', {}), true);
    assert.strictEqual(await client.replace('missing', '3', {}), false);
  });
  // memjs 1.3.2 sends the opcode of append for prepend too, so only the length can be checked.
  await check('append and prepend', async () => {
    assert.strictEqual(await client.append('new', 'z'), true);
    assert.strictEqual((await get('new')).text, '3z');
    assert.strictEqual(await client.prepend('new', 'a'), true);
    assert.strictEqual((await get('new')).text.length, 3);
    await assert.rejects(client.append('missing', 'z'));
  });
  await check('delete', async () => {
    assert.strictEqual(await client.delete('new'), true);
    assert.strictEqual(await client.delete('new'), false);
  });
  await check('touch', async () => {
    assert.strictEqual(await client.touch('a', 60), true);
    assert.strictEqual(await client.touch('missing', 60), false);
  });
  await check('2,000 requests in flight', async () => {
    const keys = [...Array(1000)].map((_, i) => `flight${i}`);
    await Promise.all(keys.map((key) => client.set(key, key, {})));
    const seen = await Promise.all(keys.map(get));
    keys.forEach((key, i) => assert.strictEqual(seen[i].text, key));
  });
}

async function administers() {
  const ask = (call) =>
    new Promise((resolve, reject) =>
      call((error, _server, answer) => (error ? reject(error) : resolve(answer))));
  await check('stats', async () => {
    const stats = await ask((done) => client.stats(done));
    assert.ok(Number(stats.curr_items) > 0 && 'limit_maxbytes' in stats);
  });
  await check('stats settings', async () => {
    assert.ok('maxbytes' in (await ask((done) => client.statsWithKey('settings', done))));
  });
  await check('stats reset', async () => {
    await ask((done) => client.resetStats(done));
    assert.strictEqual((await ask((done) => client.stats(done))).get_hits, '0');
  });
  await check('flush', async () => {
    await client.flush();
    assert.strictEqual(await get('a'), null);
  });
}

(async () => {
  await stores();
  await counts();
  await administers();
  client.quit();
  process.exitCode = failed ? 1 : 0;
})();
