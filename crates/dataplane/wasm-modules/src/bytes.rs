//! Contents of Wasm modules: maximum size, digest, and reading them from files.

use std::io;

use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;

/// Maximum size of a module, and of a layer of an image, in bytes.
pub(crate) const MAX_MODULE_BYTES: usize = 64 << 20;

/// Error of reading a module from a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Path of the file.
        path: String,
        /// Error of reading the file.
        #[source]
        error: io::Error,
    },
    /// The file exceeds `MAX_MODULE_BYTES`.
    #[error("the module has more than {MAX_MODULE_BYTES} bytes")]
    TooLarge,
}

/// Returns the SHA-256 digest in hexadecimal.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// Reads a module from a file.
///
/// # Errors
/// If it is not a regular file, cannot be read, or is too large.
pub(crate) async fn read_file(path: &str) -> Result<Vec<u8>, FileError> {
    let error = |error| FileError::Read {
        path: path.to_owned(),
        error,
    };
    // Devices and pipes are refused: opening one could block forever.
    let metadata = tokio::fs::metadata(path).await.map_err(error)?;
    if !metadata.is_file() {
        return Err(error(io::Error::other("it is no file")));
    }
    let file = tokio::fs::File::open(path).await.map_err(error)?;
    let most = u64::try_from(MAX_MODULE_BYTES).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    let mut bounded = file.take(most + 1);
    bounded.read_to_end(&mut bytes).await.map_err(error)?;
    if bytes.len() > MAX_MODULE_BYTES {
        return Err(FileError::TooLarge);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_regular_files_are_read() {
        for path in ["/dev/zero", "/", "/nowhere/at/all"] {
            assert!(
                matches!(read_file(path).await, Err(FileError::Read { .. })),
                "{path}"
            );
        }
    }
}
