package main

// The relay peer that counts: what the mesh delivered once each, by pubsub topic and in bytes.

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/waku-org/go-waku/waku/v2/node"
	"github.com/waku-org/go-waku/waku/v2/protocol"
	"github.com/waku-org/go-waku/waku/v2/protocol/relay"
)

// bufferMessages is how many messages may wait here for being counted.
const bufferMessages = 4096

type counts struct {
	Received     uint64            `json:"received"`
	PayloadBytes uint64            `json:"payload_bytes"`
	ByTopic      map[string]uint64 `json:"by_topic"`
	Peers        int               `json:"peers"`
	Final        bool              `json:"final"`
}

func runRelay(ctx context.Context, args []string) error {
	var n networkFlags
	var peers textList
	flags := flag.NewFlagSet("peer relay", flag.ExitOnError)
	n.register(flags)
	port := flags.Int("tcp-port", 0, "TCP port on 127.0.0.1; 0 is any")
	every := flags.Duration("every", time.Second, "interval of the counts; 0 prints the last only")
	flags.Var(&peers, "peer", "multiaddress of a relay peer; may be repeated")
	if err := flags.Parse(args); err != nil {
		return err
	}
	peer, err := n.start(ctx, *port, node.WithWakuRelayAndMinPeers(0), withMplex())
	if err != nil {
		return err
	}
	defer stop(peer)
	received := make(chan *protocol.Envelope, bufferMessages)
	for _, shard := range n.shards {
		subscriptions, err := peer.Relay().Subscribe(ctx,
			protocol.NewContentFilter(n.pubsubTopic(shard)), relay.WithCacheSize(bufferMessages))
		if err != nil {
			return err
		}
		for _, subscription := range subscriptions {
			go forward(ctx, subscription.Ch, received)
		}
	}
	for _, address := range peers {
		if err := peer.DialPeer(ctx, address); err != nil {
			return fmt.Errorf("-peer %s: %w", address, err)
		}
	}
	if err := printJSON(readyLine(peer)); err != nil {
		return err
	}
	return count(ctx, peer, received, *every)
}

func forward(ctx context.Context, from <-chan *protocol.Envelope, to chan<- *protocol.Envelope) {
	for envelope := range from {
		select {
		case to <- envelope:
		case <-ctx.Done():
			return
		}
	}
}

func count(
	ctx context.Context, peer *node.WakuNode,
	received <-chan *protocol.Envelope, every time.Duration,
) error {
	total := counts{ByTopic: map[string]uint64{}}
	var tick <-chan time.Time
	if every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case envelope := <-received:
			total.Received++
			total.PayloadBytes += uint64(len(envelope.Message().Payload))
			total.ByTopic[envelope.PubsubTopic()]++
		case <-tick:
			total.Peers = peer.PeerCount()
			if err := printJSON(total); err != nil {
				return err
			}
		case <-ctx.Done():
			total.Peers = peer.PeerCount()
			total.Final = true
			return printJSON(total)
		}
	}
}
