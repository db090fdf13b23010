// The same counter by the last 32-bit compiler: its stable variable is serialised to stable memory in pre_upgrade and
// read back in post_upgrade.
import Principal "mo:base/Principal";
import Debug "mo:base/Debug";

actor {
  stable var count : Nat = 0;

  public query func get() : async Nat { count };

  public func inc() : async Nat {
    count += 1;
    count
  };

  public func add(amount : Nat) : async Nat {
    count += amount;
    count
  };

  public func set(value : Nat) : async () { count := value };

  public shared ({ caller }) func whoami() : async Principal { caller };

  public query func greet(name : Text) : async Text { "Hello, " # name # "!" };

  /// Increments the counter of another canister and answers with its new value.
  public func callInc(other : Principal) : async Nat {
    let remote : actor { inc : () -> async Nat } = actor (Principal.toText(other));
    await remote.inc()
  };

  /// Changes the state and traps: the change must not be seen afterwards.
  public func boom() : async () {
    count += 1_000_000;
    Debug.trap("boom: the counter must not have changed")
  };
};
