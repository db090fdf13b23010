// Opens the page of the canister `frontend` in a real browser, through the node's HTTP gateway: the style applies, and
// the script's request reaches the canister as an update call.
//
//   node frontend.mjs --url http://<canister id>.localhost:PORT --fixtures DIR
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';

import { chromium } from 'playwright-core';

import { Steps, holds, readOptions, same } from './common.mjs';

const BROWSERS = ['chromium', 'chromium-browser', 'google-chrome'];

const options = readOptions();
const steps = new Steps(options.skip);

const browserPath = () => {
    const found = process.env.PATH.split(delimiter)
        .flatMap((folder) => BROWSERS.map((name) => join(folder, name)))
        .find(existsSync);
    holds(found, `none of ${BROWSERS.join(', ')} is on the PATH; scripts/setup.sh clients installs one`);
    return found;
};

// Its own sandbox needs a user that is not root.
const asRoot = process.getuid() === 0;
const browser = await chromium.launch({
    executablePath: browserPath(),
    chromiumSandbox: !asRoot,
    args: asRoot ? ['--no-sandbox'] : []
});
const page = await (await browser.newContext()).newPage();
page.setDefaultTimeout(30_000);
const complaints = [];
page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(message.text());
});
page.on('pageerror', (error) => complaints.push(String(error)));

const counted = (text) =>
    page.waitForFunction((text) => document.querySelector('#count').textContent === text, text, { polling: 50 });

await steps.run('open: the page with its style and its script', async () => {
    const response = await page.goto(options.url);
    same(response.status(), 200, 'status');
    same(await page.locator('h1').innerText(), 'Served by a canister', 'heading');
    const color = await page.locator('h1').evaluate((heading) => getComputedStyle(heading).color);
    same(color, 'rgb(0, 90, 160)', 'color of the heading');
    await counted('1, by POST with 0 bytes');
});

await steps.run('again: the canister has counted', async () => {
    await page.reload();
    await counted('2, by POST with 0 bytes');
});

await steps.run('long: a script reads all of a streamed asset', async () => {
    const bytes = await page.evaluate(async () => (await (await fetch('/streamed')).arrayBuffer()).byteLength);
    same(bytes, 5_000_000, 'bytes');
});

await steps.run('complaints: there were none', async () => {
    // Browsers ask for an icon by themselves.
    const others = complaints.filter((text) => !text.includes('404'));
    same(others, [], 'complaints');
});

await steps.run('forged: the page says why there is none', async () => {
    const response = await page.goto(new URL('/forged', options.url).href);
    same(response.status(), 503, 'status');
    holds((await page.locator('p').first().innerText()).includes('could not be verified'), 'the text');
});

await browser.close();
console.log(`${steps.done} steps held`);
