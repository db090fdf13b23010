package main

// Steps of the filter protocol.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/waku-org/go-waku/waku/v2/protocol/filter"
)

func (c *client) addFilterSteps() {
	c.add("filter-ping-unknown", func(ctx context.Context) error {
		return expectStatus(c.pusher.FilterLightnode().Ping(ctx, c.pushPeer), http.StatusNotFound)
	})
	c.add("filter-topics", func(ctx context.Context) error {
		in, err := c.subscribeFilter(ctx, "first", "second")
		if err != nil {
			return err
		}
		other := c.message("third", []byte("not asked for"))
		one := c.message("first", []byte("one"))
		two := c.message("second", []byte("two"))
		if err := errors.Join(c.push(ctx, other), c.push(ctx, one), c.push(ctx, two)); err != nil {
			return err
		}
		return in.expect(ctx, one, two)
	})
	c.add("filter-ping", func(ctx context.Context) error {
		if _, err := c.subscribeFilter(ctx, "ping"); err != nil {
			return err
		}
		return c.receiver.FilterLightnode().Ping(ctx, c.server)
	})
	c.add("filter-unsubscribe", c.checkUnsubscribe)
	c.add("filter-unsubscribe-all", func(ctx context.Context) error {
		if _, err := c.subscribeFilter(ctx, "everything"); err != nil {
			return err
		}
		result, err := c.receiver.FilterLightnode().UnsubscribeAll(ctx, filter.WithPeer(c.server))
		if err != nil {
			return err
		}
		for _, one := range result.Errors() {
			if one.Err != nil {
				return one.Err
			}
		}
		ping := c.receiver.FilterLightnode().Ping(ctx, c.server)
		return expectStatus(ping, http.StatusNotFound)
	})
}

func (c *client) checkUnsubscribe(ctx context.Context) error {
	gone, err := c.subscribeFilter(ctx, "gone")
	if err != nil {
		return err
	}
	marker, err := c.subscribeFilter(ctx, "marker")
	if err != nil {
		return err
	}
	before := c.message("gone", []byte("before"))
	if err := c.push(ctx, before); err != nil {
		return err
	}
	if err := gone.expect(ctx, before); err != nil {
		return err
	}
	strays, err := c.strayPushes()
	if err != nil {
		return err
	}
	var answered sync.WaitGroup
	result, err := c.receiver.FilterLightnode().Unsubscribe(ctx, gone.filter,
		filter.WithPeer(c.server), filter.WithWaitGroup(&answered))
	if err != nil {
		return err
	}
	for _, one := range result.Errors() {
		if one.Err != nil {
			return fmt.Errorf("unsubscribe: %w", one.Err)
		}
	}
	last := c.message("marker", []byte("last"))
	if err := c.push(ctx, c.message("gone", []byte("after"))); err != nil {
		return err
	}
	if err := c.push(ctx, last); err != nil {
		return err
	}
	if err := marker.expect(ctx, last); err != nil {
		return err
	}
	after, err := c.strayPushes()
	if err != nil {
		return err
	}
	if after != strays {
		return fmt.Errorf("%v pushes after the unsubscribe", after-strays)
	}
	return nil
}

// strayPushes is how many pushes the receiver got that it has no subscription for, by go-waku's own
// count.
func (c *client) strayPushes() (float64, error) {
	families, err := c.metrics.Gather()
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != "waku_filter_errors" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetValue() == "invalid_subscription_message" {
					sum += metric.GetCounter().GetValue()
				}
			}
		}
	}
	return sum, nil
}

func expectStatus(err error, status int) error {
	var refused *filter.FilterError
	if !errors.As(err, &refused) {
		return fmt.Errorf("expected status %d, got %v", status, err)
	}
	if refused.Code != status {
		return fmt.Errorf("expected status %d, got %d: %s", status, refused.Code, refused.Message)
	}
	return nil
}
