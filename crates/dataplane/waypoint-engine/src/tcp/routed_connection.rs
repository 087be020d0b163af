//! Routes a TCP or TLS connection by the routes of its service.

use ambit_l7::stream::DetectedProtocol;
use ambit_model::{ArcStr, RouteName};
use ambit_tls::{FirstMessage, HelloError};
use tokio::{io::AsyncRead, time::Duration};

use crate::{
    http::Destination, route_owner::RouteOwner, session::Session, sniff::SniffedStream,
    target::Target,
};

/// Timeout for the ClientHello on ports that route by SNI.
const CLIENT_HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Connection with the destination that its route selects.
#[derive(Debug)]
pub(super) struct RoutedConnection {
    pub(super) destination: Destination,
    /// Owner of the selected route.
    pub(super) route_owner: RouteOwner,
    /// SNI of the client, if its ClientHello was read.
    pub(super) sni: Option<String>,
    /// Whether the port's protocol is undeclared: the connection may be forwarded only while no policy, JWT rule,
    /// plugin or rate limit needs HTTP requests.
    pub(super) is_protocol_undeclared: bool,
}

/// Reason why no route forwards a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RouteError {
    #[error("this waypoint does not serve the service any more")]
    NotServed,
    #[error("no route is for a connection that is no TLS")]
    NotTls,
    #[error("no route is for a TLS connection without a server name")]
    NoServerName,
    #[error("no route is for the server name {0:?}")]
    UnroutedServerName(String),
    #[error(
        "the connection does not say which host of {0} is meant: it is no TLS with a server name"
    )]
    NoHost(ArcStr),
    #[error("{name:?} is no host below {wildcard}")]
    ServerNameOutsideWildcard { name: String, wildcard: ArcStr },
    #[error("the client sent no client hello within {} s", CLIENT_HELLO_TIMEOUT.as_secs())]
    NoClientHello,
    #[error(transparent)]
    InvalidClientHello(#[from] HelloError),
    #[error("{route} cannot be followed: {why}")]
    Unsupported { route: RouteName, why: ArcStr },
    #[error("{route} has no backend for it: {why}")]
    NoBackend { route: RouteName, why: ArcStr },
}

impl RoutedConnection {
    /// Returns the destination of a connection to a port with undeclared protocol: the tunnel's target.
    pub(super) fn for_undeclared_port() -> Self {
        Self {
            destination: Destination::Target,
            route_owner: RouteOwner::Producer,
            sni: None,
            is_protocol_undeclared: true,
        }
    }

    /// Returns the name of a policy, JWT rule, plugin or rate limit that needs HTTP requests, if the port's protocol is
    /// undeclared.
    pub(super) fn object_requiring_http(&self, session: &Session) -> Option<String> {
        self.is_protocol_undeclared
            .then(|| session.object_requiring_http())?
    }

    /// Routes a connection by its service's TCP routes, without reading its bytes.
    pub(super) fn by_tcp_routes(session: &Session) -> Result<Self, RouteError> {
        let (destination, by) = select_destination(session, DetectedProtocol::Other)?;
        let destination = resolve_wildcard_host(session, destination, None)?;
        Ok(Self {
            destination,
            route_owner: by,
            sni: None,
            is_protocol_undeclared: false,
        })
    }

    /// Routes a connection by the SNI of its ClientHello.
    pub(super) async fn by_server_name<IO: AsyncRead + Unpin>(
        session: &Session,
        io: &mut SniffedStream<IO>,
    ) -> Result<Self, RouteError> {
        let message = tokio::time::timeout(CLIENT_HELLO_TIMEOUT, io.read_first_message()).await;
        let sni = match message.map_err(|_| RouteError::NoClientHello)?? {
            FirstMessage::ClientHello(name) => name,
            FirstMessage::NotTls => return Self::by_tcp_routes(session),
        };
        let (destination, by) = select_destination(session, DetectedProtocol::Tls(sni.as_deref()))?;
        let destination = resolve_wildcard_host(session, destination, sni.as_deref())?;
        Ok(Self {
            destination,
            route_owner: by,
            sni,
            is_protocol_undeclared: false,
        })
    }
}

/// Reads the SNI of a connection; `None` if the connection does not begin with TLS.
///
/// # Errors
/// When the ClientHello is invalid, or not complete in time: the application might still accept it.
pub(super) async fn server_name<IO: AsyncRead + Unpin>(
    io: &mut SniffedStream<IO>,
) -> Result<Option<String>, RouteError> {
    let message = tokio::time::timeout(CLIENT_HELLO_TIMEOUT, io.read_first_message()).await;
    match message.map_err(|_| RouteError::NoClientHello)? {
        Ok(FirstMessage::ClientHello(name)) => Ok(name),
        // A truncated ClientHello is not TLS.
        Ok(FirstMessage::NotTls) | Err(HelloError::Truncated) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Replaces a destination with a wildcard hostname by the host that the SNI names.
fn resolve_wildcard_host(
    session: &Session,
    destination: Destination,
    sni: Option<&str>,
) -> Result<Destination, RouteError> {
    if destination != Destination::Target || !session.target.resolves_hosts() {
        return Ok(destination);
    }
    let name = session.target.service_name();
    let wildcard = name.map_or_else(ArcStr::new, |name| name.hostname.clone());
    let sni = sni.ok_or_else(|| RouteError::NoHost(wildcard.clone()))?;
    let host = session.target.host_below_wildcard(sni);
    host.map(Destination::Host)
        .ok_or_else(|| RouteError::ServerNameOutsideWildcard {
            name: sni.to_owned(),
            wildcard,
        })
}

fn select_destination(
    session: &Session,
    detected: DetectedProtocol<'_>,
) -> Result<(Destination, RouteOwner), RouteError> {
    let straight = (Destination::Target, RouteOwner::Producer);
    let Target::Service {
        served, address, ..
    } = &session.target
    else {
        return Ok(straight);
    };
    // The current routes: those at the start of the tunnel may be outdated.
    let now = session.shard.waypoint.published.service(&served.name);
    let served = now.ok_or(RouteError::NotServed)?;
    let table = served.stream_routes(address.port(), session.caller.namespace());
    if !table.has_routes() {
        return Ok(straight);
    }
    let rule = table.select_rule(detected).ok_or_else(|| match detected {
        DetectedProtocol::Other => RouteError::NotTls,
        DetectedProtocol::Tls(None) => RouteError::NoServerName,
        DetectedProtocol::Tls(Some(name)) => RouteError::UnroutedServerName(name.to_owned()),
    })?;
    let route = || rule.route.clone();
    if let Some(why) = &rule.rejection_reason {
        let why = why.clone();
        return Err(RouteError::Unsupported {
            route: route(),
            why,
        });
    }
    let none = |why| RouteError::NoBackend {
        route: route(),
        why,
    };
    let backend = rule.pick_backend(&mut rand::rng());
    let backend = backend.ok_or_else(|| none(arcstr::literal!("none has a weight")))?;
    match &backend.service {
        Ok(name) if *name == served.name && backend.port == address.port() => Ok(straight),
        Ok(name) => {
            let destination = Destination::Backend(name.clone(), backend.port);
            Ok((
                destination,
                RouteOwner::from_is_consumer(rule.is_consumer_route),
            ))
        }
        Err(why) => Err(none(why.clone())),
    }
}
