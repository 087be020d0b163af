//! TLS that the waypoint begins with endpoints, as a `DestinationRule` or a `BackendTLSPolicy` has it. What cannot be
//! had, for instance for a file that is not there, is an error: nothing is sent in clear in its place.

use std::{
    fs, io,
    io::Read as _,
    path::{Component, Path},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ambit_model::{ArcStr, DestinationTls, TlsRoots};
use ambit_tls::{
    Authorities, ClientKeyPair, ClientStream, Outward, OutwardConnectError, OutwardError,
};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{config::Config, message::Version};

/// Directory of TLS files in the control plane's records.
const FILES: &str = "/etc/certs";
/// Time for which cached files are used without checking for changes.
const FRESH: Duration = Duration::from_secs(30);
/// Longest certificate or key file, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Handshake timeout, unless a rule has a connect timeout.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);

/// Error of originating TLS.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OriginationError {
    #[error("{0} is not below {FILES}")]
    Place(ArcStr),
    #[error("the file {path} of the waypoint cannot be read")]
    File {
        path: ArcStr,
        #[source]
        error: io::Error,
    },
    #[error("the TLS settings for the endpoint cannot be used")]
    Unusable(#[from] OutwardError),
    #[error(transparent)]
    Connect(#[from] OutwardConnectError),
    #[error("TLS with {0} did not begin within {HANDSHAKE:?}")]
    TooLong(String),
}

/// TLS origination for one port of a service, as long as its configuration is the same.
#[derive(Debug)]
pub(crate) struct Origination {
    of: Arc<DestinationTls>,
    id: u64,
    made: Mutex<Option<(Instant, Outward)>>,
}

/// TLS origination for one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TlsUpstream<'a> {
    pub(crate) origination: &'a Origination,
    pub(crate) config: &'a Config,
    /// Hostname of the endpoint, as far as known.
    pub(crate) host: &'a str,
    /// HTTP version that is spoken over the connection; `None` for the client's own protocol.
    pub(crate) version: Option<Version>,
}

/// Pool key of connections over TLS: those of one key may carry each other's requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TlsKey {
    id: u64,
    name: ArcStr,
}

impl Origination {
    /// Builds the configuration, or returns the previous one if it is unchanged.
    pub(crate) fn of(
        tls: Option<&Arc<DestinationTls>>,
        before: Option<&Arc<Self>>,
    ) -> Option<Arc<Self>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let tls = tls?;
        if let Some(before) = before.filter(|before| before.of == *tls) {
            return Some(before.clone());
        }
        Some(Arc::new(Self {
            of: tls.clone(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            made: Mutex::new(None),
        }))
    }

    /// Whether the configuration refers to files that may change.
    fn has_files(&self) -> bool {
        self.of.client.is_some() || matches!(self.of.roots, TlsRoots::File(_))
    }

    fn outward(&self, config: &Config) -> Result<Outward, OriginationError> {
        let text = |path| text(path, &config.tls_files);
        let mut made = self.made.lock();
        if let Some((at, outward)) = &*made
            && (!self.has_files() || at.elapsed() < FRESH)
        {
            return Ok(outward.clone());
        }
        let authorities = match &self.of.roots {
            TlsRoots::System => Some(of_system()?),
            TlsRoots::Pem(text) => Some(Authorities::of_pem(text)?),
            TlsRoots::File(path) => Some(Authorities::of_pem(&text(path)?)?),
            TlsRoots::Unverified => None,
        };
        let files = self.of.client.as_ref();
        let files = files
            .map(|files| Ok::<_, OriginationError>((text(&files.certificate)?, text(&files.key)?)));
        let files = files.transpose()?;
        let shown = files.as_ref().map(|(certificates, key)| ClientKeyPair {
            certificates,
            key: key.as_bytes(),
        });
        let outward = match authorities {
            Some(authorities) => Outward::new(&config.tls, authorities, &self.of.names, shown)?,
            None => Outward::unverified(&config.tls, shown)?,
        };
        *made = Some((Instant::now(), outward.clone()));
        Ok(outward)
    }
}

impl TlsUpstream<'_> {
    /// The server name (SNI) to send.
    fn name(&self) -> &str {
        let configured = self.origination.of.server_name.as_deref();
        configured.unwrap_or(self.host)
    }

    /// Names of which the certificate must have one; `None` if it is not verified.
    pub(crate) fn identity(&self) -> Option<ArcStr> {
        let of = &self.origination.of;
        match &*of.names {
            _ if of.roots == TlsRoots::Unverified => None,
            [] => Some(self.name().into()),
            [name] => Some(name.clone()),
            names => Some(names.join("|").into()),
        }
    }

    pub(crate) fn key(&self) -> TlsKey {
        TlsKey {
            id: self.origination.id,
            name: self.name().into(),
        }
    }

    /// Starts TLS on a connection.
    pub(crate) async fn begin<S>(&self, stream: S) -> Result<ClientStream<S>, OriginationError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let outward = self.origination.outward(self.config)?;
        let protocol: Option<&[u8]> = self.version.map(|version| match version {
            Version::Http1 => &b"http/1.1"[..],
            Version::Http2 => b"h2",
        });
        let connecting = outward.connect(stream, self.name(), protocol);
        let connected = tokio::time::timeout(HANDSHAKE, connecting).await;
        let late = |_| OriginationError::TooLong(self.name().to_owned());
        Ok(connected.map_err(late)??)
    }
}

/// The authorities of the system, as they were when they were first needed.
fn of_system() -> Result<Authorities, OutwardError> {
    static KNOWN: OnceLock<Authorities> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(known.clone());
    }
    let found = Authorities::of_system(rustls_native_certs::load_native_certs().certs)?;
    Ok(KNOWN.get_or_init(|| found).clone())
}

/// Reads a file below the waypoint's directory.
fn text(path: &ArcStr, files: &Path) -> Result<String, OriginationError> {
    let below = Path::new(path.as_str()).strip_prefix(FILES).ok();
    let is_plain = |below: &&Path| {
        let mut parts = below.components();
        parts.all(|part| matches!(part, Component::Normal(_)))
    };
    let below = below.filter(is_plain);
    let below = below.ok_or_else(|| OriginationError::Place(path.clone()))?;
    let read = || {
        let file = fs::File::open(files.join(below))?;
        let mut text = String::new();
        file.take(MAX_FILE).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| OriginationError::File {
        path: path.clone(),
        error,
    })
}
