// The cycles minting canister of a local network, at its well-known id: on which subnets canisters
// can be made (the one that there is), what an ICP is worth, and cycles for ICP. The cycles are its
// own, which the network gives it when it is made; the ICP that paid for them stay in its accounts.
import AccountId "./AccountId";
import Array "mo:core/Array";
import Blob "mo:core/Blob";
import CertifiedData "mo:core/CertifiedData";
import Cycles "mo:core/Cycles";
import Error "mo:core/Error";
import Ledger "./Ledger";
import Map "mo:core/Map";
import Nat "mo:core/Nat";
import Nat8 "mo:core/Nat8";
import Nat64 "mo:core/Nat64";
import Placement "./Placement";
import Principal "mo:core/Principal";
import Runtime "mo:core/Runtime";
import Sha256 "./Sha256";
import Text "mo:core/Text";
import Types "./Types";

persistent actor class CyclesMinting(init : { subnet : Principal; xdr_permyriad_per_icp : Nat64 }) = self {
  type NotifyError = {
    #Refunded : { block_index : ?Nat64; reason : Text };
    #InvalidTransaction : Text;
    #TransactionTooOld : Nat64;
    #Processing;
    #Other : { error_code : Nat64; error_message : Text };
  };
  type MintOk = { balance : Nat; block_index : Nat; minted : Nat };
  type Outcome = {
    #processing;
    #minted : MintOk;
    #toppedUp : Nat;
    #created : Principal;
    #failed : NotifyError;
  };
  type Rate = { xdr_permyriad_per_icp : Nat64; timestamp_seconds : Nat64 };

  transient let icpLedger : actor {
    query_blocks : Types.GetBlocksArgs -> async Types.QueryBlocksResponse;
    transfer : Types.IcpTransferArg -> async Types.IcpTransferResult;
  } = actor ("ryjl3-tyaaa-aaaaa-aaaba-cai");
  transient let cyclesLedger : actor {
    deposit : { to : Types.Account; memo : ?Blob } -> async { balance : Nat; block_index : Nat };
  } = actor ("um5iw-rqaaa-aaaaq-qaaba-cai");
  transient let subnet = init.subnet;
  transient let rate : Rate = {
    xdr_permyriad_per_icp = init.xdr_permyriad_per_icp;
    timestamp_seconds = Ledger.now() / 1_000_000_000;
  };
  transient let memoTopUp : Nat64 = 0x50555054;
  transient let memoCreate : Nat64 = 0x41455243;
  transient let memoMint : Nat64 = 0x544e494d;
  transient let icpFee : Nat64 = 10_000;
  transient let reserve = 1_000_000_000_000;
  transient let notifiedMax = 10_000;
  // Outcomes of notified transfers, by their block; transfers older than all of these are no longer
  // examined.
  let notified = Map.empty<Nat64, Outcome>();
  var tooOldBelow : Nat64 = 0;

  public query func get_default_subnets() : async [Principal] { [subnet] };
  public query func get_subnet_types_to_subnets() : async { data : [(Text, [Principal])] } {
    { data = [] }
  };
  public query func get_principals_authorized_to_create_canisters_to_subnets() : async {
    data : [(Principal, [Principal])];
  } { { data = [] } };

  // The rate, certified by a hash tree with one label, as CBOR.
  transient let rateLabel = "ICP_XDR_CONVERSION_RATE";
  func bytes(parts : [Blob]) : Blob {
    Blob.fromArray(Array.flatten<Nat8>(Array.map<Blob, [Nat8]>(parts, Blob.toArray)))
  };
  func cborBytes(content : Blob) : Blob {
    let size = content.size();
    let head : [Nat8] = if (size < 24) [0x40 + Nat8.fromNat(size)] else if (size < 256) {
      [0x58, Nat8.fromNat(size)]
    } else [0x59, Nat8.fromNat(size / 256), Nat8.fromNat(size % 256)];
    bytes([Blob.fromArray(head), content])
  };
  transient let rateTree = bytes([
    "\D9\D9\F7\83\02",
    cborBytes(Text.encodeUtf8(rateLabel)),
    "\82\03",
    cborBytes(to_candid (rate)),
  ]);
  CertifiedData.set(do {
    let leaf = Sha256.sha256(bytes(["\10ic-hashtree-leaf", to_candid (rate)]));
    Sha256.sha256(bytes(["\13ic-hashtree-labeled", Text.encodeUtf8(rateLabel), leaf]))
  });
  public query func get_icp_xdr_conversion_rate() : async {
    data : Rate;
    hash_tree : Blob;
    certificate : Blob;
  } {
    // There is none when this runs as an update call, whose reply is certified itself.
    let certificate = switch (CertifiedData.getCertificate()) {
      case null "" : Blob;
      case (?certificate) certificate;
    };
    { data = rate; hash_tree = rateTree; certificate }
  };

  func notHeld(amount : Nat) : ?Text {
    let held = Cycles.balance();
    if (held >= amount + reserve) return null;
    ?("This canister holds " # debug_show held # " cycles and keeps " # debug_show reserve # " of them, so that it cannot pay out " # debug_show amount # ".")
  };

  // Makes a canister with the cycles that come with the call.
  public shared ({ caller }) func create_canister(arg : {
    subnet_selection : ?Types.SubnetSelection;
    subnet_type : ?Text;
    settings : ?Types.Settings;
  }) : async {
    #Ok : Principal;
    #Err : { #Refunded : { refund_amount : Nat; create_error : Text } };
  } {
    let available = Cycles.available();
    switch (Placement.refused(Placement.selection(arg.subnet_selection, arg.subnet_type), subnet)) {
      case (?create_error) return #Err(#Refunded { refund_amount = available; create_error });
      case null {};
    };
    switch (notHeld(available)) {
      case (?create_error) return #Err(#Refunded { refund_amount = available; create_error });
      case null {};
    };
    // Paid in advance, and taken from the caller once there is a canister: what is not taken goes
    // back by itself.
    try {
      let settings = ?Placement.settings(arg.settings, caller);
      let made = await (with cycles = available) Placement.management.create_canister({ settings });
      ignore Cycles.accept<system>(available);
      #Ok(made.canister_id)
    } catch (error) {
      #Err(#Refunded { refund_amount = available; create_error = Error.message(error) })
    }
  };

  // The amount that `payer` paid in this block for this purpose, in e8s.
  func paid(block_index : Nat64, payer : Principal, memo : Nat64) : async* {
    #ok : { e8s : Nat64; from : Blob };
    #err : NotifyError;
  } {
    let response = try {
      await icpLedger.query_blocks({ start = block_index; length = 1 })
    } catch (error) {
      return #err(#Other { error_code = 1; error_message = "The ICP ledger does not answer: " # Error.message(error) });
    };
    if (response.blocks.size() != 1 or response.first_block_index != block_index) {
      return #err(#InvalidTransaction("The ICP ledger has no block " # debug_show block_index # ", or does not keep it any more."));
    };
    let transaction = response.blocks[0].transaction;
    let ?#Transfer transfer = transaction.operation else {
      return #err(#InvalidTransaction("Block " # debug_show block_index # " is no transfer."));
    };
    let account = AccountId.ofAccount({
      owner = Principal.fromActor(self);
      subaccount = ?AccountId.subaccountOf(payer);
    });
    if (transfer.to != account) {
      return #err(#InvalidTransaction("Block " # debug_show block_index # " does not pay into the account for " # Principal.toText(payer) # "."));
    };
    let said = switch (transaction.icrc1_memo) {
      case null transaction.memo;
      case (?bytes) fromLittleEndian(bytes);
    };
    if (said != memo) {
      return #err(#InvalidTransaction("Block " # debug_show block_index # " has memo " # debug_show said # ", and it takes " # debug_show memo # "."));
    };
    #ok { e8s = transfer.amount.e8s; from = transfer.from }
  };

  func fromLittleEndian(memo : Blob) : Nat64 {
    if (memo.size() > 8) return 0;
    var value : Nat64 = 0;
    for (byte in Array.reverse(Blob.toArray(memo)).vals()) {
      value := value << 8 | Nat64.fromNat(Nat8.toNat(byte));
    };
    value
  };

  // The known outcome of a block; if there is none, it counts as in progress from now on.
  func begin(block_index : Nat64) : ?Outcome {
    switch (Map.get(notified, Nat64.compare, block_index)) {
      case (?outcome) return ?outcome;
      case null {};
    };
    if (block_index < tooOldBelow) return ?#failed(#TransactionTooOld(tooOldBelow));
    if (Map.size(notified) >= notifiedMax) {
      let ?(oldest, outcome) = Map.minEntry(notified) else Runtime.unreachable();
      if (outcome == #processing or oldest > block_index) {
        return ?#failed(#Other {
          error_code = 2;
          error_message = "This canister remembers at most " # debug_show notifiedMax # " transfers, and they are newer or being worked on.";
        });
      };
      Map.remove(notified, Nat64.compare, oldest);
      tooOldBelow := oldest + 1;
    };
    Map.add(notified, Nat64.compare, block_index, #processing);
    null
  };

  func end(block_index : Nat64, outcome : Outcome) {
    switch outcome {
      // May be notified again.
      case (#failed(#Other _ or #InvalidTransaction _)) Map.remove(notified, Nat64.compare, block_index);
      case _ Map.add(notified, Nat64.compare, block_index, outcome);
    };
  };

  // Sends what was paid back to where it came from, less the fee.
  func refund(payer : Principal, payment : { e8s : Nat64; from : Blob }, reason : Text) : async* NotifyError {
    if (payment.e8s <= icpFee) return #Refunded { reason; block_index = null };
    try {
      let sent = await icpLedger.transfer({
        memo = 0;
        amount = { e8s = payment.e8s - icpFee };
        fee = { e8s = icpFee };
        from_subaccount = ?AccountId.subaccountOf(payer);
        to = payment.from;
        created_at_time = null;
      });
      switch sent {
        case (#Ok block) #Refunded { reason; block_index = ?block };
        case (#Err error) #Refunded { reason = reason # " The refund failed: " # debug_show error; block_index = null };
      }
    } catch (error) {
      #Refunded { reason = reason # " The refund failed: " # Error.message(error); block_index = null }
    }
  };

  // A notified payment, from its block to its outcome.
  func notify(
    block_index : Nat64,
    payer : Principal,
    memo : Nat64,
    spend : (cycles : Nat) -> async* { #ok : Outcome; #err : Text },
  ) : async* Outcome {
    switch (begin(block_index)) { case (?known) return known; case null {} };
    let outcome = switch (await* paid(block_index, payer, memo)) {
      case (#err error) #failed error;
      case (#ok payment) {
        let cycles = Nat64.toNat(payment.e8s) * Nat64.toNat(rate.xdr_permyriad_per_icp);
        let spent = switch (notHeld(cycles)) {
          case (?reason) #err reason;
          case null await* spend(cycles);
        };
        switch spent {
          case (#ok outcome) outcome;
          case (#err reason) #failed(await* refund(payer, payment, reason));
        }
      };
    };
    end(block_index, outcome);
    outcome
  };

  func error(outcome : Outcome) : NotifyError {
    switch outcome {
      case (#processing) #Processing;
      case (#failed error) error;
      case _ #InvalidTransaction("The transfer was told of before, for another purpose.");
    }
  };

  public shared ({ caller }) func notify_mint_cycles(arg : {
    block_index : Nat64;
    to_subaccount : ?Blob;
    deposit_memo : ?Blob;
  }) : async { #Ok : MintOk; #Err : NotifyError } {
    func spend(cycles : Nat) : async* { #ok : Outcome; #err : Text } {
      try {
        let to = { owner = caller; subaccount = arg.to_subaccount };
        let done = await (with cycles) cyclesLedger.deposit({ to; memo = arg.deposit_memo });
        #ok(#minted { done with minted = cycles })
      } catch (error) { #err(Error.message(error)) }
    };
    switch (await* notify(arg.block_index, caller, memoMint, spend)) {
      case (#minted done) #Ok done;
      case other #Err(error(other));
    }
  };

  // The cycles go to the canister that was paid for, whichever principal notifies.
  public shared func notify_top_up(arg : { block_index : Nat64; canister_id : Principal }) : async {
    #Ok : Nat;
    #Err : NotifyError;
  } {
    func spend(cycles : Nat) : async* { #ok : Outcome; #err : Text } {
      try {
        await (with cycles) Placement.management.deposit_cycles({ canister_id = arg.canister_id });
        #ok(#toppedUp cycles)
      } catch (error) { #err(Error.message(error)) }
    };
    switch (await* notify(arg.block_index, arg.canister_id, memoTopUp, spend)) {
      case (#toppedUp cycles) #Ok cycles;
      case other #Err(error(other));
    }
  };

  public shared ({ caller }) func notify_create_canister(arg : {
    block_index : Nat64;
    controller : Principal;
    subnet_selection : ?Types.SubnetSelection;
    subnet_type : ?Text;
    settings : ?Types.Settings;
  }) : async { #Ok : Principal; #Err : NotifyError } {
    if (arg.controller != caller) {
      return #Err(#Other { error_code = 3; error_message = "The controller must be the caller; settings may name others." });
    };
    func spend(cycles : Nat) : async* { #ok : Outcome; #err : Text } {
      switch (Placement.refused(Placement.selection(arg.subnet_selection, arg.subnet_type), subnet)) {
        case (?reason) return #err reason;
        case null {};
      };
      try {
        let settings = ?Placement.settings(arg.settings, caller);
        let made = await (with cycles) Placement.management.create_canister({ settings });
        #ok(#created(made.canister_id))
      } catch (error) { #err(Error.message(error)) }
    };
    switch (await* notify(arg.block_index, caller, memoCreate, spend)) {
      case (#created canister) #Ok canister;
      case other #Err(error(other));
    }
  };
};
