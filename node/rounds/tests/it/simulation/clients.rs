//! The clients of a simulated subnet: what they want, how it travels, and what becomes of it in a
//! block.

use std::time::Duration;

use commonware_runtime::Clock as _;
use ic_principal::Principal;
use rand::{Rng, rngs::StdRng, seq::SliceRandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use state::{Ingress, IngressId, RequestId, SignedIngress, Time, Validity};

use envelope::Envelopes;

use crate::simulation::{
    Context, MENDED,
    net::{Net, time_of},
    real,
};

/// A call of the simulated clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) number: u64,
    pub(crate) expiry: u64,
    pub(crate) padding: Vec<u8>,
    /// None where there are no canisters.
    pub(crate) target: Option<Target>,
}

/// Operation of a call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) canister: Principal,
    pub(crate) effective: Principal,
    pub(crate) method: String,
    pub(crate) arg: Vec<u8>,
}

/// Numbers from here on are of calls that bring the canisters into being.
pub(crate) const DEPLOYMENT: u64 = 1 << 40;

pub(crate) fn number_of(id: &RequestId) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = id.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Name of a call among those that are checked.
pub(crate) fn workload(id: &RequestId) -> Option<String> {
    let number = number_of(id);
    (number < DEPLOYMENT).then(|| number.to_string())
}

pub(crate) fn name_of(call: &Ingress) -> String {
    number_of(&call.request_id).to_string()
}

impl Call {
    pub(crate) fn effective(&self) -> Principal {
        self.target.as_ref().map_or_else(Principal::management_canister, |target| target.effective)
    }

    pub(crate) fn signed_ingress(&self) -> SignedIngress {
        self.signed_with(0)
    }

    /// The same request in a different envelope, with `more` bytes of padding.
    fn signed_with(&self, more: usize) -> SignedIngress {
        let content = [postcard::to_stdvec(self).unwrap(), vec![7; more]].concat();
        let signature = signature(&content);
        SignedIngress {
            effective_canister_id: self.effective(),
            envelope: [content, signature.to_vec()].concat().into(),
        }
    }

    /// A hash that ends with the number.
    pub(crate) fn request_id(&self) -> RequestId {
        let mut id: [u8; 32] = Sha256::digest(postcard::to_stdvec(self).unwrap()).into();
        id[24..].copy_from_slice(&self.number.to_be_bytes());
        RequestId(id)
    }

    pub(crate) fn id(&self) -> IngressId {
        IngressId::new(&self.request_id(), &self.effective())
    }
}

/// Stands in for a signature: only clients make one in a history.
fn signature(content: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(b"signed").chain_update(content).finalize().into()
}

fn parse(signed: &SignedIngress) -> Result<Call, String> {
    let (content, _) = signed.envelope.split_last_chunk::<32>().ok_or("it is too short")?;
    postcard::from_bytes(content).map_err(|error| error.to_string())
}

pub(crate) struct Calls;

impl Envelopes for Calls {
    fn read(&self, signed: &SignedIngress) -> Result<Ingress, String> {
        let call = parse(signed)?;
        let request_id = call.request_id();
        let target = call.target.unwrap_or_else(|| Target {
            canister: Principal::management_canister(),
            effective: Principal::management_canister(),
            method: call.number.to_string(),
            arg: vec![],
        });
        Ok(Ingress {
            request_id,
            sender: real::user(),
            canister_id: target.canister,
            effective_canister_id: signed.effective_canister_id,
            method_name: target.method,
            arg: target.arg,
            ingress_expiry: Time(call.expiry),
            sender_info: None,
        })
    }

    fn verify(&self, signed: &SignedIngress) -> Result<(IngressId, Validity), String> {
        let (content, claimed) =
            signed.envelope.split_last_chunk::<32>().ok_or("it is too short")?;
        if *claimed != signature(content) {
            return Err("nobody signed it".into());
        }
        // The destination of a call is not signed; each call has one destination.
        if signed.effective_canister_id != parse(signed)?.effective() {
            return Err("it is for another canister".into());
        }
        self.claim(signed)
    }

    fn claim(&self, signed: &SignedIngress) -> Result<(IngressId, Validity), String> {
        let Ingress { request_id, effective_canister_id, ingress_expiry, .. } =
            self.read(signed)?;
        Ok((IngressId::new(&request_id, &effective_canister_id), ingress_expiry.into()))
    }
}

/// Creates the canisters of the workload. Calls lost with the pool of a node that ends are sent
/// again: a surplus canister stays empty, and none takes code twice.
pub(crate) async fn deploy(context: &Context, net: &mut Net) {
    let until = context.current() + MENDED;
    let mut number = DEPLOYMENT;
    let mut again = context.current();
    while net.found.lock().deployed < real::CANISTERS {
        assert!(context.current() < until, "the canisters are not there: {:?}", net.heights());
        for place in net.dead() {
            net.start(place).await;
        }
        if context.current() >= again {
            again = context.current() + Duration::from_secs(10);
            let targets = (0..real::CANISTERS).map(|_| real::create());
            for target in targets.chain((0..real::CANISTERS).map(real::install)) {
                let call = Call {
                    number,
                    expiry: time_of(context.current()).0 + 60_000_000_000,
                    padding: vec![],
                    target: Some(target),
                };
                number += 1;
                for (_, pool) in net.running.values() {
                    let _ = pool.submit(call.id(), Time(call.expiry), call.signed_ingress());
                }
            }
        }
        context.sleep(Duration::from_millis(200)).await;
    }
}

/// Some developer brings another canister into being.
pub(crate) fn deploy_another(context: &Context, net: &Net) {
    let (number, deployed) = {
        let mut found = net.found.lock();
        found.sent += 2;
        (DEPLOYMENT + (1 << 20) + found.sent, found.deployed)
    };
    if deployed >= real::CANISTERS_MAX {
        return;
    }
    for (number, target) in [(number, real::create()), (number + 1, real::install(deployed))] {
        let expiry = time_of(context.current()).0 + 60_000_000_000;
        let call = Call { number, expiry, padding: vec![], target: Some(target) };
        for (_, pool) in net.running.values() {
            let _ = pool.submit(call.id(), Time(call.expiry), call.signed_ingress());
        }
    }
}

/// A client calls some node that runs, if there is one.
pub(crate) fn call(context: &Context, net: &Net, rng: &mut StdRng) {
    let number = {
        let mut found = net.found.lock();
        found.sent += 1;
        found.sent
    };
    let padding = if rng.gen_bool(0.1) { 20_000 } else { rng.gen_range(0..200) };
    let now = time_of(context.current());
    let expiry = now.0 + rng.gen_range(1..300) * 1_000_000_000;
    let target = net.real.then(|| real::work(rng, number));
    let call = Call { number, expiry, padding: vec![0; padding], target };
    let pools: Vec<_> = net.running.values().map(|(_, pool)| pool).collect();
    if rng.gen_bool(0.1) {
        // One request, and to every node in another envelope, which holds as well.
        for pool in pools {
            let signed = call.signed_with(rng.gen_range(0..30_000));
            let _ = pool.submit(call.id(), Time(call.expiry), signed);
        }
    } else if let Some(pool) = pools.choose(rng) {
        // A full pool says so to the client, who gives up here.
        let _ = pool.submit(call.id(), Time(call.expiry), call.signed_ingress());
    }
}
