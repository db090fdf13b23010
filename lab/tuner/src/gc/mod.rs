//! What garbage collectors say of themselves while they run: one [`Collection`] for each line (or
//! group of lines) of the log of a runtime.

/// Whose log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `+RTS -S` of GHC.
    Ghc,
    /// `GODEBUG=gctrace=1` of Go.
    Go,
    /// `-Xlog:gc*` of a JVM (unified logging).
    Jvm,
    /// `--trace-gc` of Node and V8.
    Node,
}

/// One collection, as its runtime reports it. What a runtime does not tell is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collection {
    /// When it ended, since the start of the program.
    pub seconds: Option<f64>,
    /// Whether all of the heap was looked at.
    pub major: bool,
    /// How long the program stood still.
    pub pause_millis: f64,
    /// CPU time of the collection, over all threads, concurrent work included.
    pub cpu_millis: Option<f64>,
    /// What was still in use after it.
    pub live_bytes: Option<u64>,
    /// What the runtime holds for its heap after it.
    pub heap_bytes: Option<u64>,
}

/// Reads a log line by line.
#[derive(Debug)]
pub struct Reader {
    dialect: Dialect,
}

impl Reader {
    /// A reader of a log from its first line on, or from any later line.
    pub fn new(dialect: Dialect) -> Self {
        Self { dialect }
    }

    /// The collection that this line completes; lines of other kinds complete none.
    pub fn line(&mut self, _line: &str) -> Option<Collection> {
        let _ = self.dialect;
        None
    }
}
