//! Settings of a load in addition to its phases: clients, limits, the network's numbers. Each of
//! them is a flag and a key of a plan file; flags override the file.
//!
//! Bounds: the constants below, checked once ([`Settings::load`]). Must never know: which node the
//! load is for.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

/// Most publishers, receivers or relay peers.
pub(crate) const CLIENTS_MAX: usize = 256;
/// Most messages of a publisher and a phase that are looked for in the store.
pub(crate) const STORE_SAMPLE_MAX: usize = 1000;
/// Most moments after the load at which memory is read.
const MOMENTS_MAX: usize = 16;
/// Latest of them: a day.
const AFTER_SECONDS_MAX: u64 = 86_400;
const ANSWER_SECONDS_MAX: f64 = 600.0;
/// Highest rate of store queries.
const QUERIES_MAX: f64 = 1000.0;

/// Declares the settings, each with its default.
macro_rules! settings {
    ($($(#[$attribute:meta])* $name:ident: $kind:ty = $default:expr,)*) => {
        /// As stated, by flags or in a plan file.
        #[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct Settings {
            $($(#[$attribute])* pub(crate) $name: Option<$kind>,)*
        }

        /// The same with all values set, `after` in ascending order. Part of the report.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        pub(crate) struct Load {
            $(pub(crate) $name: $kind,)*
        }

        impl Settings {
            /// These, and for what they do not state, those of `below`.
            #[must_use]
            pub(crate) fn over(self, below: Self) -> Self {
                Self { $($name: self.$name.or(below.$name)),* }
            }

            /// With defaults for what was not stated. Errors: something is out of its bounds.
            pub(crate) fn load(self) -> Result<Load> {
                let mut load = Load { $($name: self.$name.unwrap_or($default)),* };
                load.after.sort_unstable();
                load.check()?;
                Ok(load)
            }
        }
    };
}

settings! {
    /// Clients that push by light push. [default: 4]
    #[arg(long, value_name = "COUNT")]
    publishers: usize = 4,
    /// Clients that receive by filter. [default: 2]
    #[arg(long, value_name = "COUNT")]
    receivers: usize = 2,
    /// Peers that receive by relay. [default: 2]
    #[arg(long, value_name = "COUNT")]
    relay_peers: usize = 2,
    /// Store queries per second during the load, in total. [default: 0]
    #[arg(long, value_name = "PER SECOND")]
    store_queries: f64 = 0.0,
    /// Accepted messages of each publisher and phase that are looked for in the store, 1000 at
    /// most; chosen at random, each with the same chance. [default: 50]
    #[arg(long, value_name = "COUNT")]
    store_sample: usize = 50,
    /// Requests in flight of each publisher, where there is no rate. [default: 8]
    #[arg(long, value_name = "COUNT")]
    outstanding: u16 = 8,
    /// Milliseconds such a request's place stays empty after the node answered 429 or 503.
    /// [default: 10]
    #[arg(long, value_name = "MILLIS")]
    pause: u64 = 10,
    /// Seconds within which a push or a query is answered, or counts as not answered. [default:
    /// 30]
    #[arg(long, value_name = "SECONDS")]
    answer: f64 = 30.0,
    /// Seconds to wait for messages that were accepted and have not arrived when a phase ends.
    /// [default: 10]
    #[arg(long, value_name = "SECONDS")]
    drain: u64 = 10,
    /// When to read the node's memory after the last phase. For people: 60,180. [default: 5]
    #[arg(long, value_name = "SECONDS", value_delimiter = ',')]
    after: Vec<u64> = vec![5],
    /// Percent of what was accepted in a phase that a receiver, or the store, may miss. [default:
    /// 0]
    #[arg(long, value_name = "PERCENT")]
    lost_percent_max: f64 = 0.0,
    /// The node's cluster. [default: 0, and that of the net with --net and --relays]
    #[arg(long, value_name = "NUMBER")]
    cluster: u16 = 0,
    /// One of its shards. [default: 0, and that of the net with --net and --relays]
    #[arg(long, value_name = "NUMBER")]
    shard: u16 = 0,
    /// Shards over which its network spreads content topics (autosharding). [default: 8]
    #[arg(long, value_name = "COUNT")]
    shards_in_cluster: u16 = 8,
}

impl Load {
    fn check(&self) -> Result<()> {
        for (what, count) in [
            ("publishers", self.publishers),
            ("receivers", self.receivers),
            ("relay-peers", self.relay_peers),
        ] {
            ensure!(count <= CLIENTS_MAX, "--{what} {count}: at most {CLIENTS_MAX} are simulated");
        }
        ensure!(self.publishers > 0, "--publishers 0: nothing is pushed without any");
        let queries = self.store_queries;
        ensure!(
            (0.0..=QUERIES_MAX).contains(&queries),
            "--store-queries {queries}: 0 to {QUERIES_MAX} a second"
        );
        let sample = self.store_sample;
        ensure!(sample <= STORE_SAMPLE_MAX, "--store-sample {sample}: at most {STORE_SAMPLE_MAX}");
        let (outstanding, most) = (self.outstanding, crate::publisher::IN_FLIGHT_MAX);
        ensure!(
            (1..=most).contains(&outstanding.into()),
            "--outstanding {outstanding}: 1 to {most} requests in flight of a publisher"
        );
        ensure!(self.pause <= 60_000, "--pause {}: at most 60000 ms", self.pause);
        let answer = self.answer;
        ensure!(
            (0.1..=ANSWER_SECONDS_MAX).contains(&answer),
            "--answer {answer}: 0.1 to {ANSWER_SECONDS_MAX} s"
        );
        ensure!(self.drain <= 3600, "--drain {}: at most 3600 s", self.drain);
        ensure!(self.after.len() <= MOMENTS_MAX, "--after: at most {MOMENTS_MAX} moments");
        if let Some(late) = self.after.iter().find(|seconds| **seconds > AFTER_SECONDS_MAX) {
            anyhow::bail!("--after {late}: at most {AFTER_SECONDS_MAX} s");
        }
        let lost = self.lost_percent_max;
        ensure!((0.0..=100.0).contains(&lost), "--lost-percent-max {lost}: 0 to 100");
        ensure!(self.shards_in_cluster > 0, "--shards-in-cluster 0: a cluster has one at least");
        Ok(())
    }

    pub(crate) fn answer_time(&self) -> Duration {
        Duration::from_secs_f64(self.answer.clamp(0.1, ANSWER_SECONDS_MAX))
    }

    pub(crate) fn drain_time(&self) -> Duration {
        Duration::from_secs(self.drain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_the_plan_and_the_plan_overrides_defaults() {
        let flags = Settings { publishers: Some(7), ..Settings::default() };
        let plan = Settings {
            publishers: Some(3),
            receivers: Some(5),
            after: Some(vec![180, 60]),
            ..Settings::default()
        };
        let load = flags.over(plan).load().unwrap();
        assert_eq!((load.publishers, load.receivers, load.relay_peers), (7, 5, 2));
        assert_eq!(load.after, [60, 180]);
    }

    #[test]
    fn out_of_bounds_setting_is_refused_with_its_bound() {
        let refused = |settings: Settings| settings.load().unwrap_err().to_string();
        let none = Settings::default;
        for (settings, words) in [
            (Settings { publishers: Some(0), ..none() }, "--publishers 0"),
            (Settings { receivers: Some(257), ..none() }, "at most 256"),
            (Settings { store_sample: Some(1001), ..none() }, "at most 1000"),
            (Settings { outstanding: Some(0), ..none() }, "1 to 192"),
            (Settings { answer: Some(f64::NAN), ..none() }, "0.1 to 600"),
            (Settings { store_queries: Some(-1.0), ..none() }, "0 to 1000"),
            (Settings { lost_percent_max: Some(101.0), ..none() }, "0 to 100"),
            (Settings { after: Some(vec![1; 17]), ..none() }, "at most 16"),
        ] {
            let error = refused(settings);
            assert!(error.contains(words), "{error}");
        }
    }
}
