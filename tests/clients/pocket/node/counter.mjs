// Tests canisters with the published @dfinity/pic as its documentation says: counters by their interfaces, time,
// cycles, several subnets, HTTPS outcalls, and an instance that is live, which the published
// agent verifies.
//
//     POCKET_IC_BIN=... node counter.mjs FOLDER_WITH_MODULES
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';

import { PocketIc, PocketIcServer, SubnetStateType, createIdentity, generateRandomIdentity } from '@dfinity/pic';
import { Actor, HttpAgent } from '@icp-sdk/core/agent';
import { IDL } from '@icp-sdk/core/candid';
import { Principal } from '@icp-sdk/core/principal';

const modules = resolve(process.argv[2]);
const wasm = name => new Uint8Array(readFileSync(join(modules, name)));
const step = name => console.log('ok', name);

const motoko = ({ IDL }) =>
    IDL.Service({
        boom: IDL.Func([], [], []),
        callInc: IDL.Func([IDL.Principal], [IDL.Nat], []),
        get: IDL.Func([], [IDL.Nat], ['query']),
        inc: IDL.Func([], [IDL.Nat], []),
        whoami: IDL.Func([], [IDL.Principal], [])
    });
const asker = ({ IDL }) => {
    const headers = IDL.Vec(IDL.Record({ name: IDL.Text, value: IDL.Text }));
    const request = IDL.Record({
        url: IDL.Text,
        max_response_bytes: IDL.Opt(IDL.Nat64),
        method: IDL.Variant({ get: IDL.Null, head: IDL.Null, post: IDL.Null }),
        headers,
        body: IDL.Opt(IDL.Vec(IDL.Nat8))
    });
    const response = IDL.Record({ status: IDL.Nat, headers, body: IDL.Vec(IDL.Nat8) });
    return IDL.Service({ relay: IDL.Func([request], [response], []) });
};
const workbench = ({ IDL }) =>
    IDL.Service({
        composite_get: IDL.Func([IDL.Principal], [IDL.Nat64], ['composite_query']),
        get: IDL.Func([], [IDL.Nat64], ['query']),
        get_certified: IDL.Func([], [IDL.Vec(IDL.Nat8), IDL.Opt(IDL.Vec(IDL.Nat8))], ['query']),
        inc: IDL.Func([], [IDL.Nat64], []),
        raw_rand_via_mgmt: IDL.Func([], [IDL.Vec(IDL.Nat8)], []),
        spin: IDL.Func([IDL.Nat64], [IDL.Nat64], []),
        start_timer: IDL.Func([IDL.Nat64], [], []),
        timer_count: IDL.Func([], [IDL.Nat64], ['query']),
        trap_with: IDL.Func([IDL.Text], [], [])
    });

async function counter(server) {
    const pic = await PocketIc.create(server.getUrl());
    const { actor, canisterId } = await pic.setupCanister({
        idlFactory: motoko,
        wasm: join(modules, 'motoko-counter32.wasm')
    });
    assert.equal(await actor.get(), 0n);
    assert.equal(await actor.inc(), 1n);
    assert.equal(await actor.inc(), 2n);
    await assert.rejects(actor.boom(), /CanisterError|Canister call failed/);
    assert.equal(await actor.get(), 2n);
    const identity = createIdentity('a phrase');
    actor.setIdentity(identity);
    assert.equal((await actor.whoami()).toText(), identity.getPrincipal().toText());
    const balance = BigInt(await pic.getCyclesBalance(canisterId));
    assert.ok(balance > 0n);
    assert.equal(BigInt(await pic.addCycles(canisterId, 1_000_000)), balance + 1_000_000n);
    await pic.upgradeCanister({ canisterId, wasm: join(modules, 'motoko-counter32.wasm') });
    assert.equal(await actor.get(), 2n);
    await pic.reinstallCode({ canisterId, wasm: join(modules, 'motoko-counter32.wasm') });
    assert.equal(await actor.get(), 0n);
    await pic.tearDown();
    step('a counter counts, is upgraded and reinstalled');
}

async function work(server) {
    const pic = await PocketIc.create(server.getUrl());
    const { actor, canisterId } = await pic.setupCanister({
        idlFactory: workbench,
        wasm: join(modules, 'workbench.wasm')
    });
    const other = await pic.setupCanister({ idlFactory: workbench, wasm: join(modules, 'workbench.wasm') });
    assert.equal(await other.actor.inc(), 1n);
    assert.equal(await actor.composite_get(other.canisterId), 1n);
    assert.equal((await actor.raw_rand_via_mgmt()).length, 32);
    await assert.rejects(actor.trap_with('on purpose'), /on purpose.*CanisterCalledTrap/s);
    // Longer than a slice: several rounds.
    assert.ok((await actor.spin(5_000_000_000n)) >= 5_000_000_000n);
    await pic.setTime(new Date(2030, 1, 1));
    await pic.tick();
    assert.ok(Math.abs((await pic.getTime()) - new Date(2030, 1, 1).getTime()) < 10);
    await actor.start_timer(60_000_000_000n);
    await pic.advanceTime(59_000);
    await pic.tick(2);
    assert.equal(await actor.timer_count(), 0n);
    await pic.advanceTime(2_000);
    await pic.tick(3);
    assert.equal(await actor.timer_count(), 1n);
    const [caller] = await pic.getControllers(canisterId);
    assert.equal(caller.toText(), Principal.anonymous().toText());
    const memory = new Uint8Array(65536).fill(7);
    await pic.setStableMemory(canisterId, memory);
    assert.deepEqual(new Uint8Array(await pic.getStableMemory(canisterId)), memory);
    assert.deepEqual(await pic.getPendingHttpsOutcalls(), []);
    await pic.tearDown();
    step('composite queries, randomness, traps, long messages, timers and stable memory');
}

async function deferred(server) {
    const pic = await PocketIc.create(server.getUrl());
    const canisterId = await pic.createCanister();
    await pic.installCode({ canisterId, wasm: join(modules, 'motoko-counter32.wasm') });
    const actor = pic.createDeferredActor(motoko, canisterId);
    const [first, second] = [await actor.inc(), await actor.inc()];
    assert.deepEqual([await second(), await first()].sort(), [1n, 2n]);
    await pic.tearDown();
    step('calls are submitted first and awaited later');
}

async function outcalls(server) {
    const pic = await PocketIc.create(server.getUrl());
    const canisterId = await pic.createCanister();
    await pic.installCode({ canisterId, wasm: new Uint8Array(readFileSync(process.env.POCKET_ASKER)) });
    const actor = pic.createDeferredActor(asker, canisterId);
    const request = { url: 'https://a.example/', max_response_bytes: [1000n], method: { get: null } };
    const begin = async () => {
        const call = await actor.relay({ ...request, headers: [{ name: 'x', value: 'y' }], body: [] });
        await pic.tick(2);
        const [pending, ...others] = await pic.getPendingHttpsOutcalls();
        assert.equal(others.length, 0);
        return [call, pending];
    };
    const answer = ({ subnetId, requestId }, response, additionalResponses) =>
        pic.mockPendingHttpsOutcall({ subnetId, requestId, response, additionalResponses });
    const success = body => ({ type: 'success', statusCode: 200, headers: [], body: new TextEncoder().encode(body) });

    const [call, pending] = await begin();
    const [subnet] = await pic.getApplicationSubnets();
    assert.equal(pending.subnetId.toText(), subnet.id.toText());
    assert.equal(pending.httpMethod, 'GET');
    assert.equal(pending.url, 'https://a.example/');
    assert.deepEqual(pending.headers, [['x', 'y']]);
    assert.equal(pending.body.length, 0);
    assert.equal(pending.maxResponseBytes, 1000);
    await answer(pending, success('hello'));
    assert.deepEqual(await pic.getPendingHttpsOutcalls(), []);
    await assert.rejects(answer(pending, success('again')), /InvalidCanisterHttpRequestId/);
    const { status, body } = await call();
    assert.deepEqual([status, new TextDecoder().decode(new Uint8Array(body))], [200n, 'hello']);

    // The client reports the reject of a deferred call to no caller.
    const rejection = call =>
        new Promise(resolve => {
            process.once('unhandledRejection', ({ message }) => resolve(message));
            call();
        });
    const [refused, second] = await begin();
    await answer(second, { type: 'reject', statusCode: 2, message: 'nobody is there' });
    assert.match(await rejection(refused), /nobody is there/);
    const [split, third] = await begin();
    await answer(third, success('0'), Array.from({ length: 12 }, (_, node) => success(`${node + 1}`)));
    assert.match(await rejection(split), /No consensus could be reached/);
    await pic.tearDown();
    step('HTTPS outcalls are listed, answered, rejected, and nodes disagree');
}

async function subnets(server) {
    const state = { type: SubnetStateType.New };
    const pic = await PocketIc.create(server.getUrl(), {
        nns: { state },
        ii: { state },
        application: [{ state }, { state }]
    });
    const applications = await pic.getApplicationSubnets();
    assert.equal(applications.length, 2);
    const nns = await pic.getNnsSubnet();
    assert.equal((await pic.getPubKey(nns.id)).length, 133);
    const ledger = Principal.fromText('ryjl3-tyaaa-aaaaa-aaaba-cai');
    const created = await pic.createCanister({ targetCanisterId: ledger });
    assert.equal(created.toText(), ledger.toText());
    const canisters = [created];
    for (const { id } of applications) {
        const canisterId = await pic.createCanister({ targetSubnetId: id });
        assert.equal((await pic.getCanisterSubnetId(canisterId)).toText(), id.toText());
        canisters.push(canisterId);
    }
    for (const canisterId of canisters) {
        await pic.installCode({ canisterId, wasm: join(modules, 'motoko-counter32.wasm') });
    }
    const actor = pic.createActor(motoko, canisters[1]);
    assert.equal(await actor.callInc(canisters[2]), 1n);
    assert.equal(await actor.callInc(canisters[0]), 1n);
    await pic.tearDown();
    step('canisters on several subnets, one with an id of the public network, call each other');
}

async function live(server) {
    const state = { type: SubnetStateType.New };
    const pic = await PocketIc.create(server.getUrl(), { nns: { state }, application: [{ state }] });
    const { canisterId } = await pic.setupCanister({
        idlFactory: workbench,
        wasm: join(modules, 'workbench.wasm')
    });
    const port = await pic.makeLive();
    const identity = generateRandomIdentity();
    const agent = await HttpAgent.create({ host: `http://127.0.0.1:${port}`, identity, shouldFetchRootKey: true });
    const actor = Actor.createActor(workbench, { agent, canisterId });
    assert.equal(await actor.inc(), 1n);
    assert.equal(await actor.get(), 1n);
    const [, [certificate]] = await actor.get_certified();
    assert.ok(certificate.length > 0);
    await actor.start_timer(200_000_000n);
    const until = Date.now() + 20_000;
    while ((await actor.timer_count()) === 0n) assert.ok(Date.now() < until, 'the timer has not fired');
    assert.equal(await pic.makeLive(), port);
    await pic.stopLive();
    await assert.rejects(fetch(`http://127.0.0.1:${port}/api/v2/status`));
    await pic.tearDown();
    step('a live instance answers the published agent, which verifies certificates and query signatures');
}

async function large(server) {
    const pic = await PocketIc.create(server.getUrl());
    const canisterId = await pic.createCanister();
    await pic.installCode({ canisterId, wasm: wasm('azle-hello.wasm.gz') });
    const echo = ({ IDL }) => IDL.Service({ get: IDL.Func([], [IDL.Nat64], ['query']) });
    assert.equal(await pic.createActor(echo, canisterId).get(), 0n);
    await pic.tearDown();
    step('a JavaScript engine of 3.5 MB is installed');
}

const server = await PocketIcServer.start({ ttl: 30, showRuntimeLogs: true, showCanisterLogs: true });
try {
    await counter(server);
    await work(server);
    await deferred(server);
    await outcalls(server);
    await subnets(server);
    await live(server);
    await large(server);
} finally {
    await server.stop();
}
