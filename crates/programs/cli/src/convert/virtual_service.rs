//! Istio's VirtualService (networking.istio.io/v1), as far as HTTP goes. Every type keeps the fields that it does not know:
//! they must be named, since they may be what matters.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Fields that a type does not know.
pub(super) type Other = BTreeMap<String, Value>;

macro_rules! parts {
    ($($(#[doc = $doc:literal])+ $name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
            #[serde(rename_all = "camelCase", default)]
            pub(super) struct $name {
                $($(#[$attribute])* pub(super) $field: $type,)*
                #[serde(flatten)]
                pub(super) other: Other,
            }
        )*
    };
}

parts! {
    /// The part of an object that names it.
    Metadata {
        name: String,
        namespace: Option<String>,
    }

    /// VirtualService of Istio.
    VirtualService {
        metadata: Metadata,
        spec: Spec,
    }

    /// Specification of a VirtualService.
    Spec {
        hosts: Vec<String>,
        gateways: Vec<String>,
        http: Vec<HttpRule>,
        export_to: Vec<String>,
    }

    /// Rule for requests; the first that matches is followed.
    HttpRule {
        name: Option<String>,
        #[serde(rename = "match")]
        matches: Vec<Match>,
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

    /// Conditions that must all hold.
    Match {
        name: Option<String>,
        uri: Option<StringMatch>,
        method: Option<StringMatch>,
        headers: BTreeMap<String, StringMatch>,
        query_params: BTreeMap<String, StringMatch>,
        gateways: Vec<String>,
    }

    /// Comparison of a text; without a value, its presence.
    StringMatch {
        exact: Option<String>,
        prefix: Option<String>,
        regex: Option<String>,
    }

    /// Destination with its share.
    RouteDestination {
        destination: Destination,
        weight: Option<i32>,
        headers: Option<Headers>,
    }

    /// Host that requests go to.
    Destination {
        host: String,
        subset: Option<String>,
        port: Option<Port>,
    }

    /// Port by its number.
    Port {
        number: Option<i32>,
    }

    /// Redirect of requests to another location.
    Redirect {
        uri: Option<String>,
        authority: Option<String>,
        port: Option<i32>,
        scheme: Option<String>,
        redirect_code: Option<i32>,
    }

    /// Rewrite of requests.
    Rewrite {
        uri: Option<String>,
        authority: Option<String>,
    }

    /// Retries of requests.
    Retries {
        attempts: i32,
        per_try_timeout: Option<String>,
        retry_on: Option<String>,
    }

    /// Faults that are injected.
    Fault {
        delay: Option<Delay>,
        abort: Option<Abort>,
    }

    /// Delay that is injected.
    Delay {
        fixed_delay: Option<String>,
        percentage: Option<Percent>,
    }

    /// Response that is injected.
    Abort {
        http_status: Option<i64>,
        grpc_status: Option<Value>,
        percentage: Option<Percent>,
    }

    /// Share of requests, 0 to 100.
    Percent {
        value: f64,
    }

    /// Destination of mirrored requests.
    Mirror {
        destination: Destination,
        percentage: Option<Percent>,
    }

    /// Changes of headers.
    Headers {
        request: HeaderChanges,
        response: HeaderChanges,
    }

    /// Changes of headers of one direction.
    HeaderChanges {
        set: BTreeMap<String, String>,
        add: BTreeMap<String, String>,
        remove: Vec<String>,
    }

    /// Access of scripts of other origins.
    CorsPolicy {
        allow_origins: Vec<StringMatch>,
        allow_methods: Vec<String>,
        allow_headers: Vec<String>,
        expose_headers: Vec<String>,
        max_age: Option<String>,
        allow_credentials: Option<bool>,
    }
}

impl VirtualService {
    /// Reads an object of the kind.
    pub(super) fn read(object: &Value) -> Result<Self, serde_json::Error> {
        serde_json::from_value(object.clone())
    }

    /// Namespace of the object.
    pub(super) fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or("default")
    }

    /// Kind and name of the object, as `VirtualService namespace/name`.
    pub(super) fn name(&self) -> String {
        format!("VirtualService {}/{}", self.namespace(), self.metadata.name)
    }
}
