//! Metrics pages: the text of a registry, and a writer of figures that are read on each scrape.
//!
//! Bounds: a page is in memory as a whole; its length follows from the registry.

use std::fmt;

use prometheus_client::{
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, text,
    },
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge, histogram::Histogram},
    registry::{Metric, Registry, Unit},
};

/// The content type of a metrics page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text of a metrics page.
///
/// # Errors
/// When a collector fails.
pub fn encode(registry: &Registry) -> Result<String, fmt::Error> {
    let mut page = String::new();
    text::encode(&mut page, registry)?;
    Ok(page)
}

/// Registers a metric and returns it; its copies share its value.
pub fn register<M: Metric + Clone>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    metric: M,
) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// Where a collector writes its figures.
#[derive(Debug)]
pub struct MetricsWriter<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl<'a, 'b> MetricsWriter<'a, 'b> {
    /// Figures go to this encoder of a [`prometheus_client::collector::Collector`].
    pub fn new(encoder: &'a mut DescriptorEncoder<'b>) -> Self {
        Self(encoder)
    }

    /// A gauge.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        gauge.encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    /// A gauge of a whole number, up to the largest that the format has.
    pub fn amount(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.gauge(name, help, saturated(value))
    }

    /// A gauge of a whole number that has no value on some machines; it is described on all.
    pub fn amount_if_any(&mut self, name: &str, help: &str, value: Option<u64>) -> fmt::Result {
        let described = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        value.map_or(Ok(()), |value| ConstGauge::new(saturated(value)).encode(described))
    }

    /// A counter.
    pub fn counter(
        &mut self,
        name: &str,
        help: &str,
        value: impl EncodeCounterValue,
    ) -> fmt::Result {
        let counter = ConstCounter::new(value);
        counter.encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    /// Gauges of one name, by labels.
    pub fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Gauges of whole numbers of one name, by labels.
    pub fn amounts<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let values = values.into_iter().map(|(labels, value)| (labels, saturated(value)));
        self.gauges(name, help, values)
    }

    /// Counters of one name, by labels.
    pub fn counters<L: EncodeLabelSet, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// A histogram of times in seconds.
    pub fn seconds(&mut self, name: &str, help: &str, times: &Histogram) -> fmt::Result {
        let unit = Some(&Unit::Seconds);
        times.encode(self.0.encode_descriptor(name, help, unit, MetricType::Histogram)?)
    }

    /// A histogram whose name states its unit, if it has one.
    pub fn histogram(&mut self, name: &str, help: &str, values: &Histogram) -> fmt::Result {
        values.encode(self.0.encode_descriptor(name, help, None, MetricType::Histogram)?)
    }
}

fn saturated(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;

    use super::*;

    #[derive(Debug)]
    struct Figures;

    impl Collector for Figures {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let mut out = MetricsWriter::new(&mut encoder);
            out.gauge("share", "A share", 0.5)?;
            out.amount("used", "Used", u64::MAX)?;
            out.amounts("cap_bytes", "Caps", [([("pool", "a")], 1), ([("pool", "b")], 2)])?;
            out.counters("refused", "Refusals", [([("pool", "a")], 3_u64)])?;
            out.counter("cpu_seconds", "Time", 1.5)
        }
    }

    #[test]
    fn figures_are_written_with_their_types_and_labels() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Figures));
        let page = encode(&registry).unwrap();
        for line in [
            "# TYPE share gauge",
            "share 0.5",
            "used 9223372036854775807",
            "cap_bytes{pool=\"b\"} 2",
            "refused_total{pool=\"a\"} 3",
            "cpu_seconds_total 1.5",
            "# EOF",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}: {page}");
        }
    }
}
