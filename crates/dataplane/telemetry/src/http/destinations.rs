//! Metrics of outlier detection and circuit breakers at waypoints. Only services with a `DestinationRule` have
//! series, one for each cause or limit; they are removed with the rule.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// Metrics of outlier detection and circuit breakers.
#[derive(Debug, Default)]
pub struct DestinationMetrics {
    ejections: Family<EjectionLabels, Counter>,
    overflows: Family<OverflowLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EjectionLabels {
    destination_service: String,
    cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OverflowLabels {
    destination_service: String,
    limit: &'static str,
}

impl DestinationMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "ambit_endpoint_ejections",
            "The total number of times that an endpoint was ejected for errors in a row",
            self.ejections.clone(),
        );
        registry.register(
            "ambit_destination_overflows",
            "The total number of requests, connections and retries that a limit of a DestinationRule did not allow",
            self.overflows.clone(),
        );
    }

    /// Counts an ejection of a service's endpoint by outlier detection.
    pub fn count_ejection(&self, service: &str, cause: &'static str) {
        let labels = EjectionLabels {
            destination_service: service.to_owned(),
            cause,
        };
        self.ejections.get_or_create(&labels).inc();
    }

    /// Counts a request that exceeded a circuit breaker's limit.
    pub fn count_overflow(&self, service: &str, limit: &'static str) {
        let labels = OverflowLabels {
            destination_service: service.to_owned(),
            limit,
        };
        self.overflows.get_or_create(&labels).inc();
    }

    /// Removes the series of a service whose `DestinationRule` was removed. `causes` and `limits` list all values of
    /// these labels.
    pub fn remove_destination(
        &self,
        service: &str,
        causes: &[&'static str],
        limits: &[&'static str],
    ) {
        let destination_service = service.to_owned();
        for cause in causes {
            self.ejections.remove(&EjectionLabels {
                destination_service: destination_service.clone(),
                cause,
            });
        }
        for limit in limits {
            self.overflows.remove(&OverflowLabels {
                destination_service: destination_service.clone(),
                limit,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn series_go_with_the_rule() {
        let mut registry = Registry::default();
        let metrics = DestinationMetrics::default();
        metrics.register(&mut registry);
        let text = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text
        };
        metrics.count_ejection("a.ns", "5xx");
        metrics.count_overflow("a.ns", "requests");
        metrics.count_overflow("b.ns", "requests");
        let all = text();
        assert!(all.contains(
            "ambit_endpoint_ejections_total{destination_service=\"a.ns\",cause=\"5xx\"} 1"
        ));
        assert!(all.contains("limit=\"requests\"} 1"), "{all}");
        metrics.remove_destination("a.ns", &["5xx"], &["requests"]);
        let left = text();
        assert!(!left.contains("a.ns") && left.contains("b.ns"), "{left}");
    }
}
