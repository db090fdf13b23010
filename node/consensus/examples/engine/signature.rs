//! What certifying a state costs each of four members: its own share is signed, three shares are
//! combined, the signature is verified.

use accounting::{cpu, process::Pid};
use consensus::Certifier;
use nidkg::{NodeIndex, state_root_message};
use rand::{SeedableRng as _, rngs::StdRng};
use state::Height;

/// Mean CPU time of `count` signatures, as a line of JSON.
pub(crate) fn measure(count: u32) -> Result<String, String> {
    let dealt = nidkg::deal(4, 3, &mut StdRng::seed_from_u64(1));
    let (committee, mut shares) = dealt.map_err(|error| error.to_string())?;
    let others = shares.split_off(1);
    let own = shares.pop().ok_or("a dealing without shares")?;
    // What the others send is not made here.
    let received: Vec<_> = (1..=count.max(1))
        .map(|number| {
            let mut root = [0; 32];
            root[..4].copy_from_slice(&number.to_le_bytes());
            let message = state_root_message(&root);
            let theirs: Vec<_> = others.iter().take(2).map(|other| other.sign(&message)).collect();
            (Height(number.into()), root, theirs)
        })
        .collect();
    let mut certifier = Certifier::new(committee, own, 1);
    let read = || cpu::tree(Pid::own()).map_err(|error| error.to_string());
    let before = read()?;
    for (height, root, theirs) in received {
        certifier.sign(height, root).map_err(|error| error.to_string())?;
        let mut certificate = None;
        for (index, share) in (1..).zip(theirs) {
            let added = certifier.add_share(height, NodeIndex(index), root, share);
            certificate = added.map_err(|error| error.to_string())?.or(certificate);
        }
        certificate.ok_or("three of four shares made no certificate")?;
    }
    let micros = read()?.since(before).total.as_secs_f64() * 1e6 / f64::from(count.max(1));
    Ok(format!("{{\"micros\": {micros:.1}}}"))
}
