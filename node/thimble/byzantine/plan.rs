//! Which attacks are made, and when.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// Attack of the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Attack {
    /// Two blocks for one round, each to some members, with a vote for each.
    EquivocatingBlocks,
    /// A vote for another block than the true one, to some members.
    ConflictingVotes,
    /// Blocks that no honest member votes for.
    RefusedBlocks,
    /// Limits that are not this node's.
    FalseLimits,
    /// Votes and certificates under the number of another epoch, in addition to the true ones.
    OtherEpochs,
    /// Reports of queries that were never made.
    FalseReports,
    /// Shares of the signature on another state root.
    OtherRoots,
    /// Shares of a state root's signature that are not of this node's key.
    FalseRootShares,
    /// Shares on another answer to an outcall, and other answers.
    OtherAnswers,
    /// Calls that others lack are not given.
    WithheldCalls,
    /// Dealings that are not of this node's share.
    FalseDealings,
    /// Offers of states, chunks, and denials that are false.
    FalseStates,
    /// Blocks and certificates that were asked for, and requests for them, with a changed bit.
    FalseFetches,
    /// Two votes in one round to the same member.
    DoubleVotes,
    /// Votes with signatures on something else.
    FalseVotes,
    /// Blocks that do not decode.
    MalformedBlocks,
    /// Certificates, of rounds and of state roots, that the subnet did not sign.
    FalseCertificates,
    /// Calls whose bytes are others than those named.
    FalseCalls,
    /// Random bytes, cut messages, changed bits.
    Garbage,
    /// The same message many times.
    Flood,
}

use Attack::*;

/// In the order in which they are made: those first after which members keep the connection, since
/// a member cuts off a peer that it finds at fault. Two blocks and conflicting votes are found when
/// members compare what they got; the rest by the member that gets it.
pub(crate) const ALL: [(Attack, &str); 20] = [
    (RefusedBlocks, "refused-blocks"),
    (FalseLimits, "false-limits"),
    (OtherEpochs, "other-epochs"),
    (OtherRoots, "other-roots"),
    (FalseRootShares, "false-root-shares"),
    (WithheldCalls, "withheld-calls"),
    (FalseReports, "false-reports"),
    (FalseDealings, "false-dealings"),
    (FalseStates, "false-states"),
    (FalseFetches, "false-fetches"),
    (ConflictingVotes, "conflicting-votes"),
    (EquivocatingBlocks, "equivocating-blocks"),
    (OtherAnswers, "other-answers"),
    (FalseCertificates, "false-certificates"),
    (FalseCalls, "false-calls"),
    (DoubleVotes, "double-votes"),
    (FalseVotes, "false-votes"),
    (MalformedBlocks, "malformed-blocks"),
    (Garbage, "garbage"),
    (Flood, "flood"),
];

impl Attack {
    pub(crate) fn name(self) -> &'static str {
        ALL.iter().find(|(attack, _)| *attack == self).map_or("", |(_, name)| name)
    }

    /// Whether a member that gets it knows that its sender is at fault. Such an attack is made on
    /// one member at a time.
    fn is_evident(self) -> bool {
        matches!(
            self,
            FalseCertificates
                | FalseCalls
                | DoubleVotes
                | FalseVotes
                | MalformedBlocks
                | Garbage
                | Flood
        )
    }

    /// Whether it has to wait for messages that are rare: then it is made whenever one comes.
    fn is_rare(self) -> bool {
        matches!(self, FalseDealings | FalseLimits | FalseStates | FalseFetches | OtherAnswers)
    }
}

pub(crate) struct Plan {
    attacks: Vec<Attack>,
    pub(crate) seed: u64,
    pub(crate) log: Option<PathBuf>,
    turn: Duration,
    began: Instant,
}

impl Plan {
    /// As the environment states it; `None` for an honest node.
    pub(crate) fn from_environment() -> Result<Option<Self>, String> {
        let variable = |name: &str| std::env::var(format!("THIMBLE_BYZANTINE_{name}")).ok();
        let Some(attacks) = variable("ATTACKS") else { return Ok(None) };
        let number = |name: &str, default| match variable(name) {
            Some(text) => text.parse().map_err(|_| format!("{name}: `{text}` is not a number")),
            None => Ok(default),
        };
        Ok(Some(Self {
            attacks: read(&attacks)?,
            seed: number("SEED", 0)?,
            log: variable("LOG").map(PathBuf::from),
            turn: Duration::from_secs(number("TURN_SECONDS", 4)?.max(1)),
            began: Instant::now(),
        }))
    }

    /// The victim among `members` members, if the attack is made on one member at a time. With at
    /// least as many members as such attacks, each attack has its own victim: a member that found
    /// its sender faulty accepts nothing more from it.
    pub(crate) fn victim(&self, attack: Attack, members: usize) -> usize {
        let evident: Vec<_> = self.attacks.iter().filter(|attack| attack.is_evident()).collect();
        let number = evident.iter().position(|evident| **evident == attack).unwrap_or_default();
        let pass = match evident.len() <= members {
            true => 0,
            false => self.turn() as usize / evident.len().max(1),
        };
        (number + pass) % members.max(1)
    }

    /// Number of the turn that runs.
    fn turn(&self) -> u64 {
        (self.began.elapsed().as_millis() / self.turn.as_millis().max(1)) as u64
    }

    /// Whether the attack is made now. The first pass is in order; later ones begin elsewhere, by
    /// the seed.
    pub(crate) fn is_on(&self, attack: Attack) -> bool {
        let regular: Vec<_> = self.attacks.iter().filter(|attack| !attack.is_rare()).collect();
        if attack.is_rare() || regular.is_empty() {
            return self.attacks.contains(&attack);
        }
        let (turn, count) = (self.turn(), regular.len() as u64);
        let pass = turn / count;
        let first = if pass == 0 { 0 } else { self.seed.wrapping_add(pass) };
        let at = first.wrapping_add(turn) % count;
        *regular[at as usize] == attack
    }
}

fn read(text: &str) -> Result<Vec<Attack>, String> {
    if text == "all" {
        return Ok(ALL.map(|(attack, _)| attack).to_vec());
    }
    let named = |name: &str| {
        let found = ALL.iter().find(|(_, known)| *known == name);
        found.map(|(attack, _)| *attack).ok_or_else(|| format!("there is no attack `{name}`"))
    };
    text.split(',').map(named).collect()
}
