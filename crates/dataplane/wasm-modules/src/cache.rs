//! Disk cache of Wasm modules, so that a new worker or pod does not fetch them again. Modified files are ignored;
//! failures to store a module are not errors.

use std::{
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::bytes::{read_file, sha256_hex};

/// Maximum size of all cached modules together, in bytes.
const MAX_CACHE_BYTES: u64 = 256 << 20;

#[derive(Debug)]
pub(super) struct ModuleCache {
    directory: PathBuf,
}

/// Key of a cached module.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheKey<'a> {
    pub(super) url: &'a str,
    /// Digest that the plugin's configuration requires; empty if it requires none.
    pub(super) expected_digest: &'a str,
    /// Namespace of the plugin's registry credentials; empty without credentials.
    pub(super) credentials_namespace: &'a str,
}

impl ModuleCache {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Returns the file-name prefix for a key. The rest of a file name is the digest of its contents.
    fn prefix(
        CacheKey {
            url,
            expected_digest: expected,
            credentials_namespace: whose,
        }: CacheKey<'_>,
    ) -> String {
        sha256_hex(format!("{url}\n{expected}\n{whose}").as_bytes())
    }

    pub(super) async fn load(&self, key: CacheKey<'_>) -> Option<Vec<u8>> {
        let prefix = Self::prefix(key);
        let mut files = tokio::fs::read_dir(&self.directory).await.ok()?;
        while let Ok(Some(file)) = files.next_entry().await {
            let name = file.file_name();
            let Some(content) = name.to_str().and_then(|name| {
                name.strip_prefix(prefix.as_str())?
                    .strip_prefix('-')?
                    .strip_suffix(".wasm")
            }) else {
                continue;
            };
            let bytes = read_file(file.path().to_str()?).await.ok()?;
            return (sha256_hex(&bytes) == content).then_some(bytes);
        }
        None
    }

    pub(super) async fn store(&self, key: CacheKey<'_>, bytes: &[u8]) {
        let prefix = Self::prefix(key);
        let name = format!("{prefix}-{}.wasm", sha256_hex(bytes));
        if let Err(error) = self.write(&prefix, &name, bytes).await {
            let directory = self.directory.display();
            tracing::debug!(%directory, %error, "a module is not kept on disk");
        }
    }

    async fn write(&self, prefix: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
        tokio::fs::create_dir_all(&self.directory).await?;
        let unfinished = self
            .directory
            .join(format!("{name}.{}", std::process::id()));
        tokio::fs::write(&unfinished, bytes).await?;
        tokio::fs::rename(&unfinished, self.directory.join(name)).await?;
        self.prune(prefix, name).await
    }

    /// Removes earlier modules of the same key, and the oldest ones of others beyond the size limit.
    async fn prune(&self, prefix: &str, keep: &str) -> io::Result<()> {
        let mut all: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        let mut files = tokio::fs::read_dir(&self.directory).await?;
        while let Some(file) = files.next_entry().await? {
            let metadata = file.metadata().await?;
            let name = file.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(prefix) && name != keep {
                remove(&file.path()).await;
            } else if name != keep {
                all.push((metadata.modified()?, metadata.len(), file.path()));
            }
        }
        all.sort();
        let mut bytes: u64 = all.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, size, path) in all {
            if bytes <= MAX_CACHE_BYTES {
                break;
            }
            remove(&path).await;
            bytes -= size;
        }
        Ok(())
    }
}

async fn remove(path: &Path) {
    if let Err(error) = tokio::fs::remove_file(path).await {
        tracing::debug!(path = %path.display(), %error, "a module that was kept cannot be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cached_modules_are_used_unless_they_were_changed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = ModuleCache::new(directory.path().join("modules"));
        let of = |expected_digest, credentials_namespace| CacheKey {
            url: "oci://a",
            expected_digest,
            credentials_namespace,
        };
        let key = of("", "");
        assert_eq!(cache.load(key).await, None);
        cache.store(key, b"one").await;
        assert_eq!(cache.load(key).await.unwrap(), b"one");
        assert_eq!(cache.load(of("ab", "")).await, None);
        // Modules fetched with one namespace's credentials are for that namespace only.
        assert_eq!(cache.load(of("", "shop")).await, None);
        cache.store(key, b"two").await;
        assert_eq!(cache.load(key).await.unwrap(), b"two");
        let mut files = std::fs::read_dir(&cache.directory).unwrap();
        let file = files.next().unwrap().unwrap();
        assert!(files.next().is_none());
        std::fs::write(file.path(), b"three").unwrap();
        assert_eq!(cache.load(key).await, None);
    }
}
