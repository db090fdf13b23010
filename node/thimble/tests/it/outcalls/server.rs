//! Servers that canisters ask, with certificates of an authority of the test's own.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedKey, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::{PrivateKeyDer, pem::PemObject as _};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    sync::watch,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

/// An authority, and a server's key that it signed.
pub(crate) struct Authority {
    pub(crate) pem: String,
    acceptor: TlsAcceptor,
}

impl Authority {
    /// For servers named `localhost`.
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key_pair = KeyPair::generate().unwrap();
        let ca = CertifiedKey { cert: params.self_signed(&key_pair).unwrap(), key_pair };
        let key = KeyPair::generate().unwrap();
        let names = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = names.signed_by(&key, &ca.cert, &ca.key_pair).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        Self { pem: ca.cert.pem(), acceptor: TlsAcceptor::from(Arc::new(config)) }
    }

    /// Configuration with which a node trusts the authority and reaches servers here.
    pub(crate) fn configuration(&self, folder: &Path) -> String {
        let file = folder.join("authority.pem");
        std::fs::write(&file, &self.pem).unwrap();
        format!(
            "[features]\noutcalls = true\n[outcalls]\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\n\
             extra_roots = \"{}\"\n",
            file.display()
        )
    }
}

/// A request that a server received.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    /// How many were before.
    pub(crate) number: u64,
    /// The first line and the headers, in small letters.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// Its answer: a status, and a body. None: no answer, ever.
pub(crate) type ScriptedResponse = Option<(u16, Vec<u8>)>;

/// A server that ends with it.
pub(crate) struct Server {
    pub(crate) port: u16,
    asked: Arc<AtomicU64>,
    speaks: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(crate) async fn start(
        authority: &Authority,
        says: impl Fn(&ReceivedRequest) -> ScriptedResponse + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (says, acceptor) = (Arc::new(says), authority.acceptor.clone());
        let asked = Arc::new(AtomicU64::new(0));
        let counted = asked.clone();
        let (speaks, may_speak) = watch::channel(true);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (says, acceptor, asked) = (says.clone(), acceptor.clone(), asked.clone());
                let mut may_speak = may_speak.clone();
                tokio::spawn(async move {
                    // A client that does not trust the certificate disconnects.
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    talk(stream, async |head, body| {
                        let number = asked.fetch_add(1, Ordering::SeqCst);
                        may_speak.wait_for(|speaks| *speaks).await.ok()?;
                        says(&ReceivedRequest { number, head, body })
                    })
                    .await;
                });
            }
        });
        Self { port, asked: counted, speaks, task }
    }

    /// Keeps what it says to itself from here on.
    pub(crate) fn hold(&self) {
        self.speaks.send_replace(false);
    }

    /// Says it, to all who wait.
    pub(crate) fn speak(&self) {
        self.speaks.send_replace(true);
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://localhost:{}/{path}", self.port)
    }
}

async fn talk(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    says: impl AsyncFnOnce(String, Vec<u8>) -> ScriptedResponse,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
    if stream.read_exact(&mut body).await.is_err() {
        return;
    }
    let without_body = head.starts_with("head ");
    match says(head, body).await {
        Some((status, said)) => {
            let head = format!(
                "HTTP/1.1 {status} Said\r\nX-Server: test\r\nContent-Length: {}\r\n\r\n",
                said.len()
            );
            let body: &[u8] = if without_body { &[] } else { &said };
            // The client may have heard enough before the end.
            let _ = stream.write_all(&[head.as_bytes(), body].concat()).await;
            let _ = stream.shutdown().await;
        }
        None => std::future::pending().await,
    }
}
