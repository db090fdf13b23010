// A server with a live cache that is replaced all the time: each answer makes garbage.
//
// Arguments: PORT [LIVE_MB]. With OVERRIDE=1 in the environment it sets the collector's target by
// itself, as some programs do, so that GOGC has no effect.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
)

// An entry of the cache: a piece of memory behind a pointer.
const entryBytes = 1024

type cache struct {
	mutex   sync.Mutex
	entries [][]byte
	state   uint64
}

// xorshift64: the same numbers in every run.
func (c *cache) next() uint64 {
	c.state ^= c.state << 13
	c.state ^= c.state >> 7
	c.state ^= c.state << 17
	return c.state
}

// A page that was never written is no memory: every byte is.
func filled(with byte) []byte {
	entry := make([]byte, entryBytes)
	for index := range entry {
		entry[index] = with | 1
	}
	return entry
}

func (c *cache) answer() []byte {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var text []byte
	for change := 0; change < 60; change++ {
		key := c.next() % uint64(len(c.entries))
		c.entries[key] = filled(byte(key))
		text = fmt.Appendf(text, "entry %d %d\n", key, c.next())
	}
	return text
}

func argument(index, other int) int {
	if len(os.Args) <= index {
		return other
	}
	number, err := strconv.Atoi(os.Args[index])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return number
}

func main() {
	port, live := argument(1, 0), argument(2, 60)
	if os.Getenv("OVERRIDE") == "1" {
		debug.SetGCPercent(20)
	}
	c := &cache{entries: make([][]byte, 1+live*1_000_000/entryBytes), state: 88172645463325252}
	for key := range c.entries {
		c.entries[key] = filled(byte(key))
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	http.HandleFunc("/", func(writer http.ResponseWriter, _ *http.Request) { _, _ = writer.Write(c.answer()) })
	go func() { _ = http.Serve(listener, nil) }()
	fmt.Println("ready")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
}
