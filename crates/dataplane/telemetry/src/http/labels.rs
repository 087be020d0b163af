//! Label set of Istio's request metrics.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};

use ambit_model::TelemetryFamily;

use super::{RelabeledValues, ResponseFlags};
use crate::{
    TrafficLabels,
    labels::{LabelSink, LabelWriter, encode_traffic_labels},
};

/// Value of the label `request_protocol`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RequestProtocol {
    /// HTTP of any version.
    #[default]
    Http,
    /// gRPC with the response's gRPC status; invalid statuses count as none.
    Grpc(Option<u32>),
}

impl RequestProtocol {
    /// Returns the value of the label `request_protocol`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc(_) => "grpc",
        }
    }

    /// Removes a number that is not a gRPC status, since the upstream chooses it freely and labels must be bounded.
    fn limit_cardinality(self) -> Self {
        match self {
            Self::Grpc(status) => Self::Grpc(status.filter(|status| *status <= 16)),
            Self::Http => Self::Http,
        }
    }
}

/// HTTP status from 100 to 599; zero for other codes, and for requests without a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResponseCode(u16);

impl ResponseCode {
    /// Converts an HTTP status; invalid ones become zero.
    pub fn new(code: u16) -> Self {
        Self(if (100..600).contains(&code) { code } else { 0 })
    }
}

impl fmt::Display for ResponseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Labels of requests with the same source, destination and outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpLabels {
    traffic: TrafficLabels,
    protocol: RequestProtocol,
    code: ResponseCode,
    flags: ResponseFlags,
    /// Configured label overrides.
    overrides: Option<RelabeledValues>,
}

impl HttpLabels {
    /// Creates the labels of requests with this source, destination and outcome.
    pub fn new(
        traffic: TrafficLabels,
        protocol: RequestProtocol,
        code: ResponseCode,
        flags: ResponseFlags,
    ) -> Self {
        Self {
            traffic,
            protocol: protocol.limit_cardinality(),
            code,
            flags,
            overrides: None,
        }
    }

    /// Applies configured label overrides.
    #[must_use]
    pub fn with_overrides(self, changed: Option<RelabeledValues>) -> Self {
        Self {
            overrides: changed,
            ..self
        }
    }

    pub(super) fn without_principals(&self) -> Self {
        Self {
            traffic: self.traffic.without_principals(),
            ..self.clone()
        }
    }

    pub(super) fn has_overrides(&self) -> bool {
        self.overrides.is_some()
    }

    /// Returns the labels with which the series is written in a family; `None` if it has no sample there.
    pub(super) fn family_labels(&self, family: TelemetryFamily) -> Option<Vec<(String, String)>> {
        let mut labels = Vec::with_capacity(32);
        // Writing to a list cannot fail.
        self.put_labels(&mut labels).ok()?;
        match &self.overrides {
            Some(changed) => changed.apply(family, labels),
            None => Some(labels),
        }
    }

    pub(super) fn is_grpc(&self) -> bool {
        matches!(self.protocol, RequestProtocol::Grpc(_))
    }
}

impl EncodeLabelSet for HttpLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        self.put_labels(&mut LabelWriter(encoder))
    }
}

impl HttpLabels {
    fn put_labels(&self, labels: &mut impl LabelSink) -> fmt::Result {
        encode_traffic_labels(labels, &self.traffic)?;
        labels.put_label("request_protocol", self.protocol.as_str())?;
        labels.put_label("response_code", &self.code.to_string())?;
        if let RequestProtocol::Grpc(status) = self.protocol {
            let status = status.map(|status| status.to_string());
            labels.put_label("grpc_response_status", &status.unwrap_or_default())?;
        }
        labels.put_label("response_flags", &self.flags.to_string())?;
        labels.put_label("connection_security_policy", self.traffic.security.as_str())
    }
}
