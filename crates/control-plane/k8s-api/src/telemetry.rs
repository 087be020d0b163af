//! Spec of a `Telemetry`; field names as in Istio's definition. Unknown fields are errors.

use std::collections::BTreeMap;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    istio::{PolicyTargetReference, WorkloadSelector, custom_resource},
    status::{self, Status},
};

custom_resource! {
    /// Metrics, access logs and traces of requests.
    Telemetry, TelemetrySpec, "telemetry.istio.io", "telemetries", NamespaceResourceScope
}

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident { $($(#[$of_field:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default, deny_unknown_fields)]
        #[expect(missing_docs, reason = "the fields are the contract's")]
        pub struct $name {
            $($(#[$of_field])* pub $field: $type,)*
        })*
    };
}

settings! {
    /// Specification of a [`Telemetry`].
    TelemetrySpec {
        selector: Option<WorkloadSelector>,
        target_ref: Option<PolicyTargetReference>,
        target_refs: Vec<PolicyTargetReference>,
        tracing: Vec<Tracing>,
        metrics: Vec<Metrics>,
        access_logging: Vec<AccessLogging>,
    }

    /// Settings of tracing.
    Tracing {
        r#match: Option<Selector>,
        providers: Vec<ProviderRef>,
        random_sampling_percentage: Option<f64>,
        disable_span_reporting: Option<bool>,
        custom_tags: BTreeMap<String, CustomTag>,
        use_request_id_for_trace_sampling: Option<bool>,
        enable_istio_tags: Option<bool>,
        disable_context_propagation: Option<bool>,
    }

    /// A tag of spans: one of these.
    CustomTag {
        literal: Option<Literal>,
        environment: Option<Named>,
        header: Option<Named>,
        formatter: Option<Literal>,
    }

    /// Value that is text.
    Literal {
        value: String,
    }

    /// Value that is looked up by a name, and the one without it.
    Named {
        name: String,
        default_value: String,
    }

    /// The name of one of the mesh's providers.
    ProviderRef {
        name: String,
    }

    /// Which side's proxy is meant.
    Selector {
        mode: Option<String>,
    }

    /// Settings of metrics.
    Metrics {
        providers: Vec<ProviderRef>,
        overrides: Vec<MetricsOverride>,
        reporting_interval: Option<String>,
    }

    /// Changes of some metrics.
    MetricsOverride {
        r#match: Option<MetricSelector>,
        disabled: Option<bool>,
        tag_overrides: BTreeMap<String, TagOverride>,
    }

    /// Selection of metrics.
    MetricSelector {
        metric: Option<String>,
        custom_metric: Option<String>,
        mode: Option<String>,
    }

    /// Change of a label.
    TagOverride {
        operation: Option<String>,
        value: String,
    }

    /// Settings of access logs.
    AccessLogging {
        r#match: Option<Selector>,
        providers: Vec<ProviderRef>,
        disabled: Option<bool>,
        filter: Option<Filter>,
    }

    /// Which requests are logged.
    Filter {
        expression: String,
    }
}
