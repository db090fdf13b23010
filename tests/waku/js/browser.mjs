// Opens a page with @waku/sdk in a real browser, headless, and has it use a service node over secure
// WebSocket.
//
//   node browser.mjs --peer MULTIADDR --bundle FILE --certificate FILE [--cluster N]
//
// The bundle is made of `page.mjs` by `setup.sh`. The browser takes the node's certificate, which is
// signed by nobody, by its key, and no other.
import './node20.mjs';

import { X509Certificate, createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { delimiter, join } from 'node:path';
import { parseArgs } from 'node:util';

import { chromium } from 'playwright-core';

import { holds, same } from './common.mjs';

const BROWSERS = ['chromium', 'chromium-browser', 'google-chrome'];
const TEXTS = ['one', 'two', 'three', 'x'.repeat(100_000)];

const { values: options } = parseArgs({
    options: {
        peer: { type: 'string' },
        bundle: { type: 'string' },
        certificate: { type: 'string' },
        cluster: { type: 'string', default: '0' }
    }
});

const browserPath = () => {
    const found = process.env.PATH.split(delimiter)
        .flatMap((folder) => BROWSERS.map((name) => join(folder, name)))
        .find(existsSync);
    holds(found, `none of ${BROWSERS.join(', ')} is on the PATH; scripts/setup.sh clients installs one`);
    return found;
};

const spki = new X509Certificate(readFileSync(options.certificate)).publicKey.export({
    type: 'spki',
    format: 'der'
});
const trusted = createHash('sha256').update(spki).digest('base64');

// A page of this machine is a secure context, without which there is no cryptography in a browser.
const pages = {
    '/': ['text/html', '<!doctype html><title>waku</title><link rel=icon href=data:,><script type=module src=page.js></script>'],
    '/page.js': ['text/javascript', readFileSync(options.bundle)]
};
const server = createServer((request, response) => {
    const [type, body] = pages[request.url] ?? [];
    response.writeHead(body ? 200 : 404, { 'content-type': type ?? 'text/plain' }).end(body);
});
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));

// The browser's own sandbox needs a user that is not root.
const asRoot = process.getuid() === 0;
const browser = await chromium.launch({
    executablePath: browserPath(),
    chromiumSandbox: !asRoot,
    args: [
        `--ignore-certificate-errors-spki-list=${trusted}`,
        ...(asRoot ? ['--no-sandbox'] : [])
    ]
});
try {
    const page = await browser.newPage();
    page.on('console', (message) => console.error(`console: ${message.text()}`));
    page.on('pageerror', (error) => console.error(`page: ${error}`));
    await page.goto(`http://127.0.0.1:${server.address().port}/`);
    await page.waitForFunction(() => globalThis.visit);
    const { received, stored } = await page.evaluate((visit) => globalThis.visit(visit), {
        peer: options.peer,
        clusterId: Number(options.cluster),
        numShardsInCluster: 8,
        texts: TEXTS
    });
    const expected = TEXTS.toSorted();
    same(received, expected, 'received by filter');
    same(stored, expected, 'found in the store');
    console.log(`ok    ${TEXTS.length} messages pushed, received and found in ${browser.version()}`);
} finally {
    await browser.close();
    server.close();
}
