//! Where the authority's key and certificates come from: four files as Istio's `cacerts` has them, or
//! a root made here once and kept in the same form.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use ambit_tls::ca::{Authority, AuthorityError};

const FILES: [&str; 4] = [
    "ca-cert.pem",
    "ca-key.pem",
    "cert-chain.pem",
    "root-cert.pem",
];
/// Life of a root made here.
const ROOT_TTL: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// An authority that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// Some files are there and some are not.
    #[error("{dir} holds {present} but not {missing}: give all of {}, or an empty directory", FILES.join(", "))]
    Partial {
        /// The directory.
        dir: String,
        /// What is there.
        present: String,
        /// What is not.
        missing: String,
    },
    /// A file cannot be read or written.
    #[error("cannot use {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The files do not make an authority.
    #[error("the certificate authority in {dir} cannot be used")]
    Authority {
        /// The directory.
        dir: String,
        /// Why.
        #[source]
        source: AuthorityError,
    },
}

/// Reads the authority of a directory; makes a root and keeps it there if the directory is empty or
/// does not exist. Without a directory the root lives as long as the process.
pub fn open_authority(dir: Option<&Path>, trust_domain: &str) -> Result<Authority, CaError> {
    let made = |dir: &str| {
        Authority::new_root(trust_domain, ROOT_TTL, SystemTime::now()).map_err(|source| {
            CaError::Authority {
                dir: dir.to_owned(),
                source,
            }
        })
    };
    let Some(dir) = dir else {
        tracing::warn!(
            "no --ca-dir: the root is new at every start, and older certificates are void"
        );
        return made("memory");
    };
    let name = dir.display().to_string();
    let (present, missing): (Vec<_>, Vec<_>) =
        FILES.iter().partition(|file| dir.join(file).exists());
    if missing.is_empty() {
        return read(dir);
    }
    if !present.is_empty() {
        let list = |files: Vec<&&str>| files.into_iter().copied().collect::<Vec<_>>().join(", ");
        return Err(CaError::Partial {
            dir: name,
            present: list(present),
            missing: list(missing),
        });
    }
    let authority = made(&name)?;
    keep(dir, &authority)?;
    tracing::info!(dir = name, "made a new root");
    Ok(authority)
}

fn read(dir: &Path) -> Result<Authority, CaError> {
    let text = |file: &str| {
        let path = dir.join(file);
        fs::read_to_string(&path).map_err(|source| CaError::File { path, source })
    };
    Authority::from_pem(
        &text("ca-cert.pem")?,
        &text("ca-key.pem")?,
        &text("cert-chain.pem")?,
        &text("root-cert.pem")?,
    )
    .map_err(|source| CaError::Authority {
        dir: dir.display().to_string(),
        source,
    })
}

/// All files or none: they are written beside the directory, which then takes its place at once.
fn keep(dir: &Path, authority: &Authority) -> Result<(), CaError> {
    let error = |path: &Path| {
        let path = path.to_owned();
        move |source| CaError::File { path, source }
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
    let root = authority.root_pem();
    let contents = [root.as_str(), &authority.key_pem(), "", &root];
    for (file, content) in FILES.iter().zip(contents) {
        let path = beside.join(file);
        write_private(&path, content).map_err(error(&path))?;
    }
    // Replaces an empty directory, fails on any other.
    fs::rename(&beside, dir).map_err(|source| {
        fs::remove_dir_all(&beside).ok();
        CaError::File {
            path: dir.to_owned(),
            source,
        }
    })
}

fn write_private(path: &Path, content: &str) -> io::Result<()> {
    use std::io::Write;
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

/// Writes the roots where clients read them, at once as a whole.
pub fn write_root(path: &Path, authority: &Authority) -> Result<(), CaError> {
    let error = |source| CaError::File {
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
    fs::write(&beside, authority.root_pem()).map_err(error)?;
    fs::rename(&beside, path).map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_made_once_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("a/ca");
        let first = open_authority(Some(&ca), "cluster.local").unwrap();
        let second = open_authority(Some(&ca), "cluster.local").unwrap();
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
    fn an_empty_directory_is_filled() {
        let dir = tempfile::tempdir().unwrap();
        open_authority(Some(dir.path()), "cluster.local").unwrap();
        assert!(dir.path().join("ca-key.pem").exists());
    }

    #[test]
    fn a_plugged_in_authority_with_a_file_missing_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        open_authority(Some(dir.path()), "cluster.local").unwrap();
        fs::remove_file(dir.path().join("root-cert.pem")).unwrap();
        let error = open_authority(Some(dir.path()), "cluster.local")
            .unwrap_err()
            .to_string();
        assert!(error.contains("not root-cert.pem"), "{error}");
    }

    #[test]
    fn an_intermediate_is_used_and_one_of_another_root_is_refused() {
        let root = Authority::new_root("t", ROOT_TTL, SystemTime::now()).unwrap();
        let lower = root
            .new_intermediate("t", ROOT_TTL / 2, SystemTime::now())
            .unwrap();
        let pem = |der: &[u8]| {
            use base64::Engine;
            let text = base64::engine::general_purpose::STANDARD.encode(der);
            format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
        };
        let own = pem(&lower.intermediates()[0]);
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(dir.path().join(file), text).unwrap();
        write("ca-cert.pem", &own);
        write("ca-key.pem", &lower.key_pem());
        write("cert-chain.pem", &own);
        write("root-cert.pem", &root.root_pem());
        let opened = open_authority(Some(dir.path()), "t").unwrap();
        assert_eq!(opened.intermediates().len(), 1);
        let other = Authority::new_root("t", ROOT_TTL, SystemTime::now()).unwrap();
        write("root-cert.pem", &other.root_pem());
        let error = open_authority(Some(dir.path()), "t").unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&dir.path().display().to_string()),
            "{error}"
        );
    }
}
