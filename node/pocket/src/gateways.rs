//! HTTP gateways: listeners of their own, at which browsers reach the canisters of an instance and
//! agents its endpoints.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, Result, bail, ensure};
use gateway::{GatewayHandle, HttpGatewayConfig};
use limits::pool;
use tokio::sync::Mutex;

use crate::{
    bounds::GATEWAYS_MAX,
    instance::Handle,
    rest::{HttpGatewayBackend, HttpGatewayDetails, HttpGatewayInfo, InstanceHttpGatewayConfig},
    server::{Server, mount},
};

struct OpenGateway {
    gateway: GatewayHandle,
    instance: u64,
    port: u16,
    domains: Option<Vec<String>>,
}

/// Those that are open, by number.
#[derive(Default)]
pub(crate) struct Gateways(Mutex<GatewayTable>);

#[derive(Default)]
struct GatewayTable {
    next: u64,
    open: BTreeMap<u64, OpenGateway>,
}

impl Gateways {
    pub(crate) async fn open(
        &self,
        config: &InstanceHttpGatewayConfig,
        (instance, handle): (u64, &Arc<Handle>),
        server: &Server,
    ) -> Result<HttpGatewayInfo> {
        let bounds = &server.bounds;
        ensure!(
            config.https_config.is_none(),
            "an HTTP gateway with TLS is not offered by thimble-pocket; see docs/pocket.md"
        );
        ensure!(
            bounds.limits.http_gateway.is_possible(),
            "the memory budget has no room for an HTTP gateway; raise --memory"
        );
        let mut domains = config.domains.iter().flatten();
        if let Some(domain) = domains.find(|domain| *domain != "localhost") {
            bail!("an HTTP gateway for {domain} is not offered: canisters are below localhost");
        }
        let ip: IpAddr = match &config.ip_addr {
            Some(ip) => ip.parse().with_context(|| format!("ip_addr {ip}"))?,
            None => Ipv4Addr::LOCALHOST.into(),
        };
        server.access.check_gateway(ip)?;
        let mut all = self.0.lock().await;
        ensure!(
            all.open.len() < GATEWAYS_MAX,
            "{GATEWAYS_MAX} HTTP gateways are open, the most there may be (http_gateways)"
        );
        let mut gateway = mount(handle, server)?;
        let parts = HttpGatewayConfig {
            listen: SocketAddr::new(ip, config.port.unwrap_or(0)),
            limits: bounds.limits.http_gateway.clone(),
            connections: bounds.pool(pool::HTTP_CONNECTIONS)?,
            requests: bounds.pool(pool::HTTP_REQUESTS)?,
            ingress_history_bytes: bounds.limits.subnet.ingress_history_bytes,
        };
        let port = gateway.serve_browsers(parts).await?.port();
        // Deletion of an instance removes it first and then closes its open gateways.
        if server.instance(instance).is_none() {
            gateway.shutdown().await;
            bail!("instance {instance} was deleted meanwhile");
        }
        let number = all.next;
        all.next += 1;
        all.open.insert(
            number,
            OpenGateway { gateway, instance, port, domains: config.domains.clone() },
        );
        Ok(HttpGatewayInfo { instance_id: number, port })
    }

    /// Closes one, if it is open.
    pub(crate) async fn close(&self, number: u64) {
        let open = self.0.lock().await.open.remove(&number);
        if let Some(open) = open {
            open.gateway.shutdown().await;
        }
    }

    /// Closes those of an instance.
    pub(crate) async fn close_of(&self, instance: u64) {
        let of_it =
            |(number, open): (&u64, &OpenGateway)| (open.instance == instance).then_some(*number);
        let numbers: Vec<_> = self.0.lock().await.open.iter().filter_map(of_it).collect();
        for number in numbers {
            self.close(number).await;
        }
    }

    pub(crate) async fn list(&self) -> Vec<HttpGatewayDetails> {
        let details = |(number, open): (&u64, &OpenGateway)| HttpGatewayDetails {
            instance_id: *number,
            port: open.port,
            forward_to: HttpGatewayBackend::PocketIcInstance(open.instance),
            domains: open.domains.clone(),
            https_config: None,
        };
        self.0.lock().await.open.iter().map(details).collect()
    }
}
