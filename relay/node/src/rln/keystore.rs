//! The operator's membership, from the keystore file of the reference implementation.
//!
//! A JSON object with `credentials`, each encrypted with one password as in Web3 Secret Storage:
//! PBKDF2 with HMAC-SHA-256 makes 32 bytes; the first half decrypts (AES-128 in counter mode), the
//! second half authenticates (Keccak-256 of it and the ciphertext). Decrypted, a credential is JSON
//! with the contract, the index in the tree, the messages per epoch, and the identity.
//!
//! Only what is public is kept: proofs are not made here. Making one needs the whole circuit and
//! its proving key, 5 MiB of memory and a third of a second.
//!
//! Bounds: [`ENTRIES_MAX`] credentials, [`ITERATIONS_MAX`] rounds for each, a file of 1 MiB.
//! Source: logos-delivery, `waku_keystore` (August 2026).

use std::{collections::BTreeMap, num::NonZeroU32, path::Path};

use aes::cipher::{KeyIvInit, StreamCipher};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sha3::{Digest, Keccak256};
use zeroize::Zeroizing;

use super::contract::{Contract, parse_address};

const APPLICATION: &str = "waku-rln-relay";
const VERSION: &str = "0.2";
const ENTRIES_MAX: usize = 16;
/// The reference takes a tenth of it.
const ITERATIONS_MAX: u32 = 10_000_000;

/// What is public of a membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Membership {
    pub(crate) chain_id: u64,
    /// Address of the contract, `0x` and 40 hexadecimal digits.
    pub(crate) contract: String,
    pub(crate) tree_index: u64,
    /// Messages that it may send in an epoch.
    pub(crate) messages_per_epoch: u64,
    /// Commitment to the identity, a number in hexadecimal digits.
    pub(crate) commitment: String,
}

#[derive(Deserialize)]
struct Keystore {
    application: String,
    version: String,
    credentials: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    crypto: Crypto,
}

#[derive(Deserialize)]
struct Crypto {
    cipher: String,
    cipherparams: CipherParameters,
    ciphertext: String,
    kdf: String,
    kdfparams: KdfParameters,
    mac: String,
}

#[derive(Deserialize)]
struct CipherParameters {
    iv: String,
}

/// Those of PBKDF2; other functions have others.
#[derive(Deserialize)]
struct KdfParameters {
    dklen: u32,
    salt: String,
    c: Option<u32>,
    prf: Option<String>,
}

/// A decrypted credential. Its secret parts are not read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Credential {
    membership_contract: CredentialContract,
    tree_index: u64,
    identity_credential: Identity,
    user_message_limit: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CredentialContract {
    chain_id: String,
    address: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    /// Little-endian.
    id_commitment: [u8; 32],
}

/// The memberships in a keystore. Takes a second or so for each.
///
/// Errors: the file is not a keystore, or too large; a credential is damaged, or the password is
/// not its own.
pub(crate) fn read(keystore: &Path, password_file: &Path) -> Result<Vec<Membership>> {
    read_of(keystore, password_file, None)
}

fn read_of(
    keystore: &Path,
    password_file: &Path,
    contract: Option<Contract>,
) -> Result<Vec<Membership>> {
    let text = setup::read_text(keystore)?;
    let password = Zeroizing::new(setup::read_text(password_file)?);
    let password = password.trim_end_matches(['\r', '\n']);
    decode(&text, password, contract).with_context(|| format!("in {}", keystore.display()))
}

/// The one membership of a contract.
///
/// Errors: as [`read`]; there is none, or more than one.
pub(crate) fn read_one(
    keystore: &Path,
    password_file: &Path,
    contract: Contract,
) -> Result<Membership> {
    let mut found = read_of(keystore, password_file, Some(contract))?;
    match found.len() {
        0 => bail!("{} has no membership in {contract}", keystore.display()),
        1 => Ok(found.swap_remove(0)),
        count => bail!(
            "{} has {count} memberships in {contract}: use a keystore with one",
            keystore.display()
        ),
    }
}

fn decode(text: &str, password: &str, contract: Option<Contract>) -> Result<Vec<Membership>> {
    let keystore: Keystore = serde_json::from_str(text).context("it is not a keystore")?;
    let Keystore { application, version, credentials } = keystore;
    ensure!(
        application == APPLICATION && version == VERSION,
        "it is of {application} {version}, and not of {APPLICATION} {VERSION}"
    );
    let count = credentials.len();
    ensure!(count <= ENTRIES_MAX, "it has {count} credentials, at most {ENTRIES_MAX} are read");
    let mut found = Vec::new();
    for (name, entry) in &credentials {
        let read = || membership(&decrypt(&entry.crypto, password)?);
        let (membership, of) = read().with_context(|| format!("credential {name:.16}"))?;
        if contract.is_none_or(|contract| contract == of) {
            found.push(membership);
        }
    }
    Ok(found)
}

fn membership(plain: &[u8]) -> Result<(Membership, Contract)> {
    // The error of the decoder would quote secrets.
    let Ok(credential) = serde_json::from_slice::<Credential>(plain) else {
        bail!("it is decrypted and is not a membership");
    };
    let Credential { membership_contract, tree_index, identity_credential, user_message_limit } =
        credential;
    let address = parse_address(&membership_contract.address.to_ascii_lowercase());
    let address = address.context("its contract has no address")?;
    let id = &membership_contract.chain_id;
    let chain_id = match id.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => id.parse(),
    };
    let chain_id = chain_id.context("its chain has no number")?;
    let mut commitment = identity_credential.id_commitment;
    commitment.reverse();
    let membership = Membership {
        chain_id,
        contract: format!("0x{}", hex::encode(address)),
        tree_index,
        messages_per_epoch: user_message_limit,
        commitment: format!("0x{}", hex::encode(commitment)),
    };
    Ok((membership, Contract { chain_id, address }))
}

fn decrypt(crypto: &Crypto, password: &str) -> Result<Zeroizing<Vec<u8>>> {
    let Crypto { cipher, cipherparams, ciphertext, kdf, kdfparams, mac } = crypto;
    let prf = kdfparams.prf.as_deref().unwrap_or_default();
    ensure!(
        kdf == "pbkdf2" && prf.eq_ignore_ascii_case("hmac-sha256") && kdfparams.dklen == 32,
        "only pbkdf2 with hmac-sha256 and 32 bytes is read, it has {kdf}; make the keystore with \
         the reference implementation"
    );
    ensure!(cipher.eq_ignore_ascii_case("aes-128-ctr"), "only aes-128-ctr is read");
    let rounds = kdfparams.c.and_then(NonZeroU32::new).context("kdfparams.c is zero")?;
    ensure!(rounds.get() <= ITERATIONS_MAX, "kdfparams.c is above {ITERATIONS_MAX}");
    let salt = hex::decode(&kdfparams.salt).context("kdfparams.salt")?;
    let mut iv = [0_u8; 16];
    hex::decode_to_slice(&cipherparams.iv, &mut iv).context("cipherparams.iv")?;
    let mut bytes = Zeroizing::new(hex::decode(ciphertext).context("ciphertext")?);
    let mut stated = [0_u8; 32];
    hex::decode_to_slice(mac, &mut stated).context("mac")?;

    let mut derived = Zeroizing::new([0_u8; 32]);
    let function = ring::pbkdf2::PBKDF2_HMAC_SHA256;
    ring::pbkdf2::derive(function, rounds, &salt, password.as_bytes(), derived.as_mut());
    let (key, authentication) = derived.split_at(16);
    let found: [u8; 32] =
        Keccak256::new().chain_update(authentication).chain_update(&*bytes).finalize().into();
    ensure!(found == stated, "the password is wrong, or the credential is damaged");
    let mut cipher_key = Zeroizing::new([0_u8; 16]);
    cipher_key.copy_from_slice(key);
    ctr::Ctr128BE::<aes::Aes128>::new(&(*cipher_key).into(), &iv.into())
        .apply_keystream(&mut bytes);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const CONTRACT: Contract = Contract { chain_id: 59_141, address: [0xb9; 20] };

    /// A credential as the reference writes it, with few rounds.
    fn entry(plain: &str, password: &str) -> Value {
        let rounds = NonZeroU32::new(10).unwrap();
        let (salt, iv) = ([5_u8; 16], [0xff_u8; 16]);
        let mut derived = [0_u8; 32];
        let function = ring::pbkdf2::PBKDF2_HMAC_SHA256;
        ring::pbkdf2::derive(function, rounds, &salt, password.as_bytes(), &mut derived);
        let mut bytes = plain.as_bytes().to_vec();
        let key: [u8; 16] = derived[..16].try_into().unwrap();
        ctr::Ctr128BE::<aes::Aes128>::new(&key.into(), &iv.into()).apply_keystream(&mut bytes);
        let mac = Keccak256::new().chain_update(&derived[16..]).chain_update(&bytes).finalize();
        json!({ "crypto": {
            "cipher": "aes-128-ctr",
            "cipherparams": { "iv": hex::encode(iv) },
            "ciphertext": hex::encode(bytes),
            "kdf": "pbkdf2",
            "kdfparams": {
                "dklen": 32, "c": 10, "prf": "hmac-sha256", "salt": hex::encode(salt),
            },
            "mac": hex::encode(mac),
        } })
    }

    fn plain(chain: &str, index: u64) -> String {
        let secret = vec![1; 32];
        json!({
            "membershipContract": {
                "chainId": chain, "address": format!("0x{}", hex::encode_upper([0xb9; 20])),
            },
            "treeIndex": index,
            "identityCredential": {
                "idTrapdoor": secret, "idNullifier": secret, "idSecretHash": secret,
                "idCommitment": (0..32).collect::<Vec<u8>>(),
            },
            "userMessageLimit": 20,
        })
        .to_string()
    }

    fn keystore(entries: &[Value]) -> String {
        let credentials: BTreeMap<String, &Value> =
            entries.iter().enumerate().map(|(number, entry)| (number.to_string(), entry)).collect();
        json!({
            "application": "waku-rln-relay",
            "appIdentifier": "01234567890abcdef",
            "version": "0.2",
            "credentials": credentials,
        })
        .to_string()
    }

    #[test]
    fn credential_is_decrypted_and_its_public_part_kept() {
        for chain in ["59141", "0xe705"] {
            let text = keystore(&[entry(&plain(chain, 7), "a password")]);
            let found = decode(&text, "a password", Some(CONTRACT)).unwrap();
            let [found] = &found[..] else { panic!("{found:?}") };
            assert_eq!((found.tree_index, found.messages_per_epoch), (7, 20));
            assert_eq!(
                (found.chain_id, &*found.contract),
                (59_141, &*format!("0x{}", "b9".repeat(20)))
            );
            assert!(found.commitment.starts_with("0x1f1e1d") && found.commitment.ends_with("0100"));
        }
    }

    #[test]
    fn password_and_contract_select_nothing_else() {
        let text = keystore(&[entry(&plain("59141", 7), "right"), entry(&plain("1", 8), "right")]);
        let error = format!("{:#}", decode(&text, "wrong", None).unwrap_err());
        assert!(error.contains("the password is wrong"), "{error}");
        assert_eq!(decode(&text, "right", None).unwrap().len(), 2);
        assert_eq!(decode(&text, "right", Some(CONTRACT)).unwrap().len(), 1);
        let other = Contract { chain_id: 2, ..CONTRACT };
        assert!(decode(&text, "right", Some(other)).unwrap().is_empty());
    }

    /// A test vector of the reference (from nim-eth): the format as others write it.
    #[test]
    fn test_vector_of_the_reference_is_decrypted() {
        let crypto = serde_json::from_value(json!({
            "cipher": "aes-128-ctr",
            "cipherparams": { "iv": "6087dab2f9fdbbfaddc31a909735c1e6" },
            "ciphertext": "5318b4d5bcd28de64ee5559e671353e16f075ecae9f99c7a79a38af5f869aa46",
            "kdf": "pbkdf2",
            "kdfparams": {
                "c": 262_144, "dklen": 32, "prf": "hmac-sha256",
                "salt": "ae3cd4e7013836a3df6bd7241b12db061dbe2c6785853cce422d148a624ce0bd",
            },
            "mac": "517ead924a9d0dc3124507e3393d175ce3ff7c1e96529c6c555ce9e51205e9b2",
        }))
        .unwrap();
        let plain = decrypt(&crypto, "testpassword").unwrap();
        let expected = "7a28b5ba57c53603b0b07b56bba752f7784bf506fa95edc395f5cf6c7514fe9d";
        assert_eq!(hex::encode(&*plain), expected);
    }

    #[test]
    fn hostile_keystores_are_refused_with_the_reason() {
        let good = entry(&plain("59141", 7), "p");
        let changed = |path: &str, value: Value| {
            let mut entry = good.clone();
            *entry.pointer_mut(path).unwrap() = value;
            format!("{:#}", decode(&keystore(&[entry]), "p", None).unwrap_err())
        };
        assert!(changed("/crypto/kdf", json!("scrypt")).contains("it has scrypt"));
        assert!(changed("/crypto/cipher", json!("des")).contains("aes-128-ctr"));
        assert!(changed("/crypto/kdfparams/c", json!(0)).contains("kdfparams.c"));
        assert!(changed("/crypto/kdfparams/c", json!(4_000_000_000_u32)).contains("10000000"));
        assert!(changed("/crypto/cipherparams/iv", json!("00")).contains("cipherparams.iv"));
        assert!(changed("/crypto/mac", json!("zz")).contains("mac"));
        let many = vec![good.clone(); 17];
        assert!(format!("{:#}", decode(&keystore(&many), "p", None).unwrap_err()).contains("17"));
        let foreign = keystore(&[]).replace("waku-rln-relay", "another");
        assert!(format!("{:#}", decode(&foreign, "p", None).unwrap_err()).contains("another"));
        let secret = keystore(&[entry("{\"idSecretHash\": \"hidden\"}", "p")]);
        let error = format!("{:#}", decode(&secret, "p", None).unwrap_err());
        assert!(error.contains("not a membership") && !error.contains("hidden"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_read(text in ".{0,200}") {
            let _ = decode(&text, "p", None);
        }
    }
}
