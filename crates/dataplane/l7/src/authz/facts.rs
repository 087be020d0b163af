//! What policies are evaluated for.

use std::{
    borrow::Cow,
    cell::OnceCell,
    net::{IpAddr, SocketAddr},
};

use ambit_jwt::Claims;
use ambit_model::{Identity, canonical_ip};
use http::HeaderMap;

use crate::path;

/// A connection through the waypoint.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    /// The verified identity of the caller, if it has one.
    pub source: Option<&'a Identity>,
    /// The caller's address.
    pub source_ip: IpAddr,
    /// The original client's address, behind trusted proxies; the caller's if there are none.
    pub remote_ip: IpAddr,
    /// What is called: a service's address and port, or a pod's.
    pub destination: SocketAddr,
    /// The server name of a TLS connection that is passed through.
    pub sni: Option<&'a str>,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The connection it came on.
    pub connection: Connection<'a>,
    /// The method.
    pub method: &'a str,
    /// The authority: `:authority` or `Host`. Empty if there is none.
    pub host: &'a str,
    /// The normalized path, without the query.
    pub path: &'a str,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// What a valid token claims. A request with several is judged once for each, and all have to admit it.
    pub claims: Option<&'a Claims>,
}

/// Which readings of an ambiguous text count (see [the module](super)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Any: for what leads to a denial.
    Any,
    /// The plain one: for what leads to an admission.
    Plain,
}

/// What is compared, brought into form.
pub(super) struct Facts<'a> {
    pub(super) source: Option<&'a Identity>,
    pub(super) source_ip: IpAddr,
    pub(super) remote_ip: IpAddr,
    pub(super) destination_ip: IpAddr,
    pub(super) destination_port: u16,
    pub(super) sni: Option<&'a str>,
    /// `None`: not HTTP.
    pub(super) http: Option<Http<'a>>,
}

/// The parts of a request.
pub(super) struct Http<'a> {
    pub(super) method: &'a str,
    pub(super) host: Host<'a>,
    pub(super) path: Cow<'a, str>,
    decoded_path: OnceCell<Option<String>>,
    pub(super) headers: &'a HeaderMap,
    pub(super) claims: Option<&'a Claims>,
}

impl Http<'_> {
    /// The other reading of the path, if there is one.
    pub(super) fn decoded_path(&self) -> Option<&str> {
        let decoded = self.decoded_path.get_or_init(|| path::decoded(&self.path));
        decoded.as_deref()
    }
}

/// The authority of a request in its parts.
#[derive(Clone, Copy)]
pub(super) struct Host<'a> {
    /// As it came.
    pub(super) whole: &'a str,
    /// Without user, port, and the dot that ends an absolute name.
    pub(super) name: &'a str,
    /// Its port with the colon; empty if it has none.
    pub(super) port: &'a str,
}

impl<'a> Host<'a> {
    fn new(whole: &'a str) -> Self {
        let authority = whole.rsplit('@').next().unwrap_or_default();
        // An IPv6 address has colons of its own, within brackets.
        let brackets = authority.find(']').map_or(0, |bracket| bracket + 1);
        let colon = authority
            .get(brackets..)
            .and_then(|rest| rest.rfind(':'))
            .map_or(authority.len(), |colon| brackets + colon);
        let (name, port) = authority.split_at(colon);
        Self {
            whole,
            name: name.strip_suffix('.').unwrap_or(name),
            port,
        }
    }
}

impl<'a> Facts<'a> {
    pub(super) fn of_connection(connection: &Connection<'a>) -> Self {
        Self {
            source: connection.source,
            source_ip: canonical_ip(connection.source_ip),
            remote_ip: canonical_ip(connection.remote_ip),
            destination_ip: canonical_ip(connection.destination.ip()),
            destination_port: connection.destination.port(),
            sni: connection.sni,
            http: None,
        }
    }

    pub(super) fn of_request(request: &Request<'a>) -> Self {
        Self {
            http: Some(Http {
                method: request.method,
                host: Host::new(request.host),
                // Changes a path only where normalization is off.
                path: path::canonical_escapes(request.path),
                decoded_path: OnceCell::new(),
                headers: request.headers,
                claims: request.claims,
            }),
            ..Self::of_connection(&request.connection)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_have_names_and_ports() {
        for (whole, name, port) in [
            ("a.com", "a.com", ""),
            ("a.com:80", "a.com", ":80"),
            ("a.com.:80", "a.com", ":80"),
            ("a.com:", "a.com", ":"),
            ("b@a.com:80", "a.com", ":80"),
            ("[::1]", "[::1]", ""),
            ("[::1]:80", "[::1]", ":80"),
            ("", "", ""),
        ] {
            let host = Host::new(whole);
            assert_eq!((host.name, host.port), (name, port), "{whole}");
        }
    }
}
