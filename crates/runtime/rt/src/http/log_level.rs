//! Reads and changes log levels over HTTP (`POST /logging`).

use super::{Request, Response, method_not_allowed, query_parameter, text};
use crate::logging::LogHandle;

impl LogHandle {
    /// Responds to `POST /logging`: `?level=info,scope=debug`, `?reset`, or without a query to show the filter.
    pub fn respond(&self, request: &Request) -> Response {
        if request.method() != http::Method::POST {
            return method_not_allowed("POST");
        }
        let uri = request.uri();
        let level = query_parameter(uri, "level");
        let changed = match (query_parameter(uri, "reset"), level) {
            (Some(_), None) => self.reset(),
            (None, Some(level)) => self.change(&level),
            (Some(_), Some(level)) => self.reset().and_then(|()| self.change(&level)),
            (None, None) => Ok(()),
        };
        match changed {
            Ok(()) => text(200, format!("current log level is {}\n", self.current())),
            Err(error) => text(
                400,
                format!("{error}\nusage: POST /logging?level=info,scope=debug or /logging?reset\n"),
            ),
        }
    }
}
