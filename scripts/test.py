#!/usr/bin/env python3
"""Builds all tests and runs them, three test programs at a time.

    scripts/test.py [OPTION OF CARGO TEST]...

Most test programs wait more than they compute (for nodes, timeouts, disks), so three share the
machine; those in ALONE measure, and have it for themselves. The longest begin first, by the times
of the last run. The output of a program is shown if it fails, and otherwise only the tests that
could not be run here; all output stays in $CARGO_TARGET_DIR/test-logs. The last step is the
examples in documentation. Exit status 1 if anything failed.

LANES=1 runs one after the other.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

# The program whose counts are shown chapter by chapter.
CONFORMANCE = "conformance"
# Programs that compare runs of a command.
ALONE = ["tune", "watch"]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", "target")).resolve()
LOGS = TARGET / "test-logs"
TIMES = LOGS / "seconds.json"
# Expected time of a program that was never run, and programs that take much longer: they should not
# be the last to begin.
UNKNOWN_SECONDS = 20.0
LONG_SECONDS = {
    "thimble it": 350.0,
    "rounds simulation": 210.0,
    "nidkg it": 70.0,
    "thimble-lab local": 70.0,
}
# A program that has not ended by then hangs.
TIMEOUT_SECONDS = 1800

running = {}
stopped = threading.Event()
printing = threading.Lock()


class Program:
    """A test program: where it is, where it runs, and what it is called."""

    def __init__(self, message):
        self.path = message["executable"]
        self.folder = Path(message["manifest_path"]).parent
        package = re.split(r"[#@]", message["package_id"].rsplit("/", 1)[-1])[0]
        target = message["target"]
        self.target = target["name"]
        kind = target["kind"][0]
        self.name = f"{package} {self.target}" if kind in ("test", "bench") else package
        if kind == "bin":
            self.name = f"{package} bin {self.target}"

    @property
    def log(self):
        return LOGS / (self.name.replace(" ", "-") + ".log")


def build(options):
    """All test programs, built."""
    command = ["cargo", "test", "--no-run", "--message-format=json-render-diagnostics", *options]
    cargo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    programs = []
    for line in cargo.stdout:
        message = json.loads(line) if line.startswith("{") else {}
        tested = message.get("profile", {}).get("test")
        if message.get("reason") == "compiler-artifact" and tested and message["executable"]:
            programs.append(Program(message))
    if cargo.wait() != 0:
        sys.exit(cargo.returncode)
    return programs


def say(text):
    with printing:
        print(text, flush=True)


def run(program):
    """Runs a program; whether it succeeded, and its seconds."""
    begun = time.monotonic()
    environment = {**os.environ, "CARGO_MANIFEST_DIR": str(program.folder)}
    environment["CARGO_TARGET_DIR"] = str(TARGET)
    with open(program.log, "wb") as log:
        process = subprocess.Popen(
            [program.path],
            cwd=program.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        running[process.pid] = process
        hangs = threading.Timer(TIMEOUT_SECONDS, end, (process, signal.SIGKILL))
        hangs.start()
        _, waited, usage = os.wait4(process.pid, 0)
        status = process.returncode = os.waitstatus_to_exitcode(waited)
        running.pop(process.pid, None)
        hangs.cancel()
    seconds = time.monotonic() - begun
    if seconds >= TIMEOUT_SECONDS:
        status = f"it did not end within {TIMEOUT_SECONDS} s"
    text = program.log.read_text(errors="replace")
    counts = re.findall(r"(\d+) passed; (\d+) failed; (\d+) ignored", text)
    passed, failed, ignored = (sum(map(int, column)) for column in zip(*counts)) if counts else (0, 0, 0)
    # A program with a `main` of its own counts nothing.
    words = [f"{passed:4} passed" if counts else "    ended well" if status == 0 else "    ended"]
    words += [f"{failed} failed"] if failed else []
    # A rule that the node does not keep yet says so.
    missing = re.findall(r"^test (\S+) \.\.\. ignored, the node: (.*)$", text, re.MULTILINE)
    words += [f"{len(missing)} of what is missing"] if missing else []
    left = ignored - len(missing)
    words += [f"{left} left to make test-long"] if left else []
    # CPU time of the program and of the processes that it waited for.
    computed = usage.ru_utime + usage.ru_stime
    verdict = "ok    " if status == 0 else "FAILED"
    say(f"{verdict} {seconds:6.1f} s, CPU {computed:6.1f} s  {', '.join(words)}  {program.name}")
    if program.target == CONFORMANCE:
        say(f"       {chapters(text)}")
    for name, why in missing:
        say(f"       missing: {name}: {why}")
    for line in text.splitlines():
        if line.startswith("NOT RUN: "):
            say(f"       {line}")
    if status != 0 and not stopped.is_set():
        say(f"--- {program.name} ended with {status}; {program.log}\n{text}\n--- {program.name}")
    return status == 0, seconds


def chapters(text):
    """How many rules of each chapter hold: a test's path is its chapter."""
    counts = {}
    for chapter in re.findall(r"^test (\w+)::\S+ \.\.\. ok$", text, re.MULTILINE):
        counts[chapter] = counts.get(chapter, 0) + 1
    return ", ".join(f"{chapter} {count}" for chapter, count in sorted(counts.items()))


def end(process, how):
    try:
        os.killpg(process.pid, how)
    except ProcessLookupError:
        pass


def expected(program):
    return LONG_SECONDS.get(program.name, UNKNOWN_SECONDS)


def run_all(programs, lanes, times):
    """Runs them in this many lanes; returns the names of those that failed."""
    queue = sorted(programs, key=lambda one: times.get(one.name) or expected(one))
    failed = []

    def lane():
        while not stopped.is_set():
            try:
                program = queue.pop()
            except IndexError:
                return
            good, times[program.name] = run(program)
            if not good:
                failed.append(program.name)

    threads = [threading.Thread(target=lane) for _ in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def stop(*_):
    stopped.set()
    for process in list(running.values()):
        end(process, signal.SIGTERM)


def main():
    options = sys.argv[1:]
    if options and options[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    programs = build(options)
    LOGS.mkdir(parents=True, exist_ok=True)
    try:
        times = json.loads(TIMES.read_text())
    except (OSError, ValueError):
        times = {}
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    # Under `nohup` programs would inherit an ignored SIGHUP, which tests send to nodes. A handler is
    # not inherited, and this program still survives the signal.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    begun = time.monotonic()
    shared = [program for program in programs if program.target not in ALONE]
    alone = [program for program in programs if program.target in ALONE]
    failed = run_all(shared, int(os.environ.get("LANES", "3")), times)
    failed += run_all(alone, 1, times)
    TIMES.write_text(json.dumps(times, indent=1))
    if stopped.is_set():
        print("stopped")
        return 130
    minutes, seconds = divmod(round(time.monotonic() - begun), 60)
    print(f"{len(programs)} test programs in {minutes}:{seconds:02}", flush=True)
    documented = subprocess.run(["cargo", "test", "--quiet", "--doc", *options]).returncode
    if documented != 0:
        failed.append("examples in documentation")
    if failed:
        print("FAILED: " + ", ".join(failed))
    return 1 if failed else 0


sys.exit(main())
