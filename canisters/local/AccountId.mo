// Accounts as the ICP ledger names them: CRC-32, then SHA-224 of owner and subaccount.
import Array "mo:core/Array";
import Blob "mo:core/Blob";
import Nat8 "mo:core/Nat8";
import Nat32 "mo:core/Nat32";
import Principal "mo:core/Principal";
import Runtime "mo:core/Runtime";
import Types "./Types";

module {
  public let zero : Blob = "\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00";

  // The subaccount's 32 bytes, zeros where none is named.
  public func subaccount(of : ?Blob) : Blob {
    switch of {
      case null zero;
      case (?bytes) {
        if (bytes.size() != 32) {
          Runtime.trap("A subaccount has 32 bytes, and one of " # debug_show bytes.size() # " came.")
        };
        bytes
      };
    }
  };

  public func ofAccount(account : Types.Account) : Blob {
    Principal.toLedgerAccount(account.owner, ?subaccount(account.subaccount))
  };

  // The subaccount of the cycles minting canister into which `payer` pays.
  public func subaccountOf(payer : Principal) : Blob {
    let bytes = Blob.toArray(Principal.toBlob(payer));
    let size = bytes.size();
    Blob.fromArray(Array.tabulate<Nat8>(
      32,
      func at {
        if (at == 0) Nat8.fromNat(size) else if (at <= size) bytes[at - 1 : Nat] else 0
      },
    ))
  };

  public func check(identifier : Blob) {
    let bytes = Blob.toArray(identifier);
    if (bytes.size() != 32) {
      Runtime.trap("An account identifier has 32 bytes, and one of " # debug_show bytes.size() # " came.")
    };
    if (Array.sliceToArray(bytes, 0, 4) != checksum(Array.sliceToArray(bytes, 4, 32))) {
      Runtime.trap("The account identifier's checksum is wrong.")
    };
  };

  // CRC-32 (ISO 3309), most significant byte first.
  func checksum(bytes : [Nat8]) : [Nat8] {
    var crc : Nat32 = 0xffffffff;
    for (byte in bytes.vals()) {
      crc ^= Nat32.fromNat(Nat8.toNat(byte));
      var bit = 0;
      while (bit < 8) {
        crc := if (crc & 1 == 1) (crc >> 1) ^ 0xedb88320 else crc >> 1;
        bit += 1;
      };
    };
    crc := ^crc;
    Array.tabulate<Nat8>(4, func at {
      Nat8.fromNat(Nat32.toNat(crc >> Nat32.fromNat(24 - at * 8 : Nat) & 0xff))
    })
  };
};
