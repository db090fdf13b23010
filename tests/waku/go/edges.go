package main

// Messages at the edges of every field, in both directions between the node under test and the
// stock relay node: what one of the two takes must never cost it its place with the other.

import (
	"context"
	"fmt"
	"math"
	"math/rand"
	"strings"
	"sync"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-msgio/pbio"
	"github.com/waku-org/go-waku/waku/v2/peerstore"
	"github.com/waku-org/go-waku/waku/v2/protocol/lightpush"
	lightpb "github.com/waku-org/go-waku/waku/v2/protocol/lightpush/pb"
	"github.com/waku-org/go-waku/waku/v2/protocol/pb"
	"github.com/waku-org/go-waku/waku/v2/protocol/relay"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// inspectInterval is how often go-waku writes the scores of its peers down, and a little more.
const inspectInterval = 7 * time.Second

// blame notes what the router holds against the node under test.
type blame struct {
	ignoreTrace
	lock     sync.Mutex
	server   peer.ID
	rejected []string
	pruned   int
}

// RejectMessage is called for each message that the router drops, with the reason.
func (b *blame) RejectMessage(message *pubsub.Message, reason string) {
	b.lock.Lock()
	defer b.lock.Unlock()
	if message.ReceivedFrom == b.server {
		b.rejected = append(b.rejected, reason)
	}
}

// Prune is called when a peer leaves the mesh, for whatever side's reason.
func (b *blame) Prune(from peer.ID, _ string) {
	b.lock.Lock()
	defer b.lock.Unlock()
	if from == b.server {
		b.pruned++
	}
}

func (b *blame) check() error {
	b.lock.Lock()
	defer b.lock.Unlock()
	if len(b.rejected) > 0 || b.pruned > 0 {
		return fmt.Errorf("%d messages rejected (%s), pruned %d times",
			len(b.rejected), strings.Join(b.rejected[:min(len(b.rejected), 5)], ", "), b.pruned)
	}
	return nil
}

func (c *client) addEdgeSteps() {
	reason := ""
	if c.edges == 0 {
		reason = "no -edges was given"
	}
	random := rand.New(rand.NewSource(c.seed))
	c.addUnless(reason, "edges-join", func(ctx context.Context) error {
		if c.relay != nil {
			return nil
		}
		return c.joinMesh(ctx)
	})
	c.addUnless(reason, "edges-push", func(ctx context.Context) error {
		return c.pushEdges(ctx, random)
	})
	c.addUnless(reason, "edges-relay", func(ctx context.Context) error {
		return c.relayEdges(ctx, random)
	})
	c.addUnless(reason, "edges-stay", func(ctx context.Context) error {
		return c.checkStanding(ctx)
	})
}

// edgeMessage is a message of which each field is ordinary or at an edge of what nodes take, and
// whether all are ordinary.
func (c *client) edgeMessage(random *rand.Rand, number int) (message []byte, ordinary bool) {
	ordinary = true
	// One field in eight is unusual.
	choose := func(usual func(), unusual ...func()) {
		if random.Intn(8) > 0 {
			usual()
			return
		}
		ordinary = false
		unusual[random.Intn(len(unusual))]()
	}
	bytes := func(tag protowire.Number, value []byte) func() {
		return func() {
			message = protowire.AppendTag(message, tag, protowire.BytesType)
			message = protowire.AppendBytes(message, value)
		}
	}
	number64 := func(tag protowire.Number, value uint64) func() {
		return func() {
			message = protowire.AppendTag(message, tag, protowire.VarintType)
			message = protowire.AppendVarint(message, value)
		}
	}
	raw := func(text string) func() {
		return func() { message = append(message, text...) }
	}
	absent := func() {}
	now := protowire.EncodeZigZag(time.Now().UnixNano())
	topic := c.topic(fmt.Sprintf("edge-%d", number))
	long := func(length int) []byte { return []byte(topic + strings.Repeat("t", length-len(topic))) }

	choose(bytes(1, fmt.Appendf(nil, "%d of %s", number, c.run)),
		absent, bytes(1, nil), bytes(1, randomBytes(1)), bytes(1, randomBytes(140_000)),
		bytes(1, randomBytes(153_400)), bytes(1, randomBytes(160_000)))
	choose(bytes(2, []byte(topic)),
		absent, bytes(2, nil), bytes(2, []byte("x")), bytes(2, long(256)), bytes(2, long(257)),
		bytes(2, long(5000)), bytes(2, []byte{0xff, 0xfe}))
	choose(number64(3, 0),
		absent, number64(3, math.MaxUint32), number64(3, 1<<32), number64(3, math.MaxUint64))
	choose(number64(10, now),
		absent, number64(10, 0), number64(10, 1), number64(10, math.MaxUint64),
		number64(10, protowire.EncodeZigZag(time.Now().Add(-time.Hour).UnixNano())))
	choose(absent,
		bytes(11, nil), bytes(11, randomBytes(64)), bytes(11, randomBytes(65)),
		bytes(11, randomBytes(1000)))
	choose(absent, bytes(21, nil), bytes(21, randomBytes(300)))
	choose(absent, number64(31, 0), number64(31, 1))
	choose(absent,
		bytes(500, []byte("of a later version")), number64(1, 7), bytes(3, []byte("three")),
		raw("\x9b\x3f\x9c\x3f"), raw("\x00\x01"), raw("\x0a\x05a"), raw("\x0e"), raw("\x18"))
	return message, ordinary
}

// pushEdges pushes them. What the node takes it forwards, so go-waku must take it, too.
func (c *client) pushEdges(ctx context.Context, random *rand.Rand) error {
	taken := 0
	for number := range c.edges {
		message, ordinary := c.edgeMessage(random, number)
		success, info, err := c.pushRaw(ctx, message)
		if err != nil {
			return fmt.Errorf("message %d (%x): %w", number, message[:min(len(message), 64)], err)
		}
		if _, err := pb.Unmarshal(message); success && err != nil {
			return fmt.Errorf("message %d (%x) was taken, go-waku rejects it: %w",
				number, message[:min(len(message), 64)], err)
		}
		if ordinary && !success {
			return fmt.Errorf("message %d is ordinary and was refused: %s", number, info)
		}
		if !success && info == "" {
			return fmt.Errorf("message %d was refused without a reason", number)
		}
		if success {
			taken++
		}
	}
	if taken == 0 || taken == c.edges {
		return fmt.Errorf("%d of %d were taken, expected some", taken, c.edges)
	}
	return nil
}

// pushRaw pushes bytes by light push version 2, which go-waku's own client would check.
func (c *client) pushRaw(ctx context.Context, message []byte) (bool, string, error) {
	var request, rpc []byte
	request = protowire.AppendTag(request, 1, protowire.BytesType)
	request = protowire.AppendString(request, c.shardTopic())
	request = protowire.AppendTag(request, 2, protowire.BytesType)
	request = protowire.AppendBytes(request, message)
	rpc = protowire.AppendTag(rpc, 1, protowire.BytesType)
	rpc = protowire.AppendString(rpc, "edge")
	rpc = protowire.AppendTag(rpc, 2, protowire.BytesType)
	rpc = protowire.AppendBytes(rpc, request)

	stream, err := c.pusher.Host().NewStream(ctx, c.pushPeer, lightpush.LightPushID_v20beta1)
	if err != nil {
		return false, "", err
	}
	defer func(stream network.Stream) { _ = stream.Close() }(stream)
	if _, err := stream.Write(protowire.AppendBytes(nil, rpc)); err != nil {
		return false, "", err
	}
	reply := &lightpb.PushRpc{}
	if err := pbio.NewDelimitedReader(stream, replyBytesMax).ReadMsg(reply); err != nil {
		return false, "", err
	}
	if reply.Response == nil {
		return false, "", fmt.Errorf("a reply without a response")
	}
	return reply.Response.IsSuccess, reply.Response.GetInfo(), nil
}

// relayEdges publishes by relay what go-waku takes, fields that it does not know included.
func (c *client) relayEdges(ctx context.Context, random *rand.Rand) error {
	published := 0
	for number := range c.edges {
		raw, _ := c.edgeMessage(random, c.edges+number)
		message, err := pb.Unmarshal(raw)
		if err != nil {
			continue
		}
		if proto.Size(message) > 150<<10 {
			continue
		}
		published++
		topic := relay.WithPubSubTopic(c.shardTopic())
		if _, err := c.relay.Relay().Publish(ctx, message, topic); err != nil {
			return fmt.Errorf("message %d: %w", number, err)
		}
	}
	if published == 0 {
		return fmt.Errorf("go-waku took none of %d messages", c.edges)
	}
	return nil
}

// checkStanding ends when messages went through in both directions and the scores were written down
// once more.
func (c *client) checkStanding(ctx context.Context) error {
	if err := c.published(ctx, "edges-out", []byte("still heard")); err != nil {
		return fmt.Errorf("from relay to filter: %w", err)
	}
	if err := c.relayed(ctx, "edges-in", []byte("still in the mesh")); err != nil {
		return fmt.Errorf("from light push to relay: %w", err)
	}
	if err := c.blame.check(); err != nil {
		return err
	}
	select {
	case <-time.After(inspectInterval):
	case <-ctx.Done():
		return ctx.Err()
	}
	score, err := c.relay.Host().Peerstore().(peerstore.WakuPeerstore).Score(c.server)
	if err != nil {
		return fmt.Errorf("no score: %w", err)
	}
	if score <= 0 {
		return fmt.Errorf("the node's score is %.2f", score)
	}
	if count := c.relay.PeerCount(); count != 1 {
		return fmt.Errorf("connected to %d peers, expected 1", count)
	}
	return c.blame.check()
}
