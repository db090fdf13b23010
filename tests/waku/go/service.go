package main

// The service node: go-waku's services in the order and with the options its own program uses.

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"

	"github.com/ethereum/go-ethereum/p2p/enode"
	"github.com/libp2p/go-libp2p"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/waku-org/go-waku/waku/persistence"
	"github.com/waku-org/go-waku/waku/persistence/sqlite"
	"github.com/waku-org/go-waku/waku/v2/node"
	"github.com/waku-org/go-waku/waku/v2/protocol/filter"
)

type serviceFlags struct {
	networkFlags
	tcpPort, wsPort, wssPort int
	certificate, tlsKey      string
	store                    string
	peers, bootstrap         textList
	discv5Port               uint
	standIns, noDials        bool
}

// ready is the line printed once a node can be used.
type ready struct {
	Ready      bool     `json:"ready"`
	PeerID     string   `json:"peer_id"`
	Multiaddrs []string `json:"multiaddrs"`
	ENR        string   `json:"enr"`
}

func readyLine(peer *node.WakuNode) ready {
	line := ready{Ready: true, PeerID: peer.ID(), Multiaddrs: []string{}}
	for _, address := range peer.ListenAddresses() {
		line.Multiaddrs = append(line.Multiaddrs, address.String())
	}
	if record := peer.ENR(); record != nil {
		line.ENR = record.String()
	}
	return line
}

func runService(ctx context.Context, args []string) error {
	var f serviceFlags
	flags := flag.NewFlagSet("peer service", flag.ExitOnError)
	f.register(flags)
	flags.IntVar(&f.tcpPort, "tcp-port", 0, "TCP port on 127.0.0.1; 0 is any")
	flags.IntVar(&f.wsPort, "ws-port", -1, "WebSocket port; 0 is any, -1 none")
	flags.IntVar(&f.wssPort, "wss-port", -1, "secure WebSocket port instead of -ws-port; -1 none")
	flags.StringVar(&f.certificate, "cert", "", "certificate in PEM for -wss-port")
	flags.StringVar(&f.tlsKey, "tls-key", "", "its key in PEM")
	flags.StringVar(&f.store, "store", "", "directory of the sqlite database; without it, no store")
	flags.Var(&f.peers, "peer", "multiaddress of a relay peer; may be repeated")
	flags.UintVar(&f.discv5Port, "discv5-port", 0, "UDP port of discovery v5; 0 is off")
	flags.Var(&f.bootstrap, "bootstrap", "record (enr:...) of a discovery peer; may be repeated")
	flags.BoolVar(&f.noDials, "no-dials", false, "open no connection, only accept them")
	flags.BoolVar(&f.standIns, "stand-ins", false,
		"also serve store v3, light push v3 and metadata field 2, which go-waku does not")
	if err := flags.Parse(args); err != nil {
		return err
	}
	options, err := f.options()
	if err != nil {
		return err
	}
	peer, err := f.start(ctx, f.tcpPort, options...)
	if err != nil {
		return err
	}
	defer stop(peer)
	// libp2p is content with any address of those it was given.
	if count := len(peer.ListenAddresses()); count < f.addresses() {
		return fmt.Errorf("listening on %v only: is a port in use?", peer.ListenAddresses())
	}
	if f.standIns {
		if err := serveStandIns(ctx, &f.networkFlags, peer); err != nil {
			return err
		}
	}
	if err := f.subscribe(ctx, ctx, peer); err != nil {
		return err
	}
	if f.discv5Port != 0 {
		if err := peer.DiscV5().Start(ctx); err != nil {
			return err
		}
	}
	for _, address := range f.peers {
		if err := peer.DialPeer(ctx, address); err != nil {
			return fmt.Errorf("-peer %s: %w", address, err)
		}
	}
	if err := printJSON(readyLine(peer)); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// addresses is how many addresses the node is to listen on.
func (f *serviceFlags) addresses() int {
	count := 1
	for _, port := range []int{f.wsPort, f.wssPort} {
		if port >= 0 {
			count++
		}
	}
	return count
}

func (f *serviceFlags) options() ([]node.WakuNodeOption, error) {
	var connections []libp2p.Option
	if f.noDials {
		refused, err := withoutDials()
		if err != nil {
			return nil, fmt.Errorf("-no-dials: %w", err)
		}
		connections = append(connections, refused)
	}
	options := []node.WakuNodeOption{
		// A push is accepted without relay peers, as the tests of a single node want it.
		node.WithWakuRelayAndMinPeers(0),
		node.WithLightPush(),
		node.WithWakuFilterFullNode(filter.WithMaxSubscribers(1000)),
		node.WithPeerExchange(),
		withMplex(connections...),
	}
	if f.wsPort >= 0 {
		options = append(options, node.WithWebsockets("127.0.0.1", f.wsPort))
	}
	if f.wssPort >= 0 {
		options = append(options,
			node.WithSecureWebsockets("127.0.0.1", f.wssPort, f.certificate, f.tlsKey))
	}
	if f.store != "" {
		messages, err := openStore(f.store)
		if err != nil {
			return nil, err
		}
		options = append(options, node.WithWakuStore(), node.WithMessageProvider(messages))
	}
	if f.discv5Port != 0 {
		var records []*enode.Node
		for _, text := range f.bootstrap {
			record, err := enode.Parse(enode.ValidSchemes, text)
			if err != nil {
				return nil, fmt.Errorf("-bootstrap: %w", err)
			}
			records = append(records, record)
		}
		options = append(options, node.WithDiscoveryV5(f.discv5Port, records, true))
	}
	return options, nil
}

func openStore(directory string) (*persistence.DBStore, error) {
	logger := quiet()
	database, err := sqlite.NewDB(filepath.Join(directory, "store.sqlite3"), logger)
	if err != nil {
		return nil, err
	}
	// The node starts and stops it; started twice it would never stop.
	return persistence.NewDBStore(prometheus.NewRegistry(), logger,
		persistence.WithDB(database), persistence.WithMigrations(sqlite.Migrations))
}
