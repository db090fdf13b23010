//! `thimble-byzantine`: a node of a subnet that misbehaves, for tests. It is the real node, by the
//! same command line, and everything it sends to the other members passes through attacks. Never
//! installed.
//!
//! | variable | meaning |
//! |---|---|
//! | `THIMBLE_BYZANTINE_ATTACKS` | `all`, or names of attacks with commas between them; unset: the node is honest |
//! | `THIMBLE_BYZANTINE_SEED` | a number that decides what is attacked and how; 0 if unset |
//! | `THIMBLE_BYZANTINE_TURN_SECONDS` | how long each attack lasts before the next one begins; 4 if unset |
//! | `THIMBLE_BYZANTINE_LOG` | a file that attacks are appended to; standard output if unset |
//!
//! Each attack that is made is a line of JSON: `attack`, `channel`, `detail`, and `to`, how many
//! members it was sent to.

mod attacker;
mod blocks;
mod forms;
mod plan;
mod report;
mod sender;
mod shares;
mod votes;

use std::{process::ExitCode, sync::Arc};

use ::genesis::Summary;
use consensus::{ConsensusDeps, KeyStore, StartError, Subnet, SubnetConfig};
use nidkg::SecretShare;
use state::Height;

use crate::{attacker::Attacker, plan::Plan, sender::AttackLayer};

memory::program_allocator!();

fn main() -> ExitCode {
    thimble::main(start)
}

fn start(
    wiring: ConsensusDeps,
    mut config: SubnetConfig,
    resume_from: Height,
) -> Result<Subnet, StartError> {
    let plan = Plan::from_environment();
    let plan = plan.map_err(|error| StartError::Io(std::io::Error::other(error)))?;
    let Some(plan) = plan else { return Subnet::start(wiring, config, resume_from) };
    let attacker = Arc::new(Attacker::new(plan, &config.genesis, config.node_secret.clone()));
    config.keys = Box::new(WatchedKeys { inner: config.keys, attacker: attacker.clone() });
    Subnet::start_through(wiring, config, resume_from, AttackLayer(attacker))
}

/// Hands each share that the node signs with to the attacker.
struct WatchedKeys {
    inner: Box<dyn KeyStore>,
    attacker: Arc<Attacker>,
}

impl KeyStore for WatchedKeys {
    fn share(&self, summary: &Summary) -> Result<Option<SecretShare>, String> {
        let share = self.inner.share(summary)?;
        if let Some(share) = &share {
            self.attacker.take_keys(summary, share)?;
        }
        Ok(share)
    }

    fn voted(&self) -> Result<Option<u64>, String> {
        self.inner.voted()
    }

    fn membership_change(&self, summary: &Summary) -> Option<Vec<u8>> {
        self.inner.membership_change(summary)
    }
}
