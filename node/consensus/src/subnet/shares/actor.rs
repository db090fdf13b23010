//! The task of state roots.

use std::time::{Duration, SystemTime};

use commonware_cryptography::ed25519::PublicKey;
use commonware_macros::select;
use commonware_p2p::{Receiver, Recipients, Sender};
use commonware_runtime::Clock;
use futures::{SinkExt, StreamExt, channel::mpsc};
use nidkg::{BlsError, NodeIndex, SignatureShare};
use state::{AwaitedRoot, AwaitedRoots, Height};

use super::{Config, ExecutionResult, Message, awaited::AwaitedStates};
use crate::{
    Certificate, Certifier, CertifyError,
    certifier::{CertificateCheck, is_signature},
    subnet::{
        Input,
        greeting::Greeting,
        lag::LagWatch,
        peers::{Meter, Rate},
        wire::{self, BoundedList},
    },
};

/// Time between two checks whether the newest state is certified.
const REPEAT: Duration = Duration::from_millis(1_000);
/// Longest message: a list of limits with their names.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// How often a peer may send its limits and request this node's: each asks once a second until it
/// received them, and is asked as often.
const LIMITS_RATE: Rate = Rate { per_second: 4, burst: 32 };

fn failed(error: BlsError) -> Input {
    Input::Failed(CertifyError::from(error))
}

pub(in crate::subnet) struct Roots<S> {
    config: Config<S>,
    certifier: Certifier,
    greeting: Greeting,
    lag: LagWatch,
    awaited: AwaitedStates,
    newest: Option<(ExecutionResult, SignatureShare)>,
    /// By peers, to this node.
    limits_received: Meter,
}

impl<S: Sender<PublicKey = PublicKey>> Roots<S> {
    pub(in crate::subnet) fn new(mut config: Config<S>) -> Self {
        let deps = &config.deps;
        let heights_max = usize::try_from(deps.limits.certificates_kept).unwrap_or(usize::MAX);
        Self {
            certifier: Certifier::with_schedule(deps.schedule.clone(), heights_max),
            greeting: Greeting::new(deps.me.clone(), std::mem::take(&mut config.agreed)),
            lag: LagWatch::default(),
            awaited: AwaitedStates::default(),
            newest: None,
            limits_received: Meter::new(LIMITS_RATE),
            config,
        }
    }

    /// Ends when the node does, or with the reason why it must.
    pub(in crate::subnet) async fn run(
        mut self,
        clock: impl Clock,
        mut executed_rx: mpsc::Receiver<ExecutionResult>,
        mut receiver: impl Receiver<PublicKey = PublicKey>,
    ) {
        let mut repeat_at = clock.current() + REPEAT;
        loop {
            let done = select! {
                executed = executed_rx.next() => match executed {
                    Some(executed) => self.sign_result(executed).await,
                    None => return,
                },
                message = receiver.recv() => match message {
                    Ok((from, message)) => self.handle_message(from, message.as_ref(), clock.current()).await,
                    Err(_) => return,
                },
                () = clock.sleep_until(repeat_at) => {
                    repeat_at = clock.current() + REPEAT;
                    self.repeat();
                    self.send_limits();
                    self.lag.log_if_behind(self.config.deps.published.progress(), clock.current());
                    self.repeat_awaited()
                },
            };
            if let Err(error) = done {
                // The receiver of batches gets the error; nothing is certified from here on.
                let _ = self.config.input_tx.send(error).await;
                return;
            }
        }
    }

    fn send(&mut self, to: Recipients<PublicKey>, message: &Message) {
        if let Some(bytes) = wire::encode(message, "a share") {
            self.config.sender.send(to, bytes, true);
        }
    }

    fn send_share(&mut self, executed: ExecutionResult, share: SignatureShare, again: bool) {
        let ExecutionResult { height, root } = executed;
        self.send(Recipients::All, &Message::Share { height, root, share, again });
    }

    async fn sign_result(&mut self, executed: ExecutionResult) -> Result<(), Input> {
        let (share, certificate) =
            self.certifier.sign(executed.height, executed.root).map_err(Input::Failed)?;
        if let Some(share) = share {
            self.send_share(executed, share, false);
            self.newest = Some((executed, share));
        }
        self.publish_certificate(certificate).await;
        Ok(())
    }

    async fn handle_message(
        &mut self,
        from: PublicKey,
        bytes: &[u8],
        now: SystemTime,
    ) -> Result<(), Input> {
        let Some(message) = wire::decode(bytes, MESSAGE_BYTES_MAX) else {
            self.config
                .scorer
                .report_fault(&from, "a message about state roots that does not decode");
            return Ok(());
        };
        match message {
            Message::Share { height, root, share, again } => {
                let Some(place) = self.place(&from, height) else { return Ok(()) };
                self.config
                    .certification_tx
                    .send_modify(|progress| progress.record_signature(place, height));
                if let Some(Certificate { height, root, signature }) = self.kept(height) {
                    if again {
                        self.send(
                            Recipients::One(from),
                            &Message::Certificate { height, root, signature },
                        );
                    }
                    return Ok(());
                }
                let taken = self.certifier.add_share(height, NodeIndex(place as u32), root, share);
                self.publish_certificate(taken.map_err(Input::Failed)?).await;
            }
            Message::Certificate { height, root, signature } => {
                let certificate = Certificate { height, root, signature };
                self.accept_certificate(&from, certificate).await?;
            }
            Message::Awaited { committee, height, root, share } => {
                self.add_awaited_share(&from, committee, AwaitedRoot { height, root }, share)?;
            }
            Message::Limits { limits, ask } => {
                if !self.limits_received.spend(&from, 1, now) {
                    self.config.scorer.report_excess(&from, "messages about limits", now);
                    return Ok(());
                }
                if ask {
                    let limits = BoundedList(self.greeting.own_limits());
                    self.send(
                        Recipients::One(from.clone()),
                        &Message::Limits { limits, ask: false },
                    );
                }
                let members = self.config.deps.resharing.members();
                self.greeting.add_peer_limits(&from, limits.0, &members).map_err(Input::Differs)?;
            }
        }
        Ok(())
    }

    /// Takes a certificate that this node misses: of a state that it executed, or of one that
    /// execution waits for.
    async fn accept_certificate(
        &mut self,
        from: &PublicKey,
        certificate: Certificate,
    ) -> Result<(), Input> {
        let Certificate { height, root, signature } = &certificate;
        if self.kept(*height).is_some() {
            return Ok(());
        }
        let is_awaited = self.awaited.wants(*height, root);
        let is_valid = match self.certifier.accept(certificate.clone()).map_err(Input::Failed)? {
            CertificateCheck::New(certificate) => {
                self.publish_certificate(Some(certificate)).await;
                true
            }
            CertificateCheck::Unneeded if is_awaited => {
                let is_valid = is_signature(&self.config.deps.public_key, root, signature);
                if is_valid {
                    self.keep(certificate);
                }
                is_valid
            }
            CertificateCheck::Unneeded => true,
            CertificateCheck::Invalid => false,
        };
        if !is_valid {
            self.config.scorer.report_fault(from, "a certificate that the subnet did not sign");
        }
        Ok(())
    }

    /// Takes a share on a state that execution waits for, or answers it with the certificate.
    #[expect(clippy::result_large_err, reason = "the input that ends the step is given back")]
    fn add_awaited_share(
        &mut self,
        from: &PublicKey,
        committee: Height,
        state: AwaitedRoot,
        share: SignatureShare,
    ) -> Result<(), Input> {
        let AwaitedRoot { height, root } = state;
        if let Some(Certificate { signature, .. }) =
            self.kept(height).filter(|certificate| certificate.root == root)
        {
            let message = Message::Certificate { height, root, signature };
            self.send(Recipients::One(from.clone()), &message);
            return Ok(());
        }
        let signature = self.awaited.add_share((committee, &from[..]), state, share);
        if let Some(signature) = signature.map_err(failed)? {
            self.keep(Certificate { height, root, signature });
        }
        Ok(())
    }

    /// A member's place in the committee of a height.
    fn place(&self, member: &PublicKey, height: Height) -> Option<usize> {
        let signers = self.config.deps.schedule.at(height)?;
        signers.members.iter().position(|key| key[..] == member[..])
    }

    async fn publish_certificate(&mut self, certificate: Option<Certificate>) {
        if let Some(certificate) = certificate {
            let height = certificate.height;
            self.config
                .certification_tx
                .send_modify(|progress| progress.certified = progress.certified.max(height));
            self.keep(certificate.clone());
            // The channel is bounded; a driver that is behind holds up certificates, not execution.
            let _ = self.config.input_tx.send(Input::Certified(certificate)).await;
        }
    }

    fn kept(&self, height: Height) -> Option<Certificate> {
        self.config.certification_tx.borrow().certificate(height).cloned()
    }

    /// Keeps a certificate for peers that ask, and for a block if execution waits for it.
    fn keep(&self, certificate: Certificate) {
        let published = &self.config.deps.published;
        let awaited = published.execution_rx.borrow().demand.awaited;
        let is_awaited = awaited.contains(&certificate.root);
        self.config
            .certification_tx
            .send_modify(|progress| progress.add_certificate(certificate, &awaited));
        if is_awaited {
            published.work_available.notify_waiters();
        }
    }

    /// Repeats this node's shares of states that execution waits for and whose signatures this node
    /// misses.
    #[expect(clippy::result_large_err, reason = "the input that ends the step is given back")]
    fn repeat_awaited(&mut self) -> Result<(), Input> {
        let deps = self.config.deps.clone();
        let awaited = deps.published.execution_rx.borrow().demand.awaited;
        let missing: AwaitedRoots = {
            let known = self.config.certification_tx.borrow();
            awaited.iter().filter(|state| known.signature(&state.root).is_none()).collect()
        };
        let shares = self.awaited.refresh(&missing, deps.schedule.newest());
        let Some(committee) = self.awaited.committee() else { return Ok(()) };
        for (AwaitedRoot { height, root }, share) in shares {
            let message = Message::Awaited { committee, height, root, share };
            self.send(Recipients::All, &message);
            if let Some(signature) = self.awaited.combine(height).map_err(failed)? {
                self.keep(Certificate { height, root, signature });
            }
        }
        Ok(())
    }

    /// Sends its limits to members that did not send theirs.
    fn send_limits(&mut self) {
        let missing = self.greeting.missing(self.config.deps.resharing.members());
        if !missing.is_empty() {
            let limits = BoundedList(self.greeting.own_limits());
            self.send(Recipients::Some(missing), &Message::Limits { limits, ask: true });
        }
    }

    fn repeat(&mut self) {
        let certified = self.config.certification_tx.borrow().certified;
        if let Some((newest, share)) = self.newest.filter(|(newest, _)| newest.height > certified) {
            self.send_share(newest, share, true);
        }
    }
}
