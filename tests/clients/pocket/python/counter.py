"""Tests canisters with the published `pocket_ic` as its documentation says: counters on one subnet and
on several, time, cycles, stable memory, HTTPS outcalls, an instance that is kept in a folder.

    POCKET_IC_BIN=... POCKET_ASKER=MODULE python counter.py FOLDER_WITH_MODULES
"""

import base64
import gzip
import os
import sys
import tempfile
from pathlib import Path

import ic
from ic.candid import Types
from pocket_ic import PocketIC, SubnetConfig, SubnetKind

MODULES = Path(sys.argv[1])
COUNTER = (MODULES / "counter-c.wasm").read_bytes()
MOTOKO = (MODULES / "motoko-counter32.wasm").read_bytes()
WORKBENCH = (MODULES / "workbench.wasm").read_bytes()
LEDGER = ic.Principal.from_str("ryjl3-tyaaa-aaaaa-aaaba-cai")
NANOS = 1_000_000_000


def step(name):
    print("ok", name, flush=True)


def raw(number):
    return list(number.to_bytes(8, "little"))


def refused(words, act):
    try:
        act()
    except (ValueError, ConnectionError) as error:
        assert words in str(error), f"{words!r} is not in: {error}"
        return
    raise AssertionError(f"was not refused: {words}")


def counter():
    pic = PocketIC()
    canister = pic.create_canister()
    assert str(canister) == "lxzze-o7777-77777-aaaaa-cai", canister
    before = pic.get_cycles_balance(canister)
    assert pic.add_cycles(canister, 2_000_000_000_000) == before + 2_000_000_000_000
    pic.install_code(canister, COUNTER, [])
    assert pic.query_call(canister, "get", ic.encode([])) == raw(0)
    for expected in (1, 2, 3):
        assert pic.update_call(canister, "inc", ic.encode([])) == raw(expected)
    assert pic.query_call(canister, "get", ic.encode([])) == raw(3)
    assert pic.get_cycles_balance(canister) < before + 2_000_000_000_000
    assert pic.check_canister_exists(canister)
    assert not pic.check_canister_exists(LEDGER)
    refused("CanisterMethodNotFound", lambda: pic.update_call(canister, "absent", ic.encode([])))
    step("a counter counts, and a missing method is rejected by its name")


def typed_interface():
    pic = PocketIC()
    did = (MODULES / "motoko-counter32.did").read_text()
    one, other = [pic.create_and_install_canister_with_candid(did, MOTOKO) for _ in range(2)]
    assert one.inc() == [1]
    assert one.callInc(other.canister_id.to_str()) == [1]
    assert other.get() == [1]
    pic.set_sender(ic.Principal.self_authenticating(b"somebody"))
    assert str(one.whoami()[0]) == str(pic.sender)
    step("a canister object calls by its interface, as whom it is told, and canisters call each other")


def time_goes_as_it_is_told():
    pic = PocketIC()
    canister = pic.create_canister()
    pic.install_code(canister, WORKBENCH, [])
    start = pic.get_time()["nanos_since_epoch"]
    pic.tick()
    assert pic.get_time()["nanos_since_epoch"] == start + 1
    delay = [{"type": Types.Nat64, "value": 3600 * NANOS}]
    pic.update_call(canister, "start_timer", ic.encode(delay))
    fired = lambda: ic.decode(pic.query_call(canister, "timer_count", ic.encode([])))[0]["value"]
    pic.tick()
    assert fired() == 0
    pic.advance_time(3601 * NANOS)
    for _ in range(3):
        pic.tick()
    assert fired() == 1
    now = start + 10**18
    pic.set_time(now)
    pic.tick()
    told = ic.decode(pic.query_call(canister, "time", ic.encode([])))[0]["value"]
    assert now <= told <= now + 1, (now, told)
    refused("SettingTimeIntoPast", lambda: pic.set_time(start))
    step("a timer fires when the time is advanced, and the time does not go back")


def stable_memory():
    pic = PocketIC()
    canister = pic.create_canister()
    pic.install_code(canister, COUNTER, [])
    content = (41).to_bytes(8, "little") + bytes(range(256)) * 1000
    pic.set_stable_memory(canister, content)
    found = pic.get_stable_memory(canister)
    assert found[: len(content)] == content and len(found) % 65536 == 0
    pic.set_stable_memory(canister, gzip.compress(content), "gzip")
    assert pic.get_stable_memory(canister) == found
    step("stable memory is set from a blob, packed or not, and read")


def subnets():
    config = SubnetConfig(application=2, nns=True, ii=True, sns=True, fiduciary=True, bitcoin=True, system=1)
    pic = PocketIC(config)
    kinds = sorted(kind.value for kind in pic.topology().values())
    assert kinds == ["Application", "Application", "Bitcoin", "Fiduciary", "II", "NNS", "SNS", "System"]
    assert len(pic.get_root_key()) == 133
    ledger = pic.create_canister(canister_id=LEDGER)
    assert str(ledger) == str(LEDGER)
    identity = ic.Principal.from_str("rdmx6-jaaaa-aaaaa-aaadq-cai")
    pic.create_canister(canister_id=identity)
    kind_of = lambda canister: pic.topology()[pic.get_subnet(canister)]
    by_text = {str(id): kind for id, kind in pic.topology().items()}
    assert by_text[str(pic.get_subnet(ledger))] == SubnetKind.NNS
    assert by_text[str(pic.get_subnet(identity))] == SubnetKind.II
    refused("CanisterAlreadyInstalled", lambda: pic.create_canister(canister_id=LEDGER))
    canisters = [ledger]
    for subnet, kind in pic.topology().items():
        canister = pic.create_canister(subnet=subnet)
        assert str(pic.get_subnet(canister)) == str(subnet), kind
        canisters.append(canister)
    for canister in canisters:
        pic.install_code(canister, MOTOKO, [])
    # Around all subnets.
    for caller, callee in zip(canisters, canisters[1:] + canisters[:1]):
        arg = ic.encode([{"type": Types.Principal, "value": callee.bytes}])
        reply = pic.update_call(caller, "callInc", arg)
        assert ic.decode(reply)[0]["value"] == 1
    step("canisters on eight subnets have their ids, and call each other across subnets")


def kept():
    with tempfile.TemporaryDirectory() as folder:
        pic = PocketIC(SubnetConfig(application=1, nns=True, state_dir=folder))
        canister = pic.create_canister()
        pic.install_code(canister, COUNTER, [])
        pic.update_call(canister, "inc", ic.encode([]))
        time = pic.get_time()["nanos_since_epoch"]
        topology = {str(id): kind for id, kind in pic.topology().items()}
        pic.server.delete_instance(pic.instance_id)
        for expected in (2, 3):
            again = PocketIC(SubnetConfig(state_dir=folder))
            assert {str(id): kind for id, kind in again.topology().items()} == topology
            assert again.get_time()["nanos_since_epoch"] >= time
            assert again.update_call(canister, "inc", ic.encode([])) == raw(expected)
            again.server.delete_instance(again.instance_id)
    step("an instance that is kept in a folder goes on where it was")


class Answering(PocketIC):
    """Answers HTTPS outcalls between rounds, by the protocol: this client has no functions for it."""

    said = b"hello"
    asked = ()

    def tick(self):
        super().tick()
        for pending in self.server.instance_get("read/get_canister_http", self.instance_id):
            self.asked += (pending["url"],)
            reply = {"status": 200, "headers": [], "body": base64.b64encode(self.said).decode()}
            mock = {
                "subnet_id": pending["subnet_id"],
                "request_id": pending["request_id"],
                "response": {"CanisterHttpReply": reply},
                "additional_responses": [],
            }
            self.server.instance_post("update/mock_canister_http", self.instance_id, mock)


def outcalls():
    pic = Answering()
    canister = pic.create_canister()
    pic.install_code(canister, Path(os.environ["POCKET_ASKER"]).read_bytes(), [])
    headers = Types.Vec(Types.Record({"name": Types.Text, "value": Types.Text}))
    request = Types.Record(
        {
            "url": Types.Text,
            "max_response_bytes": Types.Opt(Types.Nat64),
            "method": Types.Variant({"get": Types.Null}),
            "headers": headers,
        }
    )
    asked = {
        "url": "https://a.example/",
        "max_response_bytes": [10],
        "method": {"get": None},
        "headers": [],
    }
    arg = ic.encode([{"type": request, "value": asked}])
    response = Types.Record({"status": Types.Nat, "headers": headers, "body": Types.Vec(Types.Nat8)})
    (reply,) = ic.decode(pic.update_call(canister, "relay", arg), response)
    assert bytes(reply["value"]["body"]) == b"hello" and reply["value"]["status"] == 200, reply
    assert pic.asked == ("https://a.example/",), pic.asked
    pic.said = b"x" * 11
    refused("Http body exceeds size limit of 10 bytes.", lambda: pic.update_call(canister, "relay", arg))
    step("HTTPS outcalls are listed and answered")


def what_is_refused():
    spec = {"state_config": "New", "instruction_config": "Production"}
    server = PocketIC().server
    for asked, words in [
        ({"test_threshold_keys": spec}, "threshold keys"),
        ({"application": [{**spec, "instruction_config": "Benchmarking"}]}, "Benchmarking"),
        ({"application": [{**spec, "cost_schedule": "Free"}]}, "Free"),
        ({"application": [{**spec, "state_config": {"FromPath": "/x"}}]}, "another server"),
        ({}, "at least one subnet"),
    ]:
        response = server.request_client.post(f"{server.url}/instances", json={"subnet_config_set": asked})
        assert response.status_code == 400 and words in response.json()["Error"]["message"], response.text
    step("what is not offered is refused in the protocol's terms")


counter()
typed_interface()
time_goes_as_it_is_told()
stable_memory()
subnets()
outcalls()
kept()
what_is_refused()
