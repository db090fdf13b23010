//! Chapter "HTTPS interface".

/// Status and body of a request with that body.
pub(crate) async fn post(url: String, body: Vec<u8>) -> (u16, Vec<u8>) {
    let request = reqwest::Client::new().post(url).header("content-type", "application/cbor");
    let response = request.body(body).send().await.unwrap();
    (response.status().as_u16(), response.bytes().await.unwrap().to_vec())
}
