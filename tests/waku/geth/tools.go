//go:build tools

// Package tools names the program that setup.sh builds, so that go.sum has what it needs.
package tools

import _ "github.com/ethereum/go-ethereum/cmd/geth"
