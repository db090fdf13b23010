//! Reads lists of nodes in the DNS: at the start, and again from time to time.
//!
//! One question at a time, each within [`ASK_TIME`], a list within [`LIST_TIME`]. The resolver
//! lives as long as a round and caches nothing; between rounds there is only a timer. A text longer
//! than [`ENTRY_BYTES_MAX`] is not read. Whether anybody is dialled is not decided here.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use discv5::Discv5;
use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig},
    net::runtime::TokioRuntimeProvider,
    proto::rr::RData,
};
use protocol::node_list::{ENTRY_BYTES_MAX, ListLink};
use tokio::time::{sleep, timeout};

use super::{
    known::Origin,
    walk::{Versions, Walk},
};
use crate::node::Node;

/// Time for one answer; asked twice.
const ASK_TIME: Duration = Duration::from_secs(4);
const LIST_TIME: Duration = Duration::from_secs(120);
/// Between two rounds.
const AGAIN: Duration = Duration::from_secs(30 * 60);
/// The same, when nothing was read.
const AGAIN_SOON: Duration = Duration::from_secs(60);
/// Most records read at one name.
const TEXTS_MAX: usize = 16;

/// The lists to read, and the resolver to read them from.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    pub(crate) lists: Vec<ListLink>,
    /// DNS servers; those of the system if there are none.
    pub(crate) servers: Vec<SocketAddr>,
    /// Names asked for in one list.
    pub(crate) names: usize,
}

/// Runs forever. Records go to the known peers, and to the table of the discovery protocol.
pub(crate) async fn run(node: Arc<Node>, lists: Lists, discv5: Option<Arc<Discv5>>) {
    let mut versions = Versions::new();
    loop {
        let mut read = 0;
        match resolver(&lists.servers) {
            Ok(resolver) => {
                for list in &lists.lists {
                    read += read_list(
                        &node,
                        &resolver,
                        list,
                        lists.names,
                        discv5.as_deref(),
                        &mut versions,
                    )
                    .await;
                }
            }
            Err(error) => tracing::warn!(%error, "no DNS server can be asked"),
        }
        sleep(if read > 0 { AGAIN } else { AGAIN_SOON }).await;
    }
}

fn resolver(servers: &[SocketAddr]) -> Result<TokioResolver> {
    let mut builder = if servers.is_empty() {
        TokioResolver::builder_tokio().context("reading the system's resolver configuration")?
    } else {
        let servers = servers.iter().map(|server| {
            let connections =
                [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
                    connection.port = server.port();
                    connection
                });
            NameServerConfig::new(server.ip(), true, connections.to_vec())
        });
        let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
    };
    let options = builder.options_mut();
    options.timeout = ASK_TIME / 2;
    options.attempts = 1;
    options.cache_size = 0;
    options.num_concurrent_reqs = 1;
    options.use_hosts_file = ResolveHosts::Never;
    builder.build().context("making a resolver")
}

/// Reads one list; how many records there were.
async fn read_list(
    node: &Node,
    resolver: &TokioResolver,
    list: &ListLink,
    names: usize,
    discv5: Option<&Discv5>,
    versions: &mut Versions,
) -> usize {
    let mut walk = Walk::new(list.clone(), names, rand::random());
    let (mut records, mut failed, mut new) = (0, 0, 0);
    let reading = async {
        while let Some(question) = walk.next() {
            let name = walk.name(&question);
            let texts = match timeout(ASK_TIME, texts(resolver, &name)).await {
                Ok(Ok(texts)) => texts,
                Ok(Err(error)) => {
                    tracing::debug!(%name, %error, "a name of a node list is not answered");
                    failed += 1;
                    continue;
                }
                Err(_) => {
                    failed += 1;
                    continue;
                }
            };
            let Some(text) = texts.iter().find(|text| walk.is_answer(&question, text)) else {
                failed += 1;
                continue;
            };
            match walk.answer(question, text, versions) {
                Ok(None) => {}
                Ok(Some(record)) => {
                    records += 1;
                    if let Some(discv5) = discv5 {
                        super::discv5::add(discv5, &record);
                    }
                    new += usize::from(node.heard_of(&record, Origin::Dns));
                }
                Err(error) => {
                    tracing::debug!(%name, %error, "an entry of a node list is refused");
                    failed += 1;
                }
            }
        }
    };
    if timeout(LIST_TIME, reading).await.is_err() {
        tracing::warn!(
            list = list.domain,
            "the node list was not read to its end within {LIST_TIME:?}"
        );
    }
    if records == 0 {
        tracing::warn!(list = list.domain, failed, "no record was read from the node list");
    } else {
        tracing::info!(list = list.domain, records, new, failed, "read a node list");
    }
    records
}

/// The texts at a name, those that are short enough.
async fn texts(resolver: &TokioResolver, name: &str) -> Result<Vec<String>> {
    let answer = resolver.txt_lookup(name).await?;
    let texts = answer.answers().iter().take(TEXTS_MAX).filter_map(|record| match &record.data {
        RData::TXT(text) => {
            let bytes: usize = text.txt_data.iter().map(|part| part.len()).sum();
            (bytes <= ENTRY_BYTES_MAX).then(|| text.txt_data.concat())
        }
        _ => None,
    });
    Ok(texts.filter_map(|bytes| String::from_utf8(bytes).ok()).collect())
}
