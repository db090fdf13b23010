//! Composition of a net: number of nodes, memory of each, links that are slow from the start. It
//! comes from the command line for nets of equal nodes, from a file for others.

use std::{collections::BTreeMap, path::Path};

use accounting::{format_size, parse_size};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::links::{Quality, parse_latency, parse_loss};

/// Most nodes of a net: what the addresses of one network of namespaces are enough for, and more
/// than one machine bears.
pub(crate) const NODES_MAX: usize = 100;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Topology {
    pub(crate) nodes: Vec<NodePlan>,
    pub(crate) base_port: Option<u16>,
    /// Of directed links that are not as good as the machine makes them.
    pub(crate) links: BTreeMap<(usize, usize), Quality>,
}

/// Memory, ports and arguments of one node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodePlan {
    pub(crate) memory_bytes: u64,
    pub(crate) http_port: Option<u16>,
    pub(crate) p2p_port: Option<u16>,
    /// More arguments for `thimble run`.
    pub(crate) arguments: Vec<String>,
}

/// The content of a topology file, in TOML.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// How many nodes, when they are not listed.
    count: Option<usize>,
    memory: Option<String>,
    base_port: Option<u16>,
    #[serde(default)]
    arguments: Vec<String>,
    #[serde(default, rename = "node")]
    nodes: Vec<FileNode>,
    #[serde(default, rename = "link")]
    links: Vec<FileLink>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileNode {
    memory: Option<String>,
    http_port: Option<u16>,
    p2p_port: Option<u16>,
    #[serde(default)]
    arguments: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLink {
    /// A node; left out, every node.
    from: Option<usize>,
    to: Option<usize>,
    latency: Option<String>,
    loss: Option<String>,
    /// Only in the direction written; both ways otherwise.
    #[serde(default)]
    one_way: bool,
}

impl Topology {
    /// A net of nodes that have the same memory, without slow or lossy links.
    pub(crate) fn uniform(count: usize, memory: &str, base_port: Option<u16>) -> Result<Self> {
        check_count(count)?;
        let plan = NodePlan {
            memory_bytes: parse_size(memory)?,
            http_port: None,
            p2p_port: None,
            arguments: vec![],
        };
        Ok(Self { nodes: vec![plan; count], base_port, links: BTreeMap::new() })
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let read = setup::read_text(path).and_then(|text| Self::parse(&text));
        read.with_context(|| format!("in the topology file {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text)?;
        let default = file.memory.unwrap_or_else(|| "512MiB".to_owned());
        let listed = match (file.count, file.nodes.is_empty()) {
            (Some(count), true) => {
                check_count(count)?;
                (0..count).map(|_| FileNode::default()).collect()
            }
            (None, false) => file.nodes,
            (Some(count), false) if count == file.nodes.len() => file.nodes,
            (Some(count), false) => {
                bail!("count says {count} nodes, and {} are listed", file.nodes.len())
            }
            (None, true) => bail!("it has neither `count` nor a [[node]]"),
        };
        check_count(listed.len())?;
        let mut nodes = Vec::new();
        for node in listed {
            let arguments = file.arguments.iter().cloned().chain(node.arguments).collect();
            nodes.push(NodePlan {
                memory_bytes: parse_size(node.memory.as_ref().unwrap_or(&default))?,
                http_port: node.http_port,
                p2p_port: node.p2p_port,
                arguments,
            });
        }
        let mut links = BTreeMap::new();
        for link in &file.links {
            for (from, to) in link.pairs(nodes.len())? {
                links.insert((from, to), link.quality()?);
            }
        }
        Ok(Self { nodes, base_port: file.base_port, links })
    }

    /// Difference from the topology of an existing net; `None` when they agree.
    pub(crate) fn differs_from(&self, memory_of_nodes: &[u64]) -> Option<String> {
        if self.nodes.len() != memory_of_nodes.len() {
            return Some(format!("has {} nodes, not {}", memory_of_nodes.len(), self.nodes.len()));
        }
        let differing = self.nodes.iter().zip(memory_of_nodes).enumerate();
        let (index, (plan, has)) =
            differing.into_iter().find(|(_, (plan, has))| plan.memory_bytes != **has)?;
        let (has, wanted) = (format_size(*has), format_size(plan.memory_bytes));
        Some(format!("gives node {index} {has}, not {wanted}"))
    }
}

fn check_count(count: usize) -> Result<()> {
    ensure!((1..=NODES_MAX).contains(&count), "a net has 1 to {NODES_MAX} nodes, not {count}");
    Ok(())
}

impl FileLink {
    fn quality(&self) -> Result<Quality> {
        let words = |error: String| anyhow::anyhow!("in a [[link]]: {error}");
        let latency = self.latency.as_deref().map_or(Ok(0), parse_latency);
        let loss = self.loss.as_deref().map_or(Ok(0.0), parse_loss);
        Ok(Quality { latency_micros: latency.map_err(words)?, loss: loss.map_err(words)? })
    }

    fn pairs(&self, nodes: usize) -> Result<Vec<(usize, usize)>> {
        for end in [self.from, self.to].into_iter().flatten() {
            ensure!(end < nodes, "a [[link]] names node {end}; the nodes are 0 to {}", nodes - 1);
        }
        let of = |end: Option<usize>| end.map_or(0..nodes, |end| end..end + 1);
        let mut pairs = Vec::new();
        for from in of(self.from) {
            for to in of(self.to).filter(|to| *to != from) {
                pairs.push((from, to));
                if !self.one_way {
                    pairs.push((to, from));
                }
            }
        }
        Ok(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_is_common_and_what_is_not() {
        let topology = Topology::parse(
            "memory = \"256MiB\"\nbase_port = 9000\narguments = [\"--log\", \"warn\"]\n\
             [[node]]\n[[node]]\nmemory = \"1GiB\"\nhttp_port = 8080\narguments = [\"--x\"]\n[[node]]\n\
             [[link]]\nfrom = 0\nlatency = \"20ms\"\n\
             [[link]]\nfrom = 1\nto = 2\nlatency = \"50ms\"\nloss = \"1%\"\none_way = true\n",
        )
        .unwrap();
        assert_eq!(topology.base_port, Some(9000));
        let memory: Vec<u64> = topology.nodes.iter().map(|node| node.memory_bytes >> 20).collect();
        assert_eq!(memory, [256, 1024, 256]);
        assert_eq!(topology.nodes[1].arguments, ["--log", "warn", "--x"]);
        assert_eq!(topology.nodes[1].http_port, Some(8080));
        let latency =
            |from, to| topology.links.get(&(from, to)).map(|quality| quality.latency_micros);
        assert_eq!(latency(0, 1), Some(20_000));
        assert_eq!(latency(2, 0), Some(20_000));
        assert_eq!((latency(1, 2), latency(2, 1)), (Some(50_000), None));
        assert!((topology.links[&(1, 2)].loss - 0.01).abs() < 1e-9);
    }

    #[test]
    fn equal_nodes_need_no_list() {
        let topology = Topology::parse("count = 7\n").unwrap();
        assert_eq!(topology.nodes.len(), 7);
        assert_eq!(topology, Topology::uniform(7, "512MiB", None).unwrap());
        assert_eq!(topology.differs_from(&[512 << 20; 7]), None);
        assert_eq!(topology.differs_from(&[512 << 20; 4]).unwrap(), "has 4 nodes, not 7");
        let other = [512 << 20, 512 << 20, 256 << 20, 0, 0, 0, 0];
        assert_eq!(topology.differs_from(&other).unwrap(), "gives node 2 256 MiB, not 512 MiB");
    }

    #[test]
    fn invalid_topology_file_is_rejected_with_a_reason() {
        for (text, part) in [
            ("", "neither"),
            ("count = 0", "1 to 100"),
            ("count = 101", "1 to 100"),
            ("count = 3\n[[node]]\n", "3 nodes, and 1 are listed"),
            ("cuont = 3", "cuont"),
            ("count = 2\nmemory = \"lots\"", "lots"),
            ("count = 2\n[[link]]\nfrom = 2\n", "names node 2"),
            ("count = 2\n[[link]]\nlatency = \"soon\"\n", "soon"),
            ("count = 2\n[[link]]\nloss = \"140%\"\n", "140%"),
        ] {
            let error = format!("{:#}", Topology::parse(text).unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
