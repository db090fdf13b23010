// Sends transactions to a development geth at a steady rate, and ends well if they were taken.
//
// Usage: node geth-load.js URL PER_SECOND SECONDS
'use strict';
const [url, perSecond, seconds] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];

let id = 0;
async function call(method, params) {
  id += 1;
  const body = JSON.stringify({ jsonrpc: '2.0', id, method, params });
  const answer = await fetch(url, { method: 'POST', headers: { 'content-type': 'application/json' }, body });
  const { result, error } = await answer.json();
  if (error) throw new Error(`${method}: ${error.message}`);
  return result;
}

async function main() {
  const [from] = await call('eth_accounts', []);
  let nonce = Number(await call('eth_getTransactionCount', [from, 'pending']));
  const end = Date.now() + seconds * 1000;
  let [sent, refused] = [0, 0];
  for (let due = Date.now(); due < end; due += 100) {
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, due - Date.now())));
    const batch = Array.from({ length: Math.round(perSecond / 10) }, () => {
      nonce += 1;
      const to = `0x${(0x1000000 + nonce).toString(16).padStart(40, '0')}`;
      const transaction = { from, to, value: '0x1', gas: '0x186a0', data: `0x${'ab'.repeat(1024)}`, nonce: `0x${(nonce - 1).toString(16)}` };
      return call('eth_sendTransaction', [transaction]).then(() => { sent += 1; }, () => { refused += 1; });
    });
    await Promise.all(batch);
  }
  console.log(`${sent} sent, ${refused} refused`);
  if (sent === 0) process.exit(1);
}

main().catch((error) => { console.error(String(error)); process.exit(1); });
