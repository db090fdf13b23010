//! Which canisters a local network has, at which ids, and what they are told at installation.

use std::{borrow::Cow, path::PathBuf, str::FromStr};

use anyhow::{Context, Result};
use candid::{CandidType, Encode, Nat, Principal};

const CYCLES_MINTING: &str = "rkp4c-7iaaa-aaaaa-aaaca-cai";
const ICP_LEDGER: &str = "ryjl3-tyaaa-aaaaa-aaaba-cai";
const CYCLES_LEDGER: &str = "um5iw-rqaaa-aaaaq-qaaba-cai";
/// One ICP buys 4 T cycles.
const XDR_PERMYRIAD_PER_ICP: u64 = 40_000;

/// What every principal begins with.
pub(crate) struct OpeningBalances {
    pub(crate) cycles: u128,
    pub(crate) icp_e8s: u64,
}

/// Where a module comes from.
#[derive(Clone, Debug)]
pub(crate) enum Module {
    /// Carried by this program.
    Ours(&'static [u8]),
    /// The user's.
    File(PathBuf),
}

/// With what it is installed, as encoded Candid.
#[derive(Clone, Debug)]
pub(crate) enum Argument {
    Ours(Vec<u8>),
    Nothing,
    File(PathBuf),
}

/// A canister at an id that tools know.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) id: Principal,
    pub(crate) name: Cow<'static, str>,
    pub(crate) module: Module,
    pub(crate) argument: Argument,
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (id, files) = text.split_once('=').ok_or("it has the form ID=MODULE[,ARGUMENT]")?;
        let id = Principal::from_text(id).map_err(|error| format!("{id}: {error}"))?;
        let (module, argument) = match files.split_once(',') {
            Some((module, argument)) => (module, Argument::File(argument.into())),
            None => (files, Argument::Nothing),
        };
        Ok(Self {
            id,
            name: module.to_owned().into(),
            module: Module::File(module.into()),
            argument,
        })
    }
}

#[derive(CandidType)]
struct MintingArgument {
    subnet: Principal,
    xdr_permyriad_per_icp: u64,
}

#[derive(CandidType)]
struct CyclesLedgerArgument {
    subnet: Principal,
    opening_balance: Nat,
    /// How many accounts it keeps; its own limit where none is told.
    accounts_max: Option<Nat>,
}

#[derive(CandidType)]
struct IcpLedgerArgument {
    opening_balance: u64,
    accounts_max: Option<Nat>,
}

/// The canisters of this repository, for a network with this root key. The subnet is its own root.
pub(crate) fn ours(root_key: &[u8], opening: &OpeningBalances) -> Result<Vec<Service>> {
    let subnet = Principal::self_authenticating(root_key);
    let minting = MintingArgument { subnet, xdr_permyriad_per_icp: XDR_PERMYRIAD_PER_ICP };
    let cycles =
        CyclesLedgerArgument { subnet, opening_balance: opening.cycles.into(), accounts_max: None };
    let icp = IcpLedgerArgument { opening_balance: opening.icp_e8s, accounts_max: None };
    let service = |id: &str, name: &'static str, module, argument| -> Result<Service> {
        let id = Principal::from_text(id).with_context(|| format!("the id {id}"))?;
        let (module, argument) = (Module::Ours(module), Argument::Ours(argument));
        Ok(Service { id, name: name.into(), module, argument })
    };
    macro_rules! module {
        ($name:literal) => {
            include_bytes!(concat!("../../../canisters/wasm/", $name, ".wasm.gz"))
        };
    }
    Ok(vec![
        service(ICP_LEDGER, "ICP ledger", module!("local-icp-ledger"), Encode!(&icp)?)?,
        service(CYCLES_LEDGER, "cycles ledger", module!("local-cycles-ledger"), Encode!(&cycles)?)?,
        service(
            CYCLES_MINTING,
            "cycles minting",
            module!("local-cycles-minting"),
            Encode!(&minting)?,
        )?,
    ])
}

/// Ours, each replaced by the user's of the same id, and then the user's others.
pub(crate) fn with_users(ours: Vec<Service>, users: &[Service]) -> Vec<Service> {
    let is_replaced = |service: &Service| users.iter().any(|other| other.id == service.id);
    let mut services: Vec<Service> =
        ours.into_iter().filter(|service| !is_replaced(service)).collect();
    services.extend_from_slice(users);
    services
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn a_users_module_stands_in_for_ours() {
        let opening = OpeningBalances { cycles: 1, icp_e8s: 1 };
        let ours = ours(&[1; 133], &opening).unwrap();
        let mine: Service = format!("{CYCLES_LEDGER}=a/b.wasm,c.bin").parse().unwrap();
        let beside: Service = "aaaaa-aa=x.wasm".parse().unwrap();
        let all = with_users(ours, &[mine, beside]);
        let told: Vec<_> = all.iter().map(|service| service.name.as_ref()).collect();
        assert_eq!(told, ["ICP ledger", "cycles minting", "a/b.wasm", "x.wasm"]);
        assert!(matches!(&all[2].argument, Argument::File(path) if path == "c.bin"));
        assert!(matches!(all[3].argument, Argument::Nothing));
        for wrong in ["um5iw", "um5iw=x.wasm"] {
            wrong.parse::<Service>().unwrap_err();
        }
    }
}
