//! Routes a TCP or TLS connection by the routes of its service.

use ambit_l7::stream::Opening;
use ambit_model::{ArcStr, RouteName};
use ambit_tls::{FirstMessage, HelloError};
use tokio::{io::AsyncRead, time::Duration};

use crate::{
    http::Destination, route_owner::RouteOwner, session::Session, sniff::Sniffed, target::Target,
};

/// Timeout for the ClientHello on ports that route by SNI.
const CLIENT_HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Connection with the destination that its route selects.
#[derive(Debug)]
pub(super) struct Routed {
    pub(super) destination: Destination,
    /// Owner of the selected route.
    pub(super) by: RouteOwner,
    /// SNI of the client, if its ClientHello was read.
    pub(super) sni: Option<String>,
    /// Whether the port's protocol is undeclared: the connection may be forwarded only while no policy, JWT rule,
    /// plugin or rate limit needs HTTP requests.
    pub(super) is_undeclared: bool,
}

/// Reason why no route forwards a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RouteError {
    #[error("this waypoint does not serve the service any more")]
    NotServed,
    #[error("no route is for a connection that is no TLS")]
    NotTls,
    #[error("no route is for a TLS connection without a server name")]
    NoName,
    #[error("no route is for the server name {0:?}")]
    OtherName(String),
    #[error(
        "the connection does not say which host of {0} is meant: it is no TLS with a server name"
    )]
    NoHost(ArcStr),
    #[error("{name:?} is no host below {wildcard}")]
    OtherHost { name: String, wildcard: ArcStr },
    #[error("the client sent no client hello within {} s", CLIENT_HELLO_TIMEOUT.as_secs())]
    Silent,
    #[error(transparent)]
    Hello(#[from] HelloError),
    #[error("{route} cannot be followed: {why}")]
    Unsupported { route: RouteName, why: ArcStr },
    #[error("{route} has no backend for it: {why}")]
    NoBackend { route: RouteName, why: ArcStr },
}

impl Routed {
    /// Returns the routing of a connection to a port with undeclared protocol: to the tunnel's target.
    pub(super) fn undeclared() -> Self {
        Self {
            destination: Destination::Target,
            by: RouteOwner::Service,
            sni: None,
            is_undeclared: true,
        }
    }

    /// Returns the name of a policy, JWT rule, plugin or rate limit that needs HTTP requests, if the port's protocol is
    /// undeclared.
    pub(super) fn http_object(&self, session: &Session) -> Option<String> {
        self.is_undeclared.then(|| session.http_object())?
    }

    /// Routes a connection by its service's TCP routes, without reading its bytes.
    pub(super) fn of(session: &Session) -> Result<Self, RouteError> {
        let (destination, by) = choose(session, Opening::Other)?;
        let destination = named(session, destination, None)?;
        Ok(Self {
            destination,
            by,
            sni: None,
            is_undeclared: false,
        })
    }

    /// Routes a connection by the SNI of its ClientHello.
    pub(super) async fn by_first_message<IO: AsyncRead + Unpin>(
        session: &Session,
        io: &mut Sniffed<IO>,
    ) -> Result<Self, RouteError> {
        let message = tokio::time::timeout(CLIENT_HELLO_TIMEOUT, io.first_message()).await;
        let sni = match message.map_err(|_| RouteError::Silent)?? {
            FirstMessage::ClientHello(name) => name,
            FirstMessage::Other => return Self::of(session),
        };
        let (destination, by) = choose(session, Opening::Tls(sni.as_deref()))?;
        let destination = named(session, destination, sni.as_deref())?;
        Ok(Self {
            destination,
            by,
            sni,
            is_undeclared: false,
        })
    }
}

/// Reads the SNI of a connection, if it begins with TLS.
///
/// # Errors
/// When the ClientHello is invalid or not complete in time: the application might still accept it.
pub(super) async fn server_name<IO: AsyncRead + Unpin>(
    io: &mut Sniffed<IO>,
) -> Result<Option<String>, RouteError> {
    let message = tokio::time::timeout(CLIENT_HELLO_TIMEOUT, io.first_message()).await;
    match message.map_err(|_| RouteError::Silent)? {
        Ok(FirstMessage::ClientHello(name)) => Ok(name),
        // A truncated ClientHello is not TLS.
        Ok(FirstMessage::Other) | Err(HelloError::Truncated) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Replaces a destination with a wildcard hostname by the host that the SNI names.
fn named(
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
    let host = session.target.host(sni);
    host.map(Destination::Host)
        .ok_or_else(|| RouteError::OtherHost {
            name: sni.to_owned(),
            wildcard,
        })
}

fn choose(
    session: &Session,
    opening: Opening<'_>,
) -> Result<(Destination, RouteOwner), RouteError> {
    let straight = (Destination::Target, RouteOwner::Service);
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
    let rule = table.choose(opening).ok_or_else(|| match opening {
        Opening::Other => RouteError::NotTls,
        Opening::Tls(None) => RouteError::NoName,
        Opening::Tls(Some(name)) => RouteError::OtherName(name.to_owned()),
    })?;
    let route = || rule.route.clone();
    if let Some(why) = &rule.unsupported {
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
    let backend = rule.backend(&mut rand::rng());
    let backend = backend.ok_or_else(|| none(arcstr::literal!("none has a weight")))?;
    match &backend.service {
        Ok(name) if *name == served.name && backend.port == address.port() => Ok(straight),
        Ok(name) => {
            let destination = Destination::Backend(name.clone(), backend.port);
            Ok((destination, RouteOwner::of(rule.is_of_clients)))
        }
        Err(why) => Err(none(why.clone())),
    }
}
