//! Last result on a stream of a SPIFFE agent: a message from which certificates are built, or an error.

use std::sync::Arc;

use tokio::sync::watch;

use crate::SpiffeError;

/// Last message or error on an agent's stream.
#[derive(Debug)]
pub(super) enum ApiResult<T> {
    Pending,
    Failed(SpiffeError),
    Available(Arc<T>),
}

impl<T> From<Result<T, SpiffeError>> for ApiResult<T> {
    fn from(answer: Result<T, SpiffeError>) -> Self {
        match answer {
            Ok(answer) => Self::Available(Arc::new(answer)),
            Err(error) => Self::Failed(error),
        }
    }
}

impl<T> ApiResult<T> {
    /// Returns the message; `None` if there is none yet, or the stream failed.
    pub(super) fn available(&self) -> Option<&Arc<T>> {
        match self {
            Self::Available(answer) => Some(answer),
            Self::Pending | Self::Failed(_) => None,
        }
    }
}

/// Waits until the agent's stream has delivered a message or an error, and returns the last one.
pub(super) async fn wait_for_result<T>(
    mut answers: watch::Receiver<ApiResult<T>>,
    api: &Arc<str>,
) -> Result<Arc<T>, SpiffeError> {
    let answer = answers.wait_for(|answer| !matches!(answer, ApiResult::Pending));
    match answer.await.as_deref() {
        Ok(ApiResult::Available(answer)) => Ok(answer.clone()),
        Ok(ApiResult::Failed(error)) => Err(error.clone()),
        // Nobody follows the stream any more.
        Ok(ApiResult::Pending) | Err(_) => Err(SpiffeError::StreamEnded(api.clone())),
    }
}

/// Logs that a stream has failed after it had delivered a message: its certificates remain in use until they expire.
pub(super) fn warn_of_outage<T, M>(last: &ApiResult<T>, answer: &Result<M, SpiffeError>) {
    if let (ApiResult::Available(_), Err(error)) = (last, answer) {
        tracing::warn!(%error, "no SPIFFE agent: its certificates stay until they expire");
    }
}
