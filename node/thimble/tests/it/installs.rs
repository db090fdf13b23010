//! Installs that are expensive to compile: a caller that cannot pay causes no compilation, and no
//! other call waits for one.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use candid::{Encode, Principal};
use ic_agent::Agent;
use ic_management_canister_types::CanisterInstallMode;

use testing::until_async;

use crate::harness::*;

/// A module whose one function is nearly as heavy as is accepted; each number makes another.
fn heavy(number: usize) -> Vec<u8> {
    let statement = "(local.set 0 (i32.rotl (local.get 0) (local.get 0)))";
    let body = statement.repeat(5_000);
    wat::parse_str(format!("(module (func (param i32) {body}) (global i32 (i32.const {number})))"))
        .unwrap()
}

// Promise: P14 - A client's installation that cannot be paid compiles nothing.
#[tokio::test]
async fn an_install_that_cannot_be_paid_compiles_nothing() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let poor = create_for(&agent, 50_000_000_000).await;
    let artefacts = || std::fs::read_dir(node.data.join("artifacts")).unwrap().count();
    let before = artefacts();
    let empty = Encode!().unwrap();
    let error = install(&agent, poor, CanisterInstallMode::Install, heavy(0), empty.clone())
        .await
        .unwrap_err();
    let (code, text, _) = rejected(error);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("prepaying the installation of code needs"), "{text}");
    assert_eq!(artefacts(), before, "nothing was compiled");
    // The same module is compiled for one that can pay.
    let rich = create(&agent).await;
    install(&agent, rich, CanisterInstallMode::Install, heavy(0), empty).await.unwrap();
    assert_eq!(artefacts(), before + 2, "an artefact and what validation found");
}

/// Counts on `counter` until `install` is done. How often, and how long `install` took.
async fn count_during<T>(
    agent: &Agent,
    counter: Principal,
    install: impl Future<Output = T>,
) -> (T, usize, Duration) {
    let begin = Instant::now();
    let done = AtomicBool::new(false);
    let (result, counted) = tokio::join!(
        async {
            let result = install.await;
            done.store(true, Ordering::SeqCst);
            result
        },
        async {
            let mut counted = 0;
            while !done.load(Ordering::SeqCst) {
                update(agent, counter, "inc", vec![]).await.unwrap();
                counted += 1;
            }
            counted
        }
    );
    (result, counted, begin.elapsed())
}

// Promise: P13 - Updates run while a module is compiled.
#[tokio::test]
async fn updates_of_others_run_while_a_module_is_compiled() {
    let node = Node::start_with("256MiB").await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let empty = Encode!().unwrap();
    // A round that compiled would let one or two of the others through before it and one after,
    // each time. A machine that pauses for a moment may do so once.
    let (enough, attempts) = (20, 5);
    for (how, chunked) in [("in the call", false), ("in chunks", true)] {
        let mut most = 0;
        for attempt in 0..attempts {
            let module = heavy(10 + attempt * 2 + usize::from(chunked));
            let canister = create(&agent).await;
            let installing = async {
                if chunked {
                    install_in_chunks(&agent, canister, &module).await.map(drop)
                } else {
                    let (mode, arg) = (CanisterInstallMode::Install, empty.clone());
                    install(&agent, canister, mode, module.clone(), arg).await.map(drop)
                }
            };
            let (installed, counted, took) = count_during(&agent, counter, installing).await;
            installed.unwrap();
            println!("{how}: {counted} updates of another canister in {took:.1?}");
            most = most.max(counted);
            if most >= enough {
                break;
            }
        }
        assert!(most >= enough, "{how}: {most} updates at most");
    }
}

// Promise: P13 - An installation that is killed while compiling leaves nothing and can be repeated.
#[tokio::test]
async fn an_install_that_is_cut_off_while_it_compiles_leaves_nothing_and_is_made_again() {
    let mut node = Node::start_with("256MiB").await;
    let agent = node.agent(1).await;
    let canister = create(&agent).await;
    // Ended while the module is compiled: the call was in no block, and its sender has no reply.
    let (mode, empty) = (CanisterInstallMode::Install, Encode!().unwrap());
    let folder = node.data.join("artifacts");
    let artefacts = || std::fs::read_dir(&folder).unwrap().count();
    // Some seconds of compiling.
    let engine = std::fs::read(fixture("azle-hello.wasm.gz")).unwrap();
    for killed in [true, false] {
        let agent = node.agent(1).await;
        let before = artefacts();
        {
            let installing = install_in_chunks(&agent, canister, &engine);
            let compiling = until_async("a compilation runs", async || artefacts() > before);
            tokio::select! {
                ended = installing => panic!("it was not seen to be compiled: {ended:?}"),
                () = compiling => {}
            }
        }
        if killed {
            node.kill();
            node.launch().await;
        } else {
            node.restart().await;
        }
        let left = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        let half: Vec<_> = left.filter(|path| path.extension().unwrap() == "tmp").collect();
        assert!(half.is_empty(), "of the compilation that was cut off stays {half:?}");
    }
    let agent = node.agent(1).await;
    install(&agent, canister, mode, heavy(20), empty).await.unwrap();
}

#[tokio::test]
async fn artefacts_that_were_lost_are_compiled_again_after_a_start() {
    let mut node = Node::start_with("256MiB").await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    deploy(&agent, "workbench.wasm").await;
    assert_eq!(update(&agent, counter, "inc", vec![]).await.unwrap(), 1_u64.to_le_bytes());
    node.stop();
    let folder = node.data.join("artifacts");
    let artefacts = || {
        let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        let infos = files.filter(|path| path.extension().unwrap() == "info");
        infos.collect::<std::collections::BTreeSet<_>>()
    };
    let before = artefacts();
    assert_eq!(before.len(), 2);
    for file in std::fs::read_dir(&folder).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    node.launch().await;
    // They are not requested.
    until_async("both modules are compiled", async || artefacts() == before).await;
    let agent = node.agent(1).await;
    assert_eq!(update(&agent, counter, "inc", vec![]).await.unwrap(), 2_u64.to_le_bytes());
}
