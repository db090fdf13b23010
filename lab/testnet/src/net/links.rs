//! The links between nodes, each in one direction, and what is wrong with them: cut, slow, lossy.
//! This is what is wanted; the namespaces' tools or the relay make it so.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// Slower than this is a link that is cut.
const LATENCY_MAX: Duration = Duration::from_secs(60);

/// How good a link is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Quality {
    /// Added to every packet, in this direction.
    pub(crate) latency_micros: u64,
    /// Share of packets that are lost, 0 to 1.
    pub(crate) loss: f64,
}

impl Quality {
    pub(crate) fn is_good(&self) -> bool {
        self.latency_micros == 0 && self.loss == 0.0
    }

    /// `50 ms, 1 % lost`.
    pub(crate) fn description(&self) -> String {
        let mut words = format!("{} ms", self.latency_micros as f64 / 1e3);
        if self.loss > 0.0 {
            words.push_str(&format!(", {} % lost", (self.loss * 1e4).round() / 1e2));
        }
        words
    }
}

/// A directed link: from, to.
pub(crate) type Link = (usize, usize);

/// Everything that is wrong with the links of a net.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Links {
    /// Links through which nothing passes, each in one direction.
    cut: BTreeSet<Link>,
    /// Links of the topology.
    #[serde(with = "pairs")]
    built: BTreeMap<Link, Quality>,
    /// Later settings of `slow`; they override the topology.
    #[serde(with = "pairs")]
    slowed: BTreeMap<Link, Quality>,
}

impl Links {
    pub(crate) fn from_topology(built: BTreeMap<Link, Quality>) -> Self {
        Self { built, ..Self::default() }
    }

    pub(crate) fn is_cut(&self, link: Link) -> bool {
        self.cut.contains(&link)
    }

    pub(crate) fn quality(&self, link: Link) -> Quality {
        self.slowed.get(&link).or_else(|| self.built.get(&link)).copied().unwrap_or_default()
    }

    /// Whether a link is slow or lossy.
    pub(crate) fn any_slow(&self) -> bool {
        self.built.keys().chain(self.slowed.keys()).any(|link| !self.quality(*link).is_good())
    }

    /// Cuts every link between two different groups. A node in no group keeps its links. Replaces
    /// an earlier partition.
    pub(crate) fn partition(&mut self, groups: &[Vec<usize>]) {
        self.cut.clear();
        for (index, group) in groups.iter().enumerate() {
            for other in groups.iter().skip(index + 1) {
                for (a, b) in group.iter().flat_map(|a| other.iter().map(move |b| (*a, *b))) {
                    self.cut.insert((a, b));
                    self.cut.insert((b, a));
                }
            }
        }
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }

    /// Everything to and from a node.
    pub(crate) fn slow(&mut self, node: usize, nodes: usize, quality: Quality) {
        for other in (0..nodes).filter(|other| *other != node) {
            self.slowed.insert((node, other), quality);
            self.slowed.insert((other, node), quality);
        }
    }

    /// Resets to the topology.
    pub(crate) fn slow_off(&mut self, node: usize) {
        self.slowed.retain(|(from, to), _| *from != node && *to != node);
    }

    /// Resets all to the topology.
    pub(crate) fn slow_none(&mut self) {
        self.slowed.clear();
    }

    /// For a person: one line each, nothing when all is well.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut words = Vec::new();
        if !self.cut.is_empty() {
            let pairs: Vec<String> =
                self.cut.iter().filter(|(a, b)| a < b).map(|(a, b)| format!("{a}-{b}")).collect();
            words.push(format!("cut: {}", pairs.join(" ")));
        }
        let mut by_quality: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let known: BTreeSet<Link> = self.built.keys().chain(self.slowed.keys()).copied().collect();
        for link in known {
            let quality = self.quality(link);
            if !quality.is_good() {
                let links = by_quality.entry(quality.description()).or_default();
                links.push(format!("{}>{}", link.0, link.1));
            }
        }
        let slow = |(quality, links): (String, Vec<String>)| {
            format!("slow ({quality}): {}", links.join(" "))
        };
        words.extend(by_quality.into_iter().map(slow));
        words
    }
}

/// JSON has no tuples as keys.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Link, Quality};

    pub(super) fn serialize<S: Serializer>(
        map: &BTreeMap<Link, Quality>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<Link, Quality>, D::Error> {
        Ok(Vec::<(Link, Quality)>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// `50ms`, `1.5s`, `200us` in microseconds.
pub(crate) fn parse_latency(text: &str) -> Result<u64, String> {
    let (number, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let wrong = || format!("`{text}` is not a latency; write 50ms, 1.5s or 200us");
    let factor = match unit.trim() {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return Err(wrong()),
    };
    let micros = number.parse::<f64>().map_err(|_| wrong())? * factor;
    if micros > LATENCY_MAX.as_micros() as f64 {
        return Err(format!("`{text}` is more than {} s", LATENCY_MAX.as_secs()));
    }
    Ok(micros.round() as u64)
}

/// `1%`, `0.5%` as a share.
pub(crate) fn parse_loss(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    match number {
        Some(percent) if (0.0..100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("`{text}` is not a loss; write 1% (0% to below 100%)")),
    }
}

/// `0,1|2,3`, or one argument per group.
pub(crate) fn parse_groups(arguments: &[String], nodes: usize) -> Result<Vec<Vec<usize>>, String> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut seen = BTreeSet::new();
    for text in arguments.iter().flat_map(|argument| argument.split('|')) {
        let mut group = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let node =
                name.parse::<usize>().ok().filter(|node| *node < nodes).ok_or_else(|| {
                    format!("there is no node `{name}`; the nodes are 0 to {}", nodes - 1)
                })?;
            if !seen.insert(node) {
                return Err(format!("node {node} is named twice"));
            }
            group.push(node);
        }
        if !group.is_empty() {
            groups.push(group);
        }
    }
    if groups.len() < 2 {
        return Err("a partition has two groups or more: 0,1|2,3 (in quotes, for the shell)".into());
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_cuts_between_groups_only_and_heals() {
        let mut links = Links::default();
        links.partition(&parse_groups(&["0,1|2,3".into()], 5).unwrap());
        for (a, b, cut) in [(0, 1, false), (2, 3, false), (0, 2, true), (3, 1, true), (4, 0, false)]
        {
            assert_eq!((links.is_cut((a, b)), links.is_cut((b, a))), (cut, cut), "{a} {b}");
        }
        assert_eq!(links.faults(), ["cut: 0-2 0-3 1-2 1-3"]);
        links.partition(&parse_groups(&["0".into(), "1,2,3,4".into()], 5).unwrap());
        assert!(
            links.is_cut((0, 4)) && !links.is_cut((1, 2)),
            "a new partition replaces the old one"
        );
        links.heal();
        assert_eq!(links, Links::default());
    }

    #[test]
    fn slow_overrides_the_topology_until_removed() {
        let far = Quality { latency_micros: 20_000, loss: 0.0 };
        let bad = Quality { latency_micros: 50_000, loss: 0.01 };
        let mut links = Links::from_topology([((0, 1), far)].into());
        links.slow(1, 3, bad);
        assert_eq!(
            (links.quality((0, 1)), links.quality((1, 2)), links.quality((0, 2))),
            (bad, bad, Quality::default())
        );
        assert_eq!(links.faults(), ["slow (50 ms, 1 % lost): 0>1 1>0 1>2 2>1"]);
        let text = serde_json::to_string(&links).unwrap();
        assert_eq!(serde_json::from_str::<Links>(&text).unwrap(), links);
        links.slow_off(1);
        assert_eq!((links.quality((0, 1)), links.quality((1, 2))), (far, Quality::default()));
        assert!(links.any_slow());
    }

    #[test]
    fn invalid_link_arguments_are_rejected_with_a_reason() {
        assert_eq!(parse_latency("1.5s"), Ok(1_500_000));
        assert_eq!(parse_latency("200us"), Ok(200));
        for text in ["", "50", "ms", "-5ms", "5 minutes", "61s", "1e9s"] {
            assert!(parse_latency(text).is_err(), "{text}");
        }
        assert!((parse_loss("0.5%").unwrap() - 0.005).abs() < 1e-12);
        for text in ["1", "100%", "-1%", "x%", "nan%"] {
            assert!(parse_loss(text).is_err(), "{text}");
        }
        for (text, part) in
            [("0,1", "two groups"), ("0|4", "no node `4`"), ("0|1,0", "twice"), ("a|b", "`a`")]
        {
            let error = parse_groups(&[text.into()], 4).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
