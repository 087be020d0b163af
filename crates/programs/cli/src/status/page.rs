//! Parsing of the JSON pages that the mesh's components serve.

use serde::de::DeserializeOwned;

use crate::{CliError, http::HttpResponse};

/// Parses the JSON of a response to `path`, or returns the reason why there is none.
pub(super) fn parse<T: DeserializeOwned>(
    path: &str,
    answer: Result<HttpResponse, CliError>,
) -> Result<T, String> {
    match answer {
        Ok(HttpResponse { status: 200, body }) => serde_json::from_slice(&body)
            .map_err(|error| format!("its answer to {path} cannot be read: {error}")),
        Ok(answer) => Err(format!("{path} answers with status {}", answer.status)),
        Err(error) => Err(error
            .message_with_sources()
            .trim_start_matches("error: ")
            .to_owned()),
    }
}
