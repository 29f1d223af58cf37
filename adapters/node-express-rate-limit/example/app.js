// A complete application: npm install, start Larder, then: node example/app.js
import express from 'express';
import { rateLimit } from 'express-rate-limit';
import { LarderStore } from 'express-rate-limit-larder';

const app = express();

// At most 5 log-ins a minute, whichever process of the application they reach.
const login = rateLimit({
  limit: 5,
  windowMs: 60_000,
  standardHeaders: 'draft-8',
  legacyHeaders: false,
  store: new LarderStore({ prefix: 'login:', fail: 'closed' }),
});

// 100 requests a minute, at most 20 of them at once.
const api = rateLimit({
  limit: 100,
  windowMs: 60_000,
  standardHeaders: 'draft-8',
  legacyHeaders: false,
  store: new LarderStore({ prefix: 'api:', algorithm: 'gcra', burst: 20 }),
});

app.post('/login', login, (_request, response) => response.send('welcome\n'));
app.use('/api', api, (_request, response) => response.json({ hello: 'world' }));
app.listen(3000, () => console.log('listening on http://localhost:3000'));
