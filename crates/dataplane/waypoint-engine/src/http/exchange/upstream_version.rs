//! Chooses the HTTP version in which a request is sent to its destination.

use ambit_model::{AppProtocol, DestinationHttpVersion};

use crate::{
    http::{
        backend::destination::Destination, send::outgoing::default_upstream_version,
        upgrade::Upgrade,
    },
    message::Version,
    session::Session,
};

/// Returns the HTTP version in which a request is sent to its destination: the declared one of the port, unless a
/// `DestinationRule` sets another.
pub(super) fn upstream_version(
    session: &Session,
    destination: &Destination,
    upgrade: Option<&Upgrade>,
    request_version: http::Version,
) -> Version {
    let declared = destination.app_protocol(session);
    let ruled = destination.destination_rule_port(session);
    let ruled = ruled.map(|port| port.policy().http_version);
    let ruled = ruled.unwrap_or_default();
    if let Some(upgrade) = upgrade {
        return upgrade.version(declared);
    }
    match (ruled, declared) {
        (DestinationHttpVersion::AlwaysHttp2, _) => Version::Http2,
        (DestinationHttpVersion::AsDeclared, AppProtocol::Http11) => Version::Http1,
        (DestinationHttpVersion::AsDeclared, AppProtocol::Http2 | AppProtocol::Grpc) => {
            Version::Http2
        }
        (DestinationHttpVersion::AsDeclared | DestinationHttpVersion::AsClient, _) => {
            default_upstream_version(request_version)
        }
    }
}
