//! Attributes of requests and connections that policies match.

use std::net::{IpAddr, SocketAddr};

use ambit_authz::Attributes;
use ambit_jwt::Claims;
use ambit_model::{Identity, canonical_ip};
use http::HeaderMap;

use crate::readings::Readings;

/// Attributes of a downstream connection for policies.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    /// Verified identity of the caller; `None` for plaintext.
    pub source: Option<&'a Identity>,
    /// Source address of the caller's connection.
    pub source_ip: IpAddr,
    /// Address of the original client behind trusted proxies; the caller's address without such
    /// proxies.
    pub remote_ip: IpAddr,
    /// Address that the client called: of a service port, or of a pod.
    pub destination: SocketAddr,
    /// SNI of a TLS connection that is passed through.
    pub sni: Option<&'a str>,
}

/// Attributes of a request that policies match.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Attributes of the connection that carries the request.
    pub connection: Connection<'a>,
    /// Method of the request.
    pub method: &'a str,
    /// Authority from `:authority` or `Host`; empty if missing.
    pub host: &'a str,
    /// Normalized path, without the query.
    pub path: &'a str,
    /// Headers of the request.
    pub headers: &'a HeaderMap,
    /// Claims of a verified token. A request with several tokens is evaluated once for each, and all evaluations must
    /// allow it.
    pub claims: Option<&'a Claims>,
}

/// Attributes of a request or connection, prepared for comparison with policies.
pub(super) struct PolicyAttributes<'a> {
    pub(super) connection: Attributes<'a>,
    pub(super) remote_ip: IpAddr,
    pub(super) sni: Option<&'a str>,
    /// Attributes that only HTTP requests have; `None` for other connections.
    pub(super) http: Option<HttpAttributes<'a>>,
}

/// Attributes that only HTTP requests have.
pub(super) struct HttpAttributes<'a> {
    pub(super) readings: Readings<'a>,
    pub(super) claims: Option<&'a Claims>,
}

impl<'a> PolicyAttributes<'a> {
    pub(super) fn from_connection(connection: &Connection<'a>) -> Self {
        Self {
            connection: Attributes::new(
                connection.source,
                connection.source_ip,
                connection.destination,
            ),
            remote_ip: canonical_ip(connection.remote_ip),
            sni: connection.sni.map(|name| name.trim_end_matches('.')),
            http: None,
        }
    }

    /// Replaces the called address, in all attributes that contain it.
    pub(super) fn set_destination(&mut self, destination: SocketAddr) {
        self.connection.set_destination(destination);
        if let Some(http) = &mut self.http {
            http.readings.set_dialed_port(destination.port());
        }
    }

    pub(super) fn from_request(request: &Request<'a>) -> Self {
        let port = request.connection.destination.port();
        Self {
            http: Some(HttpAttributes {
                readings: Readings::new(
                    request.method,
                    (request.host, Some(port)),
                    request.path,
                    request.headers,
                ),
                claims: request.claims,
            }),
            ..Self::from_connection(&request.connection)
        }
    }
}
