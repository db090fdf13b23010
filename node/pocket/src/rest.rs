//! JSON of the protocol. Field names and forms are the protocol's: bytes are in base64, principals
//! are their bytes. Unknown fields are ignored.

use std::{collections::BTreeMap, fmt, marker::PhantomData, path::PathBuf};

use base64::{Engine as _, display::Base64Display, prelude::BASE64_STANDARD};
use ic_principal::Principal;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, SeqAccess, Visitor},
};
use state::Time;

use crate::{reject::RejectResponse, subnets::Kind};

/// Bytes, as text in base64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Base64(pub(crate) Vec<u8>);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        BASE64_STANDARD.decode(text.as_bytes()).map(Self).map_err(D::Error::custom)
    }
}

/// Borrowed bytes, as text in base64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base64Slice<'a>(pub(crate) &'a [u8]);

impl Serialize for Base64Slice<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&Base64Display::new(self.0, &BASE64_STANDARD))
    }
}

/// Reads a list of at most `N` values: the values of a short text may take much memory.
pub(crate) fn at_most<'de, D, T, const N: usize>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct List<T, const N: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for List<T, N> {
        type Value = Vec<T>;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(to, "a list of {N} values at most")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Vec<T>, A::Error> {
            let mut read = Vec::new();
            while let Some(value) = values.next_element()? {
                if read.len() == N {
                    return Err(A::Error::custom(format!("more than {N} values")));
                }
                read.push(value);
            }
            Ok(read)
        }
    }

    from.deserialize_seq(List::<T, N>(PhantomData))
}

impl From<Principal> for Base64 {
    fn from(principal: Principal) -> Self {
        Self(principal.as_slice().to_vec())
    }
}

impl Base64 {
    pub(crate) fn principal(&self) -> Result<Principal, String> {
        Principal::try_from_slice(&self.0).map_err(|error| format!("no principal: {error}"))
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct RawTime {
    pub(crate) nanos_since_epoch: u64,
}

/// Latest time, in nanoseconds since 1970: the times of canisters and certificates are signed
/// numbers somewhere on their way to users.
const TIME_MAX: u64 = i64::MAX as u64;

impl RawTime {
    pub(crate) fn time(self) -> Result<Time, String> {
        if self.nanos_since_epoch > TIME_MAX {
            return Err(format!(
                "the time {} is after the latest, {TIME_MAX} nanoseconds since 1970",
                self.nanos_since_epoch
            ));
        }
        Ok(Time(self.nanos_since_epoch))
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RawCanisterId {
    pub(crate) canister_id: Base64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RawSubnetId {
    pub(crate) subnet_id: Base64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RawNodeId {
    pub(crate) node_id: Base64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RawPrincipalId {
    pub(crate) principal_id: Base64,
}

/// A principal, as one client or another writes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum AnyPrincipal {
    Named(RawPrincipalId),
    Bare(Base64),
}

impl AnyPrincipal {
    pub(crate) fn principal(&self) -> Result<Principal, String> {
        match self {
            Self::Named(RawPrincipalId { principal_id }) => principal_id.principal(),
            Self::Bare(bytes) => bytes.principal(),
        }
    }
}

/// Where a call is to be sent.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) enum EffectivePrincipal {
    #[default]
    None,
    SubnetId(Base64),
    CanisterId(Base64),
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawSenderInfo {
    pub(crate) info: Base64,
    pub(crate) signer: Base64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawCanisterCall {
    pub(crate) sender: Base64,
    pub(crate) canister_id: Base64,
    #[serde(default)]
    pub(crate) effective_principal: EffectivePrincipal,
    pub(crate) method: String,
    pub(crate) payload: Base64,
    pub(crate) sender_info: Option<RawSenderInfo>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RawMessageId {
    pub(crate) effective_principal: EffectivePrincipal,
    pub(crate) message_id: Base64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawIngressStatusArgs {
    pub(crate) raw_message_id: RawMessageId,
    pub(crate) raw_caller: Option<AnyPrincipal>,
}

/// An answer, or a reject.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum RawResult<T> {
    Ok(T),
    Err(RejectResponse),
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawAddCycles {
    pub(crate) canister_id: Base64,
    pub(crate) amount: u128,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct RawCycles {
    pub(crate) cycles: u128,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawSetStableMemory {
    pub(crate) canister_id: Base64,
    pub(crate) blob_id: Base64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct RawTickConfigs {
    pub(crate) blockmakers: Option<Vec<RawSubnetBlockmakers>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawSubnetBlockmakers {
    pub(crate) subnet: RawSubnetId,
    pub(crate) blockmaker: RawNodeId,
    pub(crate) failed_blockmakers: Vec<RawNodeId>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawVerifyCanisterSig {
    pub(crate) msg: Base64,
    pub(crate) sig: Base64,
    pub(crate) pubkey: Base64,
    pub(crate) root_pubkey: Base64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct AutoProgressConfig {
    pub(crate) artificial_delay_ms: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) enum InitialTime {
    Timestamp(RawTime),
    AutoProgress(AutoProgressConfig),
}

/// A subnet that is asked for.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SubnetSpec {
    #[serde(default)]
    pub(crate) state_config: Option<serde_json::Value>,
    #[serde(default)]
    pub(crate) instruction_config: Option<String>,
    #[serde(default)]
    pub(crate) subnet_admins: Option<serde_json::Value>,
    #[serde(default)]
    pub(crate) cost_schedule: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct SubnetConfigSet {
    pub(crate) nns: Option<SubnetSpec>,
    pub(crate) sns: Option<SubnetSpec>,
    pub(crate) ii: Option<SubnetSpec>,
    pub(crate) fiduciary: Option<SubnetSpec>,
    pub(crate) bitcoin: Option<SubnetSpec>,
    pub(crate) test_threshold_keys: Option<SubnetSpec>,
    #[serde(default)]
    pub(crate) system: Vec<SubnetSpec>,
    #[serde(default)]
    pub(crate) application: Vec<SubnetSpec>,
    #[serde(default)]
    pub(crate) cloud_engine: Vec<SubnetSpec>,
    #[serde(default)]
    pub(crate) verified_application: Vec<SubnetSpec>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct InstanceConfig {
    pub(crate) subnet_config_set: SubnetConfigSet,
    pub(crate) http_gateway_config: Option<InstanceHttpGatewayConfig>,
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) icp_features: Option<BTreeMap<String, serde_json::Value>>,
    pub(crate) bitcoind_addr: Option<Vec<String>>,
    pub(crate) dogecoind_addr: Option<Vec<String>>,
    pub(crate) initial_time: Option<InitialTime>,
    pub(crate) mainnet_nns_subnet_id: Option<bool>,
    pub(crate) disable_ingress_validation: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct InstanceHttpGatewayConfig {
    pub(crate) ip_addr: Option<String>,
    pub(crate) port: Option<u16>,
    pub(crate) domains: Option<Vec<String>>,
    pub(crate) https_config: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) enum HttpGatewayBackend {
    Replica(String),
    PocketIcInstance(u64),
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct HttpGatewayConfig {
    pub(crate) forward_to: HttpGatewayBackend,
    #[serde(flatten)]
    pub(crate) listen: InstanceHttpGatewayConfig,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct HttpGatewayInfo {
    pub(crate) instance_id: u64,
    pub(crate) port: u16,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct HttpGatewayDetails {
    pub(crate) instance_id: u64,
    pub(crate) port: u16,
    pub(crate) forward_to: HttpGatewayBackend,
    pub(crate) domains: Option<Vec<String>>,
    pub(crate) https_config: Option<()>,
}

/// The created item, or the reason why there is none.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum Creation<T> {
    Created(T),
    Error { message: String },
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct CreatedInstance {
    pub(crate) instance_id: u64,
    pub(crate) topology: Topology,
    pub(crate) http_gateway_info: Option<HttpGatewayInfo>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct CanisterIdRange {
    pub(crate) start: RawCanisterId,
    pub(crate) end: RawCanisterId,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct SubnetTopology {
    pub(crate) subnet_kind: Kind,
    pub(crate) subnet_admins: Option<Vec<RawPrincipalId>>,
    pub(crate) cost_schedule: &'static str,
    pub(crate) subnet_seed: [u8; 32],
    pub(crate) instruction_config: &'static str,
    pub(crate) canister_ranges: Vec<CanisterIdRange>,
    pub(crate) node_ids: Vec<RawNodeId>,
    pub(crate) size: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Topology {
    /// By the text of the subnet's id.
    pub(crate) subnet_configs: BTreeMap<String, SubnetTopology>,
    pub(crate) default_effective_canister_id: RawCanisterId,
}

/// Why a request failed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ApiError {
    pub(crate) message: String,
}

/// The operation is still running; its outcome is to be polled.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StartedOperation {
    pub(crate) state_label: String,
    pub(crate) op_id: String,
}
