//! Why an endpoint did not answer a request.

use std::error::Error;

use ambit_proxy::report::chain;
use ambit_telemetry::http::ResponseFlag;
use http::StatusCode;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) flag: ResponseFlag,
    /// What the client is told.
    pub(super) status: StatusCode,
    /// For the log.
    pub(super) text: String,
    /// Whether the endpoint says that it has done nothing with the request.
    pub(super) is_untouched: bool,
    /// Whether the header section of its response is over the limits.
    pub(super) is_too_large: bool,
}

impl Broken {
    /// The body of the response that the client gets.
    pub(super) fn said(&self) -> &'static str {
        match self.is_too_large {
            true => {
                "the header section of the application's response is over the limits (AMBIT_MAX_HEADERS, AMBIT_MAX_HEADER_BYTES)"
            }
            false => "upstream connect error or disconnect/reset before headers",
        }
    }

    /// There is no connection to it.
    pub(super) fn unreached(text: String) -> Self {
        Self::new(ResponseFlag::UpstreamConnectionFailure, text)
    }

    fn new(flag: ResponseFlag, text: String) -> Self {
        Self {
            flag,
            status: StatusCode::SERVICE_UNAVAILABLE,
            text,
            is_untouched: false,
            is_too_large: false,
        }
    }

    /// How a request that was sent, at least in part, came to nothing.
    pub(super) fn of(error: &hyper::Error) -> Self {
        let text = chain(error);
        let cause = error
            .source()
            .and_then(|cause| cause.downcast_ref::<h2::Error>());
        let is_violation = error.is_parse()
            || cause.is_some_and(|cause| cause.reason().is_some() && !cause.is_remote());
        if is_violation {
            return Self {
                status: StatusCode::BAD_GATEWAY,
                is_too_large: error.is_parse_too_large(),
                ..Self::new(ResponseFlag::UpstreamProtocolError, text)
            };
        }
        match cause {
            Some(reset) if reset.is_remote() && reset.is_reset() => Self {
                is_untouched: reset.reason() == Some(h2::Reason::REFUSED_STREAM),
                ..Self::new(ResponseFlag::UpstreamRemoteReset, text)
            },
            // It names the last request that may have been processed; only those after it end like this.
            Some(going) if going.is_remote() && going.is_go_away() => Self {
                is_untouched: true,
                ..Self::new(ResponseFlag::UpstreamConnectionTermination, text)
            },
            _ => Self::new(ResponseFlag::UpstreamConnectionTermination, text),
        }
    }
}
