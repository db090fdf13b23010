package main

// Steps of the relay protocol: a relay node of our own joins the mesh of the node under test.

import (
	"context"
	"fmt"
	"slices"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/peer"
	ids "github.com/libp2p/go-libp2p/core/protocol"
	"github.com/waku-org/go-waku/waku/v2/node"
	"github.com/waku-org/go-waku/waku/v2/protocol"
	"github.com/waku-org/go-waku/waku/v2/protocol/relay"
)

// ignoreTrace ignores what graftTracer does not care for.
type ignoreTrace struct{}

func (ignoreTrace) AddPeer(peer.ID, ids.ID)               {}
func (ignoreTrace) RemovePeer(peer.ID)                    {}
func (ignoreTrace) Join(string)                           {}
func (ignoreTrace) Leave(string)                          {}
func (ignoreTrace) Graft(peer.ID, string)                 {}
func (ignoreTrace) Prune(peer.ID, string)                 {}
func (ignoreTrace) ValidateMessage(*pubsub.Message)       {}
func (ignoreTrace) DeliverMessage(*pubsub.Message)        {}
func (ignoreTrace) RejectMessage(*pubsub.Message, string) {}
func (ignoreTrace) DuplicateMessage(*pubsub.Message)      {}
func (ignoreTrace) ThrottlePeer(peer.ID)                  {}
func (ignoreTrace) RecvRPC(*pubsub.RPC)                   {}
func (ignoreTrace) SendRPC(*pubsub.RPC, peer.ID)          {}
func (ignoreTrace) DropRPC(*pubsub.RPC, peer.ID)          {}
func (ignoreTrace) UndeliverableMessage(*pubsub.Message)  {}

// pollInterval is how often a state is asked for that go-waku does not announce.
const pollInterval = 20 * time.Millisecond

func (c *client) addRelaySteps() {
	c.add("relay-join", c.joinMesh)
	c.add("relay-receive", func(ctx context.Context) error {
		return c.relayed(ctx, "received", []byte("by relay"))
	})
	c.add("relay-receive-large", func(ctx context.Context) error {
		return c.relayed(ctx, "received-large", randomBytes(largeBytes))
	})
	c.add("relay-publish", func(ctx context.Context) error {
		return c.published(ctx, "published", []byte("from relay to filter"))
	})
	c.add("relay-publish-large", func(ctx context.Context) error {
		return c.published(ctx, "published-large", randomBytes(largeBytes))
	})
	c.add("relay-stays", func(ctx context.Context) error {
		// Two heartbeats and go-waku's check of shards after it has joined the mesh.
		select {
		case <-time.After(2500 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		if c.relay == nil || c.relay.PeerCount() != 1 {
			return fmt.Errorf("the relay node is not connected any more")
		}
		return c.relayed(ctx, "stays", []byte("still in the mesh"))
	})
}

// graftTracer tells when a peer has become, or has made us, a member of the mesh of a topic.
type graftTracer struct {
	pubsub.RawTracer
	grafted chan graft
}

type graft struct {
	peer  peer.ID
	topic string
}

// Graft is called by the router, which must not wait.
func (g graftTracer) Graft(by peer.ID, topic string) {
	select {
	case g.grafted <- graft{by, topic}:
	default:
	}
}

// joinMesh ends when the mesh delivers. Before that a message may pass by: a peer forwards to its
// mesh only.
func (c *client) joinMesh(ctx context.Context) (err error) {
	long := context.WithoutCancel(ctx)
	tracer := graftTracer{ignoreTrace{}, make(chan graft, 1024)}
	c.blame.server = c.server
	relayOptions := node.WithWakuRelayAndMinPeers(
		1, pubsub.WithRawTracer(tracer), pubsub.WithRawTracer(&c.blame))
	if c.relay, err = c.start(long, 0, relayOptions); err != nil {
		return err
	}
	if err := c.subscribe(ctx, long, c.relay); err != nil {
		return err
	}
	if err := c.relay.DialPeer(ctx, c.address); err != nil {
		return err
	}
	for wanted := (graft{c.server, c.shardTopic()}); ; {
		select {
		case <-ctx.Done():
			peers := c.relay.Relay().PubSub().ListPeers(wanted.topic)
			return fmt.Errorf("no mesh on %s; the node has subscribed to it: %v",
				wanted.topic, slices.Contains(peers, c.server))
		case one := <-tracer.grafted:
			if one == wanted {
				return c.probeMesh(ctx)
			}
		}
	}
}

// probeMesh pushes until something arrives: our GRAFT may still be on its way.
func (c *client) probeMesh(ctx context.Context) error {
	for {
		limited, cancel := context.WithTimeout(ctx, time.Second)
		err := c.relayed(limited, "probe", randomBytes(16))
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("in the mesh, but: %w", err)
		}
	}
}

// relayed pushes by light push and expects the message at the relay node.
func (c *client) relayed(ctx context.Context, name string, payload []byte) error {
	if c.relay == nil {
		return fmt.Errorf("there is no relay node, see relay-join")
	}
	// go-waku ends the subscription with this context.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	subscriptions, err := c.relay.Relay().Subscribe(ctx,
		protocol.NewContentFilter(c.shardTopic(), c.topic(name)), relay.WithCacheSize(16))
	if err != nil {
		return err
	}
	message := c.message(name, payload)
	if err := c.push(ctx, message); err != nil {
		return err
	}
	return expectEnvelopes(ctx, c.shardTopic(), subscriptions[0].Ch, message)
}

// published publishes by relay and expects the message at the filter client.
func (c *client) published(ctx context.Context, name string, payload []byte) error {
	if c.relay == nil {
		return fmt.Errorf("there is no relay node, see relay-join")
	}
	in, err := c.subscribeFilter(ctx, name)
	if err != nil {
		return err
	}
	message := c.message(name, payload)
	hash, err := c.relay.Relay().Publish(ctx, message, relay.WithPubSubTopic(c.shardTopic()))
	if err != nil {
		return err
	}
	if hash != message.Hash(c.shardTopic()) {
		return fmt.Errorf("hash %s, expected %s", hash, message.Hash(c.shardTopic()))
	}
	return in.expect(ctx, message)
}
