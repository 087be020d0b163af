//! Spec of a `VirtualService`; field names as in Istio's definition.
//!
//! Every type preserves the fields that it does not know, including those without a counterpart in
//! Ambit's routes: a field may decide where requests are routed, so it must be reported and must
//! not be lost.

use std::collections::BTreeMap;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    istio::custom_resource,
    status::{self, Status},
};

custom_resource! {
    /// Routes in Istio's own API, by host.
    VirtualService, VirtualServiceSpec, "networking.istio.io", "virtualservices", NamespaceResourceScope
}

/// Unknown fields of a type, by name.
pub type UnknownFields = BTreeMap<String, Value>;

macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident { $($(#[$of_field:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        #[expect(missing_docs, reason = "the fields are the contract's")]
        pub struct $name {
            $($(#[$of_field])* pub $field: $type,)*
            #[serde(flatten)]
            pub unknown: UnknownFields,
        })*
    };
}

parts! {
    /// Specification of a [`VirtualService`].
    VirtualServiceSpec {
        hosts: Vec<String>,
        gateways: Vec<String>,
        http: Vec<HttpRule>,
        export_to: Vec<String>,
    }

    /// Rule for HTTP requests. The first rule that matches applies.
    HttpRule {
        name: Option<String>,
        #[serde(rename = "match")]
        matches: Vec<HttpMatch>,
        route: Vec<RouteDestination>,
        redirect: Option<Redirect>,
        rewrite: Option<Rewrite>,
        timeout: Option<String>,
        retries: Option<Retries>,
        fault: Option<Fault>,
        mirror: Option<Destination>,
        mirror_percentage: Option<Percent>,
        mirrors: Vec<Mirror>,
        headers: Option<Headers>,
        cors_policy: Option<CorsPolicy>,
    }

    /// Match on attributes of a request, all of which must match.
    HttpMatch {
        name: Option<String>,
        uri: Option<StringMatch>,
        ignore_uri_case: bool,
        method: Option<StringMatch>,
        authority: Option<StringMatch>,
        headers: BTreeMap<String, StringMatch>,
        without_headers: BTreeMap<String, StringMatch>,
        query_params: BTreeMap<String, StringMatch>,
        port: Option<i64>,
        source_namespace: Option<String>,
        gateways: Vec<String>,
        stat_prefix: Option<String>,
    }

    /// Match of a string: exact, prefix or regular expression; if empty, of its presence.
    StringMatch {
        exact: Option<String>,
        prefix: Option<String>,
        regex: Option<String>,
    }

    /// Weighted destination of a rule, with header changes.
    RouteDestination {
        destination: Destination,
        weight: Option<i32>,
        headers: Option<Headers>,
    }

    /// Service that requests go to: host, subset and port.
    Destination {
        host: String,
        subset: Option<String>,
        port: Option<Port>,
    }

    /// Port of a destination service, by number.
    Port {
        number: Option<i32>,
    }

    /// Redirect response of a rule.
    Redirect {
        uri: Option<String>,
        authority: Option<String>,
        port: Option<i32>,
        scheme: Option<String>,
        redirect_code: Option<i32>,
    }

    /// Rewrite of the request's path or authority.
    Rewrite {
        uri: Option<String>,
        authority: Option<String>,
    }

    /// Retry policy of a rule.
    Retries {
        attempts: i32,
        per_try_timeout: Option<String>,
        retry_on: Option<String>,
        backoff: Option<String>,
    }

    /// Injected faults: delay and abort.
    Fault {
        delay: Option<Delay>,
        abort: Option<Abort>,
    }

    /// Injected delay, and the percentage of delayed requests.
    Delay {
        fixed_delay: Option<String>,
        percentage: Option<Percent>,
    }

    /// Injected response, and the percentage of aborted requests.
    Abort {
        http_status: Option<i64>,
        grpc_status: Option<Value>,
        percentage: Option<Percent>,
    }

    /// Percentage of requests, 0 to 100.
    Percent {
        value: f64,
    }

    /// Destination and percentage of mirrored requests.
    Mirror {
        destination: Destination,
        percentage: Option<Percent>,
    }

    /// Changes of request and response headers.
    Headers {
        request: HeaderChanges,
        response: HeaderChanges,
    }

    /// Changes of request headers or of response headers.
    HeaderChanges {
        set: BTreeMap<String, String>,
        add: BTreeMap<String, String>,
        remove: Vec<String>,
    }

    /// CORS policy of a rule.
    CorsPolicy {
        allow_origins: Vec<StringMatch>,
        allow_methods: Vec<String>,
        allow_headers: Vec<String>,
        expose_headers: Vec<String>,
        max_age: Option<String>,
        allow_credentials: Option<bool>,
    }
}
