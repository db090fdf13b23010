//! The next fault of the net: a random walk in which at most as many nodes are faulty at once as
//! the subnet tolerates, except at the moments when all of them are killed.
//!
//! A node counts as faulty from the injection until it serves again, not only until the fault is
//! removed. The walk follows from the seed and from the times at which nodes serve again.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

/// Faults that are possible on this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Possible {
    pub(crate) cut: bool,
    pub(crate) slow: bool,
    /// Nodes have disks of their own that can be filled.
    pub(crate) fill: bool,
    /// Descriptors can be taken from nodes.
    pub(crate) exhaust: bool,
    /// Something is compiled now and then.
    pub(crate) compile: bool,
}

/// Fault of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hurt {
    Killed,
    Paused,
    CutOff,
    /// Its disk is full.
    Full,
    /// It can open no more files and sockets than it closes.
    Exhausted,
    /// Healed, but not serving yet.
    Recovering,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Nodes, at once.
    Kill(Vec<usize>),
    Start(Vec<usize>),
    Pause(usize),
    Resume(usize),
    /// These against the others.
    Cut(BTreeSet<usize>),
    Heal,
    /// A worker of a node; the number chooses which.
    KillWorker(usize, u64),
    /// The process that compiles a module for a node.
    KillCompiler(usize),
    /// A node's disk has no room, and has some again.
    Fill(usize),
    Empty(usize),
    /// A node can open nothing, and can again.
    Exhaust(usize),
    Replenish(usize),
    Slow(usize, u64),
    SlowOff(usize),
    /// No fault may be injected and none can be healed at the moment.
    Wait,
}

impl Action {
    /// Under what name it counts as a fault; what repairs one does not count.
    pub(crate) fn counted_as(&self) -> Option<&'static str> {
        Some(match self {
            Self::Kill(nodes) if nodes.len() > 1 => "all nodes killed",
            Self::Kill(_) => "a node killed",
            Self::Pause(_) => "a node paused",
            Self::Cut(_) => "nodes cut off",
            Self::KillWorker(..) => "a worker killed",
            Self::KillCompiler(_) => "a compilation killed",
            Self::Fill(_) => "a full disk",
            Self::Exhaust(_) => "no descriptors",
            Self::Slow(..) => "slow links",
            Self::Start(_)
            | Self::Resume(_)
            | Self::Heal
            | Self::Empty(_)
            | Self::Replenish(_)
            | Self::SlowOff(_)
            | Self::Wait => return None,
        })
    }
}

/// The random walk of faults, with the nodes that are faulty at the moment.
pub(crate) struct Plan {
    nodes: usize,
    possible: Possible,
    hurt: BTreeMap<usize, Hurt>,
    slow: BTreeSet<usize>,
    random: ChaCha8Rng,
}

impl Plan {
    pub(crate) fn new(nodes: usize, possible: Possible, random: ChaCha8Rng) -> Self {
        Self { nodes, possible, hurt: BTreeMap::new(), slow: BTreeSet::new(), random }
    }

    /// Number of nodes that may be faulty at once: f of 3f + 1.
    pub(crate) fn tolerated(&self) -> usize {
        (self.nodes - 1) / 3
    }

    pub(crate) fn hurt(&self) -> &BTreeMap<usize, Hurt> {
        &self.hurt
    }

    /// A node serves again.
    pub(crate) fn serves(&mut self, node: usize) {
        if self.hurt.get(&node) == Some(&Hurt::Recovering) {
            self.hurt.remove(&node);
        }
    }

    /// A node without a fault ended, and was restarted.
    pub(crate) fn recovers(&mut self, node: usize) {
        self.hurt.insert(node, Hurt::Recovering);
    }

    /// Before the next thing is done.
    pub(crate) fn pause_millis(&mut self) -> u64 {
        // Mostly short, now and then long enough for others to notice.
        if self.random.gen_bool(0.2) {
            self.random.gen_range(3000..9000)
        } else {
            self.random.gen_range(100..3000)
        }
    }

    /// The next action; the plan assumes that it is executed.
    pub(crate) fn next(&mut self) -> Action {
        let all_killed = !self.hurt.is_empty()
            && self.hurt.values().filter(|hurt| **hurt == Hurt::Killed).count() == self.nodes;
        if all_killed {
            return self.start_all();
        }
        let room = self.tolerated().saturating_sub(self.hurt.len());
        let mut well: Vec<usize> =
            (0..self.nodes).filter(|node| !self.hurt.contains_key(node)).collect();
        well.shuffle(&mut self.random);
        let repairable: Vec<(usize, Hurt)> = self
            .hurt
            .iter()
            .filter(|(_, hurt)| **hurt != Hurt::Recovering)
            .map(|(node, hurt)| (*node, *hurt))
            .collect();
        // All at once: rarely, and only from a net that is well, so that it is known to have come
        // back from the last time.
        let every = if self.tolerated() == 0 { 0.6 } else { 0.06 };
        if self.hurt.is_empty() && self.random.gen_bool(every) {
            self.hurt = (0..self.nodes).map(|node| (node, Hurt::Killed)).collect();
            return Action::Kill((0..self.nodes).collect());
        }
        if !repairable.is_empty() && (room == 0 || self.random.gen_bool(0.5)) {
            let (node, hurt) = repairable[self.random.gen_range(0..repairable.len())];
            return self.repair(node, hurt);
        }
        // Faults that do not count against the tolerance of agreement.
        if self.possible.slow && self.random.gen_bool(0.15) {
            let node = self.random.gen_range(0..self.nodes);
            if self.slow.remove(&node) {
                return Action::SlowOff(node);
            }
            self.slow.insert(node);
            return Action::Slow(node, self.random.gen_range(5..120) * 1000);
        }
        if let Some(node) = well.first().filter(|_| room == 0 || self.random.gen_bool(0.15)) {
            return match self.possible.compile && self.random.gen_bool(0.4) {
                true => Action::KillCompiler(*node),
                false => Action::KillWorker(*node, self.random.r#gen()),
            };
        }
        match (room, well.first()) {
            (0, _) | (_, None) => Action::Wait,
            (room, Some(&node)) => self.hurt_one(node, room, &well),
        }
    }

    fn hurt_one(&mut self, node: usize, room: usize, well: &[usize]) -> Action {
        let cut_already = self.hurt.values().any(|hurt| *hurt == Hurt::CutOff);
        let (hurt, action) = match self.random.gen_range(0..5) {
            0 => (Hurt::Paused, Action::Pause(node)),
            // One partition at a time.
            1 if self.possible.cut && !cut_already => {
                let count = self.random.gen_range(1..=room.min(well.len()));
                let cut: BTreeSet<usize> = well.iter().copied().take(count).collect();
                self.hurt.extend(cut.iter().map(|node| (*node, Hurt::CutOff)));
                return Action::Cut(cut);
            }
            2 if self.possible.fill => (Hurt::Full, Action::Fill(node)),
            3 if self.possible.exhaust => (Hurt::Exhausted, Action::Exhaust(node)),
            _ => (Hurt::Killed, Action::Kill(vec![node])),
        };
        self.hurt.insert(node, hurt);
        action
    }

    fn repair(&mut self, node: usize, hurt: Hurt) -> Action {
        let repaired = match hurt {
            Hurt::CutOff => {
                for hurt in self.hurt.values_mut().filter(|hurt| **hurt == Hurt::CutOff) {
                    *hurt = Hurt::Recovering;
                }
                return Action::Heal;
            }
            Hurt::Killed => Action::Start(vec![node]),
            Hurt::Paused => Action::Resume(node),
            Hurt::Full => Action::Empty(node),
            Hurt::Exhausted => Action::Replenish(node),
            Hurt::Recovering => return Action::Wait,
        };
        self.hurt.insert(node, Hurt::Recovering);
        repaired
    }

    fn start_all(&mut self) -> Action {
        self.hurt.values_mut().for_each(|hurt| *hurt = Hurt::Recovering);
        Action::Start((0..self.nodes).collect())
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn walk(nodes: usize, seed: u64, steps: usize, recover_every: usize) -> Vec<Action> {
        let possible = Possible { cut: true, slow: true, fill: true, exhaust: true, compile: true };
        let mut plan = Plan::new(nodes, possible, ChaCha8Rng::seed_from_u64(seed));
        let (mut down, mut paused, mut cut) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (mut full, mut exhausted) = (BTreeSet::new(), BTreeSet::new());
        let mut actions = Vec::new();
        for step in 0..steps {
            assert!(plan.pause_millis() < 9000);
            let action = plan.next();
            match &action {
                Action::Kill(nodes) => down.extend(nodes.iter().copied()),
                Action::Start(nodes) => {
                    nodes.iter().for_each(|node| assert!(down.remove(node), "it was down"))
                }
                Action::Pause(node) => assert!(paused.insert(*node) && !down.contains(node)),
                Action::Resume(node) => assert!(paused.remove(node)),
                Action::Cut(nodes) => {
                    assert!(cut.is_empty());
                    cut.clone_from(nodes);
                }
                Action::Heal => cut.clear(),
                Action::Fill(node) => assert!(full.insert(*node) && !down.contains(node)),
                Action::Empty(node) => assert!(full.remove(node)),
                Action::Exhaust(node) => assert!(exhausted.insert(*node) && !down.contains(node)),
                Action::Replenish(node) => assert!(exhausted.remove(node)),
                Action::KillWorker(node, _) | Action::KillCompiler(node) => {
                    assert!(!down.contains(node) && !paused.contains(node));
                }
                Action::Slow(..) | Action::SlowOff(_) | Action::Wait => {}
            }
            let hurt: BTreeSet<usize> = down
                .iter()
                .chain(&paused)
                .chain(&cut)
                .chain(&full)
                .chain(&exhausted)
                .copied()
                .collect();
            assert!(
                hurt.len() <= plan.tolerated() || hurt.len() == nodes,
                "{hurt:?} of {nodes} after {action:?}"
            );
            assert!(hurt.iter().all(|node| plan.hurt().contains_key(node)));
            if step % recover_every == 0 {
                (0..nodes).for_each(|node| plan.serves(node));
            }
            actions.push(action);
        }
        actions
    }

    #[test]
    fn never_more_are_hurt_than_are_tolerated() {
        for nodes in [1, 2, 3, 4, 7, 10] {
            for seed in 0..20 {
                for recover_every in [1, 3] {
                    walk(nodes, seed, 500, recover_every);
                }
            }
        }
    }

    #[test]
    fn everything_comes_up_and_the_seed_decides() {
        let actions = walk(4, 1, 1000, 1);
        for wanted in [
            (|action: &Action| matches!(action, Action::Kill(nodes) if nodes.len() == 1))
                as fn(&Action) -> bool,
            |action| matches!(action, Action::Kill(nodes) if nodes.len() == 4),
            |action| matches!(action, Action::Start(_)),
            |action| matches!(action, Action::Pause(_)),
            |action| matches!(action, Action::Resume(_)),
            |action| matches!(action, Action::Cut(_)),
            |action| matches!(action, Action::Heal),
            |action| matches!(action, Action::KillWorker(..)),
            |action| matches!(action, Action::KillCompiler(_)),
            |action| matches!(action, Action::Fill(_)),
            |action| matches!(action, Action::Empty(_)),
            |action| matches!(action, Action::Exhaust(_)),
            |action| matches!(action, Action::Replenish(_)),
            |action| matches!(action, Action::Slow(..)),
            |action| matches!(action, Action::SlowOff(_)),
        ] {
            assert!(actions.iter().any(wanted));
        }
        assert_eq!(actions, walk(4, 1, 1000, 1));
        assert_ne!(actions, walk(4, 2, 1000, 1));
        assert!(walk(1, 1, 200, 1).iter().any(|action| matches!(action, Action::Kill(_))));
    }

    #[test]
    fn a_node_that_does_not_come_back_stays_hurt() {
        let possible =
            Possible { cut: false, slow: false, fill: false, exhaust: true, compile: true };
        let mut plan = Plan::new(4, possible, ChaCha8Rng::seed_from_u64(3));
        plan.recovers(2);
        for _ in 0..200 {
            assert!(matches!(
                plan.next(),
                Action::Wait | Action::KillWorker(..) | Action::KillCompiler(_)
            ));
        }
        plan.serves(2);
        assert!((0..200).any(|_| matches!(plan.next(), Action::Kill(_))));
    }
}
