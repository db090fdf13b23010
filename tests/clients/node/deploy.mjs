// Deploys and uses canisters with @icp-sdk/core as published: v4 calls, v3 queries and reads, every certificate and
// every query signature verified by the client.
import { gunzipSync } from 'node:zlib';

import {
    Actor,
    AnonymousIdentity,
    Certificate,
    HttpAgent,
    StatePaths,
    lookupResultToBuffer
} from '@icp-sdk/core/agent';
import { IDL } from '@icp-sdk/core/candid';
import {
    DelegationChain,
    DelegationIdentity,
    ECDSAKeyIdentity,
    Ed25519KeyIdentity,
    WebAuthnIdentity
} from '@icp-sdk/core/identity';
import { Secp256k1KeyIdentity } from '@icp-sdk/core/identity/secp256k1';
import { Principal } from '@icp-sdk/core/principal';

import {
    Management,
    Recorder,
    Steps,
    azleInterface,
    hex,
    holds,
    motokoInterface,
    readOptions,
    refused,
    same,
    sha256,
    upgrade,
    upgradeKeepingHeap,
    workbenchInterface
} from './common.mjs';
import { installSoftwareAuthenticator } from './authenticator.mjs';

const library = { Actor, Principal, IDL };
const options = readOptions();
const steps = new Steps(options.skip);
const recorder = new Recorder();
let rootKey;

const agentFor = (identity, more = {}) =>
    HttpAgent.createSync({ host: options.url, identity, rootKey, fetch: recorder.fetch, ...more });
const counter = (agent, canisterId) => Actor.createActor(motokoInterface, { agent, canisterId });
const noArguments = new Uint8Array(IDL.encode([], []));

// Updates that are to be rejected go through the agent and not through an actor: when an actor has polled for the
// answer, this version of the client fails with a TypeError while it words the rejection.
const update = (by, canisterId, methodName, arg = noArguments, effectiveCanisterId = canisterId) =>
    by.update(canisterId, { methodName, arg, effectiveTarget: { canisterId: Principal.from(effectiveCanisterId) } });

const edwards = Ed25519KeyIdentity.generate();
const koblitz = Secp256k1KeyIdentity.generate();

await steps.run('status: healthy, root key of 133 bytes', async () => {
    const agent = HttpAgent.createSync({ host: options.url, shouldFetchRootKey: true });
    const status = await agent.status();
    same(status.replica_health_status, 'healthy', 'replica_health_status');
    rootKey = await agent.fetchRootKey();
    same(rootKey.byteLength, 133, 'length of the DER root key');
});

const agent = agentFor(edwards);
const management = new Management(library, agent, options.effectiveCanisterId);
const otherAgent = agentFor(koblitz);
const otherManagement = new Management(library, otherAgent, options.effectiveCanisterId);

const first = await steps.run('create: a canister, Ed25519 identity', () => management.create());
const second = await steps.run('create: a canister, secp256k1 identity', () => otherManagement.create());
const motokoModule = options.fixture('motoko-counter64.wasm');

await steps.run('install: motoko-counter64 twice', async () => {
    await management.install(first, motokoModule);
    await otherManagement.install(second, motokoModule);
});

await steps.run('call: synchronous, v4', async () => {
    const { value, used } = await recorder.during(() => counter(agent, first).inc());
    same(value, 1n, 'inc');
    holds(used.includes('/api/v4/canister/call 200') || used.includes('/api/v4/canister/call 202'), `used ${used}`);
});

await steps.run('call: asynchronous, v2 and polling', async () => {
    const { value, used } = await recorder.during(() =>
        agent.update(first, { methodName: 'inc', arg: noArguments, callSync: false })
    );
    same(IDL.decode([IDL.Nat], value.reply), [2n], 'inc');
    holds(used.includes('/api/v2/canister/call 202'), `used ${used}`);
    holds(used.includes('/api/v3/canister/read_state 200'), `used ${used}`);
});

await steps.run('query: replied, signature verified', async () => {
    const { value, used } = await recorder.during(() => counter(agent, first).get());
    same(value, 2n, 'get');
    holds(used.includes('/api/v3/canister/query 200'), `used ${used}`);
    same(await counter(agent, first).greet('Thimble'), 'Hello, Thimble!', 'greet');
});

await steps.run('query: rejected, signature verified', async () => {
    const response = await agent.query(first, { methodName: 'nowhere', arg: noArguments });
    same(response.status, 'rejected', 'status');
    holds([3, 5].includes(response.reject_code), `reject code ${response.reject_code}`);
    holds(typeof response.error_code === 'string', 'no error_code');
});

await steps.run('query: a forged reply is noticed by the client', async () => {
    const forged = agentFor(edwards, {
        retryTimes: 0,
        fetch: async (input, init) => {
            const response = await globalThis.fetch(input, init);
            if (!String(input).includes('/query')) return response;
            const body = Buffer.from(await response.arrayBuffer());
            const at = body.indexOf(Buffer.from('Hello'));
            holds(at >= 0, 'the reply is not where it was expected');
            body[at] ^= 1;
            return new Response(body, { status: response.status, headers: response.headers });
        }
    });
    await refused(counter(forged, first).greet('Thimble'), /signature|verif/i, 'forged reply');
});

await steps.run('read_state: module hash, controllers, Candid metadata, time', async () => {
    const paths = {
        hash: StatePaths.canisterModuleHash(first),
        controllers: StatePaths.canisterControllers(first),
        candid: StatePaths.canisterCandid(first),
        time: StatePaths.time
    };
    const { values } = await agent.readState({ canisterId: first }, { paths: Object.values(paths) });
    same(hex(values.get(paths.hash)), hex(sha256(motokoModule)), 'module hash');
    same(values.get(paths.controllers).map(String), [edwards.getPrincipal().toText()], 'controllers');
    holds(values.get(paths.candid).includes('callInc'), 'the Candid metadata lacks callInc');
    holds(Math.abs(values.get(paths.time).getTime() - Date.now()) < 240_000, 'the certified time is minutes off');
});

await steps.run('canister_status: for the controller only', async () => {
    const status = await management.status(first);
    same(status.status, { running: null }, 'status');
    same(hex(status.module_hash[0]), hex(sha256(motokoModule)), 'module hash');
    holds(status.cycles > 0n && status.memory_size > 0n, 'cycles or memory are zero');
    const about = new Uint8Array(IDL.encode([IDL.Record({ canister_id: IDL.Principal })], [{ canister_id: first }]));
    const attempt = update(otherAgent, 'aaaaa-aa', 'canister_status', about, first);
    await refused(attempt, /controller/i, 'canister_status by somebody else');
});

await steps.run('reject: a trap is certified and rolled back', async () => {
    const error = await refused(update(agent, first, 'boom'), /boom/, 'boom');
    same(error.code.rejectCode, 5, 'reject code');
    same(await counter(agent, first).get(), 2n, 'counter after the trap');
});

await steps.run('inter-canister call', async () => {
    same(await counter(agent, first).callInc(second), 1n, 'callInc');
    same(await counter(otherAgent, second).get(), 1n, 'counter of the other canister');
});

await steps.run('upgrade: the heap of 64-bit Motoko survives', async () => {
    await counter(agent, first).set(12_345_678_901_234_567_890n);
    await management.install(first, motokoModule, upgradeKeepingHeap);
    same(await counter(agent, first).get(), 12_345_678_901_234_567_890n, 'counter after the upgrade');
});

await steps.run('identity: anonymous', async () => {
    const anonymous = agentFor(new AnonymousIdentity());
    same((await counter(anonymous, first).whoami()).toText(), '2vxsx-fae', 'whoami');
    same(await counter(anonymous, second).get(), 1n, 'get');
});

await steps.run('identity: P-256', async () => {
    const identity = await ECDSAKeyIdentity.generate();
    const caller = await counter(agentFor(identity), first).whoami();
    same(caller.toText(), identity.getPrincipal().toText(), 'whoami');
});

await steps.run('identity: delegation, two links, with targets', async () => {
    const [middle, session] = [Secp256k1KeyIdentity.generate(), Ed25519KeyIdentity.generate()];
    const soon = new Date(Date.now() + 10 * 60_000);
    const toMiddle = await DelegationChain.create(edwards, middle.getPublicKey(), soon);
    const chain = await DelegationChain.create(middle, session.getPublicKey(), soon, {
        previous: toMiddle,
        targets: [first]
    });
    const delegated = agentFor(DelegationIdentity.fromDelegation(session, chain), { retryTimes: 0 });
    same((await counter(delegated, first).whoami()).toText(), edwards.getPrincipal().toText(), 'whoami');
    const outside = counter(delegated, second).whoami();
    await refused(outside, /400|403|target|not authori|deleg/i, 'a canister outside the targets');
});

await steps.run('identity: an expired delegation is refused', async () => {
    const session = Ed25519KeyIdentity.generate();
    const chain = await DelegationChain.create(edwards, session.getPublicKey(), new Date(Date.now() - 60_000));
    const delegated = agentFor(DelegationIdentity.fromDelegation(session, chain), { retryTimes: 0 });
    await refused(counter(delegated, first).whoami(), /400|403|expir/i, 'an expired delegation');
});

await steps.run('identity: WebAuthn, P-256', async () => {
    installSoftwareAuthenticator();
    const identity = await WebAuthnIdentity.create();
    const caller = await counter(agentFor(identity), first).whoami();
    same(caller.toText(), identity.getPrincipal().toText(), 'whoami');
});

await steps.run('request: a wrong signature is refused', async () => {
    const identity = Ed25519KeyIdentity.generate();
    const sign = identity.sign.bind(identity);
    identity.sign = async (blob) => {
        const signature = await sign(blob);
        signature[0] ^= 1;
        return signature;
    };
    const attempt = counter(agentFor(identity, { retryTimes: 0 }), first).whoami();
    await refused(attempt, /400|403|signature/i, 'a wrong signature');
});

const bench = await steps.run('workbench: install', async () => {
    const canisterId = await management.create();
    await management.install(canisterId, options.fixture('workbench.wasm'));
    return canisterId;
});

if (bench) {
    const workbench = Actor.createActor(workbenchInterface, { agent, canisterId: bench });

    await steps.run('workbench: inspect_message refuses before consensus', () =>
        refused(workbench.forbidden(), /reject|refused|403|406/i, 'forbidden')
    );

    await steps.run('workbench: certified data', async () => {
        const value = sha256(new TextEncoder().encode('certified'));
        await workbench.set_certified(value);
        const [stored, certificate] = await workbench.get_certified();
        same(hex(stored), hex(value), 'value');
        holds(certificate.length === 1, 'a query must see a certificate');
        const verified = await Certificate.create({
            certificate: new Uint8Array(certificate[0]),
            rootKey,
            principal: { canisterId: bench },
            agent
        });
        const path = ['canister', bench.toUint8Array(), 'certified_data'];
        same(hex(lookupResultToBuffer(verified.lookup_path(path))), hex(value), 'certified_data');
    });

    await steps.run('workbench: raw_rand', async () => {
        const [one, two] = [await workbench.raw_rand_via_mgmt(), await workbench.raw_rand_via_mgmt()];
        same([one.length, two.length], [32, 32], 'lengths');
        holds(hex(one) !== hex(two), 'the same bytes twice');
    });
    await steps.run('workbench: remove', () => management.remove(bench));
}

const hello = await steps.run('azle: install a gzipped module', async () => {
    const canisterId = await otherManagement.create();
    await otherManagement.install(canisterId, options.fixture('azle-hello.wasm.gz'));
    return canisterId;
});

if (hello) {
    const azle = Actor.createActor(azleInterface, { agent: otherAgent, canisterId: hello });

    await steps.run('azle: query and update', async () => {
        same(await azle.greet('Thimble'), 'Hello, Thimble!', 'greet');
        await azle.setName('Ada');
        same([await azle.inc(), await azle.inc()], [1n, 2n], 'inc');
        same(await azle.greetStored(), 'Hello, Ada!', 'greetStored');
    });

    await steps.run('azle: upgrade in chunks, state survives', async () => {
        const module = gunzipSync(options.fixture('azle-hello.wasm.gz'));
        await otherManagement.installInChunks(hello, module, upgrade);
        const status = await otherManagement.status(hello);
        same(hex(status.module_hash[0]), hex(sha256(module)), 'module hash');
        same([await azle.get(), await azle.greetStored()], [2n, 'Hello, Ada!'], 'state after the upgrade');
    });
    await steps.run('azle: remove', () => otherManagement.remove(hello));
}

await steps.run('delete: stopped canisters go away', async () => {
    await management.remove(first);
    await otherManagement.remove(second);
    const attempt = update(agent, first, 'inc');
    await refused(attempt, /not found|does not exist|no canister|destination|400/i, 'a call to a deleted canister');
});

console.log(`all ${steps.done} steps held`);
