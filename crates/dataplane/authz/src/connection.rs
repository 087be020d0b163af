//! Connection to authorize ([`Connection`]), and its precomputed attributes for policy evaluation ([`Peer`]).

use std::{
    cell::OnceCell,
    net::{IpAddr, SocketAddr},
};

use ambit_model::Identity;

use crate::attributes::Attributes;

/// Connection to authorize: the inputs of an authorization decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Identity of the source, verified by mTLS; `None` for plaintext.
    pub source: Option<Identity>,
    /// Address of the client.
    pub source_ip: IpAddr,
    /// Address of the application, after any port mapping.
    pub destination: SocketAddr,
}

/// Attributes of a connection for policy evaluation. The text of the source's principal is built at most once.
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
