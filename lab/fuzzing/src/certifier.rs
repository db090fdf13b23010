//! Shares and certificates in any order, valid and invalid, of members and of non-members: for any
//! input of a peer, a resulting certificate verifies and has the root that this node signed, all
//! retained data is bounded, and the node reports divergence only when more members than may be
//! faulty signed another root.
//!
//! The input is a list of steps, four bytes each: the action, a height, a member, a root.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use consensus::{Certificate, Certifier};
use nidkg::{
    Committee, NodeIndex, SecretShare, Signature, SignatureShare, combine, state_root_message,
    verify,
};
use rand::{SeedableRng, rngs::StdRng};
use state::Height;

const NODES: u32 = 4;
const THRESHOLD: u32 = 3;
const HEIGHTS_MAX: usize = 5;
/// Steps of one input: each may cost a verification.
const STEPS: usize = 48;

static KEYS: LazyLock<(Committee, Vec<SecretShare>)> =
    LazyLock::new(|| nidkg::deal(NODES, THRESHOLD, &mut StdRng::seed_from_u64(1)).expect("3 of 4"));

fn root(number: u8) -> [u8; 32] {
    [number % 3; 32]
}

/// The share of an honest member for a root; made once for each.
fn share(member: u32, number: u8) -> SignatureShare {
    static SHARES: LazyLock<Vec<SignatureShare>> = LazyLock::new(|| {
        let sign =
            |member: u32, number| KEYS.1[member as usize].sign(&state_root_message(&root(number)));
        (0..NODES).flat_map(|member| (0..3).map(move |number| sign(member, number))).collect()
    });
    SHARES[member as usize * 3 + usize::from(number % 3)]
}

fn signature(number: u8) -> Signature {
    let shares: BTreeMap<_, _> =
        (0..THRESHOLD).map(|member| (NodeIndex(member), share(member, number))).collect();
    combine(&KEYS.0, &shares).expect("three shares")
}

/// A certificate verifies and has the root that this node signed.
fn check(committee: &Committee, certificate: &Certificate, own: &BTreeMap<u64, [u8; 32]>) {
    assert_eq!(
        own.get(&certificate.height.0),
        Some(&certificate.root),
        "of the root that was signed here"
    );
    let message = state_root_message(&certificate.root);
    assert!(verify(&committee.public_key, &message, &certificate.signature.0), "it verifies");
}

pub(crate) fn test_one_input(bytes: &[u8]) {
    let (committee, shares) = &*KEYS;
    let share =
        SecretShare::from_bytes(NodeIndex(0), &shares[0].to_bytes()).expect("its own bytes");
    let mut certifier = Certifier::new(committee.clone(), share, HEIGHTS_MAX);
    let mut own: BTreeMap<u64, [u8; 32]> = BTreeMap::new();
    // The members that really signed another root, by height.
    let mut others: BTreeMap<(u64, u32), BTreeSet<u8>> = BTreeMap::new();
    for step in bytes.chunks_exact(4).take(STEPS) {
        let [what, height, member, number] = [step[0] % 5, step[1] % 16, step[2], step[3]];
        let at = Height(height.into());
        let done = match what {
            // This node executes heights once, in order.
            0 => {
                if own.keys().next_back().is_some_and(|newest| *newest >= at.0) {
                    continue;
                }
                own.insert(at.0, root(number));
                certifier.sign(at, root(number)).map(|(_, certificate)| certificate)
            }
            // A member's share; 4 and up is not a member.
            1 | 2 => {
                let from = u32::from(member % 6);
                if from == 0 {
                    continue;
                }
                let mut signed = self::share(from % NODES, number);
                if what == 2 {
                    signed.0[usize::from(step[2]) % 48] ^= step[3] | 1;
                } else if from < NODES {
                    others.entry((at.0, from)).or_default().insert(number % 3);
                }
                certifier.add_share(at, NodeIndex(from), root(number), signed)
            }
            3 => {
                // More members than may be faulty signed it.
                for from in 1..NODES {
                    others.entry((at.0, from)).or_default().insert(number % 3);
                }
                let certificate =
                    Certificate { height: at, root: root(number), signature: signature(number) };
                certifier.accept(certificate).map(|_| None)
            }
            _ => {
                let mut signature = signature(number);
                signature.0[usize::from(member) % 48] ^= number | 1;
                certifier
                    .accept(Certificate { height: at, root: root(number), signature })
                    .map(|_| None)
            }
        };
        assert!(certifier.pending() <= HEIGHTS_MAX as u64);
        match done {
            Ok(Some(certificate)) => check(committee, &certificate, &own),
            Ok(None) => {}
            // It may result from an earlier height's shares, returned when that height is executed.
            Err(_) => {
                let dissents = own.iter().any(|(height, own)| {
                    let differs = |from: &u32| {
                        let said = others.get(&(*height, *from));
                        said.is_some_and(|said| said.iter().any(|number| root(*number) != *own))
                    };
                    (1..NODES).filter(differs).count() > (NODES - THRESHOLD) as usize
                });
                assert!(dissents, "no member signed another root");
                return;
            }
        }
    }
}
