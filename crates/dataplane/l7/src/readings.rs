//! Readings of a request: the values that a lenient server may derive for its method, host, path or a header. Denials,
//! rate limits and permissions compare these attributes only through this module.
//!
//! A denial or a rate limit applies if any reading matches ([`ReadingMode::AnyReading`]), a permission only if all of
//! them match ([`ReadingMode::AllReadings`]), and an exception from a denial only if all match, including those from
//! headers that override the request's own attributes ([`ReadingMode::DenialException`]). So no spelling escapes a denial
//! that applies to the plain request, nor is allowed where the plain request is not.
//!
//! | compared | `AnyReading` | `AllReadings` | `DenialException` |
//! |---|---|---|---|
//! | method | in any case; values of `X-HTTP-Method-Override` and similar headers | as received | as received, and all values of such headers |
//! | host | in any case; with any port, or the called one; without trailing dots; hosts in `X-Forwarded-Host` and `Forwarded` | the same, without the called port and without such headers | as `AllReadings`, and all hosts in such headers |
//! | path | as forwarded, and all of [`path::path_readings`]; paths in `X-Original-URL` and similar headers; without trailing slash | as forwarded, and each of [`path::path_readings`] | as `AllReadings`, and all paths in such headers |
//! | header | each line, each list element, all lines joined; also names with `_` for `-` | all lines joined, each line, and each element for a pattern with a wildcard | as `AllReadings` |
//!
//! `AllReadings` does not split `User-Agent` and other headers whose commas do not separate list elements.

mod header;
mod host;
mod path;
mod reading;
mod text;

use std::cell::OnceCell;

use ambit_model::StringMatch;
use http::{HeaderMap, HeaderName};

pub(crate) use header::{any_header_text_matches, header_lines, is_same_name};
pub(crate) use path::PathMatcher;
pub(crate) use reading::ReadingMode;

use host::Host;

/// Headers by which some frameworks let a client override the method.
static METHOD_OVERRIDES: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-method-override"),
];

/// Headers by which some frameworks let a client override the path.
static PATH_OVERRIDES: [HeaderName; 2] = [
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-rewrite-url"),
];

/// Header in which proxies, and so also clients, state the original host.
static X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
static FORWARDED: HeaderName = http::header::FORWARDED;

/// Readings of a request's method, host, path and headers, computed on first use.
#[derive(Debug)]
pub(crate) struct Readings<'a> {
    method: &'a str,
    host: Host<'a>,
    path: path::PathReadings<'a>,
    headers: &'a HeaderMap,
    overriding_paths: OnceCell<Vec<path::PathReadings<'a>>>,
}

impl<'a> Readings<'a> {
    /// Prepares the readings of a request with this method, authority, normalized path (without query) and headers.
    /// `port` is the port that the client called, if known.
    pub(crate) fn new(
        method: &'a str,
        (host, port): (&'a str, Option<u16>),
        path: &'a str,
        headers: &'a HeaderMap,
    ) -> Self {
        Self {
            method,
            host: Host::new(host, port),
            path: path::PathReadings::new(path),
            headers,
            overriding_paths: OnceCell::new(),
        }
    }

    /// Sets the port that the client called.
    pub(crate) fn set_dialed_port(&mut self, port: u16) {
        self.host.set_dialed_port(port);
    }

    /// Whether the method matches a pattern.
    pub(crate) fn matches_method(&self, pattern: &StringMatch, reading: ReadingMode) -> bool {
        match reading {
            ReadingMode::AllReadings => pattern.matches(self.method),
            ReadingMode::DenialException => {
                pattern.matches(self.method)
                    && self.all_override_values_match(&METHOD_OVERRIDES, |method| {
                        pattern.matches(method)
                    })
            }
            ReadingMode::AnyReading => {
                pattern.matches_ignoring_case([self.method])
                    || self
                        .override_values(&METHOD_OVERRIDES)
                        .any(|method| pattern.matches_ignoring_case([method]))
            }
        }
    }

    /// Whether the host matches a pattern. A pattern without port matches any port.
    pub(crate) fn matches_host(&self, pattern: &StringMatch, reading: ReadingMode) -> bool {
        let named = |host| self.host.with_authority(host).matches(pattern, reading);
        match reading {
            ReadingMode::AllReadings => self.host.matches(pattern, reading),
            ReadingMode::AnyReading => {
                self.host.matches(pattern, reading) || self.overriding_hosts().any(named)
            }
            ReadingMode::DenialException => {
                self.host.matches(pattern, reading) && self.overriding_hosts().all(named)
            }
        }
    }

    /// Returns the hosts in headers that override the request's host; an empty one for a value that is not text.
    pub(crate) fn overriding_hosts(&self) -> impl Iterator<Item = &'a str> {
        let headers = self.headers;
        let text = |bytes| str::from_utf8(bytes).unwrap_or_default().trim();
        let forwarded_host = header_lines(headers, &X_FORWARDED_HOST);
        let forwarded_host = forwarded_host.flat_map(move |line| text(line).split(','));
        let forwarded = header_lines(headers, &FORWARDED);
        let pairs = forwarded.flat_map(move |line| text(line).split([',', ';']));
        let hosts = pairs.filter_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            name.trim().eq_ignore_ascii_case("host").then_some(value)
        });
        let unquoted = |host: &'a str| host.trim().trim_matches('"');
        forwarded_host.chain(hosts).map(unquoted)
    }

    /// Whether the path matches a pattern.
    pub(crate) fn matches_path(&self, pattern: &PathMatcher, reading: ReadingMode) -> bool {
        let own = pattern.matches(&self.path, reading);
        let named = |path| pattern.matches(path, reading);
        match reading {
            ReadingMode::AllReadings => own,
            ReadingMode::AnyReading => own || self.overriding_paths().iter().any(named),
            ReadingMode::DenialException => {
                own && self.overriding_paths().iter().all(named)
                    // A value that is not a path does not match an exception.
                    && self.all_override_values_match(&PATH_OVERRIDES, |target| path::target_path(target).is_some())
            }
        }
    }

    /// Whether a header matches a pattern; a missing header never does.
    pub(crate) fn matches_header(
        &self,
        name: &HeaderName,
        pattern: &StringMatch,
        reading: ReadingMode,
    ) -> bool {
        header::header_matches(self.headers, name, pattern, reading)
    }

    fn overriding_paths(&self) -> &[path::PathReadings<'a>] {
        self.overriding_paths.get_or_init(|| {
            let named = self.override_values(&PATH_OVERRIDES);
            named
                .filter_map(path::target_path)
                .map(path::PathReadings::new)
                .collect()
        })
    }

    /// Whether the values of all lines of these headers match; a line that is not text does not.
    fn all_override_values_match(
        &self,
        names: &'static [HeaderName],
        matches: impl Fn(&str) -> bool,
    ) -> bool {
        let mut all = names
            .iter()
            .flat_map(|name| header_lines(self.headers, name));
        all.all(|line| str::from_utf8(line).is_ok_and(|text| matches(text.trim())))
    }

    /// Returns the values of these headers that are text.
    fn override_values(&self, names: &'static [HeaderName]) -> impl Iterator<Item = &'a str> {
        let headers = self.headers;
        let all = names
            .iter()
            .flat_map(move |name| header_lines(headers, name));
        all.filter_map(|line| str::from_utf8(line).ok().map(str::trim))
    }
}
