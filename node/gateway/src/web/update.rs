//! The update call that a canister wants in place of a query.
//!
//! It is made as the call endpoint makes one for a client that signs nothing, and its answer is
//! read from the certified state: it needs no verification.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use envelope::{Envelope, Request, auth, canonical, cbor::Writer, ingress};
use http_server::{ErrorResponse, HttpHandler as _};
use hyper::StatusCode;
use ic_principal::Principal;
use state::{RequestId, SignedIngress};

use super::exchange::{Exchange, HttpResult, Reply, ReplySource, ReplyUse, internal, not_executed};
use crate::{
    api::RequestKind,
    endpoints::{auth_error, envelope_error},
    service::{JobKind, stopping},
    waiters::Waiter,
};

/// Interval of checks for an update call that no waiter is registered for.
const UPDATE_POLL: Duration = Duration::from_millis(100);
/// Expiry of an update call after the end of the wait for it.
const EXPIRY_MORE: Duration = Duration::from_secs(30);

impl Exchange {
    /// The reply of the update call that the canister wants instead of the query. The request is
    /// not needed after it, so the body is dropped.
    pub(super) async fn update(&mut self) -> HttpResult<Reply> {
        let wait = Duration::from_millis(self.web.limits.update_wait_millis);
        let (id, mut waiter) = self.submit(wait).await?;
        let service = &self.web.service;
        let started = Instant::now();
        while !service.latest()?.request(&id).is_some_and(|facts| facts.terminal) {
            if started.elapsed() > wait {
                let message = format!(
                    "the canister did not answer within the limit http_gateway.update_wait_millis \
                     = {}; the call may still be executed",
                    wait.as_millis()
                );
                let status = StatusCode::GATEWAY_TIMEOUT;
                return Err(ErrorResponse::new(status, "update_wait", message));
            }
            tokio::select! {
                () = certified(&mut waiter) => waiter = None,
                () = tokio::time::sleep(UPDATE_POLL) => {}
                () = service.draining() => return Err(stopping()),
            }
        }
        service.config.latencies.record_update(started.elapsed());
        self.reply(ReplySource::Update(&id), ReplyUse::Written(0)).await
    }

    async fn submit(&mut self, wait: Duration) -> HttpResult<(RequestId, Option<Waiter>)> {
        let service = self.web.service.clone();
        service.node.check_load(RequestKind::Call)?;
        let body_bytes = self.request.body.len() as u64;
        let until = tokio::time::Instant::now() + self.web.read_timeout();
        let _share = self.web.rooms.share(&self.quota, body_bytes, 0, until).await?;
        let argument = self.request.update_argument();
        self.check_argument(&argument)?;
        self.request = Arc::new(self.request.without_body());
        self.body = None;
        let body = self.update_envelope(&argument, wait);
        // One after the other, so that the body is held twice at most.
        drop(argument);
        let signed = SignedIngress {
            effective_canister_id: self.target.canister,
            envelope: canonical(&body, &service.bounds).map_err(envelope_error)?.into(),
        };
        drop(body);
        let envelope =
            Envelope::decode(&signed.envelope, &service.bounds).map_err(envelope_error)?;
        let validity = auth::validity(&envelope, &service.auth);
        let authenticated = auth::authenticate(&envelope, service.node.block_time(), &service.auth)
            .map_err(auth_error)?;
        let (id, expiry) = (envelope.request_id, envelope.content.ingress_expiry);
        let Request::Call(call) = envelope.content.request else {
            return Err(internal("the envelope of an update call is no call"));
        };
        let ingress = ingress(id, expiry, self.target.canister, call, authenticated);
        let node = service.node.clone();
        let inspect = move || node.inspect(&ingress).map(|()| ingress);
        let inspected = service.on_thread(JobKind::Inspect(self.target.canister), inspect).await?;
        let wait = service.config.queries.wait;
        let ingress = inspected.map_err(|reject| not_executed(&reject, wait))?;
        let waiter = service.waiters.register(id);
        service.node.submit(ingress, signed, validity)?;
        Ok((id, waiter))
    }

    fn update_envelope(&self, argument: &[u8], wait: Duration) -> Vec<u8> {
        let service = &self.web.service;
        let ahead = service.auth.ingress_expiry.min(wait + EXPIRY_MORE);
        let now = service.node.block_time().0;
        let expiry = now.saturating_add(u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX));
        let number = self.web.updates.fetch_add(1, Ordering::Relaxed);
        let nonce = [now.to_be_bytes(), number.to_be_bytes()].concat();
        let mut writer = Writer::with_capacity(argument.len() + 512);
        writer.map(1).text("content").map(7);
        writer.text("request_type").text("call");
        writer.text("canister_id").bytes(self.target.canister.as_slice());
        writer.text("method_name").text("http_request_update");
        writer.text("arg").bytes(argument);
        writer.text("sender").bytes(Principal::anonymous().as_slice());
        writer.text("ingress_expiry").nat(expiry);
        writer.text("nonce").bytes(&nonce);
        writer.finish()
    }
}

/// Completes when the call is certified; never without a waiter.
async fn certified(waiter: &mut Option<Waiter>) {
    match waiter {
        Some(waiter) => waiter.wait_certified().await,
        None => std::future::pending().await,
    }
}
