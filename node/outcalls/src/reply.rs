//! The canister's view of a server's response: the bounds of a response, the argument of the
//! canister's transform, and the bounds of its result. The same input gives the same result on
//! every node.

use ic_management_canister_types::{HttpHeader, HttpRequestResult, TransformArgs};
use state::{
    ErrorCode, OUTCALL_REJECT_BYTES_MAX, Outcall, OutcallAnswer, OutcallTransform, Payload, Reject,
    RejectCode,
};

use crate::Failure;

/// Bounds of the interface specification on headers of responses.
pub(crate) const HEADERS_MAX: usize = 64;
const HEADER_PART_BYTES_MAX: usize = 8 << 10;
const HEADERS_BYTES_MAX: usize = 48 << 10;
/// Types and lengths in the encoding of a response.
const ENCODING_BESIDE_BYTES: usize = 512;

/// The next step for a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseStep<'a> {
    /// The canister gets it so.
    Reply(Vec<u8>),
    /// The canister's transform is asked with these bytes; what it replies goes through
    /// [`transformed`].
    Transform(&'a OutcallTransform, Vec<u8>),
}

/// Whether a response is within its bounds: those of the interface, and what the canister asked
/// for.
///
/// # Errors
/// When it is not: that is the answer.
pub fn check(response: &HttpRequestResult, bytes_max: u64) -> Result<(), Failure> {
    let left = body_bytes_max(&response.headers, bytes_max)?;
    if response.body.len() as u64 > left {
        return Err(Failure::BodyBytes(bytes_max));
    }
    Ok(())
}

/// Most bytes of the body of a response with these headers, which are within their bounds.
pub(crate) fn body_bytes_max(headers: &[HttpHeader], bytes_max: u64) -> Result<u64, Failure> {
    let mut bytes = 0;
    for HttpHeader { name, value } in headers {
        bytes += name.len() + value.len();
        if name.len().max(value.len()) > HEADER_PART_BYTES_MAX {
            return Err(Failure::Headers);
        }
    }
    if headers.len() > HEADERS_MAX || bytes > HEADERS_BYTES_MAX {
        return Err(Failure::Headers);
    }
    bytes_max.checked_sub(bytes as u64).ok_or(Failure::HeaderBytes(bytes_max))
}

/// The next step for a response that is within its bounds.
///
/// # Errors
/// When it has no encoding: that is the answer.
pub fn next_step(
    outcall: &Outcall,
    response: HttpRequestResult,
) -> Result<ResponseStep<'_>, Reject> {
    let bytes = response_bytes(&response);
    let Some(transform) = &outcall.transform else {
        return encode(response, bytes).map(ResponseStep::Reply);
    };
    let context = transform.context.clone();
    let bytes = bytes + context.len();
    encode(TransformArgs { response, context }, bytes)
        .map(|arg| ResponseStep::Transform(transform, arg))
}

/// The result for the canister of its transform's reply.
///
/// # Errors
/// When that is over the bound: that is the answer.
pub fn transformed(outcall: &Outcall, reply: Vec<u8>) -> Result<Vec<u8>, Reject> {
    let most = outcall.response_bytes_max();
    if reply.len() as u64 > most {
        return Err(Failure::Transformed(most).reject());
    }
    Ok(reply)
}

/// As agreement takes it: the same of the same on every node.
pub fn payload(result: Result<Vec<u8>, Reject>) -> Payload {
    match result {
        Ok(reply) => Payload::Reply(reply),
        Err(mut reject) => {
            reject.message.truncate(reject.message.floor_char_boundary(OUTCALL_REJECT_BYTES_MAX));
            if u32::from(reject.error_code.0 / 100) != reject.code as u32 {
                reject.error_code = ErrorCode(reject.code as u16 * 100);
            }
            Payload::Reject(reject)
        }
    }
}

fn response_bytes(response: &HttpRequestResult) -> usize {
    let headers = response.headers.iter().map(|it| it.name.len() + it.value.len() + 8);
    response.body.len() + headers.sum::<usize>()
}

/// Encodes a value of `bytes` bytes and little more. Memory is taken at once, as growing would take
/// more of it, and at most two copies exist at a time.
fn encode<T: candid::CandidType>(value: T, bytes: usize) -> Result<Vec<u8>, Reject> {
    let failed = || {
        let what = "The response has no encoding in Candid".to_owned();
        OutcallAnswer::reject(RejectCode::SysFatal, what)
    };
    let mut builder = candid::ser::IDLBuilder::new();
    let room = builder.try_reserve_value_serializer_capacity(bytes + ENCODING_BESIDE_BYTES);
    room.map_err(|_| failed())?;
    builder.arg(&value).map_err(|_| failed())?;
    drop(value);
    let mut encoded = Vec::with_capacity(bytes + 2 * ENCODING_BESIDE_BYTES);
    builder.serialize(&mut encoded).map_err(|_| failed())?;
    encoded.shrink_to_fit();
    Ok(encoded)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use state::{OutcallId, Time};

    use super::*;

    fn response(headers: &[(usize, usize)], body: usize) -> HttpRequestResult {
        let header = |(name, value): &(usize, usize)| HttpHeader {
            name: "n".repeat(*name),
            value: "v".repeat(*value),
        };
        let headers = headers.iter().map(header).collect();
        HttpRequestResult { status: 200_u8.into(), headers, body: vec![0; body] }
    }

    #[test]
    fn a_response_is_within_every_bound_or_says_which_it_is_over() {
        let checked =
            |headers: &[(usize, usize)], body, most| check(&response(headers, body), most);
        assert_eq!(checked(&[(4, 6)], 90, 100), Ok(()));
        assert_eq!(checked(&[(4, 6)], 91, 100), Err(Failure::BodyBytes(100)));
        assert_eq!(checked(&[(40, 61)], 0, 100), Err(Failure::HeaderBytes(100)));
        assert_eq!(checked(&[], 0, 0), Ok(()));
        let most = 1 << 20;
        assert_eq!(checked(&[(1, 1); HEADERS_MAX], 0, most), Ok(()));
        assert_eq!(checked(&[(1, 1); HEADERS_MAX + 1], 0, most), Err(Failure::Headers));
        assert_eq!(checked(&[(1, HEADER_PART_BYTES_MAX)], 0, most), Ok(()));
        assert_eq!(checked(&[(1, HEADER_PART_BYTES_MAX + 1)], 0, most), Err(Failure::Headers));
        assert_eq!(checked(&[(8 << 10, 8 << 10); 3], 0, most), Ok(()), "48 KiB");
        assert_eq!(
            checked(&[(8 << 10, 8 << 10), (8 << 10, 8 << 10), (8 << 10, 8 << 10), (1, 0)], 0, most),
            Err(Failure::Headers)
        );
    }

    #[test]
    fn an_encoding_is_the_usual_one_in_no_more_memory_than_it_needs() {
        let headers = vec![HttpHeader { name: "name".into(), value: "value".into() }];
        let response = HttpRequestResult { status: 200_u8.into(), headers, body: vec![7; 100_000] };
        let bytes = response_bytes(&response);
        let args = TransformArgs { response, context: vec![8; 1_000] };
        let usual = candid::encode_one(&args).unwrap();
        let encoded = encode(args, bytes + 1_000).unwrap();
        assert!(encoded == usual && encoded.capacity() <= usual.len() + 2 * ENCODING_BESIDE_BYTES);
    }

    #[test]
    fn a_reject_of_a_transform_is_cut_to_what_is_agreed_on() {
        let message = "ä".repeat(OUTCALL_REJECT_BYTES_MAX);
        let reject =
            Reject { code: RejectCode::CanisterReject, message, error_code: ErrorCode(502) };
        let answer =
            OutcallAnswer { id: OutcallId(1), until: Time(1), payload: payload(Err(reject)) };
        assert!(answer.is_within(0));
        let Payload::Reject(reject) = answer.payload else { unreachable!() };
        assert_eq!(
            (reject.message.len(), reject.error_code),
            (OUTCALL_REJECT_BYTES_MAX, ErrorCode(400))
        );
    }
}
