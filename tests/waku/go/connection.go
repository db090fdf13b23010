package main

// Steps of the connection: identify, metadata, ping, and peer exchange.

import (
	"context"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/p2p/enode"
	"github.com/ethereum/go-ethereum/p2p/enr"
	"github.com/ethereum/go-ethereum/rlp"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/libp2p/go-msgio/pbio"
	"github.com/waku-org/go-waku/waku/v2/node"
	"github.com/waku-org/go-waku/waku/v2/protocol"
	wenr "github.com/waku-org/go-waku/waku/v2/protocol/enr"
	"github.com/waku-org/go-waku/waku/v2/protocol/metadata"
	"github.com/waku-org/go-waku/waku/v2/protocol/peer_exchange"
	pxpb "github.com/waku-org/go-waku/waku/v2/protocol/peer_exchange/pb"
)

// replyBytesMax bounds what the client reads as one reply of peer exchange.
const replyBytesMax = 1 << 20

func (c *client) addConnectionSteps() {
	c.addRequired("connect", func(ctx context.Context) (err error) {
		// The nodes outlive the step, whose context ends with it.
		long := context.WithoutCancel(ctx)
		if c.pusher, err = c.light(long, c.pushTo); err != nil {
			return err
		}
		c.receiver, err = c.light(long, c.address, node.WithPrometheusRegisterer(c.metrics))
		return err
	})
	c.add("identify", func(context.Context) error {
		names, err := c.protocols()
		if err != nil {
			return err
		}
		needed := []string{
			"/ipfs/id/1.0.0", "/ipfs/ping/1.0.0", "/vac/waku/metadata/1.0.0",
			"/vac/waku/relay/2.0.0", "/vac/waku/lightpush/2.0.0-beta1",
			"/vac/waku/filter-subscribe/2.0.0-beta1", "/vac/waku/peer-exchange/2.0.0-alpha1",
		}
		if c.knownGaps == "" {
			needed = append(needed, "/vac/waku/store-query/3.0.0", "/vac/waku/lightpush/3.0.0")
		}
		for _, id := range needed {
			if !slices.Contains(names, id) {
				return fmt.Errorf("%s is missing in %v", id, names)
			}
		}
		return nil
	})
	c.add("metadata", c.checkMetadata)
	c.add("ping", func(ctx context.Context) error {
		return (<-ping.Ping(ctx, c.receiver.Host(), c.server)).Error
	})
	c.add("still-connected", func(context.Context) error {
		// go-waku closes a connection whose metadata it does not like; by now it has asked.
		if count := c.receiver.PeerCount(); count != 1 {
			return fmt.Errorf("connected to %d peers, expected 1", count)
		}
		return nil
	})
}

func (c *client) checkMetadata(ctx context.Context) error {
	key, err := crypto.GenerateKey()
	if err != nil {
		return err
	}
	local, err := wenr.NewLocalnode(key)
	if err != nil {
		return err
	}
	shards, err := protocol.NewRelayShards(uint16(c.cluster), c.shards...)
	if err != nil {
		return err
	}
	if err := wenr.Update(quiet(), local, wenr.WithWakuRelaySharding(shards)); err != nil {
		return err
	}
	asking := metadata.NewWakuMetadata(uint16(c.cluster), local, quiet())
	asking.SetHost(c.receiver.Host())
	reply, err := asking.Request(ctx, c.server)
	if err != nil {
		return err
	}
	if reply.ClusterId == nil || *reply.ClusterId != uint32(c.cluster) {
		return fmt.Errorf("cluster %v, expected %d", reply.ClusterId, c.cluster)
	}
	topic, err := protocol.ToShardPubsubTopic(protocol.WakuPubSubTopic(mustParse(c.shardTopic())))
	if err != nil {
		return err
	}
	if !slices.Contains(reply.Shards, uint32(topic.Shard())) {
		return fmt.Errorf("shard %d is not in %v", topic.Shard(), reply.Shards)
	}
	if c.knownGaps == "" && !slices.Equal(reply.Shards, reply.ShardsDeprecated) {
		return fmt.Errorf("field 2 says %v, field 3 says %v", reply.ShardsDeprecated, reply.Shards)
	}
	return nil
}

func mustParse(topic string) protocol.WakuPubSubTopic {
	parsed, err := protocol.ToWakuPubsubTopic(topic)
	if err != nil {
		panic(err) // the topic is our own
	}
	return parsed
}

func (c *client) addPeerExchangeSteps() {
	c.add("peer-exchange", func(ctx context.Context) error {
		// A node of its own: go-waku dials the peers it is told of.
		asking, err := c.light(context.WithoutCancel(ctx), c.address)
		if err != nil {
			return err
		}
		defer stop(asking)
		return asking.PeerExchange().Request(ctx, 5, peer_exchange.WithPeer(c.server))
	})
	c.add("peer-exchange-records", func(ctx context.Context) error {
		host := c.receiver.Host()
		stream, err := host.NewStream(ctx, c.server, peer_exchange.PeerExchangeID_v20alpha1)
		if err != nil {
			return err
		}
		defer stream.Close()
		request := &pxpb.PeerExchangeRPC{Query: &pxpb.PeerExchangeQuery{NumPeers: 3}}
		if err := pbio.NewDelimitedWriter(stream).WriteMsg(request); err != nil {
			return err
		}
		reply := &pxpb.PeerExchangeRPC{}
		if err := pbio.NewDelimitedReader(stream, replyBytesMax).ReadMsg(reply); err != nil {
			return err
		}
		if reply.Response == nil || len(reply.Response.PeerInfos) > 3 {
			return fmt.Errorf("asked for 3 records, got %v", reply)
		}
		for _, info := range reply.Response.PeerInfos {
			record := &enr.Record{}
			if err := rlp.DecodeBytes(info.Enr, record); err != nil {
				return fmt.Errorf("record: %w", err)
			}
			parsed, err := enode.New(enode.ValidSchemes, record)
			if err != nil {
				return fmt.Errorf("record: %w", err)
			}
			if _, err := wenr.EnodeToPeerInfo(parsed); err != nil {
				return fmt.Errorf("record %s: %w", parsed, err)
			}
		}
		fmt.Printf("      peer-exchange-records: %d records\n", len(reply.Response.PeerInfos))
		return nil
	})
}
