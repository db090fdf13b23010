//! Answers to requests: bodies of the interface specification, and the headers of all responses.

use bytes::Bytes;
use ed25519_dalek::{Signer, SigningKey};
use envelope::{
    cbor::Writer,
    hash::{self, Hash},
};
use http_body_util::Full;
use http_server::{respond, set_common_headers};
use hyper::{
    Response, StatusCode,
    header::{self, HeaderValue},
};
use ic_principal::Principal;
use state::{Height, Reject, RequestId, Time};

const RESPONSE_DOMAIN: &[u8] = b"\x0Bic-response";
/// Room for everything in a response body but its payload.
const OVERHEAD: usize = 512;

pub(crate) type Body = Full<Bytes>;

/// 200 with a CBOR body.
pub(crate) fn cbor(body: Bytes) -> Response<Body> {
    respond(StatusCode::OK, "application/cbor", Body::new(body))
}

/// 202 with nothing.
pub(crate) fn accepted() -> Response<Body> {
    without_body(StatusCode::ACCEPTED)
}

fn without_body(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::default());
    *response.status_mut() = status;
    response
}

/// Who may read a response in a browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Pages of any origin: they are clients.
    Anyone,
    /// The node's own pages: operator data must not be readable by others.
    SameOrigin,
}

/// The headers every response carries.
pub(crate) fn with_common_headers(
    mut response: Response<Body>,
    readers: Readers,
) -> Response<Body> {
    let headers = response.headers_mut();
    if readers == Readers::Anyone {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        headers.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("retry-after,content-length"),
        );
    }
    set_common_headers(headers);
    response
}

/// The answer to a browser's preflight request.
pub(crate) fn preflight() -> Response<Body> {
    let mut response = without_body(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, HEAD, POST, OPTIONS"),
    );
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static(
            "accept, accept-language, content-language, content-type, range, cache-control, \
             x-requested-with",
        ),
    );
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    response
}

/// The answer to OPTIONS at an operator page: no other origin may do anything.
pub(crate) fn options() -> Response<Body> {
    let mut response = without_body(StatusCode::NO_CONTENT);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, OPTIONS"));
    response
}

/// `{status: "replied", certificate}`: a synchronous call that completed. Ends where the
/// certificate begins, and has room for its `bytes` bytes.
pub(crate) fn certified_call_head(bytes: usize) -> Vec<u8> {
    let mut writer = Writer::self_described(OVERHEAD + bytes);
    writer.map(2).text("status").text("replied").text("certificate").bytes_head(bytes as u64);
    writer.finish()
}

/// The reject of a call that was not submitted; the synchronous endpoints name its kind.
pub(crate) fn rejected_call(reject: &Reject, synchronous: bool) -> Vec<u8> {
    let mut writer = Writer::self_described(OVERHEAD + reject.message.len());
    if synchronous {
        writer.map(4).text("status").text("non_replicated_rejection");
    } else {
        writer.map(3);
    }
    writer.text("reject_code").nat(reject.code as u64).text("reject_message").text(&reject.message);
    writer.text("error_code").text(&reject.error_code.to_string());
    writer.finish()
}

/// `{certificate}`: a read_state. Ends where the certificate begins, and has room for its `bytes`
/// bytes.
pub(crate) fn certificate_head(bytes: usize) -> Vec<u8> {
    let mut writer = Writer::self_described(OVERHEAD + bytes);
    writer.map(1).text("certificate").bytes_head(bytes as u64);
    writer.finish()
}

/// The node's identity towards clients: its key signs query responses.
pub(crate) struct NodeSigner {
    key: SigningKey,
    node_id: Principal,
    // Hashes of the field names, which are the same in every response.
    status: [Hash; 2],
    rejected: [Hash; 2],
    reply: Hash,
    arg: Hash,
    timestamp: Hash,
    request_id: Hash,
    reject_code: Hash,
    reject_message: Hash,
    error_code: Hash,
}

impl NodeSigner {
    pub(crate) fn new(key: SigningKey, node_id: Principal) -> Self {
        let of = |text: &str| hash::of_bytes(text);
        Self {
            key,
            node_id,
            status: [of("status"), of("replied")],
            rejected: [of("status"), of("rejected")],
            reply: of("reply"),
            arg: of("arg"),
            timestamp: of("timestamp"),
            request_id: of("request_id"),
            reject_code: of("reject_code"),
            reject_message: of("reject_message"),
            error_code: of("error_code"),
        }
    }

    pub(crate) fn query_response(
        &self,
        request_id: &RequestId,
        outcome: Result<&[u8], &Reject>,
        now: Time,
    ) -> Vec<u8> {
        let mut fields = vec![
            [self.timestamp, hash::of_nat(now.0)],
            [self.request_id, hash::of_bytes(request_id.0)],
        ];
        let mut writer;
        match outcome {
            Ok(reply) => {
                fields.push(self.status);
                fields.push([self.reply, hash::of_fields(vec![[self.arg, hash::of_bytes(reply)]])]);
                writer = Writer::self_described(OVERHEAD + reply.len());
                writer
                    .map(3)
                    .text("status")
                    .text("replied")
                    .text("reply")
                    .map(1)
                    .text("arg")
                    .bytes(reply);
            }
            Err(reject) => {
                let (code, error_code) = (reject.code as u64, reject.error_code.to_string());
                fields.push(self.rejected);
                fields.push([self.reject_code, hash::of_nat(code)]);
                fields.push([self.reject_message, hash::of_bytes(&reject.message)]);
                fields.push([self.error_code, hash::of_bytes(&error_code)]);
                writer = Writer::self_described(OVERHEAD + reject.message.len());
                writer.map(5).text("status").text("rejected").text("reject_code").nat(code);
                writer
                    .text("reject_message")
                    .text(&reject.message)
                    .text("error_code")
                    .text(&error_code);
            }
        }
        let signature = self.key.sign(&[RESPONSE_DOMAIN, &hash::of_fields(fields)].concat());
        writer.text("signatures").array(1).map(3);
        writer.text("timestamp").nat(now.0).text("signature").bytes(&signature.to_bytes());
        writer.text("identity").bytes(self.node_id.as_slice());
        writer.finish()
    }
}

/// Content of `/api/v2/status`.
pub(crate) fn status(
    root_key_der: &[u8],
    version: &str,
    health: &str,
    certified_height: Height,
) -> Vec<u8> {
    let mut writer =
        Writer::self_described(OVERHEAD + root_key_der.len() + version.len() + health.len());
    writer.map(5).text("ic_api_version").text("0.66.0").text("impl_version").text(version);
    writer
        .text("replica_health_status")
        .text(health)
        .text("certified_height")
        .nat(certified_height.0);
    writer.text("root_key").bytes(root_key_der);
    writer.finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ic_transport_types::QueryResponse;
    use state::{ErrorCode, RejectCode};

    #[test]
    fn query_responses_are_signed_as_the_published_types_expect() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let signer = NodeSigner::new(key.clone(), Principal::self_authenticating([1]));
        let reject = Reject {
            code: RejectCode::CanisterError,
            message: "it trapped".to_owned(),
            error_code: ErrorCode(502),
        };
        for outcome in [Ok(b"DIDL\x00\x00".to_vec()), Err(reject)] {
            let body = signer.query_response(
                &RequestId([3; 32]),
                outcome.as_deref(),
                Time(1_685_570_400_000_000_000),
            );
            let response: QueryResponse = serde_cbor_2::from_slice(&body).unwrap();
            let [signature] = response.signatures() else { panic!("one signature") };
            let signable = response
                .signable(ic_transport_types::RequestId::new(&[3; 32]), signature.timestamp);
            key.verifying_key()
                .verify_strict(&signable, &signature.signature.as_slice().try_into().unwrap())
                .unwrap();
            assert_eq!(
                signature.identity.as_slice(),
                Principal::self_authenticating([1]).as_slice()
            );
            assert_eq!(signature.timestamp, 1_685_570_400_000_000_000);
        }
    }
}
