// The cycles ledger of a local network, at its well-known id: the accounts from which tools pay for
// canisters. Every principal begins with an opening balance, and what is paid out are cycles of this
// canister, which the network gives it when it is made.
import Blob "mo:core/Blob";
import Cycles "mo:core/Cycles";
import Error "mo:core/Error";
import Ledger "./Ledger";
import Nat "mo:core/Nat";
import Placement "./Placement";
import Principal "mo:core/Principal";
import Runtime "mo:core/Runtime";
import Types "./Types";

persistent actor class CyclesLedger(init : {
  opening_balance : Nat;
  subnet : Principal;
  accounts_max : ?Nat;
}) {
  type RejectionCode = {
    #NoError;
    #CanisterError;
    #SysTransient;
    #DestinationInvalid;
    #Unknown;
    #SysFatal;
    #CanisterReject;
  };
  type Failed = { code : RejectionCode; reason : Text; refund : Nat };
  type WithdrawArg = {
    amount : Nat;
    from_subaccount : ?Blob;
    to : Principal;
    created_at_time : ?Nat64;
  };
  type WithdrawError = Types.Refusal or {
    #FailedToWithdraw : {
      fee_block : ?Nat;
      rejection_code : RejectionCode;
      rejection_reason : Text;
    };
    #InvalidReceiver : { receiver : Principal };
  };
  type WithdrawFromArg = {
    spender_subaccount : ?Blob;
    from : Types.Account;
    to : Principal;
    amount : Nat;
    created_at_time : ?Nat64;
  };
  type FromError = { #InsufficientAllowance : { allowance : Nat } };
  type FailedFrom = {
    #FailedToWithdrawFrom : {
      withdraw_from_block : ?Nat;
      refund_block : ?Nat;
      approval_refund_block : ?Nat;
      rejection_code : RejectionCode;
      rejection_reason : Text;
    };
    #InvalidReceiver : { receiver : Principal };
  };
  type CreationArgs = { subnet_selection : ?Types.SubnetSelection; settings : ?Types.Settings };
  type CreateArg = {
    from_subaccount : ?Blob;
    created_at_time : ?Nat64;
    amount : Nat;
    creation_args : ?CreationArgs;
  };
  type CreateFromArg = {
    from : Types.Account;
    spender_subaccount : ?Blob;
    created_at_time : ?Nat64;
    amount : Nat;
    creation_args : ?CreationArgs;
  };
  type Created = { block_id : Nat; canister_id : Principal };
  // Without fees that differ: a creation names none.
  type CreateRefusal = {
    #InsufficientFunds : { balance : Nat };
    #TooOld;
    #CreatedInFuture : { ledger_time : Nat64 };
    #Duplicate : { duplicate_of : Nat; canister_id : ?Principal };
    #TemporarilyUnavailable;
    #GenericError : { error_code : Nat; message : Text };
  };
  type CreateError = CreateRefusal or {
    #FailedToCreate : { fee_block : ?Nat; refund_block : ?Nat; error : Text };
  };
  type CreateFromError = CreateRefusal or FromError or {
    #FailedToCreateFrom : {
      create_from_block : ?Nat;
      refund_block : ?Nat;
      approval_refund_block : ?Nat;
      rejection_code : RejectionCode;
      rejection_reason : Text;
    };
  };

  // 100 million cycles a block, as on the public network.
  transient let fee = 100_000_000;
  transient let rules = Ledger.rules(fee, init.opening_balance, init.accounts_max);
  transient let subnet = init.subnet;
  // Cycles that stay in this canister for its own operation.
  transient let reserve = 1_000_000_000_000;
  let books = Ledger.empty();

  public query func icrc1_name() : async Text { "Cycles (local network)" };
  public query func icrc1_symbol() : async Text { "TCYCLES" };
  public query func icrc1_decimals() : async Nat8 { 12 };
  public query func icrc1_fee() : async Nat { fee };
  public query func icrc1_metadata() : async [(Text, Types.Value)] {
    [
      ("icrc1:name", #Text "Cycles (local network)"),
      ("icrc1:symbol", #Text "TCYCLES"),
      ("icrc1:decimals", #Nat 12),
      ("icrc1:fee", #Nat fee),
    ]
  };
  public query func icrc1_minting_account() : async ?Types.Account { null };
  public query func icrc1_total_supply() : async Nat { books.supply };
  public query func icrc1_supported_standards() : async [Types.Standard] {
    [
      { name = "ICRC-1"; url = "https://github.com/dfinity/ICRC-1/tree/main/standards/ICRC-1" },
      { name = "ICRC-2"; url = "https://github.com/dfinity/ICRC-1/tree/main/standards/ICRC-2" },
    ]
  };
  public query func icrc1_balance_of(account : Types.Account) : async Nat {
    Ledger.balance(books, rules, account)
  };

  public shared ({ caller }) func icrc1_transfer(arg : Types.TransferArg) : async Types.TransferResult {
    switch (Ledger.transfer(books, rules, caller, arg)) {
      case (#ok block) #Ok block;
      case (#err refusal) #Err refusal;
    }
  };
  public shared ({ caller }) func icrc2_approve(arg : Types.ApproveArg) : async Types.ApproveResult {
    Ledger.approve(books, rules, caller, arg)
  };
  public query func icrc2_allowance(arg : Types.AllowanceArg) : async Types.Allowance {
    Ledger.allowance(books, arg)
  };
  public shared ({ caller }) func icrc2_transfer_from(arg : Types.TransferFromArg) : async Types.TransferFromResult {
    Ledger.transferFrom(books, rules, caller, arg)
  };

  // Takes the cycles that come with the call.
  public shared func deposit(arg : { to : Types.Account; memo : ?Blob }) : async {
    balance : Nat;
    block_index : Nat;
  } {
    Ledger.checkMemo(arg.memo);
    let available = Cycles.available();
    if (available < fee) {
      Runtime.trap("A deposit costs " # debug_show fee # " cycles, and " # debug_show available # " came with the call.")
    };
    let key = Ledger.key(arg.to);
    switch (Ledger.noRoomFor(books, rules, key)) {
      case (?#GenericError refused) Runtime.trap(refused.message);
      case _ {};
    };
    let accepted = Cycles.accept<system>(available);
    if (accepted < fee) {
      Runtime.trap("This ledger can take no more cycles: a canister holds at most 2^128 - 1.")
    };
    Ledger.credit(books, key, accepted - fee : Nat);
    {
      balance = Ledger.balance(books, rules, arg.to);
      block_index = Ledger.nextBlock(books);
    }
  };

  func notHeld(amount : Nat) : ?Types.Refusal {
    let held = Cycles.balance();
    if (held >= amount + reserve) return null;
    ?Ledger.refusal(
      "This ledger holds " # debug_show held # " cycles and keeps " # debug_show reserve # " of them, so that it cannot pay out " # debug_show amount # "."
    )
  };

  // Takes `amount` and a fee from `from`, before anything is paid: an error leaves the books as
  // they were.
  func take(from : Types.Account, amount : Nat, at : ?Nat64, what : Blob) : { #ok : Nat; #err : Types.Refusal } {
    switch (Ledger.seenBefore(books, at, what)) {
      case (?refusal) return #err refusal;
      case null {};
    };
    switch (notHeld(amount)) { case (?refusal) return #err refusal; case null {} };
    switch (Ledger.debit(books, rules, from, amount + fee)) {
      case (?refusal) return #err refusal;
      case null {};
    };
    let block = Ledger.nextBlock(books);
    Ledger.remember(books, at, what, block);
    #ok block
  };

  // There is room: an account that was emptied meanwhile comes again, so that there are more than
  // the limit by as many as there are payments on their way.
  func giveBack(to : Types.Account, amount : Nat) : Nat {
    Ledger.credit(books, Ledger.key(to), amount);
    Ledger.nextBlock(books)
  };

  func rejection(error : Error) : RejectionCode {
    switch (Error.code(error)) {
      case (#system_fatal) #SysFatal;
      case (#system_transient or #call_error _) #SysTransient;
      case (#destination_invalid) #DestinationInvalid;
      case (#canister_reject) #CanisterReject;
      case (#canister_error) #CanisterError;
      case _ #Unknown;
    }
  };

  // Pays `amount` into a canister; the fee stays taken when that fails.
  func pay(from : Types.Account, to : Principal, amount : Nat) : async* ?Failed {
    try {
      await (with cycles = amount) Placement.management.deposit_cycles({ canister_id = to });
      null
    } catch (error) {
      let refund = giveBack(from, amount);
      ?{ code = rejection(error); reason = Error.message(error); refund }
    }
  };

  public shared ({ caller }) func withdraw(arg : WithdrawArg) : async {
    #Ok : Nat;
    #Err : WithdrawError;
  } {
    if (not Principal.isCanister(arg.to)) return #Err(#InvalidReceiver { receiver = arg.to });
    let from = { owner = caller; subaccount = arg.from_subaccount };
    switch (take(from, arg.amount, arg.created_at_time, to_candid ("withdraw", caller, arg))) {
      case (#err refusal) #Err refusal;
      case (#ok block) {
        switch (await* pay(from, arg.to, arg.amount)) {
          case null #Ok block;
          case (?failed) #Err(#FailedToWithdraw {
            fee_block = ?block;
            rejection_code = failed.code;
            rejection_reason = failed.reason;
          });
        }
      };
    }
  };

  public shared ({ caller }) func withdraw_from(arg : WithdrawFromArg) : async {
    #Ok : Nat;
    #Err : Types.Refusal or FromError or FailedFrom;
  } {
    if (not Principal.isCanister(arg.to)) return #Err(#InvalidReceiver { receiver = arg.to });
    let spender = { owner = caller; subaccount = arg.spender_subaccount };
    switch (Ledger.allowanceRefused(books, rules, arg.from, spender, arg.amount)) {
      case (?allowance) return #Err(#InsufficientAllowance { allowance });
      case null {};
    };
    switch (take(arg.from, arg.amount, arg.created_at_time, to_candid ("withdraw_from", caller, arg))) {
      case (#err refusal) #Err refusal;
      case (#ok block) {
        Ledger.useAllowance(books, arg.from, spender, arg.amount + fee);
        switch (await* pay(arg.from, arg.to, arg.amount)) {
          case null #Ok block;
          case (?failed) #Err(#FailedToWithdrawFrom {
            withdraw_from_block = ?block;
            refund_block = ?failed.refund;
            approval_refund_block = null;
            rejection_code = failed.code;
            rejection_reason = failed.reason;
          });
        }
      };
    }
  };

  // Canisters that creations with a time of their own came to are not remembered, only that they
  // happened.
  func asCreateRefusal(refusal : Types.Refusal) : CreateRefusal {
    switch refusal {
      case (#Duplicate { duplicate_of }) #Duplicate { duplicate_of; canister_id = null };
      case (#BadFee _) #TemporarilyUnavailable;
      case (#InsufficientFunds it) #InsufficientFunds it;
      case (#TooOld) #TooOld;
      case (#CreatedInFuture it) #CreatedInFuture it;
      case (#TemporarilyUnavailable) #TemporarilyUnavailable;
      case (#GenericError it) #GenericError it;
    }
  };

  func make(from : Types.Account, payer : Principal, amount : Nat, args : ?CreationArgs) : async* {
    #ok : Principal;
    #err : Failed;
  } {
    let asked = switch args { case null null; case (?args) args.settings };
    try {
      let settings = ?Placement.settings(asked, payer);
      let made = await (with cycles = amount) Placement.management.create_canister({ settings });
      #ok(made.canister_id)
    } catch (error) {
      let refund = giveBack(from, amount);
      #err { code = rejection(error); reason = Error.message(error); refund }
    }
  };

  func elsewhere(args : ?CreationArgs) : ?CreateRefusal {
    let ?{ subnet_selection } = args else return null;
    let ?message = Placement.refused(subnet_selection, subnet) else return null;
    ?#GenericError { error_code = 2; message }
  };

  public shared ({ caller }) func create_canister(arg : CreateArg) : async {
    #Ok : Created;
    #Err : CreateError;
  } {
    switch (elsewhere(arg.creation_args)) { case (?refusal) return #Err refusal; case null {} };
    let from = { owner = caller; subaccount = arg.from_subaccount };
    switch (take(from, arg.amount, arg.created_at_time, to_candid ("create_canister", caller, arg))) {
      case (#err refusal) #Err(asCreateRefusal(refusal));
      case (#ok block_id) {
        switch (await* make(from, caller, arg.amount, arg.creation_args)) {
          case (#ok canister_id) #Ok { block_id; canister_id };
          case (#err failed) #Err(#FailedToCreate {
            fee_block = ?block_id;
            refund_block = ?failed.refund;
            error = failed.reason;
          });
        }
      };
    }
  };

  public shared ({ caller }) func create_canister_from(arg : CreateFromArg) : async {
    #Ok : Created;
    #Err : CreateFromError;
  } {
    switch (elsewhere(arg.creation_args)) { case (?refusal) return #Err refusal; case null {} };
    let spender = { owner = caller; subaccount = arg.spender_subaccount };
    switch (Ledger.allowanceRefused(books, rules, arg.from, spender, arg.amount)) {
      case (?allowance) return #Err(#InsufficientAllowance { allowance });
      case null {};
    };
    switch (take(arg.from, arg.amount, arg.created_at_time, to_candid ("create_canister_from", caller, arg))) {
      case (#err refusal) #Err(asCreateRefusal(refusal));
      case (#ok block_id) {
        Ledger.useAllowance(books, arg.from, spender, arg.amount + fee);
        switch (await* make(arg.from, caller, arg.amount, arg.creation_args)) {
          case (#ok canister_id) #Ok { block_id; canister_id };
          case (#err failed) #Err(#FailedToCreateFrom {
            create_from_block = ?block_id;
            refund_block = ?failed.refund;
            approval_refund_block = null;
            rejection_code = failed.code;
            rejection_reason = failed.reason;
          });
        }
      };
    }
  };
};
