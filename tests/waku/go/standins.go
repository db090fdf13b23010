package main

// What stands in for protocols that go-waku's service node lacks, so that every step of the clients
// can be shown to hold and to fail: store v3, light push v3 and field 2 of metadata. Written for
// the tests, kept in memory, not to be measured: what these answer says nothing about go-waku.

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-msgio/pbio"
	"github.com/multiformats/go-varint"
	"github.com/waku-org/go-waku/waku/v2/node"
	"github.com/waku-org/go-waku/waku/v2/protocol/metadata"
	metapb "github.com/waku-org/go-waku/waku/v2/protocol/metadata/pb"
	"github.com/waku-org/go-waku/waku/v2/protocol/pb"
	"github.com/waku-org/go-waku/waku/v2/protocol/relay"
	"github.com/waku-org/go-waku/waku/v2/protocol/store"
	storepb "github.com/waku-org/go-waku/waku/v2/protocol/store/pb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	standInMessagesMax = 10_000
	requestBytesMax    = 1 << 20
	lightPushV3        = "/vac/waku/lightpush/3.0.0"
	statusOK           = 200
	statusBadRequest   = 400
	statusNoTopic      = 421
)

// standInStore holds messages by (timestamp, hash).
type standInStore struct {
	lock     sync.Mutex
	messages []*storepb.WakuMessageKeyValue
}

func serveStandIns(ctx context.Context, n *networkFlags, peer *node.WakuNode) error {
	kept := &standInStore{}
	arrivals := peer.Broadcaster().RegisterForAll(relay.WithBufferSize(1024))
	go func() {
		for envelope := range arrivals.Ch {
			kept.put(envelope.Message(), envelope.PubsubTopic(), envelope.Hash())
		}
	}()
	host := peer.Host()
	host.SetStreamHandler(store.StoreQueryID_v300, func(stream network.Stream) {
		request := &storepb.StoreQueryRequest{}
		exchange(stream, request, func() proto.Message { return kept.answer(request) })
	})
	host.SetStreamHandler(metadata.MetadataID_v1, func(stream network.Stream) {
		exchange(stream, &metapb.WakuMetadataRequest{}, func() proto.Message {
			reply := &metapb.WakuMetadataResponse{ClusterId: proto.Uint32(uint32(n.cluster))}
			for _, shard := range n.shards {
				reply.Shards = append(reply.Shards, uint32(shard))
				reply.ShardsDeprecated = append(reply.ShardsDeprecated, uint32(shard))
			}
			return reply
		})
	})
	host.SetStreamHandler(lightPushV3, func(stream network.Stream) {
		defer stream.Close()
		request, err := readPush(stream)
		if err != nil {
			_ = stream.Reset()
			return
		}
		status := uint64(statusOK)
		description := ""
		topic := relay.WithPubSubTopic(request.pubsubTopic)
		if !peer.Relay().IsSubscribed(request.pubsubTopic) {
			status, description = statusNoTopic, "unsupported topic "+request.pubsubTopic
		} else if _, err := peer.Relay().Publish(ctx, request.message, topic); err != nil {
			status, description = statusBadRequest, err.Error()
		}
		var reply []byte
		reply = protowire.AppendTag(reply, 1, protowire.BytesType)
		reply = protowire.AppendString(reply, request.id)
		reply = protowire.AppendTag(reply, 10, protowire.VarintType)
		reply = protowire.AppendVarint(reply, status)
		reply = protowire.AppendTag(reply, 11, protowire.BytesType)
		reply = protowire.AppendString(reply, description)
		_, _ = stream.Write(append(varint.ToUvarint(uint64(len(reply))), reply...))
	})
	return nil
}

// exchange reads one request, writes one reply and closes.
func exchange(stream network.Stream, request proto.Message, reply func() proto.Message) {
	defer stream.Close()
	if err := pbio.NewDelimitedReader(stream, requestBytesMax).ReadMsg(request); err != nil {
		_ = stream.Reset()
		return
	}
	if err := pbio.NewDelimitedWriter(stream).WriteMsg(reply()); err != nil {
		_ = stream.Reset()
	}
}

type pushRequest struct {
	id          string
	pubsubTopic string
	message     *pb.WakuMessage
}

// readPush reads one request of light push v3, which the module has no type for.
func readPush(stream network.Stream) (*pushRequest, error) {
	reader := byteReader{stream}
	length, err := varint.ReadUvarint(reader)
	if err != nil || length > requestBytesMax {
		return nil, fmt.Errorf("length %d: %w", length, err)
	}
	data := make([]byte, length)
	if err := reader.fill(data); err != nil {
		return nil, err
	}
	request := &pushRequest{message: &pb.WakuMessage{}}
	for len(data) > 0 {
		field, kind, size := protowire.ConsumeTag(data)
		if size < 0 || kind != protowire.BytesType {
			return nil, fmt.Errorf("field %d of kind %d", field, kind)
		}
		value, valueSize := protowire.ConsumeBytes(data[size:])
		if valueSize < 0 {
			return nil, protowire.ParseError(valueSize)
		}
		switch field {
		case 1:
			request.id = string(value)
		case 20:
			request.pubsubTopic = string(value)
		case 21:
			if err := proto.Unmarshal(value, request.message); err != nil {
				return nil, err
			}
		}
		data = data[size+valueSize:]
	}
	return request, nil
}

type byteReader struct{ network.Stream }

func (r byteReader) fill(data []byte) error {
	for done := 0; done < len(data); {
		count, err := r.Read(data[done:])
		done += count
		if err != nil && done < len(data) {
			return err
		}
	}
	return nil
}

func (r byteReader) ReadByte() (byte, error) {
	var one [1]byte
	return one[0], r.fill(one[:])
}

func order(a, b *storepb.WakuMessageKeyValue) int {
	return cmp.Or(
		cmp.Compare(a.Message.GetTimestamp(), b.Message.GetTimestamp()),
		bytes.Compare(a.MessageHash, b.MessageHash),
	)
}

func (s *standInStore) put(message *pb.WakuMessage, topic string, hash pb.MessageHash) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if message.GetEphemeral() || len(s.messages) >= standInMessagesMax {
		return
	}
	one := &storepb.WakuMessageKeyValue{
		MessageHash: hash.Bytes(), Message: message, PubsubTopic: proto.String(topic),
	}
	if at, found := slices.BinarySearchFunc(s.messages, one, order); !found {
		s.messages = slices.Insert(s.messages, at, one)
	}
}

func (s *standInStore) answer(query *storepb.StoreQueryRequest) *storepb.StoreQueryResponse {
	s.lock.Lock()
	defer s.lock.Unlock()
	reply := &storepb.StoreQueryResponse{
		RequestId: query.RequestId, StatusCode: proto.Uint32(statusOK),
	}
	if cursor := query.PaginationCursor; cursor != nil && len(cursor) != 32 {
		reply.StatusCode = proto.Uint32(statusBadRequest)
		reply.StatusDesc = proto.String("the cursor must have 32 bytes")
		return reply
	}
	found := []*storepb.WakuMessageKeyValue{}
	seen := query.PaginationCursor == nil
	messages := slices.Clone(s.messages)
	if !query.PaginationForward {
		slices.Reverse(messages)
	}
	for _, one := range messages {
		if seen && matches(query, one) {
			found = append(found, one)
		}
		seen = seen || bytes.Equal(one.MessageHash, query.PaginationCursor)
	}
	limit := int(min(cmp.Or(query.GetPaginationLimit(), 20), 100))
	if len(found) > limit {
		found = found[:limit]
		reply.PaginationCursor = found[limit-1].MessageHash
	}
	if !query.PaginationForward {
		slices.Reverse(found)
	}
	for _, one := range found {
		if query.IncludeData {
			reply.Messages = append(reply.Messages, one)
		} else {
			only := &storepb.WakuMessageKeyValue{MessageHash: one.MessageHash}
			reply.Messages = append(reply.Messages, only)
		}
	}
	return reply
}

func matches(query *storepb.StoreQueryRequest, one *storepb.WakuMessageKeyValue) bool {
	if len(query.MessageHashes) > 0 {
		return slices.ContainsFunc(query.MessageHashes, func(hash []byte) bool {
			return bytes.Equal(hash, one.MessageHash)
		})
	}
	at := one.Message.GetTimestamp()
	return (query.PubsubTopic == nil || *query.PubsubTopic == one.GetPubsubTopic()) &&
		(len(query.ContentTopics) == 0 ||
			slices.Contains(query.ContentTopics, one.Message.ContentTopic)) &&
		(query.TimeStart == nil || at >= *query.TimeStart) &&
		(query.TimeEnd == nil || at < *query.TimeEnd)
}
