package main

// What the three programs share: flags of the network, keys, and the start of a go-waku node on the
// loopback address.

import (
	"context"
	"crypto/ecdsa"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/libp2p/go-libp2p"
	mplex "github.com/libp2p/go-libp2p-mplex"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/waku-org/go-waku/waku/v2/node"
	"github.com/waku-org/go-waku/waku/v2/protocol"
	wenr "github.com/waku-org/go-waku/waku/v2/protocol/enr"
	"github.com/waku-org/go-waku/waku/v2/protocol/relay"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// networkFlags is the cluster and how a content topic finds its shard in it.
type networkFlags struct {
	cluster         uint
	shards          shardList
	shardsInCluster uint
	key             string
	verbose         bool
}

// shardList is a flag of shard numbers separated by commas.
type shardList []uint16

func (s *shardList) String() string { return fmt.Sprint([]uint16(*s)) }

func (s *shardList) Set(text string) error {
	*s = nil
	for _, part := range strings.Split(text, ",") {
		shard, err := strconv.ParseUint(part, 10, 10)
		if err != nil {
			return fmt.Errorf("a shard must be a number from 0 to 1023, not %q", part)
		}
		*s = append(*s, uint16(shard))
	}
	return nil
}

// textList is a flag that may be given several times.
type textList []string

func (t *textList) String() string { return strings.Join(*t, " ") }

func (t *textList) Set(text string) error {
	*t = append(*t, text)
	return nil
}

func (n *networkFlags) register(flags *flag.FlagSet) {
	n.shards = shardList{0, 1, 2, 3, 4, 5, 6, 7}
	flags.UintVar(&n.cluster, "cluster", 1, "cluster")
	flags.Var(&n.shards, "shards", "shards to serve or to use, separated by commas")
	flags.UintVar(&n.shardsInCluster, "shards-in-cluster", 8,
		"autosharding: over how many shards; 0 is static sharding on the first of -shards")
	flags.StringVar(&n.key, "key", "",
		"secp256k1 node key, 64 hexadecimal digits (default: a random one)")
	flags.BoolVar(&n.verbose, "verbose", false, "let go-waku log to standard error")
}

func (n *networkFlags) pubsubTopic(shard uint16) string {
	return protocol.NewStaticShardingPubsubTopic(uint16(n.cluster), shard).String()
}

// route is the pubsub topic of a content topic.
func (n *networkFlags) route(contentTopic string) (string, error) {
	if n.shardsInCluster == 0 {
		return n.pubsubTopic(n.shards[0]), nil
	}
	parsed, err := protocol.StringToContentTopic(contentTopic)
	if err != nil {
		return "", err
	}
	// go-waku's own helper knows cluster 1 only; its shard number holds in any cluster.
	topic := protocol.GetShardFromContentTopic(parsed, int(n.shardsInCluster))
	return n.pubsubTopic(topic.Shard()), nil
}

func (n *networkFlags) privateKey() (*ecdsa.PrivateKey, error) {
	if n.key == "" {
		return crypto.GenerateKey()
	}
	return crypto.HexToECDSA(n.key)
}

// start runs a node that listens on the given port of the loopback address; 0 is any port.
func (n *networkFlags) start(
	ctx context.Context, port int, options ...node.WakuNodeOption,
) (*node.WakuNode, error) {
	key, err := n.privateKey()
	if err != nil {
		return nil, fmt.Errorf("-key: %w", err)
	}
	logger := quiet()
	if n.verbose {
		if logger, err = zap.NewDevelopment(); err != nil {
			return nil, err
		}
	}
	all := append([]node.WakuNodeOption{
		node.WithLogger(logger),
		node.WithPrivateKey(key),
		node.WithClusterID(uint16(n.cluster)),
		node.WithShards(n.shards),
		node.WithHostAddress(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}),
		// Everything here comes from one address.
		node.WithMaxConnectionsPerIP(1000),
	}, options...)
	peer, err := node.New(all...)
	if err != nil {
		return nil, err
	}
	return peer, peer.Start(ctx)
}

// stopLimit is how long a node may take to stop.
const stopLimit = 5 * time.Second

// stop stops a node, and leaves it to the end of the process if it does not come to an end.
func stop(peer *node.WakuNode) {
	done := make(chan struct{})
	go func() {
		peer.Stop()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(stopLimit):
		fmt.Fprintf(os.Stderr, "go-waku did not stop within %v\n", stopLimit)
	}
}

// withMplex offers mplex besides yamux, which js clients need: go-libp2p offers yamux only since it
// dropped mplex from its own modules. Further options of libp2p go with it.
func withMplex(further ...libp2p.Option) node.WakuNodeOption {
	own := append(further, libp2p.Muxer(mplex.ID, mplex.DefaultTransport))
	return node.WithLibP2POptions(append(slices.Clone(node.DefaultLibP2POptions), own...)...)
}

// withoutDials refuses every connection that the node opens itself.
func withoutDials() (libp2p.Option, error) {
	refused := rcmgr.ResourceLimits{ConnsOutbound: rcmgr.BlockAllLimit}
	limits := rcmgr.PartialLimitConfig{System: refused}.Build(rcmgr.InfiniteLimits)
	manager, err := rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(limits))
	return libp2p.ResourceManager(manager), err
}

// subscribe joins the mesh of every shard, until `long` ends; go-waku's own services then receive
// what arrives.
func (n *networkFlags) subscribe(ctx, long context.Context, peer *node.WakuNode) error {
	for _, shard := range n.shards {
		filter := protocol.NewContentFilter(n.pubsubTopic(shard))
		if _, err := peer.Relay().Subscribe(long, filter, relay.WithoutConsumer()); err != nil {
			return err
		}
	}
	return n.awaitRecord(ctx, peer)
}

// awaitRecord waits until the node's own record names all shards: go-waku writes them there after
// it has subscribed, and answers metadata requests from there.
func (n *networkFlags) awaitRecord(ctx context.Context, peer *node.WakuNode) error {
	for {
		if record := peer.ENR(); record != nil {
			shards, err := wenr.RelaySharding(record.Record())
			if err == nil && shards != nil && len(shards.ShardIDs) == len(n.shards) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the record does not name the shards %v: %w", n.shards, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}

// quiet is a logger that drops everything. go-waku raises the level of its loggers at the end,
// which zap refuses with a message on standard error for a logger whose level is above that
// already.
func quiet() *zap.Logger {
	encoder := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	return zap.New(zapcore.NewCore(encoder, zapcore.AddSync(io.Discard), zapcore.DebugLevel))
}
