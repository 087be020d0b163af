//! Metadata of every gRPC call to the control plane: the caller's token, its cluster, and configured headers.

use std::{fmt, io, path::PathBuf, sync::Arc};

use ambit_rt::Env;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};

/// Source of the service account token that authenticates the caller to the control plane.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// File, which is read again for each call: Kubernetes replaces it before the token expires.
    File(PathBuf),
    /// Token that the setting itself contains.
    Literal(String),
}

impl TokenSource {
    /// Parses `AUTH_TOKEN`: a path if the file exists (or the text looks like a path), otherwise the token itself.
    pub fn from_setting(text: &str) -> Self {
        if text.contains('/') || PathBuf::from(text).exists() {
            Self::File(text.into())
        } else {
            Self::Literal(text.to_owned())
        }
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Literal(_) => f.write_str("Literal(…)"),
        }
    }
}

/// Error of building the metadata of a call.
#[derive(Debug, thiserror::Error)]
pub enum CallHeadersError {
    /// The token file cannot be read.
    #[error("cannot read the token from {}", path.display())]
    ReadToken {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// The token is empty. The text is the path of its file, if it was read from one.
    #[error("the token is empty ({})", .0.as_deref().unwrap_or("AUTH_TOKEN"))]
    EmptyToken(Option<String>),
    /// The token is not a valid header value.
    #[error("the token has characters that are not allowed in a header")]
    BadToken,
    /// A header that an environment variable sets is invalid.
    #[error("header {name:?} from the environment cannot be sent as metadata")]
    BadHeader {
        /// Name of the invalid header.
        name: String,
    },
}

/// Metadata headers that are added to each call to the control plane. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CallMetadata {
    token: Option<TokenSource>,
    fixed_headers: Arc<[(AsciiMetadataKey, AsciiMetadataValue)]>,
}

impl CallMetadata {
    /// Creates the metadata: `authorization` from the token, `clusterid`, and the headers in `extra`.
    pub fn new<'a>(
        token: Option<TokenSource>,
        cluster_id: Option<&'a str>,
        extra: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, CallHeadersError> {
        let fixed = cluster_id
            .map(|cluster| ("clusterid", cluster))
            .into_iter()
            .chain(extra)
            .map(|(name, value)| {
                let bad = || CallHeadersError::BadHeader {
                    name: name.to_owned(),
                };
                let key = AsciiMetadataKey::from_bytes(name.to_ascii_lowercase().as_bytes())
                    .map_err(|_| bad())?;
                Ok((key, value.parse::<AsciiMetadataValue>().map_err(|_| bad())?))
            })
            .collect::<Result<Vec<_>, CallHeadersError>>()?;
        Ok(Self {
            token,
            fixed_headers: fixed.into(),
        })
    }

    /// Creates the metadata, with further headers from environment variables that begin with `prefix` (`XDS_HEADER_`,
    /// `CA_HEADER_`).
    pub fn from_env(
        env: &Env,
        prefix: &str,
        token: Option<TokenSource>,
        cluster_id: &str,
    ) -> Result<Self, CallHeadersError> {
        Self::new(token, Some(cluster_id), env.with_prefix(prefix))
    }

    /// Adds the headers to a call's metadata, after reading the token again.
    pub async fn apply(&self, metadata: &mut MetadataMap) -> Result<(), CallHeadersError> {
        if let Some(source) = &self.token {
            let token = read_token(source).await?;
            let mut value: AsciiMetadataValue = format!("Bearer {}", token.trim())
                .parse()
                .map_err(|_| CallHeadersError::BadToken)?;
            value.set_sensitive(true);
            metadata.insert("authorization", value);
        }
        for (key, value) in self.fixed_headers.iter() {
            metadata.insert(key.clone(), value.clone());
        }
        Ok(())
    }
}

async fn read_token(source: &TokenSource) -> Result<String, CallHeadersError> {
    let (token, origin) = match source {
        TokenSource::Literal(token) => (token.clone(), None),
        TokenSource::File(path) => {
            let token = tokio::fs::read_to_string(path).await.map_err(|source| {
                CallHeadersError::ReadToken {
                    path: path.clone(),
                    source,
                }
            })?;
            (token, Some(path.display().to_string()))
        }
    };
    if token.trim().is_empty() {
        return Err(CallHeadersError::EmptyToken(origin));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn applied_metadata(headers: &CallMetadata) -> Result<MetadataMap, CallHeadersError> {
        let mut metadata = MetadataMap::new();
        headers.apply(&mut metadata).await?;
        Ok(metadata)
    }

    #[tokio::test]
    async fn the_token_file_is_read_at_each_call() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "one\n").unwrap();
        let token = TokenSource::from_setting(path.to_str().unwrap());
        let env = Env::from_pairs([("XDS_HEADER_X-Tenant", "t1"), ("OTHER", "x")]);
        let headers = CallMetadata::from_env(&env, "XDS_HEADER_", Some(token), "c1").unwrap();
        let metadata = applied_metadata(&headers).await.unwrap();
        assert_eq!(metadata.get("authorization").unwrap(), "Bearer one");
        assert_eq!(metadata.get("clusterid").unwrap(), "c1");
        assert_eq!(metadata.get("x-tenant").unwrap(), "t1");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(
            applied_metadata(&headers)
                .await
                .unwrap()
                .get("authorization")
                .unwrap(),
            "Bearer two"
        );
        std::fs::write(&path, " \n").unwrap();
        let error = applied_metadata(&headers).await.unwrap_err().to_string();
        assert_eq!(error, format!("the token is empty ({})", path.display()));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(
            applied_metadata(&headers).await,
            Err(CallHeadersError::ReadToken { .. })
        ));
    }

    #[tokio::test]
    async fn without_a_token_there_is_no_authorization() {
        let headers = CallMetadata::new(None, None, []).unwrap();
        assert!(applied_metadata(&headers).await.unwrap().is_empty());
        let broken = TokenSource::Literal("a\nb".to_owned());
        let headers = CallMetadata::new(Some(broken), None, []).unwrap();
        assert!(matches!(
            applied_metadata(&headers).await,
            Err(CallHeadersError::BadToken)
        ));
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_named() {
        let error = CallMetadata::new(None, None, [("bad name", "x")]).unwrap_err();
        assert!(error.to_string().contains("bad name"), "{error}");
    }
}
