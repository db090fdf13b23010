//! Progress on standard error: one line for each step, with the time it took. On a terminal the
//! line of the running step is rewritten with the time elapsed; elsewhere each line is written
//! once, when its step begins and when it ends.

use std::{
    io::{self, IsTerminal as _, Write},
    time::{Duration, Instant},
};

use anyhow::Result;

/// How often the line of the running step is rewritten on a terminal.
const REWRITE_EVERY: Duration = Duration::from_millis(200);

/// Begin of a line, and removal of what it shows.
const CLEAR: &str = "\r\x1b[2K";

pub(crate) struct Progress<W> {
    out: W,
    is_terminal: bool,
}

impl Progress<io::Stderr> {
    pub(crate) fn on_stderr() -> Self {
        let out = io::stderr();
        let is_terminal = out.is_terminal();
        Self { out, is_terminal }
    }
}

impl<W: Write> Progress<W> {
    /// Waits for `work`, shown as `what`. The shown text of the result ends the line.
    pub(crate) async fn step<T>(
        &mut self,
        what: &str,
        work: impl Future<Output = Result<T>>,
        done: impl FnOnce(&T) -> String,
    ) -> Result<T> {
        let began = Instant::now();
        let seconds = || format!("{:.1} s", began.elapsed().as_secs_f64());
        if !self.is_terminal {
            self.write(&format!("local: {what} ...\n"));
        }
        tokio::pin!(work);
        let result = loop {
            if self.is_terminal {
                self.write(&format!("{CLEAR}local: {what} ... {}", seconds()));
            }
            tokio::select! {
                result = &mut work => break result,
                () = tokio::time::sleep(REWRITE_EVERY), if self.is_terminal => {}
            }
        };
        let said = match &result {
            Ok(value) => done(value),
            Err(_) => "failed".to_owned(),
        };
        let clear = if self.is_terminal { CLEAR } else { "" };
        self.write(&format!("{clear}local: {what}: {said}, {}\n", seconds()));
        result
    }

    /// Progress that cannot be shown holds up nothing.
    fn write(&mut self, text: &str) {
        let _ = self.out.write_all(text.as_bytes());
        let _ = self.out.flush();
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    async fn shown(is_terminal: bool, result: Result<u8>) -> String {
        let mut progress = Progress { out: Vec::new(), is_terminal };
        let work = async {
            tokio::task::yield_now().await;
            result
        };
        let _ = progress.step("[1/3] ICP ledger", work, |value| format!("installed {value}")).await;
        String::from_utf8(progress.out).unwrap()
    }

    #[tokio::test]
    async fn lines_are_plain_where_there_is_no_terminal() {
        let text = shown(false, Ok(7)).await;
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "local: [1/3] ICP ledger ...");
        assert!(lines[1].starts_with("local: [1/3] ICP ledger: installed 7, "), "{text}");
        assert!(lines.len() == 2 && lines[1].ends_with(" s") && !text.contains('\x1b'), "{text}");
    }

    // Promise: P10 - `thimble-lab local` shows its progress.
    #[tokio::test]
    async fn a_terminal_shows_the_time_elapsed_in_one_line() {
        let text = shown(true, Ok(7)).await;
        assert_eq!(text.matches('\n').count(), 1, "{text:?}");
        assert!(text.starts_with(CLEAR) && text.contains("ICP ledger ... 0.0 s"), "{text:?}");
    }

    #[tokio::test]
    async fn a_step_that_fails_ends_its_line() {
        let text = shown(false, Err(anyhow::anyhow!("no"))).await;
        assert!(text.lines().last().unwrap().contains("ICP ledger: failed, "), "{text}");
    }
}
