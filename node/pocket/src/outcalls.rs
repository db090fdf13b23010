//! HTTPS outcalls of canisters, which a test answers in the place of servers.
//!
//! The replica makes none yet: `http_request` of the management canister is rejected, with the
//! words that it is switched off. So none is ever pending, and a test that answers one is told that
//! there is none of that number. Whoever adds them keeps the pending ones here.

use serde::Deserialize;

use crate::{
    instance::Instance,
    operations::{Failure, Outcome, json},
    rest::RawSubnetId,
};

/// An answer to an outcall, as far as it names it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawMock {
    subnet_id: RawSubnetId,
    request_id: u64,
}

impl Instance {
    /// Outcalls that wait for an answer of the test.
    pub(crate) fn pending_outcalls(&mut self) -> Outcome {
        let none: [(); 0] = [];
        json(&none)
    }

    /// Answers one.
    pub(crate) fn mock_outcall(&mut self, mock: &RawMock) -> Outcome {
        let subnet = mock.subnet_id.subnet_id.principal().map_err(Failure::bad)?;
        if !self.replica.shared().subnets.has(&subnet) {
            return Err(Failure::bad(format!("SubnetNotFound({subnet})")));
        }
        Err(Failure::bad(format!(
            "InvalidCanisterHttpRequestId(({subnet}, {})): no HTTPS outcall of this number waits \
             for an answer; outcalls are switched off in this server",
            mock.request_id
        )))
    }
}
