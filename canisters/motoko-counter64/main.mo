// A counter with enhanced orthogonal persistence: the whole 64-bit heap survives an upgrade, no stable memory is used.
import Principal "mo:core/Principal";
import Runtime "mo:core/Runtime";

persistent actor {
  var count : Nat = 0;

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
    Runtime.trap("boom: the counter must not have changed")
  };
};
