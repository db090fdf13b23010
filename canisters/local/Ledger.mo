// The books of a ledger: balances, allowances, and known transactions. The value of a unit, and its
// origin, are defined by the canister that keeps the books.
//
// Every principal begins with an opening balance in its default account. It is written down when
// the account is first debited, so that only used accounts take room: an account is
// its amount, and whether the opening balance is in it.
//
// Bounds: numbers of accounts, allowances and remembered transactions. A request over a bound is
// refused with a text that names the bound, before anything is changed.
import AccountId "./AccountId";
import Map "mo:core/Map";
import Blob "mo:core/Blob";
import Int "mo:core/Int";
import Nat "mo:core/Nat";
import Nat64 "mo:core/Nat64";
import Queue "mo:core/Queue";
import Runtime "mo:core/Runtime";
import Sha256 "./Sha256";
import Time "mo:core/Time";
import Types "./Types";

module {
  let allowancesMax = 10_000;
  // Transactions with a time of their own, which are taken once within a day.
  let seenMax = 10_000;
  let memoMax = 32;
  // Allowances beyond this are this.
  let allowanceMax : Nat = 0xffff_ffff_ffff_ffff_ffff_ffff_ffff_ffff;
  let window : Nat64 = 86_400_000_000_000;
  let drift : Nat64 = 120_000_000_000;

  type Entry = { var amount : Nat; var opened : Bool };
  type Seen = { key : Blob; until : Nat64 };
  public type Books = {
    entries : Map.Map<Blob, Entry>;
    allowances : Map.Map<Blob, Types.Allowance>;
    seen : Map.Map<Blob, Nat>;
    seenInTurn : Queue.Queue<Seen>;
    var supply : Nat;
    // Transactions so far: the index of the next.
    var blocks : Nat;
  };
  public type Rules = { fee : Nat; opening : Nat; accountsMax : Nat };

  public func rules(fee : Nat, opening : Nat, accountsMax : ?Nat) : Rules {
    let most = switch accountsMax { case null 50_000; case (?most) most };
    { fee; opening; accountsMax = most }
  };

  public func empty() : Books {
    {
      entries = Map.empty<Blob, Entry>();
      allowances = Map.empty<Blob, Types.Allowance>();
      seen = Map.empty<Blob, Nat>();
      seenInTurn = Queue.empty<Seen>();
      var supply = 0;
      var blocks = 0;
    }
  };

  public func now() : Nat64 { Nat64.fromNat(Int.abs(Time.now())) };

  // Under this key an account is kept.
  public func key(account : Types.Account) : Blob { AccountId.ofAccount(account) };

  public func balance(books : Books, rules : Rules, account : Types.Account) : Nat {
    let opens = AccountId.subaccount(account.subaccount) == AccountId.zero;
    switch (Map.get(books.entries, Blob.compare, key(account))) {
      case null if (opens) rules.opening else 0;
      case (?entry) if (opens and not entry.opened) entry.amount + rules.opening else entry.amount;
    }
  };

  // The recorded amount of the account, independent of its owner.
  public func recorded(books : Books, key : Blob) : Nat {
    switch (Map.get(books.entries, Blob.compare, key)) { case null 0; case (?entry) entry.amount }
  };

  public func nextBlock(books : Books) : Nat {
    let index = books.blocks;
    books.blocks += 1;
    index
  };

  // Takes `amount` off. Nothing happens when it is not there.
  public func debit(books : Books, rules : Rules, account : Types.Account, amount : Nat) : ?Types.Refusal {
    let available = balance(books, rules, account);
    if (available < amount) return ?#InsufficientFunds { balance = available };
    let id = key(account);
    switch (noRoomFor(books, rules, id)) { case (?refusal) return ?refusal; case null {} };
    let entry = entryOf(books, id);
    if (not entry.opened and AccountId.subaccount(account.subaccount) == AccountId.zero) {
      entry.opened := true;
      entry.amount += rules.opening;
      books.supply += rules.opening;
    };
    entry.amount -= amount;
    books.supply -= amount;
    forgetEmpty(books, id, entry);
    null
  };

  // Adds `amount` to an account for which there is room.
  public func credit(books : Books, key : Blob, amount : Nat) {
    let entry = entryOf(books, key);
    entry.amount += amount;
    books.supply += amount;
    forgetEmpty(books, key, entry);
  };

  public func noRoomFor(books : Books, rules : Rules, key : Blob) : ?Types.Refusal {
    if (Map.containsKey(books.entries, Blob.compare, key)) return null;
    if (Map.size(books.entries) < rules.accountsMax) return null;
    ?refusal("This ledger keeps at most " # debug_show rules.accountsMax # " accounts, and it has them.")
  };

  func entryOf(books : Books, key : Blob) : Entry {
    switch (Map.get(books.entries, Blob.compare, key)) {
      case (?entry) entry;
      case null {
        let entry : Entry = { var amount = 0; var opened = false };
        Map.add(books.entries, Blob.compare, key, entry);
        entry
      };
    }
  };

  func forgetEmpty(books : Books, key : Blob, entry : Entry) {
    if (entry.amount == 0 and not entry.opened) Map.remove(books.entries, Blob.compare, key);
  };

  public func refusal(message : Text) : Types.Refusal { #GenericError { error_code = 1; message } };

  public func checkMemo(memo : ?Blob) {
    let size = switch memo { case null 0; case (?memo) memo.size() };
    if (size > memoMax) {
      Runtime.trap("A memo has at most " # debug_show memoMax # " bytes, and one of " # debug_show size # " came.")
    };
  };

  // Why a transaction with this time is not taken now; `what` is all that makes it what it is.
  public func seenBefore(books : Books, at : ?Nat64, what : Blob) : ?Types.Refusal {
    let ?created = at else return null;
    let time = now();
    forgetOld(books, time);
    // In numbers without a bound: times come from outside.
    if (Nat64.toNat(created) + Nat64.toNat(window + drift) < Nat64.toNat(time)) return ?#TooOld;
    if (Nat64.toNat(created) > Nat64.toNat(time + drift)) {
      return ?#CreatedInFuture { ledger_time = time };
    };
    switch (Map.get(books.seen, Blob.compare, Sha256.sha256(what))) {
      case (?block) return ?#Duplicate { duplicate_of = block };
      case null {};
    };
    if (Queue.size(books.seenInTurn) < seenMax) return null;
    ?refusal(
      "This ledger remembers at most " # debug_show seenMax # " transactions of a day that have a time of their own; send it without created_at_time."
    )
  };

  // Remembers what `seenBefore` let pass.
  public func remember(books : Books, at : ?Nat64, what : Blob, block : Nat) {
    if (at == null) return;
    let key = Sha256.sha256(what);
    Map.add(books.seen, Blob.compare, key, block);
    // Not before the time of the one before it: all of the same length, from the moment they came.
    Queue.pushBack(books.seenInTurn, { key; until = now() + window + drift + drift });
  };

  func forgetOld(books : Books, time : Nat64) {
    loop {
      let ?oldest = Queue.peekFront(books.seenInTurn) else return;
      if (oldest.until > time) return;
      ignore Queue.popFront(books.seenInTurn);
      Map.remove(books.seen, Blob.compare, oldest.key);
    };
  };

  func feeRefused(rules : Rules, fee : ?Nat) : ?Types.Refusal {
    switch fee {
      case (?fee) if (fee == rules.fee) null else ?#BadFee { expected_fee = rules.fee };
      case null null;
    }
  };

  // Moves `amount`; the fee is burnt.
  public func move(books : Books, rules : Rules, from : Types.Account, to : Blob, amount : Nat) : ?Types.Refusal {
    switch (noRoomFor(books, rules, to)) { case (?refusal) return ?refusal; case null {} };
    switch (debit(books, rules, from, amount + rules.fee)) {
      case (?refusal) return ?refusal;
      case null {};
    };
    // Debiting may have taken the last room.
    switch (noRoomFor(books, rules, to)) {
      case null credit(books, to, amount);
      case (?refusal) {
        credit(books, key(from), amount + rules.fee);
        return ?refusal;
      };
    };
    null
  };

  public func transfer(books : Books, rules : Rules, caller : Principal, arg : Types.TransferArg) : { #ok : Nat; #err : Types.Refusal } {
    checkMemo(arg.memo);
    let what = to_candid ("icrc1_transfer", caller, arg);
    let from = { owner = caller; subaccount = arg.from_subaccount };
    switch (feeRefused(rules, arg.fee)) { case (?refusal) return #err refusal; case null {} };
    switch (seenBefore(books, arg.created_at_time, what)) {
      case (?refusal) return #err refusal;
      case null {};
    };
    switch (move(books, rules, from, key(arg.to), arg.amount)) {
      case (?refusal) return #err refusal;
      case null {};
    };
    let block = nextBlock(books);
    remember(books, arg.created_at_time, what, block);
    #ok block
  };

  func allowanceKey(account : Types.Account, spender : Types.Account) : Blob {
    to_candid (key(account), key(spender))
  };

  public func allowance(books : Books, arg : Types.AllowanceArg) : Types.Allowance {
    let nothing : Types.Allowance = { allowance = 0; expires_at = null };
    switch (Map.get(books.allowances, Blob.compare, allowanceKey(arg.account, arg.spender))) {
      case null nothing;
      case (?found) if (expired(found, now())) nothing else found;
    }
  };

  func expired(allowance : Types.Allowance, time : Nat64) : Bool {
    switch (allowance.expires_at) { case (?at) at <= time; case null false }
  };

  public func approve(books : Books, rules : Rules, caller : Principal, arg : Types.ApproveArg) : Types.ApproveResult {
    checkMemo(arg.memo);
    let what = to_candid ("icrc2_approve", caller, arg);
    let account = { owner = caller; subaccount = arg.from_subaccount };
    if (arg.spender.owner == caller) Runtime.trap("Nobody needs an allowance on an account of their own.");
    switch (feeRefused(rules, arg.fee)) { case (?refusal) return #Err refusal; case null {} };
    let time = now();
    if (expired({ allowance = 0; expires_at = arg.expires_at }, time)) {
      return #Err(#Expired { ledger_time = time });
    };
    switch (seenBefore(books, arg.created_at_time, what)) {
      case (?refusal) return #Err refusal;
      case null {};
    };
    let current = allowance(books, { account; spender = arg.spender }).allowance;
    switch (arg.expected_allowance) {
      case (?expected) if (expected != current) {
        return #Err(#AllowanceChanged { current_allowance = current });
      };
      case null {};
    };
    let id = allowanceKey(account, arg.spender);
    switch (noRoomForAllowance(books, id, time)) {
      case (?refusal) return #Err refusal;
      case null {};
    };
    switch (debit(books, rules, account, rules.fee)) {
      case (?refusal) return #Err refusal;
      case null {};
    };
    setAllowance(books, id, { allowance = Nat.min(arg.amount, allowanceMax); expires_at = arg.expires_at });
    let block = nextBlock(books);
    remember(books, arg.created_at_time, what, block);
    #Ok block
  };

  func noRoomForAllowance(books : Books, key : Blob, time : Nat64) : ?Types.Refusal {
    func full() : Bool {
      not Map.containsKey(books.allowances, Blob.compare, key) and Map.size(books.allowances) >= allowancesMax
    };
    if (full()) {
      let old = Map.filter<Blob, Types.Allowance>(books.allowances, Blob.compare, func(_, found) { expired(found, time) });
      for (key in Map.keys(old)) { Map.remove(books.allowances, Blob.compare, key) };
    };
    if (not full()) return null;
    ?refusal("This ledger keeps at most " # debug_show allowancesMax # " allowances, and it has them.")
  };

  func setAllowance(books : Books, key : Blob, allowance : Types.Allowance) {
    if (allowance.allowance == 0) {
      Map.remove(books.allowances, Blob.compare, key);
    } else {
      Map.add(books.allowances, Blob.compare, key, allowance);
    };
  };

  // Why `spender` may not take `amount` and the fee from `account`.
  public func allowanceRefused(books : Books, rules : Rules, account : Types.Account, spender : Types.Account, amount : Nat) : ?Nat {
    if (key(account) == key(spender)) return null;
    let available = allowance(books, { account; spender }).allowance;
    if (available < amount + rules.fee) ?available else null
  };

  // Takes off an allowance that `allowanceRefused` found to be enough.
  public func useAllowance(books : Books, account : Types.Account, spender : Types.Account, amount : Nat) {
    if (key(account) == key(spender)) return;
    let found = allowance(books, { account; spender });
    setAllowance(books, allowanceKey(account, spender), { found with allowance = found.allowance - amount : Nat });
  };

  public func transferFrom(books : Books, rules : Rules, caller : Principal, arg : Types.TransferFromArg) : Types.TransferFromResult {
    checkMemo(arg.memo);
    let what = to_candid ("icrc2_transfer_from", caller, arg);
    let spender = { owner = caller; subaccount = arg.spender_subaccount };
    switch (feeRefused(rules, arg.fee)) { case (?refusal) return #Err refusal; case null {} };
    switch (seenBefore(books, arg.created_at_time, what)) {
      case (?refusal) return #Err refusal;
      case null {};
    };
    switch (allowanceRefused(books, rules, arg.from, spender, arg.amount)) {
      case (?allowance) return #Err(#InsufficientAllowance { allowance });
      case null {};
    };
    switch (move(books, rules, arg.from, key(arg.to), arg.amount)) {
      case (?refusal) return #Err refusal;
      case null {};
    };
    useAllowance(books, arg.from, spender, arg.amount + rules.fee);
    let block = nextBlock(books);
    remember(books, arg.created_at_time, what, block);
    #Ok block
  };
};
