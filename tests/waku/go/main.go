// Command peer is a Waku peer built from go-waku as published: a service node, a client that tests
// a service node, or a relay peer that counts. It knows nothing of the program under test but its
// address, cluster and shards.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: peer service|client|relay [flags]      (peer service -h and so on: the flags)

  service   a service node: relay, light push, filter, store, metadata, peer exchange. Prints one
            JSON line when it is ready and runs until SIGTERM.
  client    tests a service node step by step; exits with 0 only if every step that ran held.
  relay     joins the mesh of its peers and counts what it receives, as JSON lines.
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var err error
	switch os.Args[1] {
	case "service":
		err = runService(ctx, os.Args[2:])
	case "client":
		err = runClient(ctx, os.Args[2:])
	case "relay":
		err = runRelay(ctx, os.Args[2:])
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// printJSON writes one line to standard output.
func printJSON(value any) error {
	return json.NewEncoder(os.Stdout).Encode(value)
}
