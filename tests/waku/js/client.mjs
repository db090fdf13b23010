// Uses a Waku service node as an application does, with @waku/sdk as published: one light client
// pushes, another subscribes by filter and queries the store. Knows nothing of the node but its
// address, cluster and shards.
import './node20.mjs';

import { createHash, randomBytes } from 'node:crypto';

import { tcp } from '@libp2p/tcp';
import { webSockets } from '@libp2p/websockets';
import { all } from '@libp2p/websockets/filters';
import { multiaddr } from '@multiformats/multiaddr';
import { PeerExchangeDiscovery } from '@waku/discovery';
import {
    LightPushError,
    Protocols,
    bytesToUtf8,
    createDecoder,
    createEncoder,
    createLightNode,
    utf8ToBytes,
    utils
} from '@waku/sdk';

import { Inbox, Steps, eventually, holds, readOptions, same, within } from './common.mjs';

const options = readOptions();
const steps = new Steps(options);
const run = randomBytes(4).toString('hex');
const LARGE_BYTES = 140_000;
const BURST = 50;
const HISTORY = 25;
const PAGE = 10;

const gap = (reason) => (options.knownGaps === 'go-waku' ? `go-waku: ${reason}` : undefined);
const noStore = gap('serves only the store protocol 2.0.0-beta4, not store-query/3.0.0');
const noLightPushV3 = gap('serves only light push 2.0.0-beta1, not 3.0.0');

// Application and version decide about the shard, so all topics of a run share one and no two runs
// share a topic.
const topic = (name) => `/thimble/1/${run}-${name}/proto`;
const route = (config, name, shardId) =>
    utils.createRoutingInfo(config, { contentTopic: topic(name), shardId });
const routing = (name) => route(options.networkConfig, name, options.shard);
const encoder = (name, more = {}) =>
    createEncoder({ contentTopic: topic(name), routingInfo: routing(name), ...more });
const decoder = (name) => createDecoder(topic(name), routing(name));
const pubsubTopic = () => routing('any').pubsubTopic;
const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');
const texts = (messages) => messages.map(({ payload }) => bytesToUtf8(payload));

const clients = [];
function peerIdOf(client) {
    const [peer] = client.libp2p.getPeers();
    holds(peer, 'the node has closed the connection');
    return peer;
}

/** A stock light client connected to `address`; its transports and TCP besides. */
async function connect(address, networkConfig = options.networkConfig) {
    const client = await createLightNode({
        networkConfig,
        defaultBootstrap: false,
        libp2p: {
            hideWebSocketInfo: true,
            transports: [webSockets({ filter: all }), tcp()]
        },
        lightPush: { autoRetry: false },
        filter: { keepAliveIntervalMs: 1000 }
    });
    clients.push(client);
    if (options.trustShards) client.connectionManager.isPeerOnTopic = async () => true;
    const wanted = [Protocols.LightPush, Protocols.Filter, Protocols.Store];
    const served = wanted.filter((protocol) => protocol !== Protocols.Store || !noStore);
    const ready = client.waitForPeers(served, options.timeoutMs);
    await client.libp2p.dial(multiaddr(address));
    await ready;
    return client;
}

let pusher;
let receiver;

const legacy = noLightPushV3 !== undefined;
const accepted = (result, what) => {
    same(result.failures.map(({ error }) => error), [], `${what}: failures`);
    same(result.successes.length, 1, `${what}: nodes that accepted`);
};
async function push(name, payload, { timestamp, ephemeral, useLegacy = legacy } = {}) {
    const by = encoder(name, { ephemeral });
    const result = await pusher.lightPush.send(by, { payload, timestamp }, { useLegacy });
    accepted(result, `light push on ${name}`);
}

/** Subscribes on a topic of its own, has `body` push, and expects exactly `payloads`. */
async function delivered(name, payloads, body) {
    const inbox = new Inbox();
    holds(await receiver.filter.subscribe(decoder(name), inbox.receive), 'subscribe was refused');
    await body();
    const messages = await inbox.until(payloads.length);
    same(
        messages.map(({ payload }) => sha256(payload)).sort(),
        payloads.map(sha256).sort(),
        'digests of what was delivered'
    );
    for (const message of messages) {
        same(message.contentTopic, topic(name), 'content topic');
        same(message.pubsubTopic, pubsubTopic(), 'pubsub topic');
    }
    return messages;
}

steps.add(
    'connect',
    async () => {
        pusher = await connect(options.pushPeer);
        receiver = await connect(options.peer);
    },
    { required: true }
);

steps.add('identify', async () => {
    const { protocols } = await receiver.libp2p.peerStore.get(peerIdOf(receiver));
    const needed = [
        '/ipfs/id/1.0.0',
        '/ipfs/ping/1.0.0',
        '/vac/waku/metadata/1.0.0',
        '/vac/waku/filter-subscribe/2.0.0-beta1',
        '/vac/waku/lightpush/2.0.0-beta1',
        '/vac/waku/peer-exchange/2.0.0-alpha1',
        ...(noLightPushV3 ? [] : ['/vac/waku/lightpush/3.0.0']),
        ...(noStore ? [] : ['/vac/waku/store-query/3.0.0'])
    ];
    same(needed.filter((id) => !protocols.includes(id)), [], 'protocols that are missing');
});

steps.add(
    'metadata',
    async () => {
        const service = receiver.libp2p.services.metadata;
        const { shardInfo, error } = await service.query(peerIdOf(receiver));
        same(error, null, 'error');
        same(shardInfo.clusterId, options.networkConfig.clusterId, 'cluster');
        const shard = routing('any').shardId;
        holds(shardInfo.shards.includes(shard), `shard ${shard} is not in ${shardInfo.shards}`);
    },
    { unless: gap('names its shards in field 3 only, the js client reads field 2 only') }
);

steps.add('ping', async () => {
    await receiver.libp2p.services.ping.ping(peerIdOf(receiver));
});

steps.add('filter-ping-unknown', async () => {
    const stranger = await connect(options.peer);
    const { success, failure } = await stranger.filter.protocol.ping(peerIdOf(stranger));
    same(success, null, 'a ping without a subscription was answered with success');
    same(failure.error, 'Remote peer rejected', 'failure');
    await stranger.stop();
});

steps.add('light-push', async () => {
    const payload = utf8ToBytes('a small message');
    const [message] = await delivered('small', [payload], () => push('small', payload));
    holds(Math.abs(Date.now() - message.timestamp.getTime()) < 60_000, 'timestamp is not now');
});

steps.add('light-push-large', async () => {
    const payload = new Uint8Array(randomBytes(LARGE_BYTES));
    await delivered('large', [payload], () => push('large', payload));
});

steps.add('light-push-v2', async () => {
    const payload = utf8ToBytes('by the older protocol');
    await delivered('v2', [payload], () => push('v2', payload, { useLegacy: true }));
});

steps.add('light-push-burst', async () => {
    const payloads = Array.from({ length: BURST }, (_, i) => utf8ToBytes(`${i} of ${BURST}`));
    await delivered('burst', payloads, () =>
        Promise.all(payloads.map((payload) => push('burst', payload)))
    );
});

steps.add('light-push-oversize', async () => {
    const payload = new Uint8Array(randomBytes(200_000));
    const result = await pusher.lightPush.send(encoder('over'), { payload }, { useLegacy: legacy });
    same(result.successes.length, 0, 'nodes that accepted 200,000 bytes');
    const small = utf8ToBytes('and the connection still works');
    await delivered('over-after', [small], () => push('over-after', small));
});

steps.add(
    'light-push-foreign-shard',
    async () => {
        const { clusterId } = options.networkConfig;
        const foreign = createEncoder({
            contentTopic: topic('foreign'),
            routingInfo: route({ clusterId }, 'foreign', options.foreignShard)
        });
        // Below the peer manager, which would not choose this node for that shard.
        const { success, failure } = await pusher.lightPush.protocol.send(
            foreign,
            { payload: utf8ToBytes('not served here') },
            peerIdOf(pusher),
            legacy
        );
        same(success, null, 'a shard that is not served was accepted');
        same(failure.error, LightPushError.REMOTE_PEER_REJECTED, 'failure');
    },
    { unless: options.foreignShard === undefined ? 'no --foreign-shard was given' : undefined }
);

// The kind of sharding is the client's own affair: both kinds name the same shard in what they
// send.
steps.add('sharding-static-to-auto', async () => {
    const { clusterId } = options.networkConfig;
    const fixed = await connect(options.pushPeer, { clusterId });
    const payload = utf8ToBytes('from a client with static sharding');
    const routingInfo = route({ clusterId }, 'sharding', routing('sharding').shardId);
    await delivered('sharding', [payload], async () =>
        accepted(
            await fixed.lightPush.send(
                createEncoder({ contentTopic: topic('sharding'), routingInfo }),
                { payload },
                { useLegacy: legacy }
            ),
            'light push'
        )
    );
    await fixed.stop();
});

steps.add('filter-topics', async () => {
    const inbox = new Inbox();
    const both = [decoder('first'), decoder('second')];
    holds(await receiver.filter.subscribe(both, inbox.receive), 'subscribe was refused');
    await push('third', utf8ToBytes('not asked for'));
    await push('first', utf8ToBytes('one'));
    await push('second', utf8ToBytes('two'));
    same(texts(await inbox.until(2)).sort(), ['one', 'two'], 'delivered');
});

steps.add('filter-ping', async () => {
    holds(await receiver.filter.subscribe(decoder('ping'), () => {}), 'subscribe was refused');
    const { failure } = await receiver.filter.protocol.ping(peerIdOf(receiver));
    same(failure, null, 'failure');
});

steps.add('filter-keepalive', async () => {
    const patient = await connect(options.peer);
    const inbox = new Inbox();
    const answers = [];
    const { ping } = patient.filter.protocol;
    const three = new Promise((resolve) => {
        patient.filter.protocol.ping = async (peer) => {
            const answer = await ping.call(patient.filter.protocol, peer);
            answers.push(answer.failure?.error ?? 'ok');
            if (answers.length === 3) resolve();
            return answer;
        };
    });
    holds(await patient.filter.subscribe(decoder('patient'), inbox.receive), 'refused');
    await three;
    same(answers, ['ok', 'ok', 'ok'], "answers to the library's own pings");
    await push('patient', utf8ToBytes('still here'));
    same(texts(await inbox.until(1)), ['still here'], 'delivered');
    await patient.stop();
});

steps.add('filter-unsubscribe', async () => {
    const inbox = new Inbox();
    const marker = new Inbox();
    const gone = decoder('gone');
    holds(await receiver.filter.subscribe(gone, inbox.receive), 'subscribe was refused');
    holds(await receiver.filter.subscribe(decoder('marker'), marker.receive), 'was refused');
    await push('gone', utf8ToBytes('before'));
    await inbox.until(1);
    const seen = [];
    const { handleIncomingMessage } = receiver.filter.protocol;
    receiver.filter.protocol.handleIncomingMessage = (on, message, from) => {
        seen.push(message.contentTopic);
        return handleIncomingMessage(on, message, from);
    };
    holds(await receiver.filter.unsubscribe(gone), 'unsubscribe was refused');
    // The library does not wait for the answer to an unsubscribe; a ping on the same connection
    // follows it.
    await receiver.filter.protocol.ping(peerIdOf(receiver));
    await push('gone', utf8ToBytes('after'));
    await push('marker', utf8ToBytes('last'));
    await marker.until(1);
    receiver.filter.protocol.handleIncomingMessage = handleIncomingMessage;
    same(seen, [topic('marker')], 'topics pushed after the unsubscribe');
});

steps.add('filter-unsubscribe-all', async () => {
    const other = await connect(options.peer);
    holds(await other.filter.subscribe(decoder('everything'), () => {}), 'refused');
    const peer = peerIdOf(other);
    const result = await other.filter.protocol.unsubscribeAll(pubsubTopic(), peer);
    same(result.failure, null, 'failure');
    const { failure } = await other.filter.protocol.ping(peer);
    same(failure?.error, 'Remote peer rejected', 'ping after unsubscribe-all');
    await other.stop();
});

steps.add('filter-reconnect', async () => {
    const other = await connect(options.peer);
    const inbox = new Inbox();
    holds(await other.filter.subscribe(decoder('again'), inbox.receive), 'refused');
    await other.libp2p.hangUp(peerIdOf(other));
    const subscribed = new Promise((resolve) => {
        const { subscribe } = other.filter.protocol;
        other.filter.protocol.subscribe = async (...all) => {
            const result = await subscribe.apply(other.filter.protocol, all);
            if (result.success) resolve();
            return result;
        };
    });
    await other.libp2p.dial(multiaddr(options.peer));
    // The library subscribes again by itself when the node is identified.
    await subscribed;
    await push('again', utf8ToBytes('welcome back'));
    same(texts(await inbox.until(1)), ['welcome back'], 'delivered');
    await other.stop();
});

// The history of the store steps: HISTORY messages on two topics in turn, 10 ms apart, just before
// they are pushed: a node keeps none that is 20 s off its clock.
let historyStart;
const at = (i) => new Date(historyStart + i * 10);
const nameAt = (i) => (i % 2 === 0 ? 'even' : 'odd');
const range = (from, to) => Array.from({ length: to - from }, (_, i) => `message ${from + i}`);
const decoders = () => [decoder('even'), decoder('odd')];

async function pages(by, query) {
    const result = [];
    for await (const page of receiver.store.queryGenerator(by, query)) {
        const messages = await Promise.all(page);
        holds(messages.every((message) => message !== undefined), 'a message without its data');
        result.push(messages);
    }
    return result;
}
const found = async (by, query) => (await pages(by, query)).flat();
// Accepted is not yet queryable in every node: ask until it is.
const stored = (count, by) => eventually(options.timeoutMs / 2, count, () => found(by, {}));

let history;
const storeStep = (name, body) => {
    const filled = async () => {
        history ??= await fill();
        await body();
    };
    steps.add(`store-${name}`, filled, { unless: noStore });
};

async function fill() {
    historyStart = Date.now() - 5_000;
    // Pushed backwards, so that a store that orders by arrival is noticed.
    for (let i = HISTORY - 1; i >= 0; i -= 1) {
        await push(nameAt(i), utf8ToBytes(`message ${i}`), { timestamp: at(i) });
    }
    return stored(HISTORY, decoders());
}

storeStep('order', async () => {
    same(texts(history), range(0, HISTORY), 'all messages by their timestamps');
});

storeStep('forward', async () => {
    const got = await pages(decoders(), { paginationForward: true, paginationLimit: PAGE });
    same(got.map((page) => page.length), [10, 10, 5], 'page sizes');
    same(texts(got.flat()), range(0, HISTORY), 'messages');
});

storeStep('backward', async () => {
    const got = await pages(decoders(), { paginationForward: false, paginationLimit: PAGE });
    same(got.map((page) => page.length), [10, 10, 5], 'page sizes');
    const expected = [...range(15, 25), ...range(5, 15), ...range(0, 5)];
    same(texts(got.flat()), expected, 'newest page first, each in ascending order');
});

storeStep('content-topic', async () => {
    const odd = range(0, HISTORY).filter((_, i) => nameAt(i) === 'odd');
    same(texts(await found([decoder('odd')], {})), odd, 'one topic of two');
    same(texts(await found([decoder('nobody')], {})), [], 'a topic nobody used');
});

storeStep('time', async () => {
    const between = (i) => new Date(at(i).getTime() - 5);
    const part = await found(decoders(), { timeStart: between(5), timeEnd: between(12) });
    same(texts(part), range(5, 12), 'messages 5 to 11');
    const tail = await found(decoders(), { timeStart: between(20) });
    same(texts(tail), range(20, HISTORY), 'messages since');
});

storeStep('hash', async () => {
    const wanted = [history[3], history[17]];
    // A query by hash names no topic, by which the library would choose a peer.
    const peerId = peerIdOf(receiver);
    const query = { messageHashes: wanted.map(({ hash }) => hash), pubsubTopic: '', peerId };
    same(texts(await found(decoders(), query)), ['message 3', 'message 17'], 'by hash');
});

storeStep('cursor', async () => {
    const paginationCursor = receiver.store.createCursor(history[9]);
    const rest = await found(decoders(), { paginationCursor, paginationLimit: PAGE });
    same(texts(rest), range(10, HISTORY), 'messages after the cursor');
});

storeStep('large', async () => {
    const payloads = [0, 1, 2].map(() => new Uint8Array(randomBytes(LARGE_BYTES)));
    for (const payload of payloads) await push('large-history', payload);
    const messages = await stored(payloads.length, [decoder('large-history')]);
    same(
        messages.map(({ payload }) => sha256(payload)).sort(),
        payloads.map(sha256).sort(),
        'digests'
    );
});

storeStep('ephemeral', async () => {
    const payload = utf8ToBytes('not to be kept');
    await delivered('fleeting', [payload], () => push('fleeting', payload, { ephemeral: true }));
    await push('kept', utf8ToBytes('to be kept'));
    await stored(1, [decoder('kept')]);
    same(texts(await found([decoder('fleeting')], {})), [], 'stored');
});

steps.add('peer-exchange', async () => {
    const client = await connect(options.peer);
    const { components } = client.libp2p;
    const { peerExchange } = new PeerExchangeDiscovery(components);
    const peerId = peerIdOf(client);
    const { peerInfos, error } = await peerExchange.query({ numPeers: 5, peerId });
    same(error, null, 'error');
    holds(peerInfos.length <= 5, `asked for 5 records, got ${peerInfos.length}`);
    for (const { ENR } of peerInfos) holds(ENR.waku2, 'a record without the waku2 key');
    console.log(`      peer-exchange: ${peerInfos.length} records`);
    await client.stop();
});

if (options.knownGaps === 'go-waku' && !options.list) {
    console.log('note  go-waku: no shard in field 2 of its metadata, so --trust-shards is on');
}
let held = false;
try {
    held = await steps.run();
} catch (error) {
    console.log(`FAIL  ${error?.stack ?? error}`);
}
// A client that does not stop is reported but does not keep the program.
await within(5000, Promise.all(clients.map((client) => client.stop())), 'stopping').catch((e) =>
    console.log(`note  ${e.message}`)
);
process.exit(held ? 0 : 1);
