// Candid types that several of these canisters speak: ICRC-1 and ICRC-2 tokens, the ICP ledger's
// transfers, and what of the management canister is called.
module {
  public type Account = { owner : Principal; subaccount : ?Blob };

  public type TransferArg = {
    from_subaccount : ?Blob;
    to : Account;
    amount : Nat;
    fee : ?Nat;
    memo : ?Blob;
    created_at_time : ?Nat64;
  };

  // Refusals that every operation of a ledger may return.
  public type Refusal = {
    #BadFee : { expected_fee : Nat };
    #InsufficientFunds : { balance : Nat };
    #TooOld;
    #CreatedInFuture : { ledger_time : Nat64 };
    #Duplicate : { duplicate_of : Nat };
    #TemporarilyUnavailable;
    #GenericError : { error_code : Nat; message : Text };
  };
  public type TransferError = Refusal or { #BadBurn : { min_burn_amount : Nat } };
  public type TransferResult = { #Ok : Nat; #Err : TransferError };

  public type ApproveArg = {
    from_subaccount : ?Blob;
    spender : Account;
    amount : Nat;
    expected_allowance : ?Nat;
    expires_at : ?Nat64;
    fee : ?Nat;
    memo : ?Blob;
    created_at_time : ?Nat64;
  };
  public type ApproveError = Refusal or {
    #AllowanceChanged : { current_allowance : Nat };
    #Expired : { ledger_time : Nat64 };
  };
  public type ApproveResult = { #Ok : Nat; #Err : ApproveError };
  public type AllowanceArg = { account : Account; spender : Account };
  public type Allowance = { allowance : Nat; expires_at : ?Nat64 };

  public type TransferFromArg = {
    spender_subaccount : ?Blob;
    from : Account;
    to : Account;
    amount : Nat;
    fee : ?Nat;
    memo : ?Blob;
    created_at_time : ?Nat64;
  };
  public type TransferFromError = TransferError or {
    #InsufficientAllowance : { allowance : Nat };
  };
  public type TransferFromResult = { #Ok : Nat; #Err : TransferFromError };

  public type Value = { #Nat : Nat; #Int : Int; #Text : Text; #Blob : Blob };
  public type Standard = { name : Text; url : Text };

  // The ICP ledger's own interface.
  public type Tokens = { e8s : Nat64 };
  public type Timestamp = { timestamp_nanos : Nat64 };
  public type IcpTransferArg = {
    memo : Nat64;
    amount : Tokens;
    fee : Tokens;
    from_subaccount : ?Blob;
    to : Blob;
    created_at_time : ?Timestamp;
  };
  public type IcpTransferError = {
    #BadFee : { expected_fee : Tokens };
    #InsufficientFunds : { balance : Tokens };
    #TxTooOld : { allowed_window_nanos : Nat64 };
    #TxCreatedInFuture;
    #TxDuplicate : { duplicate_of : Nat64 };
  };
  public type IcpTransferResult = { #Ok : Nat64; #Err : IcpTransferError };
  public type Operation = {
    #Mint : { to : Blob; amount : Tokens };
    #Burn : { from : Blob; spender : ?Blob; amount : Tokens };
    #Transfer : { from : Blob; to : Blob; amount : Tokens; fee : Tokens; spender : ?Blob };
    #Approve : {
      from : Blob;
      spender : Blob;
      allowance_e8s : Int;
      allowance : Tokens;
      fee : Tokens;
      expires_at : ?Timestamp;
      expected_allowance : ?Tokens;
    };
  };
  public type Transaction = {
    memo : Nat64;
    icrc1_memo : ?Blob;
    operation : ?Operation;
    created_at_time : Timestamp;
  };
  public type Block = { parent_hash : ?Blob; transaction : Transaction; timestamp : Timestamp };
  public type GetBlocksArgs = { start : Nat64; length : Nat64 };
  public type QueryBlocksResponse = {
    chain_length : Nat64;
    certificate : ?Blob;
    blocks : [Block];
    first_block_index : Nat64;
    // There is no archive: never anything.
    archived_blocks : [{ start : Nat64; length : Nat64 }];
  };

  public type SubnetSelection = {
    #Filter : { subnet_type : ?Text };
    #Subnet : { subnet : Principal };
  };
  public type Visibility = { #controllers; #public_; #allowed_viewers : [Principal] };
  // All of the interface specification: a setting that is missing here would be dropped in silence.
  public type Settings = {
    controllers : ?[Principal];
    compute_allocation : ?Nat;
    memory_allocation : ?Nat;
    freezing_threshold : ?Nat;
    reserved_cycles_limit : ?Nat;
    minimum_incoming_canister_call_cycles : ?Nat;
    log_visibility : ?Visibility;
    log_memory_limit : ?Nat;
    snapshot_visibility : ?Visibility;
    status_visibility : ?Visibility;
    wasm_memory_limit : ?Nat;
    wasm_memory_threshold : ?Nat;
    environment_variables : ?[{ name : Text; value : Text }];
  };
  public type Management = actor {
    create_canister : { settings : ?Settings } -> async { canister_id : Principal };
    deposit_cycles : { canister_id : Principal } -> async ();
  };
};
