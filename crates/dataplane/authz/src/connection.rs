//! The connection to authorize: as callers describe it, and in the form that policies compare.

use std::{
    cell::OnceCell,
    net::{IpAddr, SocketAddr},
};

use ambit_model::Identity;

use crate::attributes::Attributes;

/// The connection to authorize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The verified identity of the peer; `None` for plaintext.
    pub source: Option<Identity>,
    /// The client's address.
    pub source_ip: IpAddr,
    /// The application's address, after any port mapping.
    pub destination: SocketAddr,
}

/// The connection in the form policies compare: the principal's text is made at most once.
pub(crate) struct Peer<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) attributes: Attributes<'a>,
    principal: OnceCell<Option<String>>,
}

impl<'a> Peer<'a> {
    pub(crate) fn new(connection: &'a Connection) -> Self {
        Self {
            connection,
            attributes: Attributes::new(
                connection.source.as_ref(),
                connection.source_ip,
                connection.destination,
            ),
            principal: OnceCell::new(),
        }
    }

    pub(crate) fn principal(&self) -> Option<&str> {
        self.principal
            .get_or_init(|| self.connection.source.as_ref().map(Identity::principal))
            .as_deref()
    }
}
