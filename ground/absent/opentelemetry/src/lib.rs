//! In place of opentelemetry: the consensus engine sets the status of spans, and could export them.
//! Nothing here is exported or stored.

/// The tracer of the process.
pub mod global {
    /// Spans are not exported: the provider is dropped.
    pub fn set_tracer_provider<P>(_provider: P) {}
}

/// Spans.
pub mod trace {
    use std::borrow::Cow;

    /// How the work of a span ended.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub enum Status {
        /// It is not known.
        #[default]
        Unset,
        /// Well.
        Ok,
        /// With an error.
        Error {
            /// The failure.
            description: Cow<'static, str>,
        },
    }

    impl Status {
        /// With this error.
        pub fn error(description: impl Into<Cow<'static, str>>) -> Self {
            Self::Error { description: description.into() }
        }
    }

    /// Makes tracers.
    pub trait TracerProvider {
        /// The tracer that it makes.
        type Tracer;

        /// A tracer of this name.
        fn tracer(&self, name: impl Into<Cow<'static, str>>) -> Self::Tracer;
    }
}
