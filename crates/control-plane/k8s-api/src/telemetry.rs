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
    /// Settings of metrics, access logs and traces.
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

    /// Tracing settings of a [`Telemetry`].
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

    /// Value of a custom span tag: exactly one of the fields is set.
    CustomTag {
        literal: Option<Literal>,
        environment: Option<Named>,
        header: Option<Named>,
        formatter: Option<Literal>,
    }

    /// Literal value of a span tag, or a formatter expression.
    Literal {
        value: String,
    }

    /// Header or environment variable that a span tag takes its value from, with the default for requests without it.
    Named {
        name: String,
        default_value: String,
    }

    /// Reference to one of the MeshConfig's `extensionProviders`.
    ProviderRef {
        name: String,
    }

    /// Selection of proxies by their role: `CLIENT`, `SERVER` or `CLIENT_AND_SERVER`.
    Selector {
        mode: Option<String>,
    }

    /// Metric settings of a [`Telemetry`].
    Metrics {
        providers: Vec<ProviderRef>,
        overrides: Vec<MetricsOverride>,
        reporting_interval: Option<String>,
    }

    /// Override of some metrics: disabled, or with changed tags.
    MetricsOverride {
        r#match: Option<MetricSelector>,
        disabled: Option<bool>,
        tag_overrides: BTreeMap<String, TagOverride>,
    }

    /// Selection of metrics by name, and of proxies by role.
    MetricSelector {
        metric: Option<String>,
        custom_metric: Option<String>,
        mode: Option<String>,
    }

    /// Change of a metric's tag: `UPSERT` or `REMOVE`.
    TagOverride {
        operation: Option<String>,
        value: String,
    }

    /// Access log settings of a [`Telemetry`].
    AccessLogging {
        r#match: Option<Selector>,
        providers: Vec<ProviderRef>,
        disabled: Option<bool>,
        filter: Option<Filter>,
    }

    /// Filter of logged requests, as a CEL expression.
    Filter {
        expression: String,
    }
}
