package main

// Named steps that are run in order, each with a limit of time, and chosen by the starts of their
// names.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

type step struct {
	name string
	body func(ctx context.Context) error
	// unless is the reason why the step cannot hold here; empty if it can.
	unless string
	// required steps end the run when they fail and cannot be left out by -only.
	required bool
}

type steps struct {
	all        []step
	only, skip string
	limit      time.Duration
	list       bool
}

func (s *steps) add(name string, body func(ctx context.Context) error) {
	s.all = append(s.all, step{name: name, body: body})
}

func (s *steps) addUnless(reason, name string, body func(ctx context.Context) error) {
	s.all = append(s.all, step{name: name, body: body, unless: reason})
}

func (s *steps) addRequired(name string, body func(ctx context.Context) error) {
	s.all = append(s.all, step{name: name, body: body, required: true})
}

// starts reports whether the name starts with one of the parts of a list separated by commas.
func starts(name, list string) bool {
	for _, prefix := range strings.Split(list, ",") {
		if prefix != "" && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func (s *steps) wanted(one step) bool {
	if starts(one.name, s.skip) {
		return false
	}
	return one.required || s.only == "" || starts(one.name, s.only)
}

// unknown is the first part of -only or -skip that no step's name starts with.
func (s *steps) unknown() string {
	for _, prefix := range strings.Split(s.only+","+s.skip, ",") {
		found := prefix == ""
		for _, one := range s.all {
			found = found || strings.HasPrefix(one.name, prefix)
		}
		if !found {
			return prefix
		}
	}
	return ""
}

// run returns an error unless every step that ran held and at least one ran.
func (s *steps) run(ctx context.Context) error {
	if prefix := s.unknown(); prefix != "" {
		return fmt.Errorf("no step starts with %s", prefix)
	}
	held, failed := 0, 0
	for _, one := range s.all {
		switch {
		case s.list:
			fmt.Println(one.name)
		case !s.wanted(one):
			fmt.Printf("skip  %s: not asked for\n", one.name)
		case one.unless != "":
			fmt.Printf("skip  %s: %s\n", one.name, one.unless)
		default:
			start := time.Now()
			limited, cancel := context.WithTimeout(ctx, s.limit)
			err := one.body(limited)
			cancel()
			if err == nil {
				held++
				fmt.Printf("ok    %s (%d ms)\n", one.name, time.Since(start).Milliseconds())
				continue
			}
			failed++
			fmt.Printf("FAIL  %s: %v\n", one.name, err)
			if one.required {
				return errors.New("the steps after this one need it")
			}
		}
	}
	if s.list || (failed == 0 && held > 0) {
		return nil
	}
	return fmt.Errorf("%d steps held, %d failed", held, failed)
}
