// The ICP ledger of a local network, at its well-known id: its own interface, by account
// identifiers, and ICRC-1 and ICRC-2. Every principal begins with an opening balance in its default
// account. An account identifier does not say whose account it is: asked by identifier, an account
// that was never paid from has what was paid into it.
//
// The last blocks are kept, for the cycles minting canister to see what it was paid; they have no
// hashes, and nothing is archived or certified.
import AccountId "./AccountId";
import Blob "mo:core/Blob";
import Ledger "./Ledger";
import List "mo:core/List";
import Map "mo:core/Map";
import Nat "mo:core/Nat";
import Nat64 "mo:core/Nat64";
import Runtime "mo:core/Runtime";
import Types "./Types";

persistent actor class IcpLedger(init : { opening_balance : Nat64; accounts_max : ?Nat }) {
  transient let fee = 10_000;
  transient let fee_e8s : Nat64 = 10_000;
  transient let rules = Ledger.rules(fee, Nat64.toNat(init.opening_balance), init.accounts_max);
  transient let blocksMax = 10_000;
  transient let blocksPerCall = 2_000;
  transient let dayNanos : Nat64 = 86_400_000_000_000;
  let books = Ledger.empty();
  let blocks = Map.empty<Nat, Types.Block>();

  func tokens(amount : Nat) : Types.Tokens {
    { e8s = Nat64.fromNat(Nat.min(amount, 0xffff_ffff_ffff_ffff)) }
  };

  // Keeps a block under the number that the books gave it.
  func keep(index : Nat, memo : Nat64, icrc1_memo : ?Blob, operation : Types.Operation, created : ?Nat64) {
    let time = Ledger.now();
    let created_at_time = switch created { case null time; case (?created) created };
    let transaction = {
      memo;
      icrc1_memo;
      operation = ?operation;
      created_at_time = { timestamp_nanos = created_at_time };
    };
    Map.add(blocks, Nat.compare, index, { parent_hash = null; transaction; timestamp = { timestamp_nanos = time } });
    if (index >= blocksMax) Map.remove(blocks, Nat.compare, index - blocksMax : Nat);
  };

  func transferred(from : Types.Account, to : Blob, amount : Nat, spender : ?Blob) : Types.Operation {
    #Transfer {
      from = AccountId.ofAccount(from);
      to;
      amount = tokens(amount);
      fee = { e8s = fee_e8s };
      spender;
    }
  };

  public query func icrc1_name() : async Text { "ICP (local network)" };
  public query func icrc1_symbol() : async Text { "ICP" };
  public query func icrc1_decimals() : async Nat8 { 8 };
  public query func icrc1_fee() : async Nat { fee };
  public query func icrc1_metadata() : async [(Text, Types.Value)] {
    [
      ("icrc1:name", #Text "ICP (local network)"),
      ("icrc1:symbol", #Text "ICP"),
      ("icrc1:decimals", #Nat 8),
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
      case (#ok block) {
        let from = { owner = caller; subaccount = arg.from_subaccount };
        let operation = transferred(from, AccountId.ofAccount(arg.to), arg.amount, null);
        keep(block, 0, arg.memo, operation, arg.created_at_time);
        #Ok block
      };
      case (#err refusal) #Err refusal;
    }
  };
  public shared ({ caller }) func icrc2_approve(arg : Types.ApproveArg) : async Types.ApproveResult {
    let result = Ledger.approve(books, rules, caller, arg);
    let #Ok block = result else return result;
    let from = { owner = caller; subaccount = arg.from_subaccount };
    let expires_at = switch (arg.expires_at) {
      case null null;
      case (?at) ?{ timestamp_nanos = at };
    };
    let expected_allowance = switch (arg.expected_allowance) {
      case null null;
      case (?amount) ?tokens(amount);
    };
    let operation = #Approve {
      from = AccountId.ofAccount(from);
      spender = AccountId.ofAccount(arg.spender);
      allowance_e8s = arg.amount;
      allowance = tokens(arg.amount);
      fee = { e8s = fee_e8s };
      expires_at;
      expected_allowance;
    };
    keep(block, 0, arg.memo, operation, arg.created_at_time);
    result
  };
  public query func icrc2_allowance(arg : Types.AllowanceArg) : async Types.Allowance {
    Ledger.allowance(books, arg)
  };
  public shared ({ caller }) func icrc2_transfer_from(arg : Types.TransferFromArg) : async Types.TransferFromResult {
    let result = Ledger.transferFrom(books, rules, caller, arg);
    let #Ok block = result else return result;
    let spender = AccountId.ofAccount({ owner = caller; subaccount = arg.spender_subaccount });
    let operation = transferred(arg.from, AccountId.ofAccount(arg.to), arg.amount, ?spender);
    keep(block, 0, arg.memo, operation, arg.created_at_time);
    result
  };

  public query func name() : async { name : Text } { { name = "ICP (local network)" } };
  public query func symbol() : async { symbol : Text } { { symbol = "ICP" } };
  public query func decimals() : async { decimals : Nat32 } { { decimals = 8 } };
  public query func transfer_fee(_ : {}) : async { transfer_fee : Types.Tokens } {
    { transfer_fee = { e8s = fee_e8s } }
  };
  public query func account_identifier(account : Types.Account) : async Blob {
    AccountId.ofAccount(account)
  };
  public query func account_balance(arg : { account : Blob }) : async Types.Tokens {
    AccountId.check(arg.account);
    tokens(Ledger.recorded(books, arg.account))
  };

  public shared ({ caller }) func transfer(arg : Types.IcpTransferArg) : async Types.IcpTransferResult {
    AccountId.check(arg.to);
    if (arg.fee.e8s != fee_e8s) return #Err(#BadFee { expected_fee = { e8s = fee_e8s } });
    let what = to_candid ("transfer", caller, arg);
    let created = switch (arg.created_at_time) {
      case null null;
      case (?time) ?time.timestamp_nanos;
    };
    let from = { owner = caller; subaccount = arg.from_subaccount };
    let amount = Nat64.toNat(arg.amount.e8s);
    let refusal = switch (Ledger.seenBefore(books, created, what)) {
      case null Ledger.move(books, rules, from, arg.to, amount);
      case seen seen;
    };
    switch refusal {
      case null {
        let block = Ledger.nextBlock(books);
        Ledger.remember(books, created, what, block);
        keep(block, arg.memo, null, transferred(from, arg.to, amount, null), created);
        #Ok(Nat64.fromNat(block))
      };
      case (?#InsufficientFunds { balance }) #Err(#InsufficientFunds { balance = tokens(balance) });
      case (?#TooOld) #Err(#TxTooOld { allowed_window_nanos = dayNanos });
      case (?#CreatedInFuture _) #Err(#TxCreatedInFuture);
      case (?#Duplicate { duplicate_of }) #Err(#TxDuplicate { duplicate_of = Nat64.fromNat(duplicate_of) });
      // This interface has no error for a ledger that is full.
      case (?#GenericError { message }) Runtime.trap(message);
      case (?_) Runtime.trap("The transfer is not possible now.");
    }
  };

  public query func query_blocks(arg : Types.GetBlocksArgs) : async Types.QueryBlocksResponse {
    let length = books.blocks;
    let oldest = if (length > blocksMax) length - blocksMax : Nat else 0;
    let first = Nat.max(Nat64.toNat(arg.start), oldest);
    let asked = Nat64.toNat(arg.start) + Nat.min(Nat64.toNat(arg.length), blocksPerCall);
    let found = List.empty<Types.Block>();
    var index = first;
    while (index < Nat.min(asked, length)) {
      switch (Map.get(blocks, Nat.compare, index)) {
        case (?block) List.add(found, block);
        case null {};
      };
      index += 1;
    };
    {
      chain_length = Nat64.fromNat(length);
      certificate = null;
      blocks = List.toArray(found);
      first_block_index = Nat64.fromNat(first);
      archived_blocks = [];
    }
  };
};
