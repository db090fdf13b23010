//! The update call that a canister wants in place of a query.
//!
//! It is made as the call endpoint makes one for a client that signs nothing, and its answer is read
//! from the certified state: it needs no verification.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use bytes::Bytes;
use envelope::{Envelope, Request, auth, canonical, cbor::Writer, ingress};
use hyper::StatusCode;
use ic_http_certification::HttpUpdateRequest;
use ic_principal::Principal;
use state::{RequestId, SignedIngress};

use super::{
    exchange::{Exchange, Outcomes, internal, rejected},
    no_room, respond,
};
use crate::{
    answer::Refused,
    api::{Outcome, RequestKind},
    service::{Work, held, stopping},
    waiters::Waiter,
};

/// How often an update call is looked for that nobody waits for.
const UPDATE_LOOK: Duration = Duration::from_millis(100);
/// How far ahead an update call expires beside the time for which it is waited.
const EXPIRY_MORE: Duration = Duration::from_secs(30);

impl Exchange {
    /// The reply of the update call that the canister wants instead of the query.
    pub(super) async fn update(&self) -> Outcomes<Bytes> {
        let request = HttpUpdateRequest::from(self.request.clone());
        let argument = candid::encode_one(&request).map_err(internal)?;
        drop(request);
        self.check_argument(&argument)?;
        let service = &self.web.service;
        service.node.check_load(RequestKind::Call)?;
        let wait = Duration::from_millis(self.web.limits.update_wait_millis);
        let body = self.update_envelope(argument, wait);
        // One after the other, so that the body is held three times at most.
        let signed = SignedIngress {
            effective_canister_id: self.target.canister,
            envelope: canonical(&body, &service.bounds)?.into(),
        };
        drop(body);
        let envelope = Envelope::decode(&signed.envelope, &service.bounds)?;
        let validity = auth::validity(&envelope, &service.auth);
        let authenticated = auth::authenticate(&envelope, service.node.now(), &service.auth)?;
        let (id, expiry) = (envelope.request_id, envelope.content.ingress_expiry);
        let Request::Call(call) = envelope.content.request else {
            return Err(internal("the envelope of an update call is no call"));
        };
        let ingress = ingress(id, expiry, self.target.canister, call, authenticated);
        let node = service.node.clone();
        let inspect = move || node.inspect(&ingress).map(|()| ingress);
        let inspected = service.on_thread(Work::Inspect, inspect).await?;
        let ingress = inspected.map_err(|reject| rejected(&reject))?;
        let mut waiter = service.waiters.register(id);
        let started = Instant::now();
        service.node.submit(ingress, signed, validity)?;
        loop {
            if let Some(reply) = self.outcome(&id).await? {
                service.latencies.record_update(started.elapsed());
                return Ok(reply);
            }
            if started.elapsed() > wait {
                let message = format!(
                    "the canister did not answer within the limit http_gateway.update_wait_millis \
                     = {}; the call may still be executed",
                    wait.as_millis()
                );
                return Err(Refused::new(StatusCode::GATEWAY_TIMEOUT, "update_wait", message));
            }
            tokio::select! {
                () = certified(&mut waiter) => waiter = None,
                () = tokio::time::sleep(UPDATE_LOOK) => {}
                () = service.draining() => return Err(stopping()),
            }
        }
    }

    async fn outcome(&self, id: &RequestId) -> Outcomes<Option<Bytes>> {
        let service = &self.web.service;
        if !service.latest()?.request(id).is_some_and(|facts| facts.terminal) {
            return Ok(None);
        }
        let mut room = self.share.room_for_reply().await?;
        match service.latest()?.outcome(id) {
            None => Ok(None),
            Some(Outcome::Replied(reply)) => {
                room.try_resize(reply.capacity() as u64).map_err(|full| no_room(&full))?;
                Ok(Some(held(reply, (room, self.share.clone()))))
            }
            Some(Outcome::Rejected(reject)) => Err(rejected(&reject)),
            Some(Outcome::Done) => {
                Err(respond::bad("the node has no room to keep it (subnet.ingress_history_bytes)"))
            }
        }
    }

    /// A call that nobody signs.
    fn update_envelope(&self, argument: Vec<u8>, wait: Duration) -> Vec<u8> {
        let service = &self.web.service;
        let ahead = service.auth.ingress_expiry.min(wait + EXPIRY_MORE);
        let now = service.node.now().0;
        let expiry = now.saturating_add(u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX));
        let number = self.web.updates.fetch_add(1, Ordering::Relaxed);
        let nonce = [now.to_be_bytes(), number.to_be_bytes()].concat();
        let mut writer = Writer::with_capacity(argument.len() + 512);
        writer.map(1).text("content").map(7);
        writer.text("request_type").text("call");
        writer.text("canister_id").bytes(self.target.canister.as_slice());
        writer.text("method_name").text("http_request_update");
        writer.text("arg").bytes(&argument);
        writer.text("sender").bytes(Principal::anonymous().as_slice());
        writer.text("ingress_expiry").nat(expiry);
        writer.text("nonce").bytes(&nonce);
        writer.finish()
    }
}

/// Completes when the call is certified; never without a waiter.
async fn certified(waiter: &mut Option<Waiter>) {
    match waiter {
        Some(waiter) => waiter.certified().await,
        None => std::future::pending().await,
    }
}
