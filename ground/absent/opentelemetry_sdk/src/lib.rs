//! In place of opentelemetry_sdk: builders that the consensus engine uses once it has an exporter
//! of spans, of which there is none.

/// The service that spans belong to.
#[derive(Clone, Copy, Debug)]
pub struct Resource(());

impl Resource {
    /// Without attributes.
    pub fn builder_empty() -> ResourceBuilder {
        ResourceBuilder(())
    }
}

/// Makes a [`Resource`].
#[derive(Clone, Copy, Debug)]
pub struct ResourceBuilder(());

impl ResourceBuilder {
    /// Of this service.
    #[must_use]
    pub fn with_service_name(self, _name: impl Into<String>) -> Self {
        self
    }

    /// Makes it.
    pub fn build(self) -> Resource {
        Resource(())
    }
}

/// Spans.
pub mod trace {
    use std::borrow::Cow;

    use super::Resource;

    /// Would send spans in batches.
    #[derive(Clone, Copy, Debug)]
    pub struct BatchSpanProcessor(());

    impl BatchSpanProcessor {
        /// By this exporter.
        pub fn builder<E>(_exporter: E) -> BatchSpanProcessorBuilder {
            BatchSpanProcessorBuilder(())
        }
    }

    /// Makes a [`BatchSpanProcessor`].
    #[derive(Clone, Copy, Debug)]
    pub struct BatchSpanProcessorBuilder(());

    impl BatchSpanProcessorBuilder {
        /// Makes it.
        pub fn build(self) -> BatchSpanProcessor {
            BatchSpanProcessor(())
        }
    }

    /// Which spans would be sent.
    #[derive(Clone, Copy, Debug)]
    pub enum Sampler {
        /// This part of them.
        TraceIdRatioBased(f64),
    }

    /// Makes tracers.
    #[derive(Clone, Copy, Debug)]
    pub struct SdkTracerProvider(());

    impl SdkTracerProvider {
        /// Without anything.
        pub fn builder() -> TracerProviderBuilder {
            TracerProviderBuilder(())
        }
    }

    impl opentelemetry::trace::TracerProvider for SdkTracerProvider {
        type Tracer = Tracer;

        fn tracer(&self, _name: impl Into<Cow<'static, str>>) -> Tracer {
            Tracer(())
        }
    }

    /// Makes a [`SdkTracerProvider`].
    #[derive(Clone, Copy, Debug)]
    pub struct TracerProviderBuilder(());

    impl TracerProviderBuilder {
        /// With this processor.
        #[must_use]
        pub fn with_span_processor(self, _processor: BatchSpanProcessor) -> Self {
            self
        }

        /// With this resource.
        #[must_use]
        pub fn with_resource(self, _resource: Resource) -> Self {
            self
        }

        /// With this sampler.
        #[must_use]
        pub fn with_sampler(self, _sampler: Sampler) -> Self {
            self
        }

        /// Makes it.
        pub fn build(self) -> SdkTracerProvider {
            SdkTracerProvider(())
        }
    }

    /// Would make spans.
    #[derive(Clone, Copy, Debug)]
    pub struct Tracer(());
}
