"""Deploys and uses canisters with icp-py-core as published: v4 calls, v3 queries and reads, certificates verified.

Unsupported steps are left out: the client does not verify the signatures of rejected queries, and its delegations carry
neither targets nor permissions.
"""

import argparse
import hashlib
import os
import sys
import time
import traceback
from pathlib import Path

import cbor2
import icp_certificate.certificate as certificate_module
from icp_agent import Agent, Client
from icp_agent.agent import sign_request
from icp_candid import Types, encode
from icp_canister import Canister
from icp_core.errors import CertificateVerificationError, ReplicaReject
from icp_identity import DelegateIdentity, Identity
from icp_principal import Principal

INITIAL_CYCLES = 10_000_000_000_000

# The client brings an older description of the management canister; this one has what is used here.
MANAGEMENT = """
type canister_settings = record {
  controllers : opt vec principal;
  compute_allocation : opt nat;
  memory_allocation : opt nat;
  freezing_threshold : opt nat;
};
type upgrade_options = record {
  skip_pre_upgrade : opt bool;
  wasm_memory_persistence : opt variant { keep; replace };
};
service : {
  provisional_create_canister_with_cycles : (record { amount : opt nat; settings : opt canister_settings })
    -> (record { canister_id : principal });
  install_code : (record {
    mode : variant { install; reinstall; upgrade : opt upgrade_options };
    canister_id : principal;
    wasm_module : blob;
    arg : blob;
  }) -> ();
  canister_status : (record { canister_id : principal }) -> (record {
    status : variant { running; stopping; stopped };
    module_hash : opt blob;
    memory_size : nat;
    cycles : nat;
  });
  stop_canister : (record { canister_id : principal }) -> ();
  delete_canister : (record { canister_id : principal }) -> ();
};
"""


class Steps:
    """Runs the steps one after another; a failed step ends the program, because later ones build on it."""

    def __init__(self, skip):
        self.skip = skip
        self.done = 0

    def run(self, name, body):
        if any(name.startswith(prefix) for prefix in self.skip):
            print(f"skip  {name}", flush=True)
            return None
        start = time.monotonic()
        try:
            value = body()
        except Exception as error:  # whatever it is, it is this step's failure
            print(f"FAIL  {name}: {type(error).__name__}: {error}\n{traceback.format_exc()}", flush=True)
            sys.exit(1)
        self.done += 1
        print(f"ok    {name} ({(time.monotonic() - start) * 1000:.0f} ms)", flush=True)
        return value


def same(actual, expected, what):
    if actual != expected:
        raise AssertionError(f"{what}: expected {expected!r}, got {actual!r}")


def holds(condition, what):
    if not condition:
        raise AssertionError(what)


def refused(body, kinds, what):
    try:
        value = body()
    except kinds as error:
        return error
    raise AssertionError(f"{what}: was not refused but returned {value!r}")


def only(values):
    """The client returns a list of results, or a bare one; either way the single result, without its type."""
    if isinstance(values, list) and len(values) == 1:
        values = values[0]
    return values.get("value", values) if isinstance(values, dict) and set(values) == {"type", "value"} else values


class Management:
    """The management canister as one agent sees it; each call is routed by the canister it is about."""

    def __init__(self, agent, effective_canister_id):
        self.agent = agent
        self.effective_canister_id = effective_canister_id
        self.methods = Canister(agent, "aaaaa-aa", MANAGEMENT).methods

    def call(self, method, argument, about):
        types = self.methods[method]
        return only(
            self.agent.update(
                "aaaaa-aa",
                method,
                [{"type": types.argTypes[0], "value": argument}],
                return_type=types.retTypes,
                effective_canister_id=about,
                timeout=120,
            )
        )

    def create(self):
        argument = {"amount": [INITIAL_CYCLES], "settings": []}
        created = self.call("provisional_create_canister_with_cycles", argument, self.effective_canister_id)
        return str(created["canister_id"])

    def install(self, canister_id, module, mode):
        argument = {"mode": mode, "canister_id": canister_id, "wasm_module": module, "arg": encode([])}
        self.call("install_code", argument, canister_id)

    def status(self, canister_id):
        return self.call("canister_status", {"canister_id": canister_id}, canister_id)

    def remove(self, canister_id):
        self.call("stop_canister", {"canister_id": canister_id}, canister_id)
        self.call("delete_canister", {"canister_id": canister_id}, canister_id)


def delegate(root, session):
    """A delegation from one identity to another, in the form in which the client reads exported ones."""
    expiration = time.time_ns() + 600 * 10**9
    delegation = {"pubkey": session.der_pubkey, "expiration": expiration}

    def uleb128(number):
        encoded = bytearray()
        while True:
            number, low = number >> 7, number & 127
            encoded.append(low | (128 if number else 0))
            if not number:
                return bytes(encoded)

    digest = lambda data: hashlib.sha256(data).digest()
    pairs = sorted(
        [
            digest(b"pubkey") + digest(session.der_pubkey),
            digest(b"expiration") + digest(uleb128(expiration)),
        ]
    )
    _, signature = root.sign(b"\x1aic-request-auth-delegation" + digest(b"".join(pairs)))
    return DelegateIdentity(
        session, {"delegations": [{"delegation": delegation, "signature": signature}], "publicKey": root.der_pubkey}
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="the node's public endpoint, for example http://127.0.0.1:8080")
    parser.add_argument("--fixtures", required=True, type=Path, help="the directory of the modules, canisters/wasm")
    parser.add_argument(
        "--effective-canister-id",
        default="rwlgt-iiaaa-aaaaa-aaaaa-cai",
        help="an id in the subnet's range, where canisters are created (default: the first id there is)",
    )
    parser.add_argument("--skip", default="", help="leave out the steps whose name starts with one of these: a,b")
    options = parser.parse_args()
    steps = Steps([name for name in options.skip.split(",") if name])
    client = Client(url=options.url.rstrip("/"))

    def agent_for(identity, **more):
        # A fresh nonce keeps two equal calls within one clock tick apart.
        return Agent(identity, client, nonce_factory=lambda: os.urandom(16), root_key=root_key, **more)

    def read_status():
        status = cbor2.loads(client.status())
        status = getattr(status, "value", status)
        same(status["replica_health_status"], "healthy", "replica_health_status")
        same(len(status["root_key"]), 133, "length of the DER root key")
        return bytes(status["root_key"])

    root_key = steps.run("status: healthy, root key of 133 bytes", read_status)
    # The client's certificates know one root key, mainnet's, and have no setting for another.
    mainnet_key = certificate_module.IC_ROOT_KEY
    certificate_module.IC_ROOT_KEY = root_key

    owner = Identity()
    agent = agent_for(owner, verify_query_signatures=True)
    management = Management(agent, options.effective_canister_id)
    module = (options.fixtures / "workbench.wasm").read_bytes()
    did = (options.fixtures / "workbench.did").read_text()

    bench_id = steps.run("create: Ed25519 identity", management.create)
    steps.run("install: workbench", lambda: management.install(bench_id, module, {"install": None}))

    def fetch_interface():
        fetched = Canister(agent, bench_id, auto_fetch_candid=True)
        same(sorted(fetched.methods), sorted(Canister(agent, bench_id, did).methods), "methods of the metadata")
        return fetched

    bench = steps.run("read_state: interface from the metadata", fetch_interface)

    def seen_by(identity):
        return Canister(agent_for(identity), bench_id, did)

    def synchronous_call():
        same(only(bench.inc()), 1, "inc")
        same(only(bench.inc()), 2, "inc")

    steps.run("call: certificate verified", synchronous_call)

    def poll():
        # The client has no asynchronous path of its own, so the request goes out here and the client polls for it.
        request = {
            "request_type": "call",
            "sender": owner.sender().bytes,
            "canister_id": Principal.from_str(bench_id).bytes,
            "method_name": "inc",
            "arg": encode([]),
            "nonce": os.urandom(16),
            "ingress_expiry": agent.get_expiry_date(),
        }
        request_id, envelope = sign_request(request, owner)
        client.call(bench_id, envelope)
        same(only(agent.poll_and_wait(bench_id, request_id, True, return_type=[Types.Nat64])), 3, "inc")

    steps.run("call: polled by read_state", poll)

    def query():
        same(only(bench.get()), 3, "get")
        same(bytes(only(bench.echo(b"\x00\xff" * 100))), b"\x00\xff" * 100, "echo")

    steps.run("query: signature verified", query)

    def rejected_query():
        error = refused(lambda: seen_by(owner).trap_with_query("oops"), ReplicaReject, "trap_with_query")
        holds("oops" in str(error), f"the message is missing in {error}")

    steps.run("query: rejected", rejected_query)

    def read_state():
        canister = Principal.from_str(bench_id).bytes
        paths = [[b"canister", canister, b"module_hash"], [b"canister", canister, b"controllers"], [b"time"]]
        certificate = agent.read_state_raw(bench_id, paths)
        same(bytes(certificate.lookup(paths[0])).hex(), hashlib.sha256(module).hexdigest(), "module hash")
        controllers = cbor2.loads(certificate.lookup(paths[1]))
        controllers = getattr(controllers, "value", controllers)
        same([bytes(one) for one in controllers], [owner.sender().bytes], "controllers")

    steps.run("read_state: certificate verified", read_state)

    def forged():
        certificate_module.IC_ROOT_KEY = mainnet_key
        try:
            read = lambda: agent.read_state_raw(bench_id, [[b"time"]])
            refused(read, CertificateVerificationError, "a certificate under another root key")
        finally:
            certificate_module.IC_ROOT_KEY = root_key

    steps.run("read_state: refused under another root key", forged)

    def status():
        answer = management.status(bench_id)
        same(list(answer["status"]), ["running"], "status")
        holds(answer["cycles"] > 0, "no cycles")

    steps.run("canister_status", status)

    def trap():
        error = refused(lambda: bench.trap_with("oops"), ReplicaReject, "trap_with")
        holds("oops" in str(error), f"the message is missing in {error}")
        same(only(bench.get()), 3, "counter after the trap")
        refused(lambda: bench.reject_with("no"), ReplicaReject, "reject_with")

    steps.run("reject: certified, and rolled back after a trap", trap)

    def memory():
        mib = 1 << 20
        bench.stable_grow(4 * mib // 65536)
        bench.stable_fill(0, 3 * mib, 7)
        same(only(bench.stable_read_sum(0, 4 * mib)), 3 * mib * 7, "stable memory, query")
        same(only(bench.stable_read_sum_update(mib, mib)), mib * 7, "stable memory, update")
        bench.heap_fill(2 * mib, 9)
        same(only(bench.heap_read_sum(0, 2 * mib)), 2 * mib * 9, "heap")

    steps.run("workbench: stable memory and heap", memory)

    def certified():
        bench.set_certified(b"\x11" * 32)
        value, data_certificate = (only([one]) for one in bench.get_certified())
        same(bytes(value), b"\x11" * 32, "value")
        holds(data_certificate, "a query must see a certificate")

    steps.run("workbench: certified data", certified)

    def upgraded():
        bench.set_text("kept")
        management.install(bench_id, module, {"upgrade": []})
        same([only(bench.get_text()), only(bench.get()), only(bench.upgrades())], ["kept", 3, 1], "state")

    steps.run("upgrade: state survives", upgraded)

    def identities():
        for kind in ("ed25519", "secp256k1", "p256"):
            identity = Identity(type=kind)
            same(str(only(seen_by(identity).whoami())), str(identity.sender()), kind)
        same(str(only(seen_by(Identity(anonymous=True)).whoami())), "2vxsx-fae", "anonymous")

    steps.run("identity: Ed25519, secp256k1, P-256, anonymous", identities)

    def delegation():
        identity = delegate(owner, Identity(type="secp256k1"))
        same(str(only(seen_by(identity).whoami())), str(owner.sender()), "whoami")

    steps.run("identity: delegation", delegation)

    steps.run("delete", lambda: management.remove(bench_id))
    print(f"all {steps.done} steps held")


if __name__ == "__main__":
    main()
