//! Certificate revocation lists: read from a file that is watched, and checked at every handshake.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::RwLock;
use rustls_pki_types::{CertificateRevocationListDer, pem, pem::PemObject};
use tokio::sync::watch;
use webpki::{CertRevocationList, OwnedCertRevocationList};

use crate::followed_file;

/// Reason why a file of revocation lists cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CrlError {
    /// The file cannot be read.
    #[error("cannot read revocation lists from {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of reading the file.
        #[source]
        source: io::Error,
    },
    /// The file is not PEM.
    #[error("{} is not PEM", path.display())]
    Pem {
        /// Path of the file.
        path: PathBuf,
        /// Error of parsing the PEM text.
        #[source]
        source: pem::Error,
    },
    /// A revocation list in the file is malformed.
    #[error("revocation list {index} in {} is malformed", path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Index of the list in the file, counted from 0.
        index: usize,
        /// Error of parsing the revocation list.
        #[source]
        source: webpki::Error,
    },
}

type Lists = Arc<[CertRevocationList<'static>]>;

/// Revocation lists that are in force. Clones share them.
#[derive(Clone, Debug)]
pub struct RevocationLists {
    lists: Arc<RwLock<Lists>>,
    changes: Arc<watch::Sender<u64>>,
}

impl Default for RevocationLists {
    fn default() -> Self {
        Self {
            lists: Arc::new(RwLock::new(Arc::from([]))),
            changes: Arc::new(watch::Sender::new(0)),
        }
    }
}

impl RevocationLists {
    /// Creates an empty set of revocation lists.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the lists by those in a PEM file, and returns their number. On an error the previous lists stay.
    pub fn load(&self, path: &Path) -> Result<usize, CrlError> {
        let text = fs::read(path).map_err(|source| CrlError::Read {
            path: path.to_owned(),
            source,
        })?;
        let lists = CertificateRevocationListDer::pem_slice_iter(&text)
            .enumerate()
            .map(|(index, der)| {
                let der = der.map_err(|source| CrlError::Pem {
                    path: path.to_owned(),
                    source,
                })?;
                OwnedCertRevocationList::from_der(&der)
                    .map(CertRevocationList::from)
                    .map_err(|source| CrlError::Malformed {
                        path: path.to_owned(),
                        index,
                        source,
                    })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let count = lists.len();
        *self.lists.write() = lists.into();
        self.changes.send_modify(|version| *version += 1);
        Ok(count)
    }

    /// Watches a file: loads it now and after each change. A missing or broken file is logged once and leaves the
    /// lists in force unchanged; it does not block traffic.
    pub async fn reload_on_change(self, path: PathBuf) {
        let load = || match self.load(&path) {
            Ok(lists) => {
                tracing::info!(path = %path.display(), lists, "revocation lists loaded");
            }
            Err(error) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                tracing::warn!(error, "revocation lists unchanged");
            }
        };
        followed_file::watch_file(&path, load).await;
    }

    /// Returns a receiver that is notified when the lists change, so that open connections can be checked again.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn current(&self) -> Lists {
        self.lists.read().clone()
    }
}
