//! TLS that the waypoint originates to endpoints, as a `DestinationRule` or a `BackendTLSPolicy` requires it. Missing
//! files and invalid settings are errors: nothing is sent in plaintext instead.

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
    ClientKeyPair, ClientStream, OriginatedTls, OriginatedTlsConnectError, OriginatedTlsError,
    TrustedAuthorities,
};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{config::Config, message::Version};

/// Directory by which records of the control plane refer to TLS files; `Config::tls_files` replaces it.
const TLS_FILES: &str = "/etc/certs";
/// Time after which cached TLS files are checked for changes.
const FILE_CACHE_TIME: Duration = Duration::from_secs(30);
/// Longest certificate or key file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Handshake timeout, unless a rule has a connect timeout.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why the waypoint cannot originate TLS to an endpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OriginationError {
    #[error("{0} is not below {TLS_FILES}")]
    PathOutsideTlsFiles(ArcStr),
    #[error("the file {path} of the waypoint cannot be read")]
    File {
        path: ArcStr,
        #[source]
        error: io::Error,
    },
    #[error("the TLS settings for the endpoint cannot be used")]
    InvalidSettings(#[from] OriginatedTlsError),
    #[error(transparent)]
    Connect(#[from] OriginatedTlsConnectError),
    #[error("TLS with {0} did not begin within {HANDSHAKE_TIMEOUT:?}")]
    HandshakeTimeout(String),
}

/// TLS client settings for one port of a service, with the cached configuration built from them and its files.
#[derive(Debug)]
pub(crate) struct TlsOrigination {
    settings: Arc<DestinationTls>,
    id: u64,
    cached_client: Mutex<Option<(Instant, OriginatedTls)>>,
}

/// TLS settings for one connection to an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TlsUpstream<'a> {
    pub(crate) origination: &'a TlsOrigination,
    pub(crate) config: &'a Config,
    /// Hostname of the endpoint: the SNI unless a rule sets one.
    pub(crate) host: &'a str,
    /// HTTP version that is spoken over the connection; `None` for the client's own protocol.
    pub(crate) version: Option<Version>,
}

/// TLS settings in the key of pooled connections: requests share a connection only if their settings are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TlsKey {
    id: u64,
    server_name: ArcStr,
}

impl TlsOrigination {
    /// Builds the TLS settings of a service port, or returns the previous ones if they are unchanged.
    pub(crate) fn for_destination(
        tls: Option<&Arc<DestinationTls>>,
        before: Option<&Arc<Self>>,
    ) -> Option<Arc<Self>> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let tls = tls?;
        if let Some(before) = before.filter(|before| before.settings == *tls) {
            return Some(before.clone());
        }
        Some(Arc::new(Self {
            settings: tls.clone(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            cached_client: Mutex::new(None),
        }))
    }

    /// Whether the settings refer to certificate or key files, which may change on disk.
    fn has_files(&self) -> bool {
        self.settings.client.is_some() || matches!(self.settings.roots, TlsRoots::File(_))
    }

    fn originated_tls(&self, config: &Config) -> Result<OriginatedTls, OriginationError> {
        let text = |path| read_file(path, &config.tls_files);
        let mut made = self.cached_client.lock();
        if let Some((at, outward)) = &*made
            && (!self.has_files() || at.elapsed() < FILE_CACHE_TIME)
        {
            return Ok(outward.clone());
        }
        let authorities = match &self.settings.roots {
            TlsRoots::System => Some(system_authorities()?),
            TlsRoots::Pem(text) => Some(TrustedAuthorities::from_pem(text)?),
            TlsRoots::File(path) => Some(TrustedAuthorities::from_pem(&text(path)?)?),
            TlsRoots::Unverified => None,
        };
        let files = self.settings.client.as_ref();
        let files = files
            .map(|files| Ok::<_, OriginationError>((text(&files.certificate)?, text(&files.key)?)));
        let files = files.transpose()?;
        let shown = files.as_ref().map(|(certificates, key)| ClientKeyPair {
            certificates,
            key: key.as_bytes(),
        });
        let outward = match authorities {
            Some(authorities) => {
                OriginatedTls::new(&config.tls, authorities, &self.settings.names, shown)?
            }
            None => OriginatedTls::without_verification(&config.tls, shown)?,
        };
        *made = Some((Instant::now(), outward.clone()));
        Ok(outward)
    }
}

impl TlsUpstream<'_> {
    /// Returns the server name (SNI) to send.
    fn server_name(&self) -> &str {
        let configured = self.origination.settings.server_name.as_deref();
        configured.unwrap_or(self.host)
    }

    /// Returns the SANs that are accepted, separated by `|`; `None` if the certificate is not verified.
    pub(crate) fn accepted_sans(&self) -> Option<ArcStr> {
        let of = &self.origination.settings;
        match &*of.names {
            _ if of.roots == TlsRoots::Unverified => None,
            [] => Some(self.server_name().into()),
            [name] => Some(name.clone()),
            names => Some(names.join("|").into()),
        }
    }

    pub(crate) fn key(&self) -> TlsKey {
        TlsKey {
            id: self.origination.id,
            server_name: self.server_name().into(),
        }
    }

    /// Performs the TLS handshake on a connection to an endpoint.
    pub(crate) async fn handshake<S>(&self, stream: S) -> Result<ClientStream<S>, OriginationError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let outward = self.origination.originated_tls(self.config)?;
        let protocol: Option<&[u8]> = self.version.map(|version| match version {
            Version::Http1 => &b"http/1.1"[..],
            Version::Http2 => b"h2",
        });
        let connecting = outward.connect(stream, self.server_name(), protocol);
        let connected = tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting).await;
        let late = |_| OriginationError::HandshakeTimeout(self.server_name().to_owned());
        Ok(connected.map_err(late)??)
    }
}

/// Returns the system's CA certificates, read once.
fn system_authorities() -> Result<TrustedAuthorities, OriginatedTlsError> {
    static SYSTEM_AUTHORITIES: OnceLock<TrustedAuthorities> = OnceLock::new();
    if let Some(known) = SYSTEM_AUTHORITIES.get() {
        return Ok(known.clone());
    }
    let found =
        TrustedAuthorities::from_system_roots(rustls_native_certs::load_native_certs().certs)?;
    Ok(SYSTEM_AUTHORITIES.get_or_init(|| found).clone())
}

/// Reads a file of the `/etc/certs` directory that rules refer to, from the waypoint's own directory.
fn read_file(path: &ArcStr, directory: &Path) -> Result<String, OriginationError> {
    let below = Path::new(path.as_str()).strip_prefix(TLS_FILES).ok();
    let is_plain = |below: &&Path| {
        let mut parts = below.components();
        parts.all(|part| matches!(part, Component::Normal(_)))
    };
    let below = below.filter(is_plain);
    let below = below.ok_or_else(|| OriginationError::PathOutsideTlsFiles(path.clone()))?;
    let read = || {
        let file = fs::File::open(directory.join(below))?;
        let mut text = String::new();
        file.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| OriginationError::File {
        path: path.clone(),
        error,
    })
}
