// A store for express-rate-limit that counts in Larder. Each request costs one round trip.
import { createHash } from 'node:crypto';
import { connect } from 'node:net';
import { performance } from 'node:perf_hooks';

const KEY_CHARS = 250; // The largest length of a key in the form in which it is sent.
const REPLY_CHARS = 4096; // No reply to the store's commands is longer.
const WAITING = 10_000; // The largest number of unanswered requests. Further ones fail at once.
const BUDGETS = '18446744073709551615'; // The largest budget. No number of hits exceeds it.

export class LarderError extends Error {
  constructor(code, message, status) {
    super(message);
    this.name = 'LarderError';
    this.code = code;
    this.status = status; // Express answers an error with its `status`.
  }
}

const unavailable = (why) => new LarderError('ERR_LARDER_UNAVAILABLE', `Larder is unavailable: ${why}`, 503);

/** Returns the key in a form that the protocol can carry: unchanged, in base64, or as its SHA-256 hash
 * if it is empty or too long. */
export function encodeKey(key) {
  const bytes = Buffer.from(key);
  const plain = !bytes.some((byte) => byte <= 0x20 || byte >= 0x7f);
  const token = plain ? key : bytes.toString('base64');
  if (token.length === 0 || token.length > KEY_CHARS) {
    return `sha256:${createHash('sha256').update(bytes).digest('hex')}`;
  }
  return plain ? token : `${token} b`;
}

/** One connection. Replies come in the order of the commands, so all requests of a store share it. */
class Connection {
  #options;
  #socket;
  #text = '';
  #waiting = [];
  #retryAt = 0;

  constructor(options) {
    this.#options = options;
  }

  /** Sends a command and returns its reply: status, return flags by letter, and value. */
  ask(command) {
    return new Promise((resolve, reject) => {
      if (performance.now() < this.#retryAt) return reject(unavailable('it failed a moment ago'));
      if (this.#waiting.length >= WAITING) return reject(unavailable('too many requests wait for it'));
      const socket = (this.#socket ??= this.#open());
      const { timeoutMs } = this.#options;
      const late = () => request.done || this.#drop(socket, `no answer within ${timeoutMs} ms`);
      // In a busy process, timer and answer may be due in the same turn of the event loop. setImmediate
      // lets the turn read the answer first.
      const timer = setTimeout(() => setImmediate(late), timeoutMs);
      const settle = (how) => (result) => {
        request.done = true;
        clearTimeout(timer);
        how(result);
      };
      const request = { done: false, resolve: settle(resolve), reject: settle(reject) };
      this.#waiting.push(request);
      socket.write(`${command}\r\n`);
    });
  }

  close() {
    this.#drop(this.#socket, 'the store was shut down');
  }

  #open() {
    const { host, port, path } = this.#options;
    const socket = connect(path ? { path } : { host, port });
    socket.setNoDelay().setEncoding('latin1').unref();
    socket.on('data', (text) => this.#read(socket, text));
    socket.on('error', (error) => this.#drop(socket, error.message));
    for (const event of ['end', 'close']) {
      socket.on(event, () => this.#drop(socket, 'it closed the connection'));
    }
    return socket;
  }

  #read(socket, text) {
    if (socket !== this.#socket) return;
    this.#text += text;
    for (let end; (end = this.#text.indexOf('\r\n')) >= 0; ) {
      const [status, ...flags] = this.#text.slice(0, end).split(' ');
      const reply = { status, line: this.#text.slice(0, end), flags: {} };
      let next = end + 2;
      if (status === 'VA') {
        next += Number(flags.shift()) + 2;
        if (this.#text.length < next) break;
        reply.value = this.#text.slice(end + 2, next - 2);
      }
      for (const flag of flags) reply.flags[flag[0]] = flag.slice(1);
      this.#text = this.#text.slice(next);
      const request = this.#waiting.shift();
      if (!request) return this.#drop(socket, 'it answered without a question');
      request.resolve(reply);
    }
    if (this.#text.length > REPLY_CHARS) this.#drop(socket, 'its answer is no reply of this protocol');
  }

  /** Closes the connection, so that a late reply never answers a later request. Fails all waiting requests. */
  #drop(socket, why) {
    if (!socket || socket !== this.#socket) return;
    const waiting = this.#waiting;
    this.#socket = undefined;
    this.#waiting = [];
    this.#text = '';
    socket.destroy();
    // The server may close an idle connection, so a close is a failure only if requests wait.
    if (waiting.length > 0) this.#retryAt = performance.now() + this.#options.backoffMs;
    for (const request of waiting) request.reject(unavailable(why));
  }
}

const MODES = { fixed: 'MI', sliding: 'MW', gcra: 'MG' };

export class LarderStore {
  localKeys = false; // Tells the library that other processes count the same keys.
  #options;
  #connection;
  #limit; // Sent to the server for sliding windows and GCRA, where the server decides.
  #windowMs;
  #burst;
  #givesBack = false;
  #refusal;
  #logger = console;
  #warnAt = 0;

  constructor(options = {}) {
    const defaults = { host: '127.0.0.1', port: 11211, prefix: 'rl:', algorithm: 'fixed', fail: 'open' };
    this.#options = { ...defaults, timeoutMs: 100, backoffMs: 500, ...options };
    const { algorithm, burst, fail, prefix } = this.#options;
    if (!MODES[algorithm]) throw new TypeError(`algorithm is fixed, sliding or gcra, not ${algorithm}`);
    if (fail !== 'open' && fail !== 'closed') throw new TypeError(`fail is open or closed, not ${fail}`);
    if (burst !== undefined && (algorithm !== 'gcra' || !Number.isSafeInteger(burst) || burst < 0)) {
      throw new TypeError('burst is a whole number, and for algorithm gcra only');
    }
    this.prefix = prefix;
    this.#connection = new Connection(this.#options);
  }

  /** Called by express-rate-limit, which only logs an error of this method. So increment() throws it again. */
  init({ windowMs, limit, skipFailedRequests, skipSuccessfulRequests, logger }) {
    const { algorithm, burst } = this.#options;
    this.#logger = logger ?? console;
    this.#windowMs = Math.ceil(windowMs);
    this.#givesBack = Boolean(skipFailedRequests || skipSuccessfulRequests);
    this.#limit = limit;
    this.#burst = burst === undefined ? '' : ` G${burst}`;
    const refuse = (what) => {
      this.#refusal = new LarderError('ERR_LARDER_UNSUPPORTED', `LarderStore: ${what}`, 500);
      throw this.#refusal;
    };
    if (!(this.#windowMs >= 1)) refuse('windowMs must be at least 1');
    if (algorithm === 'fixed') return;
    if (!Number.isSafeInteger(limit) || limit < 0) {
      refuse(`limit must be a whole number with algorithm ${algorithm}, as the server decides`);
    }
    if (this.#givesBack) {
      refuse(`skipFailedRequests and skipSuccessfulRequests do not work with algorithm ${algorithm}`);
    }
  }

  async increment(key) {
    if (this.#refusal) throw this.#refusal;
    const sent = Date.now();
    try {
      return this.#info(await this.#ask(this.#take(key)), sent);
    } catch (error) {
      if (error.code !== 'ERR_LARDER_UNAVAILABLE') throw error;
      this.#warn(error);
      if (this.#options.fail === 'closed') throw error;
      // The reset time lies in the past, so that the library never gives this hit back.
      return { totalHits: 1, resetTime: new Date(sent) };
    }
  }

  async decrement(key) {
    try {
      await this.#ask(`ma ${encodeKey(this.prefix + key)} MD`);
    } catch (error) {
      if (error.code !== 'ERR_LARDER_UNAVAILABLE') throw error;
      this.#warn(error);
    }
  }

  async resetKey(key) {
    await this.#ask(`md ${encodeKey(this.prefix + key)}`);
  }

  async get(key) {
    const reply = await this.#ask(`${this.#take(key)} D0`);
    return reply.flags.t === '0' ? undefined : this.#info(reply, Date.now());
  }

  shutdown() {
    this.#connection.close();
  }

  /** Returns the command that takes one unit. With a fixed window the server counts beyond the limit, as
   * the library's own stores do. The library compares the count with the limit, and gives back hits that
   * it refused. */
  #take(key) {
    const { algorithm } = this.#options;
    const budget = algorithm === 'fixed' ? BUDGETS : this.#limit;
    const flags = `${MODES[algorithm]} B${budget} N${this.#windowMs}ms${this.#burst}`;
    return `ma ${encodeKey(this.prefix + key)} ${flags} v r t w`;
  }

  /** Converts a reply for the library, which refuses a request if totalHits > limit. */
  #info({ status, line, value, flags }, sent) {
    for (const number of [flags.r, flags.t, flags.w, status === 'NS' ? '0' : value]) {
      if (!/^-?\d+$/.test(number)) throw unavailable(`it answered ${line}`);
    }
    const now = Date.now();
    const after = (ms) => new Date(now + Math.min(ms, this.#windowMs));
    if (this.#options.algorithm === 'fixed') {
      // The server rounds t up to a second. The library gives hits back until resetTime. In that
      // case, resetTime must not lie after the end of the window.
      const resetTime = this.#givesBack ? new Date(sent + (flags.t - 1) * 1000) : after(flags.t * 1000);
      return { totalHits: Number(value), resetTime };
    }
    if (status === 'NS') {
      const wait = Number(flags.w); // -1 means never, because the limit is 0.
      return { totalHits: this.#limit + 1, resetTime: new Date(now + (wait < 0 ? this.#windowMs : wait)) };
    }
    return { totalHits: Math.max(1, this.#limit - flags.r), resetTime: new Date(now + flags.t * 1000) };
  }

  async #ask(command) {
    const reply = await this.#connection.ask(command);
    if (/^(HD|VA|NS|NF)$/.test(reply.status)) return reply;
    if (/^(ERROR$|CLIENT_ERROR invalid or duplicate flag)/.test(reply.line)) {
      const what = 'this server has no rate limits; it is not Larder, or too old';
      throw new LarderError('ERR_LARDER_NO_LIMITS', what, 500);
    }
    if (reply.status !== 'CLIENT_ERROR') throw unavailable(`it answered ${reply.line}`);
    throw new LarderError('ERR_LARDER_REPLY', `Larder refused a command: ${reply.line}`, 500);
  }

  #warn(error) {
    const now = performance.now();
    if (now < this.#warnAt) return;
    this.#warnAt = now + 1000;
    this.#logger.warn(error, `rate limits fail ${this.#options.fail}`);
  }
}

export default LarderStore;
