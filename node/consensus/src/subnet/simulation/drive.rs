//! What the round loop of a node does, and what it tells about itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use commonware_runtime::Clock as _;
use commonware_utils::sync::Mutex;

use super::{
    Context, Subnet,
    net::{Durable, Found},
    replica::{Replica, TookOver},
};
use crate::{Consensus as _, ConsensusError, Demand, Step};

/// Runs until the engine or the node ends.
pub(super) async fn drive(
    clock: Context,
    mut subnet: Subnet,
    mut replica: Replica,
    durable: Arc<Mutex<Durable>>,
    found: Found,
    slow: Arc<AtomicU64>,
) {
    // Checkpoints are known again after a restart: the newest one is where this life began.
    let began = replica.height();
    if began.0 > 0 {
        subnet.checkpointed(began).unwrap();
    }
    let fail = |reason: String| found.lock().failures.push(reason);
    let mut demand = Demand::default();
    loop {
        match subnet.step(demand).await {
            Ok(Step::Execute(finalised)) => {
                let cost = slow.load(Ordering::Relaxed);
                if cost > 0 {
                    clock.sleep(Duration::from_millis(cost)).await;
                }
                let batch = finalised.batch;
                let known = finalised.recorded.is_some();
                let faults = finalised.recorded.map(|recorded| recorded.faults).unwrap_or_default();
                let done = match replica.execute(&batch, &faults) {
                    Ok(done) => done,
                    Err(reason) => return fail(format!("executing height {}: {reason}", batch.height.0)),
                };
                let height = batch.height.0;
                {
                    let mut found = found.lock();
                    let before = *found.roots.entry(height).or_insert(done.root);
                    if before != done.root {
                        found.failures.push(format!("two roots at height {height}"));
                    }
                    found.failures.extend(done.wrong);
                    found.calls.entry(height).or_insert(done.answered);
                    found.deployed = found.deployed.max(done.deployed);
                }
                if let Some(key) = &batch.key {
                    found.lock().held(height, key);
                }
                if let Err(error) = subnet.note(batch.height, done.root, done.faults).await {
                    if !matches!(error, ConsensusError::EngineEnded) {
                        fail(format!("after height {height} (known: {known}): {error}"));
                    }
                    return;
                }
                demand = done.demand;
                {
                    let executed = replica.executed();
                    let mut durable = durable.lock();
                    durable.height = height;
                    durable.executed = executed;
                }
                if replica.checkpoint_due() {
                    if let Err(reason) = replica.checkpoint(&durable) {
                        return fail(format!("the checkpoint of height {height}: {reason}"));
                    }
                    subnet.checkpointed(batch.height).unwrap();
                }
            }
            Ok(Step::Behind(offer)) => match replica.take_over(&mut subnet, offer, &durable).await {
                TookOver::Ready => {
                    found.lock().syncs += 1;
                    // The node starts again on top of it.
                    return;
                }
                TookOver::Over => {}
                TookOver::Ended => return,
                TookOver::Failed(reason) => {
                    return fail(format!("taking over the state of height {}: {reason}", offer.height.0));
                }
            },
            Ok(Step::Certified(certificate)) => {
                if let Err(reason) = replica.certified(&certificate) {
                    return fail(format!("the certificate of height {}: {reason}", certificate.height.0));
                }
                let mut found = found.lock();
                let height = certificate.height.0;
                if found.roots.get(&height) != Some(&certificate.root) {
                    found.failures.push(format!("a certificate of another root at height {height}"));
                }
                found.certified.insert(height, certificate.root);
                let covered: Vec<_> =
                    found.calls.range(..=height).flat_map(|(_, calls)| calls.clone()).collect();
                found.acknowledged.extend(covered);
                found.equivocations = found.equivocations.max(subnet.shared.progress().equivocations);
            }
            Ok(Step::Closing) | Err(ConsensusError::EngineEnded) => return,
            Err(error) => return fail(format!("at height {}: {error}", replica.height().0)),
        }
    }
}
