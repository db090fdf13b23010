//! A server that is started as clients start it, and requests to it.

use std::{
    io::Write as _,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use reqwest::{Method, StatusCode, header::HeaderName};
use serde_json::{Value, json};

/// A server, with the folder that its port file and its temporary files are in.
pub struct Server {
    child: Child,
    folder: tempfile::TempDir,
    pub url: String,
    http: reqwest::Client,
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

pub fn module(name: &str) -> Vec<u8> {
    std::fs::read(repository().join("canisters/wasm").join(name)).unwrap()
}

pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_thimble-pocket"))
}

pub fn base64(bytes: &[u8]) -> Value {
    json!(BASE64_STANDARD.encode(bytes))
}

pub fn unbase64(value: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap()
}

/// The first canister of an application subnet.
pub const FIRST: [u8; 10] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xe0, 0, 0, 1, 1];

pub fn call(canister: &[u8], method: &str, payload: &[u8]) -> Value {
    json!({
        "sender": base64(&[4]), "canister_id": base64(canister), "effective_principal": "None",
        "method": method, "payload": base64(payload),
    })
}

/// A new subnet of the kind that most tests ask for.
pub fn one_subnet() -> Value {
    let spec = json!({"state_config": "New", "instruction_config": "Production"});
    json!({"subnet_config_set": {"application": [spec]}})
}

impl Server {
    pub fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port_file = folder.path().join("port");
        let child = program()
            .args(arguments)
            .arg("--work-dir")
            .arg(folder.path())
            .arg("--port-file")
            .arg(&port_file)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let port = testing::eventually("the server writes its port", || {
            let text = std::fs::read_to_string(&port_file).ok()?;
            text.strip_suffix('\n')?.parse::<u16>().ok()
        });
        let url = format!("http://127.0.0.1:{port}");
        Self { child, folder, url, http: reqwest::Client::new() }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn port_file(&self) -> PathBuf {
        self.folder.path().join("port")
    }

    /// Files in the server's folder other than the port file.
    pub fn files(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(self.folder.path()).unwrap().map(|file| file.unwrap().path());
        all.filter(|path| *path != self.port_file()).collect()
    }

    /// Folders of instances.
    pub fn instance_folders(&self) -> usize {
        let all = std::fs::read_dir(self.files().first().unwrap()).unwrap();
        all.filter(|entry| entry.as_ref().unwrap().path().join("state").exists()).count()
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        let response = self.http.get(format!("{}{path}", self.url)).send().await.unwrap();
        read(response).await
    }

    pub fn port(&self) -> u16 {
        self.url.rsplit_once(':').unwrap().1.parse().unwrap()
    }

    /// Sends a request with these headers, and a body of no declared type.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(HeaderName, &str)],
        body: Option<&Value>,
    ) -> reqwest::Response {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        request.send().await.unwrap()
    }

    pub async fn delete(&self, path: &str) -> StatusCode {
        let response = self.http.delete(format!("{}{path}", self.url)).send().await.unwrap();
        response.status()
    }

    /// Sends a request as a client that is gone before there is an answer.
    pub fn send_and_leave(&self, method: &str, path: &str, body: &str) {
        let address = self.url.strip_prefix("http://").unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                 content-length: {length}\r\n\r\n"
        );
        TcpStream::connect(address).unwrap().write_all(format!("{head}{body}").as_bytes()).unwrap();
    }

    /// Deletes an instance. Returns the answer.
    pub async fn deleted(&self, instance: u64) -> (StatusCode, Value) {
        let url = format!("{}/instances/{instance}", self.url);
        read(self.http.delete(url).send().await.unwrap()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        self.post_waiting(path, body, None).await
    }

    /// With the milliseconds that the client waits with the request.
    pub async fn post_waiting(
        &self,
        path: &str,
        body: &Value,
        millis: Option<u64>,
    ) -> (StatusCode, Value) {
        let mut request = self.http.post(format!("{}{path}", self.url)).body(body.to_string());
        request = request.header("content-type", "application/json");
        if let Some(millis) = millis {
            request = request.header("processing-timeout-ms", millis.to_string());
        }
        read(request.send().await.unwrap()).await
    }

    /// The answer, which is one.
    pub async fn ok(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        if status == StatusCode::ACCEPTED {
            return self.outcome(&answer).await;
        }
        assert!(status.is_success(), "{path}: {status} {answer}");
        answer
    }

    /// Asks for what came of an operation that takes longer, until it is there.
    async fn outcome(&self, started: &Value) -> Value {
        let name = |key: &str| started[key].as_str().unwrap().to_owned();
        let path = format!("/read_graph/{}/{}", name("state_label"), name("op_id"));
        let until = std::time::Instant::now() + testing::TIMEOUT;
        loop {
            let (status, answer) = self.get(&path).await;
            if status == StatusCode::OK {
                return answer;
            }
            assert!(std::time::Instant::now() < until, "{path}: {status} {answer}");
        }
    }

    /// The refusal, which is one of the status 400.
    pub async fn refusal(&self, path: &str, body: &Value) -> String {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {answer}");
        answer["message"].as_str().unwrap().to_owned()
    }

    /// Number of a new instance.
    pub async fn instance(&self, config: &Value) -> u64 {
        self.ok("/instances", config).await["Created"]["instance_id"].as_u64().unwrap()
    }

    pub async fn update(&self, instance: u64, call: &Value) -> Value {
        let at = format!("/instances/{instance}/update");
        let submitted = self.ok(&format!("{at}/submit_ingress_message"), call).await;
        self.ok(&format!("{at}/await_ingress_message"), &submitted["Ok"]).await
    }

    /// Puts the workbench into the first canister.
    pub async fn deploy(&self, instance: u64, wasm: &[u8]) {
        #[derive(candid::CandidType)]
        struct Nothing {}
        let create = candid::encode_one(Nothing {}).unwrap();
        let create = call(&[], "provisional_create_canister_with_cycles", &create);
        self.update(instance, &create).await;
        self.install(instance, &FIRST, wasm).await;
    }

    pub async fn install(&self, instance: u64, canister: &[u8], wasm: &[u8]) {
        let install = candid::encode_one(ic_management_canister_types::InstallCodeArgs {
            mode: ic_management_canister_types::CanisterInstallMode::Install,
            canister_id: candid::Principal::from_slice(canister),
            wasm_module: wasm.to_vec(),
            arg: vec![],
            sender_canister_version: None,
        });
        let install = call(&[], "install_code", &install.unwrap());
        let answer = self.update(instance, &install).await;
        assert!(answer.get("Ok").is_some(), "{answer}");
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Ends it as clients do.
    pub fn stop(self) -> tempfile::TempDir {
        self.stop_by(testing::process::Signal::TERM)
    }

    /// The same by another signal.
    pub fn stop_by(mut self, signal: testing::process::Signal) -> tempfile::TempDir {
        testing::process::send(self.child.id(), signal);
        assert!(self.child.wait().unwrap().success());
        std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn read(response: reqwest::Response) -> (StatusCode, Value) {
    let status = response.status();
    let text = response.text().await.unwrap();
    let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    (status, value)
}
