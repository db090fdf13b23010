#!/usr/bin/env python3
"""Holds memory and beats: each of its habits can be set, so that a test knows what must be found.

Prints `ready`, then `beat late N ms` every 50 ms until SIGTERM.
"""

import argparse
import os
import signal
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--hold", type=int, default=64, help="MB that are held")
parser.add_argument("--late", type=float, default=1.0, help="milliseconds that each beat says it is late")
parser.add_argument("--idle", type=int, default=0, help="changes nothing at all")
parser.add_argument("--silent", action="store_true", help="neither says that it is ready nor beats")
parser.add_argument("--leave", action="store_true", help="goes on in the background")
parser.add_argument("--end", type=int, help="ends at once, with this status")
options = parser.parse_args()

if options.end is not None:
    print("cannot open the chain: no such file")
    sys.exit(options.end)
if options.leave and os.fork() > 0:
    sys.exit(0)

signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
held = bytearray(os.urandom(1 << 20)) * options.hold
if not options.silent:
    print("ready", flush=True)
while True:
    time.sleep(0.05)
    if not options.silent:
        print(f"beat late {options.late} ms of {len(held)}", flush=True)
