#!/usr/bin/env python3
"""Measures what the first build costs, beside what building wasmtime alone costs. `make timings`
runs it, on a machine that does nothing else.

    scripts/timings.py

Builds, each from nothing in a folder of its own below $CARGO_TARGET_DIR/timings: the two programs
of `make run`, with the profile `release` of this workspace; and wasmtime with the features and the
versions of this workspace, with cargo's default release profile, as a package of its own. Prints
crates, wall time and CPU time (user and system, of cargo and all it starts) of both, and the ratio
of the CPU times. The report of `cargo build --timings` on the programs stays in the folder: which
crates take longest, and what waits for what. Everything is downloaded before it is measured.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "timings"
PROGRAMS = ["--release", "--locked", "--workspace", "--bin", "thimble", "--bin", "thimble-demo"]


def cpu_seconds():
    """Of all processes that were waited for so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def build(folder, target, options):
    """Crates that were compiled, wall seconds, CPU seconds of one build from nothing."""
    shutil.rmtree(target, ignore_errors=True)
    command = ["cargo", "build", "--offline", "--message-format=json-render-diagnostics", *options]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target)}
    before, began = cpu_seconds(), time.monotonic()
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE) as cargo:
        artifacts = (json.loads(line) for line in cargo.stdout)
        crates = {one["package_id"] for one in artifacts if one["reason"] == "compiler-artifact"}
    if cargo.returncode != 0:
        sys.exit(f"timings: {' '.join(command)} ended with {cargo.returncode}")
    return len(crates), time.monotonic() - began, cpu_seconds() - before


def engine_alone(folder):
    """Makes a package that needs wasmtime as this workspace does, and nothing else."""
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
    needed = manifest["workspace"]["dependencies"]["wasmtime"]
    features = ", ".join(f'"{feature}"' for feature in needed["features"])
    (folder / "src").mkdir(parents=True, exist_ok=True)
    (folder / "src/lib.rs").write_text("")
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "engine-alone"\nversion = "0.0.0"\nedition = "2024"\n\n'
        "[workspace]\n\n[dependencies]\n"
        f'wasmtime = {{ version = "{needed["version"]}", default-features = false, '
        f"features = [{features}] }}\n"
    )
    # The same versions of everything; cargo drops what is not needed.
    shutil.copy(ROOT / "Cargo.lock", folder / "Cargo.lock")


def main():
    if len(sys.argv) > 1:
        print(__doc__)
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cargo", "fetch", "--locked"], cwd=ROOT, check=True)
    alone = FOLDER / "engine"
    engine_alone(alone)
    ours = build(ROOT, FOLDER / "run", [*PROGRAMS, "--timings"])
    report = FOLDER / "run/cargo-timings/cargo-timing.html"
    kept = FOLDER / "programs.html"
    if report.is_file():
        shutil.copy(report, kept)
    engine = build(alone, FOLDER / "engine-build", ["--release"])
    for target in ("run", "engine-build", "engine"):
        shutil.rmtree(FOLDER / target, ignore_errors=True)
    print(f"{'':32}{'crates':>8}{'wall':>12}{'CPU':>12}")
    builds = {"thimble and thimble-demo": ours, "wasmtime alone": engine}
    for name, (crates, wall, cpu) in builds.items():
        print(f"{name:32}{crates:8}{wall / 60:8.1f} min{cpu / 60:8.1f} min")
    print(f"CPU time over that of wasmtime alone: {ours[2] / engine[2]:.1f}")
    print(f"crate by crate: {kept}")
    return 0


sys.exit(main())
