// Looks at a node's dashboard in a real browser while a canister is deployed and called, and while the node hangs and
// dies. Stops, continues and finally kills the node's process, whose id it is given.
//
//   node dashboard.mjs --url URL --fixtures DIR --pid PID --screenshots DIR
import { existsSync, mkdirSync } from 'node:fs';
import { delimiter, join, resolve } from 'node:path';

import { Actor, HttpAgent } from '@icp-sdk/core/agent';
import { IDL } from '@icp-sdk/core/candid';
import { Principal } from '@icp-sdk/core/principal';
import { chromium } from 'playwright-core';

import { Management, Steps, holds, motokoInterface, readOptions, same } from './common.mjs';

const CALLS = 8;
const BROWSERS = ['chromium', 'chromium-browser', 'google-chrome'];

const options = readOptions({ pid: { type: 'string' }, screenshots: { type: 'string' } });
const steps = new Steps(options.skip);
const screenshots = resolve(options.screenshots);
mkdirSync(screenshots, { recursive: true });

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
const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: 'light' });
const page = await context.newPage();
page.setDefaultTimeout(30_000);

// Events that must not happen while the node answers: complaints on the console, and requests to other places.
const complaints = [];
const requests = [];
page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(message.text());
});
page.on('pageerror', (error) => complaints.push(String(error)));
page.on('request', (request) => requests.push(request.url()));
await page.addInitScript(() => {
    globalThis.violations = [];
    document.addEventListener('securitypolicyviolation', (event) => {
        globalThis.violations.push(`${event.violatedDirective} ${event.blockedURI}`);
    });
});

const until = (condition, argument) => page.waitForFunction(condition, argument, { polling: 50 });
const text = (selector) => page.locator(selector).innerText();
const figure = async (selector) => Number((await text(selector)).replaceAll(',', ''));
const counted = (name) => page.locator('#rounds > div', { hasText: name }).locator('dd');
const countOf = async (name) => Number((await counted(name).innerText()).replaceAll(',', ''));
const grows = (selector, above) =>
    until(([selector, above]) => Number(document.querySelector(selector).innerText.replaceAll(',', '')) > above, [
        selector,
        above
    ]);
const shoot = (name) => page.screenshot({ path: join(screenshots, `${name}.png`), fullPage: true });
const focused = () =>
    page.evaluate(() => {
        const element = document.activeElement;
        return element.getAttribute('aria-label') ?? element.getAttribute('name') ?? element.tagName.toLowerCase();
    });
const sidewaysPixels = () =>
    page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
// 0 is black, 255 is white.
const brightness = () =>
    page.evaluate(() => {
        const canvas = new OffscreenCanvas(1, 1).getContext('2d');
        canvas.fillStyle = getComputedStyle(document.body).backgroundColor;
        canvas.fillRect(0, 0, 1, 1);
        const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
        return (red + green + blue) / 3;
    });

await steps.run('open: the address alone leads to the dashboard', async () => {
    await page.goto(options.url);
    same(new URL(page.url()).pathname, '/dashboard', 'path');
    await until(() => document.querySelector('#health').innerText === 'healthy');
});

await steps.run('figures: memory, pools and processes are there', async () => {
    await until(() => parseFloat(document.querySelector('#anonymous').innerText) > 0);
    await until(() => document.querySelectorAll('#pools tr').length > 5);
    await until(() => document.querySelectorAll('#processes tr').length > 1);
    same(await text('#budget'), '512.0 MiB', 'budget');
    const roles = await page.locator('#processes th').allInnerTexts();
    holds(roles.includes('node') && roles.some((role) => role.endsWith('worker')), `roles: ${roles}`);
    holds(/^[a-z0-9-]{20,}$/.test(await text('#subnet')), 'subnet id');
});

const agent = await HttpAgent.create({ host: options.url, shouldFetchRootKey: true });
const canisterId = await steps.run('live: a canister that is deployed appears', async () => {
    const management = new Management({ Actor, Principal, IDL }, agent, options['effective-canister-id']);
    const created = await management.create();
    await management.install(created, options.fixture('motoko-counter64.wasm'));
    await until(
        (id) => [...document.querySelectorAll('#canisters th')].some((cell) => cell.innerText === id),
        created.toText()
    );
    return created;
});

await steps.run('live: figures grow with calls and queries', async () => {
    const [height, messages, queries] = [
        await figure('#height'),
        await countOf('Messages executed'),
        await countOf('Queries answered')
    ];
    const counter = Actor.createActor(motokoInterface, { agent, canisterId });
    for (let call = 1; call <= CALLS; call += 1) {
        same(await counter.inc(), BigInt(call), 'inc');
        same(await counter.get(), BigInt(call), 'get');
    }
    await grows('#height', height);
    await grows('#rounds > div:nth-child(2) dd', messages + CALLS - 1);
    await grows('#rounds > div:nth-child(3) dd', queries + CALLS - 1);
});

await steps.run('live: the calls and queries are in the charts', async () => {
    for (const name of ['Update calls', 'Queries']) {
        await until((name) => {
            const chart = document.querySelector(`[aria-label^="${name} over time"]`);
            return /\d/.test(chart.querySelector('path.trace')?.getAttribute('d'));
        }, name);
    }
});

await steps.run('keyboard: Tab reaches every control', async () => {
    await page.locator('body').focus();
    await page.evaluate(() => document.activeElement.blur());
    const reached = new Set();
    for (let press = 0; press < 40; press += 1) {
        await page.keyboard.press('Tab');
        const where = await focused();
        if (where === 'body') break;
        reached.add(where);
        const outline = await page.evaluate(() => {
            const element = document.activeElement;
            const shown = element.matches('input[type=radio]') ? element.nextElementSibling : element;
            return getComputedStyle(shown).outlineStyle;
        });
        holds(outline !== 'none', `the focus on ${where} is not visible`);
    }
    const expected = ['theme', 'range', 'order', 'summary', 'List of canisters'];
    for (const name of expected) holds(reached.has(name), `Tab does not reach ${name}, only ${[...reached]}`);
    same([...reached].filter((name) => name.includes('over time')).length, 6, 'charts');
});

await steps.run('keyboard: arrow keys move the cursor of a chart and read it out', async () => {
    const chart = page.getByRole('slider', { name: /^Memory over time/ });
    await until(() => Number(document.querySelector('.plot').getAttribute('aria-valuemax')) >= 3);
    await chart.focus();
    await page.keyboard.press('Home');
    same(await chart.getAttribute('aria-valuenow'), '0', 'after Home');
    const first = await text('#readout');
    holds(/^Memory at \d\d:\d\d:\d\d: anonymous [\d,.]+, mapped files [\d,.]+ MiB$/.test(first), first);
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('ArrowRight');
    same(await chart.getAttribute('aria-valuenow'), '2', 'after two steps');
    holds((await text('#readout')) !== first, 'the readout stays');
    holds((await page.locator('.plot .hair').count()) === 6, 'all charts show the moment');
    await page.keyboard.press('ArrowLeft');
    same(await chart.getAttribute('aria-valuenow'), '1', 'after a step back');
    await page.keyboard.press('Escape');
    holds((await page.locator('.plot .hair').count()) === 0, 'Escape returns to now');
});

await steps.run('keyboard: the budget sheet is sorted by use', async () => {
    const names = () => page.locator('#pools th .named > span:first-child').allInnerTexts();
    const sheet = await names();
    await page.locator('input[name=order][value=sheet]').focus();
    await page.keyboard.press('ArrowRight');
    same(await page.locator('input[name=order]:checked').inputValue(), 'use', 'choice');
    const shares = await page.locator('#pools .bar i').evaluateAll((bars) => bars.map((bar) => parseFloat(bar.style.width)));
    same(shares, [...shares].sort((one, other) => other - one), 'order');
    await page.keyboard.press('ArrowLeft');
    same(await names(), sheet, 'back in the order of the sheet');
});

await steps.run('colours: light and dark, by the system and by choice', async () => {
    holds((await brightness()) > 200, 'light');
    await shoot('light');
    await page.emulateMedia({ colorScheme: 'dark' });
    holds((await brightness()) < 60, 'dark');
    await shoot('dark');
    await page.locator('#theme label', { hasText: 'Light' }).click();
    holds((await brightness()) > 200, 'light by choice');
    await page.locator('#theme label', { hasText: 'Auto' }).click();
    holds((await brightness()) < 60, 'dark by the system again');
    await page.emulateMedia({ colorScheme: 'light', reducedMotion: 'reduce' });
    const moving = await page.evaluate(() => getComputedStyle(document.querySelector('.bar i')).transitionProperty);
    same(moving, 'none', 'with reduced motion');
});

await steps.run('narrow: nothing scrolls sideways', async () => {
    for (const width of [360, 640, 1000, 1920]) {
        await page.setViewportSize({ width, height: 800 });
        same(await sidewaysPixels(), 0, `at ${width} pixels`);
        if (width === 360) await shoot('mobile');
        if (width === 1920) await shoot('wide');
    }
    await page.setViewportSize({ width: 1440, height: 900 });
});

await steps.run('quiet: no complaints, no violations, no other place', async () => {
    same(complaints, [], 'console');
    same(await page.evaluate(() => globalThis.violations), [], 'violations of the content security policy');
    const places = new Set(requests.filter((url) => !url.startsWith('data:')).map((url) => new URL(url).origin));
    same([...places], [new URL(options.url).origin], 'origins');
    holds(requests.some((url) => url.endsWith('/status.json')), 'the report is asked for');
});

const notice = page.locator('#notice');
await steps.run('silence: a node that hangs is told, and its return too', async () => {
    process.kill(Number(options.pid), 'SIGSTOP');
    await notice.waitFor({ state: 'visible' });
    holds(/^Not answering since \d\d:\d\d:\d\d\./.test(await notice.innerText()), await notice.innerText());
    same(await text('#health'), 'not answering', 'state');
    process.kill(Number(options.pid), 'SIGCONT');
    await notice.waitFor({ state: 'hidden' });
    // On a busy machine with the stall that it was.
    await until(() => document.querySelector('#health').innerText.startsWith('healthy'));
});

await steps.run('silence: a node that is gone is told', async () => {
    process.kill(Number(options.pid), 'SIGKILL');
    await notice.waitFor({ state: 'visible' });
    holds((await notice.innerText()).includes('It cannot be reached.'), await notice.innerText());
    holds((await page.title()).startsWith('Not answering'), 'title');
    await shoot('silent');
});

await browser.close();
console.log(`all ${steps.done} steps held; screenshots: ${screenshots}`);
