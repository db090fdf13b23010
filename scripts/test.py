#!/usr/bin/env python3
"""Builds all tests and runs them, several test programs at a time.

    scripts/test.py [OPTION OF CARGO TEST]...

A crate has one program of integration tests (`tests/it`); each of its modules runs as a process of
its own, so that modules of one crate share the machine as programs of several crates do. Most
tests wait more than they compute (for nodes, timeouts, disks): while processors are idle and there
is memory, another process begins. Programs in ALONE measure, and have the machine for themselves.
The longest begin first, by the times of the last run. The output of a process is shown if it
fails, and otherwise only the tests that could not be run here; all output stays in
$CARGO_TARGET_DIR/test-logs. The slowest ten are listed at the end. The last step is the examples
in documentation, of the crates that have some: rustdoc reads each of the others for seconds.
Exit status 1 if anything failed.

LANES=1 runs one after the other, LANES=5 always five.
"""

import copy
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The module whose counts are shown chapter by chapter.
CONFORMANCE = "conformance"
# Programs that compare runs of a command.
ALONE = ["tune"]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", "target")).resolve()
LOGS = TARGET / "test-logs"
TIMES = LOGS / "seconds.json"
# Expected time of what was never run, and what takes much longer: it should not be the last to
# begin.
UNKNOWN_SECONDS = 20.0
LONG_SECONDS = {
    "rounds simulation": 260.0,
    "sandbox slices": 150.0,
    "thimble subnet": 130.0,
    "thimble disk": 120.0,
    "thimble memory": 110.0,
    "thimble byzantine": 110.0,
    "thimble-lab chaos": 100.0,
    "thimble-lab machines": 90.0,
    "thimble resharing": 80.0,
    "thimble members": 80.0,
    "execution sync": 75.0,
    "execution real": 75.0,
    "thimble outcalls": 70.0,
    "thimble crash": 70.0,
    "genesis ceremony": 70.0,
    "thimble situations": 60.0,
    "thimble connections": 60.0,
    "nidkg key_generation": 60.0,
    "thimble-lab local": 40.0,
    "thimble-lab net": 40.0,
}
# A process that has not ended by then hangs.
TIMEOUT_SECONDS = 1800
# Processes that run however busy the machine is, and the most that run.
LANES_LEAST = 3
LANES_MOST = min(max(3 * (os.cpu_count() or 1), LANES_LEAST), 12)
# Another begins while this part of the processors has been idle for so long, and while this much
# memory is available.
IDLE_LEAST = 0.2
IDLE_SECONDS = 2.0
MEMORY_LEAST_BYTES = 3 << 30
SLOWEST = 10
# Fences of examples in documentation.
RUST = ("", "rust", "ignore", "no_run", "compile_fail", "should_panic")

running = {}
stopped = threading.Event()
printing = threading.Lock()


class Program:
    """A test program or one of its modules: where it is, where it runs, and what it is called."""

    def __init__(self, message):
        self.path = message["executable"]
        self.folder = Path(message["manifest_path"]).parent
        # `path+file:///folder#version`, or `path+file:///folder#name@version` where they differ.
        folder, _, version = message["package_id"].rpartition("#")
        name, at, _ = version.rpartition("@")
        self.package = name if at else folder.rsplit("/", 1)[-1]
        target = message["target"]
        self.target = target["name"]
        self.is_split = target["src_path"].endswith("/tests/it/main.rs")
        kind = target["kind"][0]
        self.name = self.package
        if kind in ("test", "bench"):
            self.name += f" {self.target}"
        if kind == "bin":
            self.name += f" bin {self.target}"
        # Names of the tests to run; none where all of them run.
        self.tests = []

    @property
    def log(self):
        return LOGS / (self.name.replace(" ", "-") + ".log")

    @property
    def environment(self):
        return {
            **os.environ,
            "CARGO_MANIFEST_DIR": str(self.folder),
            "CARGO_TARGET_DIR": str(TARGET),
        }

    def parts(self):
        """Itself, or a part for each module that has tests."""
        if not self.is_split:
            return [self]
        listed = subprocess.run(
            [self.path, "--list", "--format", "terse"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        modules = {}
        for name in re.findall(r"^(\S+): test$", listed, re.MULTILINE):
            module = name.split("::")[0] if "::" in name else self.target
            modules.setdefault(module, []).append(name)
        parts = []
        for module, tests in modules.items():
            part = copy.copy(self)
            part.target, part.name, part.tests = module, f"{self.package} {module}", tests
            parts.append(part)
        return parts


def build(options):
    """All test programs, built, and split into their modules."""
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
    return [part for program in programs for part in program.parts()]


def say(text):
    with printing:
        print(text, flush=True)


def run(program, lane):
    """Runs a program; whether it succeeded, its seconds, and those of the processors."""
    begun = time.monotonic()
    options = ["--exact", *program.tests] if program.tests else []
    with open(program.log, "wb") as log:
        process = subprocess.Popen(
            [program.path, *options],
            cwd=program.folder,
            env={**program.environment, "THIMBLE_TEST_LANE": str(lane)},
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
    return status == 0, seconds, computed


def chapters(text):
    """How many rules of each chapter hold: a test's path is its chapter."""
    counts = {}
    passed = rf"^test {CONFORMANCE}::(\w+)::\S+ \.\.\. ok$"
    for chapter in re.findall(passed, text, re.MULTILINE):
        counts[chapter] = counts.get(chapter, 0) + 1
    return ", ".join(f"{chapter} {count}" for chapter, count in sorted(counts.items()))


def end(process, how):
    try:
        os.killpg(process.pid, how)
    except ProcessLookupError:
        pass


def unseen_examples():
    """Examples in documentation of crates whose manifest says that they have none."""
    for manifest in sorted(ROOT.glob("*/*/Cargo.toml")):
        if "\ndoctest = false\n" in manifest.read_text():
            for file in sorted((manifest.parent / "src").rglob("*.rs")):
                yield from (f"{file.relative_to(ROOT)}:{line}" for line in examples(file))


def examples(file):
    """Lines at which examples begin as rustdoc sees them: in a fence of Rust, or indented."""
    is_fenced, before = False, "code"
    for number, line in enumerate(file.read_text().splitlines(), 1):
        text = re.match(r"\s*//[/!](.*)", line)
        if text is None:
            is_fenced, before = False, "code"
            continue
        text = text[1]
        fence = re.match(r"\s*```(.*)", text)
        if fence:
            tags = re.split(r"[\s,]+", fence[1].strip())
            if not is_fenced and all(tag in RUST or tag.startswith("edition") for tag in tags):
                yield number
            is_fenced = not is_fenced
        elif not is_fenced and not before.strip() and re.match(r" {5,}\S", text):
            yield number
        before = text


class Machine:
    """What of this machine is idle."""

    def __init__(self):
        self.looked = time.monotonic()
        self.before = self.processors()

    @staticmethod
    def processors():
        """Time that all processors were idle, and all of their time."""
        with open("/proc/stat") as file:
            times = [int(number) for number in file.readline().split()[1:9]]
        return times[3], sum(times)

    def has_room(self):
        """Whether enough of it was idle since the last call; at most every IDLE_SECONDS."""
        if time.monotonic() - self.looked < IDLE_SECONDS:
            return False
        (idle, total), (idle_before, total_before) = self.processors(), self.before
        self.looked, self.before = time.monotonic(), (idle, total)
        available = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
        has_memory = available is None or int(available[1]) << 10 >= MEMORY_LEAST_BYTES
        return has_memory and idle - idle_before >= IDLE_LEAST * (total - total_before)


def expected(program, times):
    """Seconds by which programs are sorted: of the last run, or a guess."""
    return times.get(program.name) or LONG_SECONDS.get(program.name, UNKNOWN_SECONDS)


def run_all(programs, least, most, times):
    """Runs at least and at most this many at a time; returns name, success and seconds of each."""
    queue = sorted(programs, key=lambda one: expected(one, times))
    results = []
    machine = Machine()
    ended = threading.Condition()
    lanes = [None] * most

    def work(lane, program):
        result = (False, 0.0, 0.0)
        try:
            result = run(program, lane)
        finally:
            with ended:
                lanes[lane] = None
                results.append((program.name, *result))
                ended.notify()

    with ended:
        while (queue and not stopped.is_set()) or any(lanes):
            busy = sum(lane is not None for lane in lanes)
            can_begin = queue and not stopped.is_set() and busy < most
            if can_begin and (busy < least or machine.has_room()):
                lane = lanes.index(None)
                lanes[lane] = threading.Thread(target=work, args=(lane, queue.pop()))
                lanes[lane].start()
            else:
                ended.wait(IDLE_SECONDS)
    times.update({name: seconds for name, _, seconds, _ in results})
    return results


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
    fixed = int(os.environ.get("LANES", "0"))
    results = run_all(shared, fixed or LANES_LEAST, fixed or LANES_MOST, times)
    results += run_all(alone, 1, 1, times)
    TIMES.write_text(json.dumps(times, indent=1))
    if stopped.is_set():
        print("stopped")
        return 130
    minutes, seconds = divmod(round(time.monotonic() - begun), 60)
    computed = sum(result[3] for result in results)
    print(f"{len(results)} in {minutes}:{seconds:02}, CPU {computed:.0f} s; the slowest:")
    for name, _, seconds, computed in sorted(results, key=lambda one: -one[2])[:SLOWEST]:
        print(f"       {seconds:6.1f} s, CPU {computed:6.1f} s  {name}")
    sys.stdout.flush()
    failed = [name for name, good, _, _ in results if not good]
    documented = subprocess.run(["cargo", "test", "--quiet", "--doc", *options]).returncode
    unseen = list(unseen_examples())
    for place in unseen:
        print(f"{place}: this example is not run: remove `doctest = false` from its crate's manifest")
    if documented != 0 or unseen:
        failed.append("examples in documentation")
    if failed:
        print("FAILED: " + ", ".join(failed))
    return 1 if failed else 0


sys.exit(main())
