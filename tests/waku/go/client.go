package main

// The client under which a service node is tested: two light nodes (one pushes, one subscribes and
// queries) and a relay node, each go-waku as published.

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/waku-org/go-waku/waku/v2/node"
	"github.com/waku-org/go-waku/waku/v2/protocol"
	"github.com/waku-org/go-waku/waku/v2/protocol/filter"
	"github.com/waku-org/go-waku/waku/v2/protocol/lightpush"
	"github.com/waku-org/go-waku/waku/v2/protocol/pb"
	"google.golang.org/protobuf/proto"
)

const (
	largeBytes    = 140_000
	oversizeBytes = 200_000
	burstMessages = 50
)

type client struct {
	networkFlags
	steps
	address   string
	pushTo    string
	foreign   int
	knownGaps string
	edges     int
	seed      int64

	run      string
	server   peer.ID
	pushPeer peer.ID
	pusher   *node.WakuNode
	receiver *node.WakuNode
	relay    *node.WakuNode
	blame    blame
	metrics  *prometheus.Registry
	history  []*pb.WakuMessage
}

func runClient(ctx context.Context, args []string) error {
	c := client{metrics: prometheus.NewRegistry()}
	flags := flag.NewFlagSet("peer client", flag.ExitOnError)
	c.register(flags)
	flags.StringVar(&c.address, "peer", "", "multiaddress of the service node, /p2p/ID at its end")
	flags.StringVar(&c.pushTo, "push-peer", "", "push here instead, to test what lies between")
	flags.IntVar(&c.foreign, "foreign-shard", -1,
		"a shard that the node does not serve; -1 is unknown")
	flags.StringVar(&c.knownGaps, "known-gaps", "",
		"go-waku: skip, with the reason, the steps the Go node has no server for")
	flags.IntVar(&c.edges, "edges", 0,
		"messages at the edges of every field to send in each direction; 0 leaves the steps out")
	flags.Int64Var(&c.seed, "seed", 1, "of these messages")
	flags.StringVar(&c.only, "only", "", "run only the steps whose name starts with one of these")
	flags.StringVar(&c.skip, "skip", "", "leave out the steps whose name starts with one of these")
	flags.DurationVar(&c.limit, "timeout", 20*time.Second, "limit of each step")
	flags.BoolVar(&c.list, "list", false, "print the names of the steps")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.knownGaps != "" && c.knownGaps != "go-waku" {
		return fmt.Errorf("-known-gaps knows only go-waku, not %q", c.knownGaps)
	}
	if !c.list {
		if err := c.parsePeers(); err != nil {
			return err
		}
	}
	suffix := make([]byte, 4)
	if _, err := rand.Read(suffix); err != nil {
		return err
	}
	c.run = hex.EncodeToString(suffix)
	c.addConnectionSteps()
	c.addPushSteps()
	c.addFilterSteps()
	c.addRelaySteps()
	c.addStoreSteps()
	c.addPeerExchangeSteps()
	c.addEdgeSteps()
	err := c.steps.run(ctx)
	for _, one := range []*node.WakuNode{c.pusher, c.receiver, c.relay} {
		if one != nil {
			stop(one)
		}
	}
	return err
}

func (c *client) parsePeers() error {
	if c.pushTo == "" {
		c.pushTo = c.address
	}
	for text, id := range map[string]*peer.ID{c.address: &c.server, c.pushTo: &c.pushPeer} {
		address, err := multiaddr.NewMultiaddr(text)
		if err != nil {
			return fmt.Errorf("-peer %q: %w", text, err)
		}
		info, err := peer.AddrInfoFromP2pAddr(address)
		if err != nil {
			return fmt.Errorf("-peer %q: %w", text, err)
		}
		*id = info.ID
		if text == c.address {
			c.server = info.ID
		}
	}
	if c.pushTo == c.address {
		c.pushPeer = c.server
	}
	return nil
}

// gap is the reason if the node under test is known to lack something, else empty.
func (c *client) gap(reason string) string {
	if c.knownGaps == "" {
		return ""
	}
	return c.knownGaps + ": " + reason
}

// topic is a content topic of this run. Application and version decide about the shard, so all
// share one.
func (c *client) topic(name string) string {
	return fmt.Sprintf("/thimble/1/%s-%s/proto", c.run, name)
}

func (c *client) shardTopic() string {
	topic, err := c.route(c.topic("any"))
	if err != nil {
		panic(err) // the topic is our own
	}
	return topic
}

func (c *client) message(name string, payload []byte) *pb.WakuMessage {
	return &pb.WakuMessage{
		Payload:      payload,
		ContentTopic: c.topic(name),
		Version:      proto.Uint32(0),
		Timestamp:    proto.Int64(time.Now().UnixNano()),
	}
}

func randomBytes(count int) []byte {
	result := make([]byte, count)
	if _, err := rand.Read(result); err != nil {
		panic(err)
	}
	return result
}

// light starts a node without relay, connected to the address.
func (c *client) light(
	ctx context.Context, address string, options ...node.WakuNodeOption,
) (*node.WakuNode, error) {
	started, err := c.start(ctx, 0, append(options, node.WithWakuFilterLightNode())...)
	if err != nil {
		return nil, err
	}
	return started, started.DialPeer(ctx, address)
}

func (c *client) push(ctx context.Context, message *pb.WakuMessage) error {
	hash, err := c.pusher.Lightpush().Publish(ctx, message,
		lightpush.WithPubSubTopic(c.shardTopic()), lightpush.WithPeer(c.pushPeer))
	if err != nil {
		return err
	}
	if expected := message.Hash(c.shardTopic()); hash != expected {
		return fmt.Errorf("hash %s, expected %s", hash, expected)
	}
	return nil
}

// inbox is a filter subscription of the receiver on one content topic.
type inbox struct {
	c       *client
	filter  protocol.ContentFilter
	channel <-chan *protocol.Envelope
}

func (c *client) subscribeFilter(ctx context.Context, names ...string) (*inbox, error) {
	var topics []string
	for _, name := range names {
		topics = append(topics, c.topic(name))
	}
	wanted := protocol.NewContentFilter(c.shardTopic(), topics...)
	light := c.receiver.FilterLightnode()
	subscriptions, err := light.Subscribe(ctx, wanted, filter.WithPeer(c.server))
	if err != nil {
		return nil, err
	}
	if len(subscriptions) != 1 {
		return nil, fmt.Errorf("%d subscriptions, expected 1", len(subscriptions))
	}
	return &inbox{c, wanted, subscriptions[0].C}, nil
}

// expect waits for exactly these messages, in any order.
func (i *inbox) expect(ctx context.Context, messages ...*pb.WakuMessage) error {
	return expectEnvelopes(ctx, i.c.shardTopic(), i.channel, messages...)
}

func expectEnvelopes(
	ctx context.Context, topic string, from <-chan *protocol.Envelope, messages ...*pb.WakuMessage,
) error {
	missing := map[pb.MessageHash]*pb.WakuMessage{}
	for _, message := range messages {
		missing[message.Hash(topic)] = message
	}
	for len(missing) > 0 {
		select {
		case envelope, open := <-from:
			if !open {
				return fmt.Errorf("the subscription was closed, %d missing", len(missing))
			}
			message, expected := missing[envelope.Hash()]
			if !expected {
				return fmt.Errorf("unexpected or repeated message on %s with %d bytes",
					envelope.Message().ContentTopic, len(envelope.Message().Payload))
			}
			if !bytes.Equal(message.Payload, envelope.Message().Payload) {
				return fmt.Errorf("payload differs under the same hash")
			}
			delete(missing, envelope.Hash())
		case <-ctx.Done():
			return fmt.Errorf("%d of %d messages missing: %w",
				len(missing), len(messages), ctx.Err())
		}
	}
	return nil
}

// delivered subscribes on a topic of its own, pushes the payloads and expects exactly them.
func (c *client) delivered(ctx context.Context, name string, payloads ...[]byte) error {
	in, err := c.subscribeFilter(ctx, name)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	var messages []*pb.WakuMessage
	errs := make(chan error, len(payloads))
	for _, payload := range payloads {
		message := c.message(name, payload)
		messages = append(messages, message)
		go func() { errs <- c.push(ctx, message) }()
	}
	for range payloads {
		if err := <-errs; err != nil {
			return fmt.Errorf("light push: %w", err)
		}
	}
	return in.expect(ctx, messages...)
}

func (c *client) addPushSteps() {
	c.add("light-push-v2", func(ctx context.Context) error {
		return c.delivered(ctx, "small", []byte("a small message"))
	})
	c.add("light-push-v2-large", func(ctx context.Context) error {
		return c.delivered(ctx, "large", randomBytes(largeBytes))
	})
	c.add("light-push-v2-burst", func(ctx context.Context) error {
		var payloads [][]byte
		for i := range burstMessages {
			payloads = append(payloads, []byte(fmt.Sprintf("%d of %d", i, burstMessages)))
		}
		return c.delivered(ctx, "burst", payloads...)
	})
	c.add("light-push-v2-meta", func(ctx context.Context) error {
		in, err := c.subscribeFilter(ctx, "meta")
		if err != nil {
			return err
		}
		message := c.message("meta", []byte("with a meta field"))
		message.Meta = []byte("meta")
		if err := c.push(ctx, message); err != nil {
			return err
		}
		return in.expect(ctx, message)
	})
	c.add("light-push-v2-oversize", func(ctx context.Context) error {
		if err := c.push(ctx, c.message("over", randomBytes(oversizeBytes))); err == nil {
			return fmt.Errorf("%d bytes were accepted", oversizeBytes)
		}
		return c.delivered(ctx, "over", []byte("and the connection still works"))
	})
	reason := ""
	if c.foreign < 0 {
		reason = "no -foreign-shard was given"
	}
	c.addUnless(reason, "light-push-v2-foreign-shard", func(ctx context.Context) error {
		message := c.message("foreign", []byte("not served here"))
		topic := lightpush.WithPubSubTopic(c.pubsubTopic(uint16(c.foreign)))
		_, err := c.pusher.Lightpush().Publish(ctx, message, topic, lightpush.WithPeer(c.pushPeer))
		if err == nil {
			return fmt.Errorf("shard %d was accepted", c.foreign)
		}
		if !strings.HasPrefix(err.Error(), "lightpush error") || err.Error() == "lightpush error" {
			return fmt.Errorf("refused without a reason in the reply: %w", err)
		}
		return nil
	})
	autoReason := ""
	if c.cluster != 1 || c.shardsInCluster != 8 {
		autoReason = "go-waku's own autosharding knows only cluster 1 with 8 shards"
	}
	c.addUnless(autoReason, "light-push-v2-autosharding", func(ctx context.Context) error {
		in, err := c.subscribeFilter(ctx, "auto")
		if err != nil {
			return err
		}
		message := c.message("auto", []byte("without a pubsub topic"))
		to := lightpush.WithPeer(c.pushPeer)
		if _, err := c.pusher.Lightpush().Publish(ctx, message, to); err != nil {
			return err
		}
		return in.expect(ctx, message)
	})
	c.addUnless("the module has no light push 3.0.0", "light-push-v3", nil)
}

// protocols are what the node under test named by identify.
func (c *client) protocols() ([]string, error) {
	ids, err := c.receiver.Host().Peerstore().GetProtocols(c.server)
	if err != nil {
		return nil, err
	}
	var result []string
	for _, id := range ids {
		result = append(result, string(id))
	}
	slices.Sort(result)
	return result, nil
}
