package main

// Steps of the store: queries by store v3, and one by the older protocol that go-waku itself
// serves.

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waku-org/go-waku/waku/v2/protocol"
	"github.com/waku-org/go-waku/waku/v2/protocol/legacy_store"
	"github.com/waku-org/go-waku/waku/v2/protocol/pb"
	"github.com/waku-org/go-waku/waku/v2/protocol/store"
	"google.golang.org/protobuf/proto"
)

const (
	historyMessages = 25
	pageMessages    = 10
)

func (c *client) addStoreSteps() {
	noStore := c.gap("serves only the store protocol 2.0.0-beta4, not store-query/3.0.0")
	add := func(name string, body func(ctx context.Context) error) {
		c.addUnless(noStore, name, func(ctx context.Context) error {
			if c.history == nil {
				if err := c.fillStore(ctx); err != nil {
					return fmt.Errorf("filling the store: %w", err)
				}
			}
			return body(ctx)
		})
	}
	add("store-order", func(ctx context.Context) error {
		pages, err := c.query(ctx, c.criteria("even", "odd"))
		return expectPages(pages, err, span(0, historyMessages))
	})
	add("store-forward", func(ctx context.Context) error {
		pages, err := c.query(ctx, c.criteria("even", "odd"), store.WithPaging(true, pageMessages))
		return expectPages(pages, err, span(0, 10), span(10, 20), span(20, 25))
	})
	add("store-backward", func(ctx context.Context) error {
		pages, err := c.query(ctx, c.criteria("even", "odd"), store.WithPaging(false, pageMessages))
		return expectPages(pages, err, span(15, 25), span(5, 15), span(0, 5))
	})
	add("store-content-topic", func(ctx context.Context) error {
		pages, err := c.query(ctx, c.criteria("odd"))
		odd := []string{}
		for i := 1; i < historyMessages; i += 2 {
			odd = append(odd, fmt.Sprintf("message %d", i))
		}
		if err := expectPages(pages, err, odd); err != nil {
			return err
		}
		pages, err = c.query(ctx, c.criteria("nobody"))
		return expectPages(pages, err)
	})
	add("store-time", func(ctx context.Context) error {
		between := func(i int) *int64 { return proto.Int64(*c.history[i].Timestamp - 1) }
		criteria := c.criteria("even", "odd")
		criteria.TimeStart, criteria.TimeEnd = between(5), between(12)
		pages, err := c.query(ctx, criteria)
		if err := expectPages(pages, err, span(5, 12)); err != nil {
			return err
		}
		criteria.TimeStart, criteria.TimeEnd = between(20), nil
		pages, err = c.query(ctx, criteria)
		return expectPages(pages, err, span(20, historyMessages))
	})
	add("store-hash", func(ctx context.Context) error {
		hashes := []pb.MessageHash{
			c.history[3].Hash(c.shardTopic()), c.history[17].Hash(c.shardTopic()),
		}
		pages, err := c.query(ctx, store.MessageHashCriteria{MessageHashes: hashes})
		if err := expectPages(pages, err, []string{"message 3", "message 17"}); err != nil {
			return err
		}
		asking := c.receiver.Store()
		for hash, expected := range map[pb.MessageHash]bool{hashes[0]: true, {1}: false} {
			exists, err := asking.Exists(ctx, hash, store.WithPeer(c.server))
			if err != nil || exists != expected {
				return fmt.Errorf("exists: %v, %v, expected %v", exists, err, expected)
			}
		}
		return nil
	})
	add("store-without-data", func(ctx context.Context) error {
		result, err := c.receiver.Store().Query(ctx, c.criteria("even", "odd"),
			store.WithPeer(c.server), store.IncludeData(false), store.WithPaging(true, 100))
		if err != nil {
			return err
		}
		if len(result.Messages()) != historyMessages {
			return fmt.Errorf("%d hashes, expected %d", len(result.Messages()), historyMessages)
		}
		for i, one := range result.Messages() {
			if one.Message != nil || one.WakuMessageHash() != c.history[i].Hash(c.shardTopic()) {
				return fmt.Errorf("entry %d: %v", i, one)
			}
		}
		return nil
	})
	add("store-cursor", func(ctx context.Context) error {
		hash := c.history[9].Hash(c.shardTopic())
		pages, err := c.query(ctx, c.criteria("even", "odd"),
			store.WithCursor(hash.Bytes()), store.WithPaging(true, 100))
		return expectPages(pages, err, span(10, historyMessages))
	})
	add("store-refuses", func(ctx context.Context) error {
		_, err := c.query(ctx, c.criteria("even"), store.WithCursor([]byte("not a hash")))
		if err == nil {
			return fmt.Errorf("a cursor of 10 bytes was accepted")
		}
		return nil
	})
	legacy := ""
	if c.knownGaps == "" {
		legacy = "only a go-waku node (-known-gaps go-waku) serves the store protocol 2.0.0-beta4"
	}
	c.addUnless(legacy, "store-legacy", c.checkLegacyStore)
}

// span are the payloads of the history from one index to before another.
func span(from, to int) []string {
	var result []string
	for i := from; i < to; i++ {
		result = append(result, fmt.Sprintf("message %d", i))
	}
	return result
}

func (c *client) criteria(names ...string) store.FilterCriteria {
	var topics []string
	for _, name := range names {
		topics = append(topics, c.topic(name))
	}
	return store.FilterCriteria{ContentFilter: protocol.NewContentFilter(c.shardTopic(), topics...)}
}

// query returns the payloads of each page.
func (c *client) query(
	ctx context.Context, criteria store.Criteria, options ...store.RequestOption,
) ([][]string, error) {
	// Without go-waku's own limit of 8 queries in a second, which is for public nodes.
	all := append([]store.RequestOption{
		store.WithPeer(c.server), store.WithPaging(true, 100), store.SkipRateLimit(),
	}, options...)
	result, err := c.receiver.Store().Request(ctx, criteria, all...)
	if err != nil {
		return nil, err
	}
	var pages [][]string
	for !result.IsComplete() {
		var page []string
		for _, one := range result.Messages() {
			if one.WakuMessageHash() != one.Message.Hash(one.GetPubsubTopic()) {
				return nil, fmt.Errorf("%q has another hash", one.Message.Payload)
			}
			page = append(page, string(one.Message.Payload))
		}
		if len(page) > 0 {
			pages = append(pages, page)
		}
		if err := result.Next(ctx, store.SkipRateLimit()); err != nil {
			return nil, fmt.Errorf("page %d: %w", len(pages)+1, err)
		}
	}
	return pages, nil
}

func expectPages(pages [][]string, err error, expected ...[]string) error {
	if err != nil {
		return err
	}
	if !slices.EqualFunc(pages, expected, slices.Equal[[]string]) {
		return fmt.Errorf("expected pages %v, got %v", expected, pages)
	}
	return nil
}

// fillStore pushes the history backwards, so that a store which orders by arrival is noticed.
func (c *client) fillStore(ctx context.Context) error {
	start := time.Now().Add(-5 * time.Second)
	history := make([]*pb.WakuMessage, historyMessages)
	for i := historyMessages - 1; i >= 0; i-- {
		name := []string{"even", "odd"}[i%2]
		message := c.message(name, []byte(fmt.Sprintf("message %d", i)))
		message.Timestamp = proto.Int64(start.Add(time.Duration(i) * time.Millisecond).UnixNano())
		history[i] = message
		if err := c.push(ctx, message); err != nil {
			return err
		}
	}
	// Accepted is not yet queryable in every node: ask until it is.
	for {
		pages, err := c.query(ctx, c.criteria("even", "odd"))
		if err != nil {
			return err
		}
		if len(pages) == 1 && len(pages[0]) >= historyMessages {
			c.history = history
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("accepted but not stored: %w", ctx.Err())
		}
	}
}

func (c *client) checkLegacyStore(ctx context.Context) error {
	var expected []string
	for i := range pageMessages {
		text := fmt.Sprintf("message %d", i)
		if err := c.push(ctx, c.message("legacy", []byte(text))); err != nil {
			return err
		}
		expected = append(expected, text)
	}
	for {
		query := legacy_store.Query{
			PubsubTopic: c.shardTopic(), ContentTopics: []string{c.topic("legacy")},
		}
		result, err := c.receiver.LegacyStore().Query(ctx, query,
			legacy_store.WithPeer(c.server), legacy_store.WithPaging(true, 100))
		if err != nil {
			return err
		}
		var found []string
		for _, message := range result.Messages {
			found = append(found, string(message.Payload))
		}
		if len(found) == len(expected) {
			return expectPages([][]string{found}, nil, expected)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("stored %v, expected %v", found, expected)
		}
	}
}
