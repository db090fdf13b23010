// The same with @dfinity/agent as published, the generation before: v3 and v2 calls, v2 queries and reads, and the
// older place of the canister ranges in a delegation.
import { Actor, AnonymousIdentity, CanisterStatus, HttpAgent, polling } from '@dfinity/agent';
import { IDL } from '@dfinity/candid';
import { DelegationChain, DelegationIdentity, ECDSAKeyIdentity, Ed25519KeyIdentity } from '@dfinity/identity';
import { Secp256k1KeyIdentity } from '@dfinity/identity-secp256k1';
import { Principal } from '@dfinity/principal';

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
    upgradeKeepingHeap
} from './common.mjs';

const library = { Actor, Principal, IDL };
const options = readOptions();
const steps = new Steps(options.skip);
const recorder = new Recorder();
let rootKey;

const agentFor = (identity) =>
    HttpAgent.createSync({ host: options.url, identity, rootKey, fetch: recorder.fetch });
const counter = (agent, canisterId) => Actor.createActor(motokoInterface, { agent, canisterId });
const noArguments = new Uint8Array(IDL.encode([], []));

const edwards = Ed25519KeyIdentity.generate();
const koblitz = Secp256k1KeyIdentity.generate();

await steps.run('status: root key of 133 bytes', async () => {
    rootKey = await HttpAgent.createSync({ host: options.url, shouldFetchRootKey: true }).fetchRootKey();
    same(rootKey.byteLength, 133, 'length of the DER root key');
});

const agent = agentFor(edwards);
const management = new Management(library, agent, options.effectiveCanisterId);
const otherAgent = agentFor(koblitz);
const otherManagement = new Management(library, otherAgent, options.effectiveCanisterId);
const module = options.fixture('motoko-counter32.wasm');

const first = await steps.run('create: Ed25519 identity', () => management.create());
const second = await steps.run('create: secp256k1 identity', () => otherManagement.create());

await steps.run('install: motoko-counter32 and motoko-counter64', async () => {
    await management.install(first, module);
    await otherManagement.install(second, options.fixture('motoko-counter64.wasm'));
});

await steps.run('call: synchronous, v3', async () => {
    const { value, used } = await recorder.during(() => counter(agent, first).inc());
    same(value, 1n, 'inc');
    holds(used.includes('/api/v3/canister/call 200') || used.includes('/api/v3/canister/call 202'), `used ${used}`);
});

await steps.run('call: asynchronous, v2 and polling', async () => {
    const { value, used } = await recorder.during(async () => {
        const { requestId } = await agent.call(first, { methodName: 'inc', arg: noArguments, callSync: false });
        return polling.pollForResponse(agent, first, requestId);
    });
    same(IDL.decode([IDL.Nat], value.reply), [2n], 'inc');
    holds(used.includes('/api/v2/canister/call 202'), `used ${used}`);
    holds(used.includes('/api/v2/canister/read_state 200'), `used ${used}`);
});

await steps.run('query: replied and rejected, signatures verified', async () => {
    const { value, used } = await recorder.during(() => counter(agent, first).get());
    same(value, 2n, 'get');
    holds(used.includes('/api/v2/canister/query 200'), `used ${used}`);
    const response = await agent.query(first, { methodName: 'nowhere', arg: noArguments });
    same(response.status, 'rejected', 'status');
});

await steps.run('read_state: verified certificate', async () => {
    const paths = ['module_hash', 'controllers', 'candid', 'time', 'subnet'];
    const status = await CanisterStatus.request({ agent, canisterId: first, paths });
    same(status.get('module_hash'), hex(sha256(module)), 'module hash');
    same(status.get('controllers').map(String), [edwards.getPrincipal().toText()], 'controllers');
    holds(status.get('candid').includes('callInc'), 'the Candid metadata lacks callInc');
    holds(status.get('subnet').nodeKeys.size > 0, 'no node keys');
});

await steps.run('canister_status', async () => {
    const status = await management.status(first);
    same(status.status, { running: null }, 'status');
    same(hex(status.module_hash[0]), hex(sha256(module)), 'module hash');
});

await steps.run('reject: a trap is certified and rolled back', async () => {
    await refused(counter(agent, first).boom(), /boom/, 'boom');
    same(await counter(agent, first).get(), 2n, 'counter after the trap');
});

await steps.run('inter-canister call, 32 to 64 bit', async () => {
    same(await counter(agent, first).callInc(second), 1n, 'callInc');
});

await steps.run('upgrade: stable variables and the heap survive', async () => {
    await counter(agent, first).set(98_765_432_109_876_543_210n);
    await management.install(first, module, upgrade);
    same(await counter(agent, first).get(), 98_765_432_109_876_543_210n, '32 bit');
    await otherManagement.install(second, options.fixture('motoko-counter64.wasm'), upgradeKeepingHeap);
    same(await counter(agent, second).get(), 1n, '64 bit');
});

await steps.run('identity: anonymous, P-256, delegation', async () => {
    same((await counter(agentFor(new AnonymousIdentity()), first).whoami()).toText(), '2vxsx-fae', 'anonymous');
    const p256 = await ECDSAKeyIdentity.generate();
    const caller = await counter(agentFor(p256), first).whoami();
    same(caller.toText(), p256.getPrincipal().toText(), 'P-256');
    const session = Ed25519KeyIdentity.generate();
    const soon = new Date(Date.now() + 10 * 60_000);
    const chain = await DelegationChain.create(koblitz, session.getPublicKey(), soon, { targets: [first] });
    const delegated = agentFor(DelegationIdentity.fromDelegation(session, chain));
    same((await counter(delegated, first).whoami()).toText(), koblitz.getPrincipal().toText(), 'delegation');
});

await steps.run('azle: install, call, query', async () => {
    const canisterId = await management.create();
    await management.install(canisterId, options.fixture('azle-hello.wasm.gz'));
    const azle = Actor.createActor(azleInterface, { agent, canisterId });
    same(await azle.greet('Thimble'), 'Hello, Thimble!', 'greet');
    same([await azle.inc(), await azle.inc()], [1n, 2n], 'inc');
    await management.remove(canisterId);
});

await steps.run('delete', async () => {
    await management.remove(first);
    await otherManagement.remove(second);
});

console.log(`all ${steps.done} steps held`);
