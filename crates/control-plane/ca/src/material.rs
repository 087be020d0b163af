//! Key and certificates of the CA, from a directory in one of two layouts, or generated here as a root, which is stored
//! in the first of these layouts.
//!
//! | layout | files |
//! |---|---|
//! | Istio's `cacerts` | `ca-cert.pem`, `ca-key.pem`, `cert-chain.pem`, `root-cert.pem` |
//! | cert-manager's secrets | `tls.crt`, `tls.key`, `ca.crt` |
//!
//! Either layout may include a CRL, `ca-crl.pem`.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use ambit_issuer::{Authority, AuthorityError};

const PLUGGED_IN_FILES: [&str; 4] = [
    "ca-cert.pem",
    "ca-key.pem",
    "cert-chain.pem",
    "root-cert.pem",
];
const CERT_MANAGER_FILES: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];
/// File name of the CRL (certificate revocation list), and its key in a ConfigMap.
pub(crate) const CRL_FILE: &str = "ca-crl.pem";
/// Lifetime of a generated root.
pub(crate) const ROOT_TTL: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Reason why a certificate authority cannot be loaded or stored.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The directory has some, but not all, files of Istio's `cacerts` or of cert-manager's Secret.
    #[error(
        "{dir} holds {present} but not {missing}: give all of {}, or all of {}, or an empty directory",
        PLUGGED_IN_FILES.join(", "), CERT_MANAGER_FILES.join(", ")
    )]
    IncompleteFiles {
        /// Path of the directory.
        dir: String,
        /// Name of a file that is present.
        present: String,
        /// Name of a file that is missing.
        missing: String,
    },
    /// Failure to read or write a file.
    #[error("cannot use {path}")]
    FileAccess {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// Files whose contents are not a usable CA.
    #[error("the certificate authority in {location} cannot be used")]
    InvalidAuthority {
        /// Directory or Secret that has the files.
        location: String,
        /// Cause of the error.
        #[source]
        source: AuthorityError,
    },
}

/// Key and certificates of a CA as PEM text. Equal texts are the same CA.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CaMaterial {
    /// Certificate of the CA that signs.
    pub cert: String,
    /// Private key of `cert`.
    pub key: String,
    /// Certificates from `cert` up to the root; may be empty.
    pub chain: String,
    /// Root certificates that clients trust, one or more.
    pub roots: String,
    /// Certificate revocation list (CRL), if there is one.
    pub crl: Option<String>,
}

impl std::fmt::Debug for CaMaterial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Material")
    }
}

impl CaMaterial {
    /// Returns the material of a newly generated root.
    pub fn new_root(trust_domain: &str) -> Result<Self, AuthorityError> {
        let root = Authority::new_root(trust_domain, ROOT_TTL, SystemTime::now())?;
        Ok(Self::from_root(&root))
    }

    /// Returns key and certificate of a self-signed root as PEM text.
    pub fn from_root(root: &Authority) -> Self {
        let roots = root.root_pem();
        Self {
            cert: root.signing_root_pem().unwrap_or_else(|| roots.clone()),
            key: root.key_pem(),
            roots,
            ..Self::default()
        }
    }

    /// Parses and verifies the CA; `location` is the directory or Secret that errors name.
    pub fn to_authority(&self, location: &str) -> Result<Authority, CaError> {
        Authority::from_pem(&self.cert, &self.key, &self.chain, &self.roots).map_err(|source| {
            CaError::InvalidAuthority {
                location: location.to_owned(),
                source,
            }
        })
    }

    /// Reads the CA files of a directory. Returns `None` if the directory has none of them or does not exist.
    pub fn read_dir(dir: &Path) -> Result<Option<Self>, CaError> {
        let text = |file: &str| {
            let path = dir.join(file);
            fs::read_to_string(&path).map_err(|source| CaError::FileAccess { path, source })
        };
        let exist = |files: &[&'static str]| -> (Vec<&'static str>, Vec<&'static str>) {
            files.iter().partition(|file| dir.join(file).exists())
        };
        let (present, missing) = exist(&PLUGGED_IN_FILES);
        let (others, others_missing) = exist(&CERT_MANAGER_FILES);
        let crl = dir
            .join(CRL_FILE)
            .exists()
            .then(|| text(CRL_FILE))
            .transpose()?;
        if missing.is_empty() {
            return Ok(Some(Self {
                cert: text("ca-cert.pem")?,
                key: text("ca-key.pem")?,
                chain: text("cert-chain.pem")?,
                roots: text("root-cert.pem")?,
                crl,
            }));
        }
        if others_missing.is_empty() {
            // The first certificate is the authority's; the following ones lead to the root.
            let chain = text("tls.crt")?;
            return Ok(Some(Self {
                cert: chain.clone(),
                key: text("tls.key")?,
                chain,
                roots: text("ca.crt")?,
                crl,
            }));
        }
        if present.is_empty() && others.is_empty() {
            return Ok(None);
        }
        let (present, missing) = if present.is_empty() {
            (others, others_missing)
        } else {
            (present, missing)
        };
        Err(CaError::IncompleteFiles {
            dir: dir.display().to_string(),
            present: present.join(", "),
            missing: missing.join(", "),
        })
    }
}

/// Reads the CA of a directory, or generates a root there if the directory is empty or missing. Without a directory,
/// the generated root is only in memory.
pub fn open_or_create(dir: Option<&Path>, trust_domain: &str) -> Result<CaMaterial, CaError> {
    let made = |location: &str| {
        CaMaterial::new_root(trust_domain).map_err(|source| CaError::InvalidAuthority {
            location: location.to_owned(),
            source,
        })
    };
    let Some(dir) = dir else {
        tracing::warn!(
            "no --ca-dir: the root is new at every start, and older certificates are void"
        );
        return made("memory");
    };
    if let Some(material) = CaMaterial::read_dir(dir)? {
        return Ok(material);
    }
    let material = made(&dir.display().to_string())?;
    write_to_dir(dir, &material)?;
    tracing::info!(dir = %dir.display(), "made a new root");
    Ok(material)
}

/// Writes all CA files into a new directory, which atomically replaces the old one.
fn write_to_dir(dir: &Path, material: &CaMaterial) -> Result<(), CaError> {
    let error = |path: &Path| {
        let path = path.to_owned();
        move |source| CaError::FileAccess { path, source }
    };
    let mut beside = dir.as_os_str().to_owned();
    beside.push(format!(".new-{}", std::process::id()));
    let beside = PathBuf::from(beside);
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(error(parent))?;
    }
    fs::remove_dir_all(&beside).ok();
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&beside)
        .map_err(error(&beside))?;
    let contents = [
        &material.cert,
        &material.key,
        &material.chain,
        &material.roots,
    ];
    for (file, content) in PLUGGED_IN_FILES.iter().zip(contents) {
        let path = beside.join(file);
        write_private_file(&path, content).map_err(error(&path))?;
    }
    // The rename replaces an empty directory, and fails on any other.
    fs::rename(&beside, dir).map_err(|source| {
        fs::remove_dir_all(&beside).ok();
        CaError::FileAccess {
            path: dir.to_owned(),
            source,
        }
    })
}

fn write_private_file(path: &Path, content: &str) -> io::Result<()> {
    use std::io::Write;
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

/// Writes the root certificates atomically to a file, which clients read.
pub fn write_root(path: &Path, roots: &str) -> Result<(), CaError> {
    let error = |source| CaError::FileAccess {
        path: path.to_owned(),
        source,
    };
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".new-{}", std::process::id()));
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        fs::create_dir_all(parent).map_err(error)?;
    }
    fs::write(&beside, roots).map_err(error)?;
    fs::rename(&beside, path).map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path) -> Result<Authority, CaError> {
        open_or_create(Some(dir), "cluster.local")?.to_authority("here")
    }

    fn pem(der: &[u8]) -> String {
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    }

    #[test]
    fn generated_root_is_reused() {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("a/ca");
        let first = open(&ca).unwrap();
        let second = open(&ca).unwrap();
        assert_eq!(first.root_pem(), second.root_pem());
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &fs::metadata(ca.join("ca-key.pem")).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            fs::read_dir(dir.path().join("a")).unwrap().count(),
            1,
            "nothing is left beside"
        );
    }

    #[test]
    fn empty_directory_gets_a_new_root() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).unwrap();
        assert!(dir.path().join("ca-key.pem").exists());
    }

    #[test]
    fn plugged_in_authority_with_a_missing_file_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).unwrap();
        fs::remove_file(dir.path().join("root-cert.pem")).unwrap();
        let error = open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("not root-cert.pem"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tls.crt"), "x").unwrap();
        let error = open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("not tls.key, ca.crt"), "{error}");
    }

    #[test]
    fn intermediate_of_another_root_is_rejected() {
        let root = Authority::new_root("t", ROOT_TTL, SystemTime::now()).unwrap();
        let lower = root
            .new_intermediate("t", ROOT_TTL / 2, SystemTime::now())
            .unwrap();
        let own = pem(&lower.intermediates()[0]);
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(dir.path().join(file), text).unwrap();
        write("ca-cert.pem", &own);
        write("ca-key.pem", &lower.key_pem());
        write("cert-chain.pem", &own);
        write("root-cert.pem", &root.root_pem());
        assert_eq!(open(dir.path()).unwrap().intermediates().len(), 1);
        let other = Authority::new_root("t", ROOT_TTL, SystemTime::now()).unwrap();
        write("root-cert.pem", &other.root_pem());
        let error = open(dir.path()).unwrap_err();
        assert!(error.to_string().contains("here"), "{error}");
    }

    #[test]
    fn cert_manager_layout_is_read_with_its_revocation_list() {
        let root = Authority::new_root("t", ROOT_TTL, SystemTime::now()).unwrap();
        let upper = root
            .new_intermediate("t", ROOT_TTL / 2, SystemTime::now())
            .unwrap();
        let lower = upper
            .new_intermediate("t", ROOT_TTL / 4, SystemTime::now())
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let chain: String = lower.intermediates().iter().map(|cert| pem(cert)).collect();
        fs::write(dir.path().join("tls.crt"), chain).unwrap();
        fs::write(dir.path().join("tls.key"), lower.key_pem()).unwrap();
        fs::write(dir.path().join("ca.crt"), root.root_pem()).unwrap();
        fs::write(dir.path().join("ca-crl.pem"), "list").unwrap();
        let material = CaMaterial::read_dir(dir.path()).unwrap().unwrap();
        assert_eq!(material.crl.as_deref(), Some("list"));
        let opened = material.to_authority("here").unwrap();
        assert_eq!(opened.intermediates(), lower.intermediates());
        assert_eq!(opened.roots(), root.roots());
    }
}
