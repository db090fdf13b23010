// SHA-256 (FIPS 180-4), which the library that comes with the compiler does not offer. For short
// messages: it takes one at once.
import Array "mo:core/Array";
import Blob "mo:core/Blob";
import Nat "mo:core/Nat";
import Nat8 "mo:core/Nat8";
import Nat32 "mo:core/Nat32";
import Nat64 "mo:core/Nat64";
import VarArray "mo:core/VarArray";

module {
  let rounds : [Nat32] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
  ];
  let start : [Nat32] = [
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
  ];

  public func sha256(message : Blob) : Blob {
    let bytes = padded(message);
    let hash = Array.toVarArray<Nat32>(start);
    var at = 0;
    while (at < bytes.size()) {
      compress(hash, bytes, at);
      at += 64;
    };
    Blob.fromArray(Array.tabulate<Nat8>(32, func at { byte(hash[at / 4], at % 4) }))
  };

  // The bit 1, zeros, and the length in bits as 64 bits, up to a whole number of blocks.
  func padded(message : Blob) : [Nat8] {
    let content = Blob.toArray(message);
    let size = content.size();
    let total = (size + 9 + 63) / 64 * 64;
    let bits = Nat64.fromNat(size * 8);
    Array.tabulate<Nat8>(
      total,
      func at {
        if (at < size) content[at] else if (at == size) 0x80 else if (at + 8 < total) 0 else {
          let shift = Nat64.fromNat((total - 1 - at : Nat) * 8);
          Nat8.fromNat(Nat64.toNat(bits >> shift & 0xff))
        }
      },
    )
  };

  func compress(hash : [var Nat32], bytes : [Nat8], from : Nat) {
    let words = VarArray.repeat<Nat32>(0, 64);
    for (at in Nat.range(0, 16)) { words[at] := word(bytes, from + at * 4) };
    for (at in Nat.range(16, 64)) {
      let before = words[at - 15 : Nat];
      let last = words[at - 2 : Nat];
      let small0 = (before <>> 7) ^ (before <>> 18) ^ (before >> 3);
      let small1 = (last <>> 17) ^ (last <>> 19) ^ (last >> 10);
      words[at] := words[at - 16 : Nat] +% small0 +% words[at - 7 : Nat] +% small1;
    };
    var a = hash[0]; var b = hash[1]; var c = hash[2]; var d = hash[3];
    var e = hash[4]; var f = hash[5]; var g = hash[6]; var h = hash[7];
    for (at in Nat.range(0, 64)) {
      let large1 = (e <>> 6) ^ (e <>> 11) ^ (e <>> 25);
      let choice = (e & f) ^ ((^e) & g);
      let first = h +% large1 +% choice +% rounds[at] +% words[at];
      let large0 = (a <>> 2) ^ (a <>> 13) ^ (a <>> 22);
      let majority = (a & b) ^ (a & c) ^ (b & c);
      h := g; g := f; f := e; e := d +% first;
      d := c; c := b; b := a; a := first +% large0 +% majority;
    };
    hash[0] +%= a; hash[1] +%= b; hash[2] +%= c; hash[3] +%= d;
    hash[4] +%= e; hash[5] +%= f; hash[6] +%= g; hash[7] +%= h;
  };

  func word(bytes : [Nat8], at : Nat) : Nat32 {
    func part(offset : Nat) : Nat32 { Nat32.fromNat(Nat8.toNat(bytes[at + offset])) };
    part(0) << 24 | part(1) << 16 | part(2) << 8 | part(3)
  };

  func byte(word : Nat32, place : Nat) : Nat8 {
    Nat8.fromNat(Nat32.toNat(word >> Nat32.fromNat(24 - place * 8 : Nat) & 0xff))
  };
};
