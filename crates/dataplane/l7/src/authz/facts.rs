//! Attributes that policies are evaluated against.

use std::net::{IpAddr, SocketAddr};

use ambit_authz::Attributes;
use ambit_jwt::Claims;
use ambit_model::{Identity, canonical_ip};
use http::HeaderMap;

use crate::readings::Readings;

/// A connection through the waypoint.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    /// The verified identity of the caller, if it has one.
    pub source: Option<&'a Identity>,
    /// The caller's address.
    pub source_ip: IpAddr,
    /// Address of the original client behind trusted proxies; the caller's address without such
    /// proxies.
    pub remote_ip: IpAddr,
    /// Called address: of a service with its port, or of a pod.
    pub destination: SocketAddr,
    /// The server name of a TLS connection that is passed through.
    pub sni: Option<&'a str>,
}

/// Attributes of a request for policies.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Connection that carries the request.
    pub connection: Connection<'a>,
    /// Method of the request.
    pub method: &'a str,
    /// Authority from `:authority` or `Host`; empty if missing.
    pub host: &'a str,
    /// The normalized path, without the query.
    pub path: &'a str,
    /// Headers of the request.
    pub headers: &'a HeaderMap,
    /// Claims of a valid token. A request with several is authorized once for each, and each decision must allow it.
    pub claims: Option<&'a Claims>,
}

/// Attributes in normalized form for comparison.
pub(super) struct Facts<'a> {
    pub(super) connection: Attributes<'a>,
    pub(super) remote_ip: IpAddr,
    pub(super) sni: Option<&'a str>,
    /// HTTP attributes; `None` for other protocols.
    pub(super) http: Option<Http<'a>>,
}

/// HTTP attributes of a request.
pub(super) struct Http<'a> {
    pub(super) texts: Readings<'a>,
    pub(super) claims: Option<&'a Claims>,
}

impl<'a> Facts<'a> {
    pub(super) fn of_connection(connection: &Connection<'a>) -> Self {
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

    /// Replaces the called address in every attribute that depends on it.
    pub(super) fn call_at(&mut self, destination: SocketAddr) {
        self.connection.set_destination(destination);
        if let Some(http) = &mut self.http {
            http.texts.dial(destination.port());
        }
    }

    pub(super) fn of_request(request: &Request<'a>) -> Self {
        let port = request.connection.destination.port();
        Self {
            http: Some(Http {
                texts: Readings::new(
                    request.method,
                    (request.host, Some(port)),
                    request.path,
                    request.headers,
                ),
                claims: request.claims,
            }),
            ..Self::of_connection(&request.connection)
        }
    }
}
