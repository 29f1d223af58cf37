// A test process that serves an application with one limiter. The parent process passes the
// settings as an argument and receives the port.
import express from 'express';
import { rateLimit } from 'express-rate-limit';
import { LarderStore } from '../index.js';

const { store, ...options } = JSON.parse(process.argv[2]);
const app = express();
app.use(rateLimit({ standardHeaders: 'draft-8', ...options, store: new LarderStore(store) }));
app.get('/fails', (_request, response) => response.status(500).end());
app.get('/', (_request, response) => response.end('hello'));
const server = app.listen(0, '127.0.0.1', () => process.send(server.address().port));
