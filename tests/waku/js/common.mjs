// What the program needs besides the library: its options, the steps and their time limits, and an
// inbox.
import { parseArgs } from 'node:util';

const USAGE = `usage: node client.mjs --peer MULTIADDR [options]

  --peer MULTIADDR          a service node, for example /ip4/127.0.0.1/tcp/8000/ws/p2p/16Uiu2...
                            (tcp, tcp/ws or tcp/wss; for a self-signed certificate start Node with
                            NODE_EXTRA_CA_CERTS=FILE, and the certificate must name the address)
  --push-peer MULTIADDR     connect the pushing client here instead, to test what lies between
  --cluster N               cluster (default: 1)
  --shards-in-cluster N     autosharding over N shards (default: 8)
  --shard N                 static sharding: everything on this shard
  --foreign-shard N         a shard of the cluster that the node does not serve, for the step
                            light-push-foreign-shard (default: none, and the step is skipped)
  --trust-shards            use a peer whatever shards its metadata names; only for the Go node,
                            see README.md
  --known-gaps go-waku      skip, with the reason, the steps the Go node has no server for;
                            implies --trust-shards
  --only NAME,...           run only the steps whose name starts with one of these
  --skip NAME,...           leave out the steps whose name starts with one of these
  --timeout SECONDS         limit of each step (default: 20)
  --list                    print the names of the steps

Prints a line for each step and exits with 0 only if every step that ran held and
at least one ran.`;

const integer = (name, text, max) => {
    const value = Number(text);
    if (!Number.isInteger(value) || value < 0 || value > max) {
        usage(`--${name} must be a whole number from 0 to ${max}, not ${text}`);
    }
    return value;
};

function usage(message) {
    console.error(`${message}\n\n${USAGE}`);
    process.exit(2);
}

const names = (text) => text.split(',').filter((name) => name !== '');

/** The options of the command line, or the usage text and exit code 2. */
export function readOptions() {
    let values;
    try {
        ({ values } = parseArgs({
            options: {
                peer: { type: 'string' },
                'push-peer': { type: 'string' },
                cluster: { type: 'string', default: '1' },
                'shards-in-cluster': { type: 'string' },
                shard: { type: 'string' },
                'foreign-shard': { type: 'string' },
                'trust-shards': { type: 'boolean', default: false },
                'known-gaps': { type: 'string', default: '' },
                only: { type: 'string', default: '' },
                skip: { type: 'string', default: '' },
                timeout: { type: 'string', default: '20' },
                list: { type: 'boolean', default: false },
                help: { type: 'boolean', default: false }
            }
        }));
    } catch (error) {
        usage(error.message);
    }
    if (values.help) {
        console.log(USAGE);
        process.exit(0);
    }
    if (!values.peer && !values.list) usage('--peer is missing');
    if (values.shard !== undefined && values['shards-in-cluster'] !== undefined) {
        usage('--shard and --shards-in-cluster exclude each other');
    }
    if (!['', 'go-waku'].includes(values['known-gaps'])) usage('--known-gaps knows only go-waku');
    const clusterId = integer('cluster', values.cluster, 65535);
    const shard = values.shard === undefined ? undefined : integer('shard', values.shard, 1023);
    const foreign = values['foreign-shard'];
    return {
        peer: values.peer,
        pushPeer: values['push-peer'] ?? values.peer,
        shard,
        foreignShard: foreign === undefined ? undefined : integer('foreign-shard', foreign, 1023),
        networkConfig:
            shard === undefined
                ? {
                      clusterId,
                      numShardsInCluster: integer(
                          'shards-in-cluster',
                          values['shards-in-cluster'] ?? '8',
                          1024
                      )
                  }
                : { clusterId },
        trustShards: values['trust-shards'] || values['known-gaps'] === 'go-waku',
        knownGaps: values['known-gaps'],
        only: names(values.only),
        skip: names(values.skip),
        timeoutMs: integer('timeout', values.timeout, 3600) * 1000,
        list: values.list
    };
}

/** Rejects after the limit, with what was waited for. */
export function within(ms, promise, what) {
    let timer;
    const limit = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`${what}: nothing within ${ms} ms`)), ms);
    });
    return Promise.race([promise, limit]).finally(() => clearTimeout(timer));
}

/** Asks again and again, 20 ms apart, until the answer has at least `count` entries; returns it. */
export async function eventually(ms, count, ask) {
    const end = performance.now() + ms;
    for (;;) {
        const answer = await ask();
        if (answer.length >= count) return answer;
        if (performance.now() > end) throw new Error(`${answer.length} of ${count} after ${ms} ms`);
        await new Promise((resolve) => setTimeout(resolve, 20));
    }
}

/** Collects the steps and runs those that were asked for, in the order in which they were added. */
export class Steps {
    constructor({ only, skip, timeoutMs, list }) {
        Object.assign(this, { only, skip, timeoutMs, list });
        this.steps = [];
    }

    /** `unless`: a reason why the step cannot hold here, printed instead of running it. */
    add(name, body, { unless, required = false } = {}) {
        this.steps.push({ name, body, unless, required });
    }

    wanted({ name, required }) {
        const starts = (prefix) => name.startsWith(prefix);
        if (this.skip.some(starts)) return false;
        return required || this.only.length === 0 || this.only.some(starts);
    }

    /** Whether every step that ran held. A step that others rest on ends the run when it fails. */
    async run() {
        let failed = 0;
        let held = 0;
        for (const prefix of [...this.only, ...this.skip]) {
            if (!this.steps.some(({ name }) => name.startsWith(prefix))) {
                throw new Error(`no step starts with ${prefix}`);
            }
        }
        for (const step of this.steps) {
            if (this.list) {
                console.log(step.name);
                continue;
            }
            if (!this.wanted(step)) {
                console.log(`skip  ${step.name}: not asked for`);
                continue;
            }
            if (step.unless) {
                console.log(`skip  ${step.name}: ${step.unless}`);
                continue;
            }
            const start = performance.now();
            try {
                await within(this.timeoutMs, step.body(), step.name);
                held += 1;
                console.log(`ok    ${step.name} (${Math.round(performance.now() - start)} ms)`);
            } catch (error) {
                failed += 1;
                console.log(`FAIL  ${step.name}: ${error?.stack ?? error}`);
                if (step.required) return false;
            }
        }
        return this.list || (failed === 0 && held > 0);
    }
}

export function holds(condition, what) {
    if (!condition) throw new Error(what);
}

const show = (value) =>
    JSON.stringify(value, (_, v) => (typeof v === 'bigint' ? `${v}n` : v));

export function same(actual, expected, what) {
    if (show(actual) !== show(expected)) {
        throw new Error(`${what}: expected ${show(expected)}, got ${show(actual)}`);
    }
}

/** What a filter subscription delivered, in the order of arrival, and a way to wait for it. */
export class Inbox {
    constructor() {
        this.messages = [];
        this.waiting = [];
    }

    receive = (message) => {
        this.messages.push(message);
        this.waiting = this.waiting.filter((check) => !check());
    };

    /** Resolves with all messages once `matches` holds for `count` of them. */
    until(count, matches = () => true) {
        return new Promise((resolve) => {
            const check = () => {
                const found = this.messages.filter(matches);
                if (found.length >= count) resolve(found);
                return found.length >= count;
            };
            if (!check()) this.waiting.push(check);
        });
    }
}
