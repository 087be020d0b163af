//! Readings of a request: every text that a lenient server may take for its method, its host, its path or a header.
//! All comparisons that deny, limit or allow a request by these are made here.
//!
//! A denial or a rate limit applies if any reading matches ([`Reading::Any`]), a permission only if all of them match
//! ([`Reading::All`]), and an exception from a denial only if all match, including those from headers that override
//! the request's own attributes ([`Reading::Exception`]). So no spelling escapes a denial that applies to the plain
//! request, nor is allowed where the plain request is not.
//!
//! | compared | `Any` | `All` | `Exception` |
//! |---|---|---|---|
//! | method | in any case; values of `X-HTTP-Method-Override` and similar headers | as received | as received, and all values of such headers |
//! | host | in any case; with any port, or the called one; without trailing dots; hosts in `X-Forwarded-Host` and `Forwarded` | the same, without the called port and without such headers | as `All`, and all hosts in such headers |
//! | path | as forwarded, and all of [`path::readings`]; paths in `X-Original-URL` and similar headers; without trailing slash | as forwarded, and each of [`path::readings`] | as `All`, and all paths in such headers |
//! | header | each line, each list element, all lines joined; also names with `_` for `-` | all lines joined, each line, and each element for a pattern with a wildcard | as `All` |
//!
//! `All` does not split `User-Agent` and other headers whose commas do not separate list elements.

mod header;
mod host;
mod path;
mod reading;
mod text;

use std::cell::OnceCell;

use ambit_model::StringMatch;
use http::{HeaderMap, HeaderName};

pub(crate) use header::{any_text, is_same_name, lines};
pub(crate) use path::PathMatcher;
pub(crate) use reading::Reading;

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
    pub(crate) fn dial(&mut self, port: u16) {
        self.host.dial(port);
    }

    /// Whether the method matches a pattern.
    pub(crate) fn method(&self, pattern: &StringMatch, reading: Reading) -> bool {
        match reading {
            Reading::All => pattern.matches(self.method),
            Reading::Exception => {
                pattern.matches(self.method)
                    && self.all_named_by(&METHOD_OVERRIDES, |method| pattern.matches(method))
            }
            Reading::Any => {
                pattern.matches_caseless([self.method])
                    || self
                        .named_by(&METHOD_OVERRIDES)
                        .any(|method| pattern.matches_caseless([method]))
            }
        }
    }

    /// Whether the host matches a pattern. A pattern without port matches any port.
    pub(crate) fn host(&self, pattern: &StringMatch, reading: Reading) -> bool {
        let named = |host| self.host.named(host).matches(pattern, reading);
        match reading {
            Reading::All => self.host.matches(pattern, reading),
            Reading::Any => {
                self.host.matches(pattern, reading) || self.overriding_hosts().any(named)
            }
            Reading::Exception => {
                self.host.matches(pattern, reading) && self.overriding_hosts().all(named)
            }
        }
    }

    /// Returns the hosts in headers that override the request's host; an empty one for a value that is not text.
    pub(crate) fn overriding_hosts(&self) -> impl Iterator<Item = &'a str> {
        let headers = self.headers;
        let text = |bytes| str::from_utf8(bytes).unwrap_or_default().trim();
        let forwarded_host = lines(headers, &X_FORWARDED_HOST);
        let forwarded_host = forwarded_host.flat_map(move |line| text(line).split(','));
        let forwarded = lines(headers, &FORWARDED);
        let pairs = forwarded.flat_map(move |line| text(line).split([',', ';']));
        let hosts = pairs.filter_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            name.trim().eq_ignore_ascii_case("host").then_some(value)
        });
        let unquoted = |host: &'a str| host.trim().trim_matches('"');
        forwarded_host.chain(hosts).map(unquoted)
    }

    /// Whether the path matches a pattern.
    pub(crate) fn path(&self, pattern: &PathMatcher, reading: Reading) -> bool {
        let own = pattern.matches(&self.path, reading);
        let named = |path| pattern.matches(path, reading);
        match reading {
            Reading::All => own,
            Reading::Any => own || self.overriding_paths().iter().any(named),
            Reading::Exception => {
                own && self.overriding_paths().iter().all(named)
                    // A value that is not a path does not match an exception.
                    && self.all_named_by(&PATH_OVERRIDES, |target| path::of_target(target).is_some())
            }
        }
    }

    /// Whether a header matches a pattern; a missing header never does.
    pub(crate) fn header(
        &self,
        name: &HeaderName,
        pattern: &StringMatch,
        reading: Reading,
    ) -> bool {
        header::matches(self.headers, name, pattern, reading)
    }

    fn overriding_paths(&self) -> &[path::PathReadings<'a>] {
        self.overriding_paths.get_or_init(|| {
            let named = self.named_by(&PATH_OVERRIDES);
            named
                .filter_map(path::of_target)
                .map(path::PathReadings::new)
                .collect()
        })
    }

    /// Whether the values of all lines of these headers match; a line that is not text does not.
    fn all_named_by(&self, names: &'static [HeaderName], matches: impl Fn(&str) -> bool) -> bool {
        let mut all = names.iter().flat_map(|name| lines(self.headers, name));
        all.all(|line| str::from_utf8(line).is_ok_and(|text| matches(text.trim())))
    }

    /// Returns the values of these headers that are text.
    fn named_by(&self, names: &'static [HeaderName]) -> impl Iterator<Item = &'a str> {
        let headers = self.headers;
        let all = names.iter().flat_map(move |name| lines(headers, name));
        all.filter_map(|line| str::from_utf8(line).ok().map(str::trim))
    }
}
