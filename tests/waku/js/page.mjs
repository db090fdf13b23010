// An application in a browser: pushes, subscribes and queries the store of the service node that it is
// told of, by @waku/sdk as published. `browser.mjs` calls `globalThis.visit`.
import { webSockets } from '@libp2p/websockets';
import { all } from '@libp2p/websockets/filters';
import { multiaddr } from '@multiformats/multiaddr';
import { Protocols, createDecoder, createEncoder, createLightNode, utils } from '@waku/sdk';

const TIMEOUT_MS = 20_000;
const TOPIC = `/thimble/1/browser-${crypto.randomUUID()}/proto`;

const encode = (text) => new TextEncoder().encode(text);
const decode = (bytes) => new TextDecoder().decode(bytes);

async function light(peer, networkConfig) {
    const client = await createLightNode({
        networkConfig,
        defaultBootstrap: false,
        libp2p: {
            hideWebSocketInfo: true,
            transports: [webSockets({ filter: all })],
            // In browsers the library refuses addresses of this machine unless it is told otherwise.
            connectionGater: { denyDialMultiaddr: () => false }
        },
        lightPush: { autoRetry: false }
    });
    const ready = client.waitForPeers(
        [Protocols.LightPush, Protocols.Filter, Protocols.Store],
        TIMEOUT_MS
    );
    await client.libp2p.dial(multiaddr(peer));
    await ready;
    return client;
}

/** Sends `texts` by one client; returns what another received, and what the store then has. */
globalThis.visit = async ({ peer, clusterId, numShardsInCluster, texts }) => {
    const networkConfig = { clusterId, numShardsInCluster };
    const routingInfo = utils.createRoutingInfo(networkConfig, { contentTopic: TOPIC });
    const encoder = createEncoder({ contentTopic: TOPIC, routingInfo });
    const decoder = createDecoder(TOPIC, routingInfo);
    const [pusher, receiver] = [
        await light(peer, networkConfig),
        await light(peer, networkConfig)
    ];

    const received = [];
    let complete;
    const all = new Promise((resolve) => (complete = resolve));
    const subscribed = await receiver.filter.subscribe(decoder, ({ payload }) => {
        received.push(decode(payload));
        if (received.length === texts.length) complete();
    });
    if (!subscribed) throw new Error('the subscription was refused');
    for (const text of texts) {
        const { failures, successes } = await pusher.lightPush.send(encoder, {
            payload: encode(text)
        });
        if (successes.length !== 1) throw new Error(`a push failed: ${JSON.stringify(failures)}`);
    }
    const late = new Promise((_, reject) =>
        setTimeout(() => reject(new Error(`received ${received.length} in time`)), TIMEOUT_MS)
    );
    await Promise.race([all, late]);

    const stored = [];
    for await (const page of receiver.store.queryGenerator([decoder])) {
        for (const message of await Promise.all(page)) stored.push(decode(message.payload));
    }
    await Promise.all([pusher.stop(), receiver.stop()]);
    return { received: received.sort(), stored: stored.sort() };
};
