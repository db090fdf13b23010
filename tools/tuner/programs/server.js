// A server with a live cache that is replaced all the time: each answer makes garbage.
//
// Usage: node server.js PORT [LIVE_MB]
'use strict';
const http = require('node:http');

const port = Number(process.argv[2]);
const liveBytes = Number(process.argv[3] ?? 60) * 1e6;
// An entry is an object with a text of its own: about 600 bytes of the heap.
const count = Math.max(1, Math.floor(liveBytes / 600));

// xorshift32: the same numbers in every run.
let state = 2463534242;
function next() {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return state >>> 0;
}

function entry(key) {
  const words = [];
  for (let word = 0; word < 24; word += 1) words.push(next());
  return { key, words, text: `entry ${key} ${next()}` };
}

const cache = new Map();
for (let key = 0; key < count; key += 1) cache.set(key, entry(key));

const server = http.createServer((_request, response) => {
  let sum = 0;
  for (let change = 0; change < 40; change += 1) {
    const key = next() % count;
    sum += cache.get(key).words.length;
    cache.set(key, entry(key));
  }
  const answer = JSON.stringify(Array.from({ length: 200 }, () => ({ sum, number: next() })));
  response.setHeader('content-type', 'application/json');
  response.end(answer);
});
server.listen(port, '127.0.0.1', () => console.log('ready'));
process.on('SIGTERM', () => process.exit(0));
