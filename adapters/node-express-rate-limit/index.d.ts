import type { ClientRateLimitInfo, Options, Store } from 'express-rate-limit';

export type LarderStoreOptions = {
  /** Default: `127.0.0.1`. */
  host?: string;
  /** Default: 11211. */
  port?: number;
  /** Path of a Unix socket, in place of host and port. */
  path?: string;
  /** The text that comes before every key. Default: `rl:`. */
  prefix?: string;
  /** Default: `fixed`. */
  algorithm?: 'fixed' | 'sliding' | 'gcra';
  /** The largest number of requests at once, for `gcra` only. Default: the limit. */
  burst?: number;
  /** What happens to requests while the server is away. Default: `open`. */
  fail?: 'open' | 'closed';
  /** Time limit of a request to the server, connecting included, in milliseconds. Default: 100. */
  timeoutMs?: number;
  /** Time after a failure in which no request is sent, in milliseconds. Default: 500. */
  backoffMs?: number;
};

export class LarderError extends Error {
  code: 'ERR_LARDER_UNAVAILABLE' | 'ERR_LARDER_NO_LIMITS' | 'ERR_LARDER_UNSUPPORTED' | 'ERR_LARDER_REPLY';
  status: number;
}

export function encodeKey(key: string): string;

export class LarderStore implements Store {
  constructor(options?: LarderStoreOptions);
  readonly localKeys: false;
  readonly prefix: string;
  init(options: Options): void;
  increment(key: string): Promise<ClientRateLimitInfo>;
  decrement(key: string): Promise<void>;
  resetKey(key: string): Promise<void>;
  get(key: string): Promise<ClientRateLimitInfo | undefined>;
  shutdown(): void;
}

export default LarderStore;
