//! Effective ids: whether the id in a URL is the destination of the content sent to it (interface
//! specification, "Effective canister id" and "Effective subnet id").
//!
//! Calls that make a canister are about none yet, and clients send them to whatever id they like,
//! which the sender does not sign. So that one signed call is one call, wherever it is sent, all of
//! them have the same effective id from here on: see [`of_call`].
//!
//! For other calls to the management canister the destination is in the Candid argument. The
//! argument comes from outside and may be large (it can carry a module), so nothing but the one
//! field is read from it ([`candid_wire`]).

use candid::{CandidType, Deserialize};
use ic_principal::Principal;
use thiserror::Error;

use crate::MethodCall;
use crate::candid_wire::{self, Bounds, Cost, Refusal};

/// The target in the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effective {
    /// The effective canister id of a URL with `/canister/<id>/`.
    Canister(Principal),
    /// The subnet id of a URL with `/subnet/<id>/`.
    Subnet(Principal),
}

impl Effective {
    /// The id, of whichever kind.
    pub fn id(&self) -> Principal {
        match self {
            Self::Canister(id) | Self::Subnet(id) => *id,
        }
    }
}

/// Why the id in the URL is not acceptable.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum EffectiveError {
    /// Differs from the destination.
    #[error(
        "the URL names canister {url}, but the request is for {content}; use {content} as the \
         effective canister id"
    )]
    Mismatch { url: Principal, content: Principal },
    #[error(
        "the argument of the management canister's `{method}` has no field `{field}` of type \
         principal, so the call has no effective canister id"
    )]
    NoDestination {
        /// Cut to 64 characters.
        method: String,
        field: &'static str,
    },
    #[error(
        "the field `{field}` is not looked for in the argument of the management canister's \
         `{method}`, so the call has no effective canister id: {refusal}"
    )]
    TooComplex {
        /// Cut to 64 characters.
        method: String,
        field: &'static str,
        refusal: Refusal,
    },
    #[error("canister {canister_id} is in no canister range of this subnet")]
    NotHosted { canister_id: Principal },
    #[error("the URL names subnet {url}, but this node belongs to subnet {own}")]
    OtherSubnet { url: Principal, own: Principal },
    #[error(
        "the subnet form of this endpoint only serves {allowed} of the management canister \
         (aaaaa-aa); use /canister/<effective canister id>/"
    )]
    NotForSubnet { allowed: &'static str },
}

#[derive(CandidType, Deserialize)]
struct SpecifiedIdArg {
    specified_id: Option<Principal>,
}

/// The id that a call asks for which makes a canister; `None` where it asks for none, or its
/// argument cannot be read.
pub fn specified_id(call: &MethodCall) -> Option<Principal> {
    if call.method_name != "provisional_create_canister_with_cycles" {
        return None;
    }
    let read =
        candid_wire::decode::<SpecifiedIdArg>(&call.arg, Bounds::default(), &mut Cost::default());
    read.ok().and_then(|arg| arg.specified_id)
}

/// Whether a call makes a canister: it may be sent to any effective id.
pub fn makes_canister(call: &MethodCall) -> bool {
    call.canister_id == Principal::management_canister()
        && matches!(
            call.method_name.as_str(),
            "create_canister" | "provisional_create_canister_with_cycles"
        )
}

/// The effective id of an update call that was sent to `url` and passed [`check`]: a function of
/// what its sender signed. That is `url` where `url` had to be the call's destination, and the
/// management canister for calls that make a canister.
pub fn of_call(call: &MethodCall, url: Principal) -> Principal {
    if makes_canister(call) { Principal::management_canister() } else { url }
}

/// The canister that an update call (`query == false`) or query call is for, by its content. Calls
/// that make a canister, and `list_canisters`, have none.
///
/// # Errors
/// [`EffectiveError::NoDestination`], [`EffectiveError::TooComplex`].
pub fn destination(call: &MethodCall, query: bool) -> Result<Principal, EffectiveError> {
    if call.canister_id != Principal::management_canister() {
        return Ok(call.canister_id);
    }
    let method = call.method_name.as_str();
    let is_chunked = method == "install_chunked_code" && !query;
    let field = if is_chunked { "target_canister" } else { "canister_id" };
    let found =
        candid_wire::principal_in(&call.arg, field, Bounds::default(), &mut Cost::default());
    found.map_err(|refusal| {
        let method = method.chars().take(64).collect();
        match refusal {
            Refusal::TooMany { .. } | Refusal::TooDeep | Refusal::Vector { .. } => {
                EffectiveError::TooComplex { method, field, refusal }
            }
            Refusal::Invalid { .. } | Refusal::Mismatch(_) => {
                EffectiveError::NoDestination { method, field }
            }
        }
    })
}

/// Checks an update call (`query == false`) or query call against the URL it was sent to.
pub fn check(
    effective: &Effective,
    call: &MethodCall,
    query: bool,
    own_subnet: &Principal,
    hosts: impl Fn(&Principal) -> bool,
) -> Result<(), EffectiveError> {
    let management = call.canister_id == Principal::management_canister();
    let method = call.method_name.as_str();
    // These have no canister yet, or none in particular.
    let anywhere =
        if query { management && method == "list_canisters" } else { makes_canister(call) };
    let url = match effective {
        Effective::Subnet(url) if url != own_subnet => {
            return Err(EffectiveError::OtherSubnet { url: *url, own: *own_subnet });
        }
        Effective::Subnet(_) if anywhere => return Ok(()),
        Effective::Subnet(_) => {
            let allowed = if query {
                "`list_canisters`"
            } else {
                "`create_canister` and `provisional_create_canister_with_cycles`"
            };
            return Err(EffectiveError::NotForSubnet { allowed });
        }
        Effective::Canister(_) if anywhere => return Ok(()),
        Effective::Canister(url) => *url,
    };
    let content = destination(call, query)?;
    if content != url {
        return Err(EffectiveError::Mismatch { url, content });
    }
    if !hosts(&content) {
        return Err(EffectiveError::NotHosted { canister_id: content });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candid::{CandidType, Encode};

    fn id(byte: u8) -> Principal {
        Principal::from_slice(&[0, 0, 0, 0, 0, 0, 0, byte, 1, 1])
    }

    fn call(canister_id: Principal, method: &str, arg: Vec<u8>) -> MethodCall {
        MethodCall { canister_id, method_name: method.to_owned(), arg, sender_info: None }
    }

    #[derive(CandidType)]
    struct Install {
        canister_id: Principal,
        wasm_module: serde_bytes::ByteBuf,
        mode: Mode,
    }

    #[derive(CandidType)]
    #[allow(non_camel_case_types)]
    enum Mode {
        install,
    }

    #[derive(CandidType)]
    struct InstallChunkedArg {
        target_canister: Principal,
        store_canister: Option<Principal>,
    }

    #[test]
    fn the_destination_must_be_in_the_url() {
        let management = Principal::management_canister();
        let wasm_module = serde_bytes::ByteBuf::from(vec![7; 3 << 20]);
        let install =
            Encode!(&Install { canister_id: id(1), wasm_module, mode: Mode::install }).unwrap();
        let chunked =
            Encode!(&InstallChunkedArg { target_canister: id(1), store_canister: Some(id(2)) })
                .unwrap();
        let none = Encode!().unwrap();
        let (at, subnet) = (Effective::Canister, Effective::Subnet);
        let own = id(100);
        let hosts = |canister: &Principal| *canister != id(9);
        let ok = |effective, call: &MethodCall, query| {
            assert_eq!(check(&effective, call, query, &own, hosts), Ok(()))
        };
        let refused = |effective, call: &MethodCall, query| {
            check(&effective, call, query, &own, hosts).unwrap_err()
        };

        ok(at(id(1)), &call(id(1), "greet", none.clone()), false);
        ok(at(id(1)), &call(management, "install_code", install.clone()), false);
        ok(at(id(1)), &call(management, "install_chunked_code", chunked.clone()), false);
        ok(at(id(9)), &call(management, "create_canister", none.clone()), false);
        ok(
            at(management),
            &call(management, "provisional_create_canister_with_cycles", none.clone()),
            false,
        );
        ok(at(id(9)), &call(management, "list_canisters", none.clone()), true);
        ok(subnet(own), &call(management, "create_canister", none.clone()), false);
        ok(subnet(own), &call(management, "list_canisters", none.clone()), true);

        assert_eq!(
            refused(at(id(2)), &call(id(1), "greet", none.clone()), false),
            EffectiveError::Mismatch { url: id(2), content: id(1) }
        );
        assert_eq!(
            refused(at(id(9)), &call(id(9), "greet", none.clone()), true),
            EffectiveError::NotHosted { canister_id: id(9) }
        );
        assert!(matches!(
            refused(at(id(2)), &call(management, "install_code", install.clone()), false),
            EffectiveError::Mismatch { .. }
        ));
        assert!(matches!(
            refused(at(id(2)), &call(management, "install_chunked_code", chunked), false),
            EffectiveError::Mismatch { .. }
        ));
        assert!(matches!(
            refused(at(id(1)), &call(management, "raw_rand", none.clone()), false),
            EffectiveError::NoDestination { .. }
        ));
        assert!(matches!(
            refused(at(id(1)), &call(management, "create_canister", none.clone()), true),
            EffectiveError::NoDestination { .. }
        ));
        assert!(matches!(
            refused(at(id(1)), &call(management, "stop_canister", vec![1, 2, 3]), false),
            EffectiveError::NoDestination { .. }
        ));
        assert!(matches!(
            refused(subnet(id(5)), &call(management, "create_canister", none.clone()), false),
            EffectiveError::OtherSubnet { .. }
        ));
        assert!(matches!(
            refused(subnet(own), &call(id(1), "greet", none), false),
            EffectiveError::NotForSubnet { .. }
        ));
    }

    #[test]
    fn what_makes_a_canister_has_one_effective_id_wherever_it_is_sent() {
        let (management, none) = (Principal::management_canister(), Encode!().unwrap());
        for method in ["create_canister", "provisional_create_canister_with_cycles"] {
            let create = call(management, method, none.clone());
            for url in [id(1), id(2), management, Principal::anonymous()] {
                assert_eq!(of_call(&create, url), management);
            }
            // A canister may well have a method of that name.
            assert_eq!(of_call(&call(id(1), method, none.clone()), id(1)), id(1));
        }
        assert_eq!(of_call(&call(management, "stop_canister", none), id(3)), id(3));
    }

    #[test]
    fn an_argument_built_to_be_slow_is_refused() {
        // vec null with 2^32 - 1 elements, which take no bytes.
        let bomb =
            [b"DIDL".as_slice(), &[1, 0x6d, 0x7f, 1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
        // Twenty levels of records of two, of which a value would have a million.
        let level = |next: u8| [0x6c, 2, 0, next, 1, next];
        let levels: Vec<u8> =
            (1..=20).flat_map(|next| level(if next == 20 { 0x7f } else { next })).collect();
        let tree = [b"DIDL".as_slice(), &[20], &levels, &[1, 0]].concat();
        let refused = |bomb| {
            let call = call(Principal::management_canister(), "stop_canister", bomb);
            check(&Effective::Canister(id(1)), &call, false, &id(100), |_| true).unwrap_err()
        };
        for hostile in [bomb, tree] {
            let error = refused(hostile);
            let EffectiveError::TooComplex { refusal, .. } = &error else { panic!("{error}") };
            assert_eq!(*refusal, Refusal::TooMany { what: "values", most: 10_000 });
        }
    }

    #[derive(CandidType)]
    #[allow(non_camel_case_types)]
    enum Global {
        i64(i64),
    }

    #[derive(CandidType)]
    struct Metadata {
        canister_id: Principal,
        globals: Vec<Global>,
    }

    #[test]
    fn as_many_globals_as_there_may_be_are_passed_over_and_more_are_told_of() {
        let destination = |globals: u16| {
            let globals = (0..globals).map(|value| Global::i64(value.into())).collect();
            let arg = Encode!(&Metadata { canister_id: id(1), globals }).unwrap();
            let management = Principal::management_canister();
            destination(&call(management, "upload_canister_snapshot_metadata", arg), false)
        };
        assert_eq!(destination(1_000), Ok(id(1)));
        let text = destination(20_000).unwrap_err().to_string();
        assert!(
            text.contains("`canister_id` is not looked for")
                && text.contains("more than 10000 values"),
            "{text}"
        );
    }
}
