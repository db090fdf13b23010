//! The canisters of a local network: their ids and their installation arguments.

use std::{borrow::Cow, fs, path::PathBuf, str::FromStr};

use anyhow::{Context, Result, ensure};
use candid::{CandidType, Encode, Nat, Principal};

const CYCLES_MINTING: &str = "rkp4c-7iaaa-aaaaa-aaaca-cai";
const ICP_LEDGER: &str = "ryjl3-tyaaa-aaaaa-aaaba-cai";
const CYCLES_LEDGER: &str = "um5iw-rqaaa-aaaaq-qaaba-cai";
/// One ICP buys 4 T cycles.
const XDR_PERMYRIAD_PER_ICP: u64 = 40_000;

/// Opening balances of every principal.
pub(crate) struct OpeningBalances {
    pub(crate) cycles: u128,
    pub(crate) icp_e8s: u64,
}

/// The largest module that fits a message, with its argument.
const MESSAGE_BYTES: usize = 1_900_000;

/// Where a module comes from.
#[derive(Clone, Debug)]
pub(crate) enum Module {
    /// Carried by this program.
    Ours(&'static [u8]),
    /// The user's.
    Users(Vec<u8>),
}

impl Module {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Ours(bytes) => bytes,
            Self::Users(bytes) => bytes,
        }
    }
}

/// A canister at an id that tools know, with what is installed there.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) id: Principal,
    pub(crate) name: Cow<'static, str>,
    pub(crate) module: Module,
    /// Encoded Candid; no arguments without.
    pub(crate) argument: Option<Vec<u8>>,
}

/// A service of the user's, as the command line names it.
#[derive(Clone, Debug)]
pub(crate) struct ServiceSpec {
    id: Principal,
    module: PathBuf,
    argument: Option<PathBuf>,
}

impl FromStr for ServiceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (id, files) = text.split_once('=').ok_or("it has the form ID=MODULE[,ARGUMENT]")?;
        let id = Principal::from_text(id).map_err(|error| format!("{id}: {error}"))?;
        let (module, argument) = match files.split_once(',') {
            Some((module, argument)) => (module, Some(argument.into())),
            None => (files, None),
        };
        Ok(Self { id, module: module.into(), argument })
    }
}

impl ServiceSpec {
    /// With what its files hold.
    pub(crate) fn read(&self) -> Result<Service> {
        let name = self.module.display().to_string();
        let module =
            fs::read(&self.module).with_context(|| format!("reading the module {name}"))?;
        let read = |path: &PathBuf| {
            fs::read(path).with_context(|| format!("reading the argument {}", path.display()))
        };
        let argument = self.argument.as_ref().map(read).transpose()?;
        let bytes = module.len() + argument.as_ref().map_or(0, Vec::len);
        ensure!(
            bytes <= MESSAGE_BYTES,
            "{name} has {bytes} bytes with its argument, and one message carries {MESSAGE_BYTES}; \
             gzip it"
        );
        Ok(Service { id: self.id, name: name.into(), module: Module::Users(module), argument })
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
    /// Number of accounts it keeps; its own limit if `None`.
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
        Ok(Service {
            id,
            name: name.into(),
            module: Module::Ours(module),
            argument: Some(argument),
        })
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
        let folder = tempfile::tempdir().unwrap();
        let [module, argument] = ["m.wasm", "c.bin"].map(|name| folder.path().join(name));
        fs::write(&module, b"module").unwrap();
        fs::write(&argument, b"argument").unwrap();
        let (module, argument) = (module.display().to_string(), argument.display().to_string());
        let read = |text: String| text.parse::<ServiceSpec>().unwrap().read();
        let mine = read(format!("{CYCLES_LEDGER}={module},{argument}")).unwrap();
        let beside = read(format!("aaaaa-aa={module}")).unwrap();
        let all = with_users(ours, &[mine, beside]);
        let told: Vec<_> = all.iter().map(|service| service.name.as_ref()).collect();
        assert_eq!(told, ["ICP ledger", "cycles minting", module.as_str(), module.as_str()]);
        assert_eq!(all[2].argument.as_deref(), Some(&b"argument"[..]));
        assert_eq!(all[3].argument, None);
        assert_eq!(all[3].module.bytes(), b"module");
        for wrong in ["um5iw", "um5iw=x.wasm"] {
            wrong.parse::<ServiceSpec>().unwrap_err();
        }
        let missing = read(format!("{CYCLES_LEDGER}={module}.other")).unwrap_err();
        assert!(missing.to_string().contains("reading the module"), "{missing}");
        fs::write(&argument, vec![0; MESSAGE_BYTES]).unwrap();
        let long = read(format!("{CYCLES_LEDGER}={module},{argument}")).unwrap_err();
        assert!(long.to_string().contains(&MESSAGE_BYTES.to_string()), "{long}");
    }
}
