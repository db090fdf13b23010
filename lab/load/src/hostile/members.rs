//! A fifth node joins a subnet while it is attacked, and leaves again: the commands that operators
//! run, and what the nodes report of their members.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::{
    Run,
    net::{Member, ProcessProfile},
};

/// For a change of members: some epochs.
const CHANGED_WITHIN: Duration = Duration::from_secs(150);
const ANSWER_WITHIN: Duration = Duration::from_secs(4);

/// The fifth node, and how far its way is.
#[derive(Debug)]
pub(super) struct Fifth {
    member: Member,
    /// Members that there are once the change under way is over.
    wanted: usize,
}

async fn command(member: &Member, words: &[&str], folder: &Path) -> Result<()> {
    member.profile.run(words, &folder.join("members.log")).await
}

/// Makes a change, has three members sign it and hands it to one.
async fn change(members: &[Member], what: &[&str], folder: &Path) -> Result<()> {
    let out = folder.join("change.json").display().to_string();
    let data: Vec<String> = members.iter().map(|one| one.data.display().to_string()).collect();
    let first = [&["members", "change", "--data-dir", &data[0], "--out", &out][..], what].concat();
    command(&members[0], &first, folder).await?;
    // All of them: five members need four signatures.
    for (member, data) in members.iter().zip(&data) {
        command(member, &["members", "sign", "--data-dir", data, &out], folder).await?;
    }
    command(&members[1], &["members", "submit", "--data-dir", &data[1], &out], folder).await
}

impl Fifth {
    /// Makes the node, starts it, and hands the members the change that admits it.
    pub(super) async fn join(
        run: &Run,
        members: &[Member],
        arguments: Vec<String>,
        folder: &Path,
        random: &mut ChaCha8Rng,
    ) -> Result<Self> {
        let [port] = cli::free_ports()?;
        let address = format!("127.0.0.1:{port}");
        let text = |name: &str| folder.join(name).display().to_string();
        let (data, record, genesis) = (text("node4"), text("node4.json"), text("genesis.json"));
        let arguments =
            arguments.into_iter().chain(["--p2p-listen".to_owned(), address.clone()]).collect();
        let profile = ProcessProfile::any(&run.builds, 4, random);
        let mut member = Member::new(folder.join("node4"), profile, arguments)?;
        let keys = ["keygen", "--data-dir", &data, "--address", &address, "--out", &record];
        command(&member, &keys, folder).await?;
        command(&member, &["join", "--data-dir", &data, "--genesis", &genesis], folder).await?;
        member.start()?;
        change(members, &["--add", &record], folder).await?;
        Ok(Self { member, wanted: members.len() + 1 })
    }

    /// Once it is a member: hands the others the change that removes it.
    pub(super) async fn leave(
        &mut self,
        members: &[Member],
        http: &reqwest::Client,
        folder: &Path,
    ) -> Result<bool> {
        if self.wanted == members.len() || count(&members[0], http).await != Some(self.wanted) {
            return Ok(false);
        }
        let record = fs::read(folder.join("node4.json"))?;
        let record: Value = serde_json::from_slice(&record)?;
        let id = record["node_id"].as_str().context("the record has no `node_id`")?;
        change(members, &["--remove", id], folder).await?;
        self.wanted = members.len();
        Ok(true)
    }

    /// Waits until the change under way is over.
    pub(super) async fn finish(
        &mut self,
        members: &[Member],
        http: &reqwest::Client,
    ) -> Result<()> {
        let end = Instant::now() + CHANGED_WITHIN;
        while count(&members[0], http).await != Some(self.wanted) {
            self.member.check()?;
            ensure!(
                Instant::now() < end,
                "there are not {} members within {} s",
                self.wanted,
                CHANGED_WITHIN.as_secs()
            );
            sleep(Duration::from_millis(200)).await;
        }
        self.member.kill();
        Ok(())
    }
}

/// How many members a node knows.
async fn count(member: &Member, http: &reqwest::Client) -> Option<usize> {
    let asked = http.get(format!("{}/status.json", member.url)).send();
    let answer = timeout(ANSWER_WITHIN, asked).await.ok()?.ok()?;
    let text = timeout(ANSWER_WITHIN, answer.text()).await.ok()?.ok()?;
    let status: Value = serde_json::from_str(&text).ok()?;
    Some(status["subnet"]["members"].as_array()?.len())
}
