//! Operations that clients request of an instance, each as one step of its thread.

use std::{fmt::Display, io::Read, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use envelope::{MethodCall, effective, hash};
use execution::Placement as _;
use http_server::with_reservation;
use hyper::StatusCode;
use ic_principal::Principal;
use serde::Serialize;
use state::{Ingress, NodeInfo, QueryRequest, RequestId, SenderInfo, Status, Time};

use crate::{
    bounds::{Bounds, STABLE_ANSWER_TIMES},
    cli::Client,
    instance::Instance,
    keys::seed,
    reject::RejectResponse,
    rest::{
        Base64, CanisterIdRange, EffectivePrincipal, RawAddCycles, RawCanisterCall, RawCanisterId,
        RawCycles, RawIngressStatusArgs, RawMessageId, RawNodeId, RawPrincipalId, RawResult,
        RawSetStableMemory, RawSubnetBlockmakers, RawSubnetId, RawTickConfigs, RawTime,
        SubnetTopology, Topology,
    },
    subnets::Subnet,
};

/// Rounds in which nothing happens that an awaited call may take.
const IDLE_ROUNDS_MAX: u64 = 100;
/// Greatest number of rounds that it may take: the longest installation takes 300, and others wait
/// at the same time.
const ROUNDS_MAX: u64 = 5_000;

/// Between rounds of an awaited call for which a server is asked.
const SERVER_WAIT: Duration = Duration::from_millis(100);

/// The JSON of an answer, or why there is none.
pub(crate) type Outcome = Result<Bytes, Failure>;

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Failure {
    /// A request that cannot be served.
    pub(crate) fn bad(message: impl Display) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.to_string() }
    }

    /// A feature that this server does not offer.
    pub(crate) fn not_offered(what: &str) -> Self {
        Self::bad(format!("{what} is not offered by thimble-pocket; see docs/pocket.md"))
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::bad(format!("{error:#}"))
    }
}

impl From<execution::FatalError> for Failure {
    fn from(error: execution::FatalError) -> Self {
        Self::bad(error)
    }
}

pub(crate) fn json<T: Serialize + ?Sized>(answer: &T) -> Outcome {
    Ok(serde_json::to_vec(answer).map_err(Failure::bad)?.into())
}

fn principal(bytes: &Base64, what: &str) -> Result<Principal, Failure> {
    bytes.principal().map_err(|error| Failure::bad(format!("`{what}` is {error}")))
}

/// The subnets, as clients read them.
pub(crate) fn topology(subnets: &crate::subnets::Subnets) -> Topology {
    let one = |subnet: &Subnet| {
        let ranges = subnet.plan.all_ranges().map(|range| {
            let (first, last) = range.ids();
            let id = |id: Principal| RawCanisterId { canister_id: id.into() };
            CanisterIdRange { start: id(first), end: id(last) }
        });
        let node = |node: &NodeInfo| RawNodeId { node_id: node.node_id.into() };
        let topology = SubnetTopology {
            subnet_kind: subnet.plan.kind,
            subnet_admins: None,
            cost_schedule: "Normal",
            subnet_seed: subnet.plan.seed(),
            instruction_config: "Production",
            canister_ranges: ranges.collect(),
            node_ids: subnet.nodes.iter().map(node).collect(),
            size: subnet.nodes.len() as u64,
        };
        (subnet.id.to_text(), topology)
    };
    Topology {
        subnet_configs: subnets.with_all(|all| all.iter().map(one).collect()),
        default_effective_canister_id: RawCanisterId {
            canister_id: subnets.default_effective_id().into(),
        },
    }
}

/// A call that was read, and where it is to make its canister, if it does.
struct Call {
    ingress: Ingress,
    aim: Option<Principal>,
}

impl Instance {
    fn client(&self) -> Client {
        self.replica.shared.client
    }

    pub(crate) fn topology(&mut self) -> Outcome {
        json(&topology(&self.replica.shared.subnets))
    }

    pub(crate) fn get_time(&mut self) -> Outcome {
        json(&RawTime { nanos_since_epoch: self.replica.shared.now().0 })
    }

    pub(crate) fn set_time(&mut self, time: RawTime, certified: bool) -> Outcome {
        let time = time.time().map_err(Failure::bad)?;
        self.replica.set_time(time)?;
        if certified && self.replica.executor().time() != time {
            self.round()?;
        }
        json(&())
    }

    /// Executes a round, and further ones while a message is paused if the tick `completes_paused`.
    pub(crate) fn tick(&mut self, configs: &RawTickConfigs, completes_paused: bool) -> Outcome {
        for named in configs.blockmakers.iter().flatten() {
            self.check_blockmakers(named)?;
        }
        self.round()?;
        let mut rounds = 1;
        while completes_paused && rounds < ROUNDS_MAX && self.replica.has_paused() {
            self.round()?;
            rounds += 1;
        }
        json(&())
    }

    /// Whether these are nodes of the subnet. Which of them makes a block makes no difference here.
    fn check_blockmakers(&self, named: &RawSubnetBlockmakers) -> Result<(), Failure> {
        let id = principal(&named.subnet.subnet_id, "subnet_id")?;
        let ids = |it: &Subnet| it.nodes.iter().map(|node| node.node_id).collect::<Vec<_>>();
        let nodes = self.of_subnet(&id, ids)?;
        let node = |raw: &RawNodeId| {
            let node = principal(&raw.node_id, "node_id")?;
            let is_known = nodes.contains(&node);
            is_known.then_some(node).ok_or(Failure::bad(format!("BlockmakerNotFound({node})")))
        };
        let maker = node(&named.blockmaker)?;
        for failed in &named.failed_blockmakers {
            if node(failed)? == maker {
                return Err(Failure::bad(format!("BlockmakerContainedInFailed({maker})")));
            }
        }
        Ok(())
    }

    pub(crate) fn pub_key(&mut self, subnet: RawSubnetId) -> Outcome {
        let id = principal(&subnet.subnet_id, "subnet_id")?;
        json(&self.of_subnet(&id, |subnet| subnet.public_key_der.clone())?)
    }

    /// What is read of the subnet with this id.
    pub(crate) fn of_subnet<T>(
        &self,
        id: &Principal,
        read: impl FnOnce(&Subnet) -> T,
    ) -> Result<T, Failure> {
        let subnets = &self.replica.shared.subnets;
        let found = subnets.with_all(|all| all.iter().find(|subnet| subnet.id == *id).map(read));
        found.ok_or_else(|| Failure::bad(format!("SubnetNotFound({id})")))
    }

    pub(crate) fn get_subnet(&mut self, canister: RawCanisterId) -> Outcome {
        let id = principal(&canister.canister_id, "canister_id")?;
        let subnet = self.replica.shared.subnets.subnet_of(&id);
        let exists = self.replica.executor().state().contains(&id);
        json(&subnet.filter(|_| exists).map(|subnet| RawSubnetId { subnet_id: subnet.into() }))
    }

    /// The id of a canister that exists.
    fn existing(&self, id: &Base64) -> Result<Principal, Failure> {
        let id = principal(id, "canister_id")?;
        if self.replica.executor().state().contains(&id) {
            return Ok(id);
        }
        Err(Failure::bad(format!("CanisterNotFound({id})")))
    }

    pub(crate) fn get_cycles(&mut self, canister: RawCanisterId) -> Outcome {
        let id = self.existing(&canister.canister_id)?;
        let canister = self.replica.executor().state().get(&id);
        json(&RawCycles { cycles: canister.map_or(0, |canister| canister.cycles) })
    }

    pub(crate) fn add_cycles(&mut self, added: RawAddCycles) -> Outcome {
        let (id, amount) = (self.existing(&added.canister_id)?, added.amount);
        let balance =
            self.replica.change(|executor| Ok(executor.add_cycles(&id, amount).unwrap_or(0)))?;
        json(&RawCycles { cycles: balance })
    }

    pub(crate) fn get_controllers(&mut self, canister: RawCanisterId) -> Outcome {
        let id = self.existing(&canister.canister_id)?;
        let canister = self.replica.executor().state().get(&id);
        let controllers: Vec<_> = canister
            .iter()
            .flat_map(|canister| &canister.controllers)
            .map(|controller| RawPrincipalId { principal_id: (*controller).into() })
            .collect();
        json(&controllers)
    }

    pub(crate) fn get_stable_memory(
        &mut self,
        canister: &RawCanisterId,
        bounds: &Bounds,
    ) -> Outcome {
        let id = self.existing(&canister.canister_id)?;
        let executor = self.replica.executor();
        let bytes = executor.stable_bytes(&id).unwrap_or(0);
        let most = bounds.stable_answer_bytes();
        if bytes > most {
            return Err(Failure::bad(format!(
                "the stable memory of {id} has {bytes} bytes, the most that is sent at once is \
                 stable_answer_bytes = {most}: raise --memory or THIMBLE_POCKET_MEMORY"
            )));
        }
        let room = bounds.stable_answers.try_reserve(bytes * STABLE_ANSWER_TIMES);
        let mut room = room.map_err(|_| {
            Failure::bad(format!(
                "the stable memory of {id} finds no room beside others that are being sent: the \
                 pool stable_answers has {} bytes; ask for fewer at once",
                bounds.stable_answers.cap_bytes()
            ))
        })?;
        let blob = executor.stable_memory(&id)?.unwrap_or_default();
        let (before, after) = ("{\"blob\":\"", "\"}");
        let mut text =
            String::with_capacity(blob.len().div_ceil(3) * 4 + before.len() + after.len());
        text.push_str(before);
        BASE64_STANDARD.encode_string(&blob, &mut text);
        text.push_str(after);
        drop(blob);
        room.shrink((bytes * STABLE_ANSWER_TIMES).saturating_sub(text.len() as u64));
        Ok(with_reservation(text, room))
    }

    /// `content` are the bytes of the blob that `args` names; none if there is none.
    pub(crate) fn set_stable_memory(
        &mut self,
        args: &RawSetStableMemory,
        content: Option<Box<dyn Read>>,
    ) -> Outcome {
        let id = self.existing(&args.canister_id)?;
        let Some(mut content) = content else {
            let blob = hex::encode(&args.blob_id.0);
            return Err(Failure::bad(format!("BlobNotFound({blob})")));
        };
        let is_set =
            self.replica.change(|executor| Ok(executor.set_stable_memory(&id, &mut content)?))?;
        if is_set {
            return json(&());
        }
        Err(Failure::bad(format!("canister {id} has no code, and so no stable memory")))
    }

    /// Reads a call; queries have no aim.
    fn read_call(&mut self, call: RawCanisterCall, is_query: bool) -> Result<Call, Failure> {
        let now = self.replica.shared.now();
        let sender = principal(&call.sender, "sender")?;
        let canister_id = principal(&call.canister_id, "canister_id")?;
        let sender_info = match call.sender_info {
            Some(info) => {
                Some(SenderInfo { signer: principal(&info.signer, "signer")?, info: info.info.0 })
            }
            None => None,
        };
        let call_of = MethodCall {
            canister_id,
            method_name: call.method,
            arg: call.payload.0,
            sender_info: None,
        };
        let makes_canister = !is_query && effective::makes_canister(&call_of);
        let effective_canister_id = if makes_canister {
            Principal::management_canister()
        } else {
            // A call without a destination is rejected with the reason when it is inspected.
            effective::destination(&call_of, is_query)
                .unwrap_or_else(|_| Principal::management_canister())
        };
        let mut aim = self.aim(&call.effective_principal)?.filter(|_| makes_canister);
        if makes_canister
            && aim.is_none()
            && let Some(id) = effective::specified_id(&call_of)
        {
            aim = self.host(&id)?;
        }
        let expiry = now.0.saturating_add(self.replica.expiry_nanos());
        let request_id = self.request_id(&call_of, &sender, expiry);
        let MethodCall { method_name, arg, .. } = call_of;
        let ingress = Ingress {
            request_id,
            sender,
            canister_id,
            effective_canister_id,
            method_name,
            arg,
            ingress_expiry: Time(expiry),
            sender_info,
        };
        Ok(Call { ingress, aim })
    }

    /// The subnet that an effective principal names. One is made for a canister id that none hosts.
    fn aim(&self, effective: &EffectivePrincipal) -> Result<Option<Principal>, Failure> {
        let subnets = &self.replica.shared.subnets;
        match effective {
            EffectivePrincipal::None => Ok(None),
            EffectivePrincipal::SubnetId(id) => {
                let id = principal(id, "SubnetId")?;
                if subnets.has(&id) {
                    return Ok(Some(id));
                }
                Err(Failure::bad(format!(
                    "RequestRoutingError(\"no subnet {id} in this instance\")"
                )))
            }
            EffectivePrincipal::CanisterId(id) => {
                let id = principal(id, "CanisterId")?;
                if id == Principal::management_canister() {
                    return Ok(None);
                }
                self.host(&id)
            }
        }
    }

    /// The subnet that hosts a canister id. One is made where none does.
    fn host(&self, id: &Principal) -> Result<Option<Principal>, Failure> {
        let subnets = &self.replica.shared.subnets;
        let hosted = subnets.host(id);
        hosted.map_err(|error| Failure::bad(format!("RequestRoutingError(\"{error:#}\")")))?;
        Ok(subnets.subnet_of(id))
    }

    /// Request ids as the interface has them, with a nonce that makes each another one.
    fn request_id(&mut self, call: &MethodCall, sender: &Principal, expiry: u64) -> RequestId {
        let [height, number] = self.replica.next_nonce();
        let numbers = [height.to_be_bytes(), number.to_be_bytes()];
        let nonce = seed("thimble-pocket-nonce", &[&numbers.concat()]);
        let fields = [
            ("request_type", hash::of_bytes("call")),
            ("nonce", hash::of_bytes(nonce)),
            ("ingress_expiry", hash::of_nat(expiry)),
            ("sender", hash::of_bytes(sender)),
            ("canister_id", hash::of_bytes(call.canister_id)),
            ("method_name", hash::of_bytes(&call.method_name)),
            ("arg", hash::of_bytes(&call.arg)),
        ];
        let hashed = fields.map(|(name, value)| [hash::of_bytes(name), value]);
        RequestId(hash::of_fields(hashed.to_vec()))
    }

    pub(crate) fn submit(&mut self, call: RawCanisterCall) -> Outcome {
        json(&self.submit_call(call)?)
    }

    fn submit_call(&mut self, call: RawCanisterCall) -> Result<RawResult<RawMessageId>, Failure> {
        let effective_principal = call.effective_principal.clone();
        let Call { ingress, aim } = self.read_call(call, false)?;
        if let Err(reject) = self.replica.views().queries.inspect(&ingress) {
            return Ok(RawResult::Err(RejectResponse::new(&reject, false, self.client())));
        }
        let id = ingress.request_id;
        let shared = &self.replica.shared;
        if let Some(subnet) = aim {
            shared.subnets.aim(id, subnet)?;
        }
        shared.waiting.add(ingress).map_err(Failure::bad)?;
        Ok(RawResult::Ok(RawMessageId { effective_principal, message_id: Base64(id.0.to_vec()) }))
    }

    /// Outcome of a call, if it has one.
    fn status(&self, id: &RequestId) -> Option<RawResult<Base64>> {
        match &self.replica.executor().state().history.get(id)?.status {
            Status::Replied(reply) => Some(RawResult::Ok(Base64(reply.clone()))),
            Status::Rejected(reject) => {
                Some(RawResult::Err(RejectResponse::new(reject, true, self.client())))
            }
            Status::Received | Status::Processing | Status::Done => None,
        }
    }

    pub(crate) fn await_message(&mut self, message: RawMessageId) -> Outcome {
        let id = request_id(&message.message_id)?;
        self.await_call(&id)
    }

    fn await_call(&mut self, id: &RequestId) -> Outcome {
        let (mut idle, mut rounds, mut asks_servers) = (0, 0, false);
        loop {
            if let Some(outcome) = self.status(id) {
                return json(&outcome);
            }
            let shared = &self.replica.shared;
            if self.replica.executor().state().history.get(id).is_none() && !shared.waiting.has(id)
            {
                let id = hex::encode(id.0);
                return Err(Failure::bad(format!("MessageIdNotFound({id})")));
            }
            if idle >= IDLE_ROUNDS_MAX || rounds >= ROUNDS_MAX {
                return Err(Failure::bad(format!(
                    "the call {} was not answered within {rounds} rounds, {idle} of which did \
                     nothing; what it waits for may need the time to be advanced, or an HTTPS \
                     outcall to be answered",
                    hex::encode(id.0)
                )));
            }
            if asks_servers {
                self.replica.shared.answers.wait(SERVER_WAIT);
            }
            let round = self.round()?;
            let is_over = !round.more && round.awaited.is_empty();
            let is_idle = round.messages == 0;
            asks_servers = is_over && self.waits_for_servers();
            rounds += 1;
            idle += u64::from(is_over && is_idle && !asks_servers);
        }
    }

    pub(crate) fn execute(&mut self, call: RawCanisterCall) -> Outcome {
        match self.submit_call(call)? {
            RawResult::Ok(message) => self.await_call(&request_id(&message.message_id)?),
            RawResult::Err(reject) => json(&RawResult::<Base64>::Err(reject)),
        }
    }

    pub(crate) fn ingress_status(&mut self, args: RawIngressStatusArgs) -> Outcome {
        let id = request_id(&args.raw_message_id.message_id)?;
        if let (Some(caller), Some(entry)) =
            (&args.raw_caller, self.replica.executor().state().history.get(&id))
        {
            let caller = caller.principal().map_err(Failure::bad)?;
            if caller != entry.sender {
                return Err(Failure {
                    status: StatusCode::FORBIDDEN,
                    message: format!("the call was sent by another principal than {caller}"),
                });
            }
        }
        json(&self.status(&id))
    }

    pub(crate) fn query(&mut self, call: RawCanisterCall) -> Outcome {
        let Call { ingress, .. } = self.read_call(call, true)?;
        let request = QueryRequest {
            sender: ingress.sender,
            canister_id: ingress.canister_id,
            method_name: ingress.method_name,
            arg: ingress.arg,
            sender_info: ingress.sender_info,
        };
        json(&match self.replica.views().queries.query(request) {
            Ok(reply) => RawResult::Ok(Base64(reply.bytes)),
            Err(reject) => RawResult::Err(RejectResponse::new(&reject, false, self.client())),
        })
    }
}

fn request_id(bytes: &Base64) -> Result<RequestId, Failure> {
    let id = <[u8; 32]>::try_from(bytes.0.as_slice());
    id.map(RequestId).map_err(|_| Failure::bad("a message id has 32 bytes"))
}
