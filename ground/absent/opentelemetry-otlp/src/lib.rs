//! In place of opentelemetry-otlp: building an exporter of spans returns an error.

use std::{fmt, time::Duration};

/// Would send spans.
#[derive(Clone, Copy, Debug)]
pub struct SpanExporter(());

impl SpanExporter {
    /// Without a transport.
    pub fn builder() -> SpanExporterBuilder {
        SpanExporterBuilder(())
    }
}

/// Would make a [`SpanExporter`].
#[derive(Clone, Copy, Debug)]
pub struct SpanExporterBuilder(());

impl SpanExporterBuilder {
    /// Over HTTP.
    #[must_use]
    pub fn with_http(self) -> Self {
        self
    }

    /// The error: always.
    pub fn build(self) -> Result<SpanExporter, ExporterBuildError> {
        Err(ExporterBuildError)
    }
}

/// Where to send to.
pub trait WithExportConfig: Sized {
    /// This endpoint.
    #[must_use]
    fn with_endpoint(self, _endpoint: impl Into<String>) -> Self {
        self
    }

    /// Within this time.
    #[must_use]
    fn with_timeout(self, _timeout: Duration) -> Self {
        self
    }
}

impl WithExportConfig for SpanExporterBuilder {}

/// There is no exporter in this build.
#[derive(Clone, Copy, Debug)]
pub struct ExporterBuildError;

impl fmt::Display for ExporterBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this build does not export spans")
    }
}

impl std::error::Error for ExporterBuildError {}
