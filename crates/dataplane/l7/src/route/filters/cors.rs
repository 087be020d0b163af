//! CORS filter (Gateway API, Fetch standard): decides which origins' scripts may read
//! responses.
//!
//! The waypoint itself responds to preflights. It removes CORS headers that the application sets, so that an
//! application cannot extend what a rule allows.

use ambit_model::{ArcStr, HttpCors};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{
        ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS,
        ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
        ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD,
        ORIGIN, VARY,
    },
};

const ANY_ORIGIN: &str = "*";

/// CORS response headers, which are removed from the application's responses.
const RESPONSE_HEADERS: [HeaderName; 6] = [
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
];

/// Compiled CORS filter.
#[derive(Debug)]
pub struct Cors {
    origins: Vec<OriginPattern>,
    allows_credentials: bool,
    methods: AllowedNames,
    headers: AllowedNames,
    exposed_headers: AllowedNames,
    max_age: HeaderValue,
}

/// CORS attributes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsRequest {
    /// Value of the `Origin` header, if the request has exactly one.
    origin: Option<HeaderValue>,
    /// Requested method and requested headers of a preflight request; `None` for other requests.
    preflight: Option<(HeaderValue, Option<HeaderValue>)>,
}

#[derive(Debug)]
enum OriginPattern {
    Any,
    Pattern {
        scheme: ArcStr,
        /// Host of the pattern; after a wildcard, its suffix.
        host: ArcStr,
        has_wildcard: bool,
        port: u16,
    },
}

/// Allowed or exposed names (methods or headers), as a header value.
#[derive(Debug)]
enum AllowedNames {
    Any,
    /// Allowed names as a header value; `None` allows no name.
    Only(Option<HeaderValue>),
}

impl CorsRequest {
    /// Parses the CORS attributes of an unmodified request.
    pub fn from_request(method: &Method, headers: &HeaderMap) -> Self {
        let one = |name: HeaderName| {
            let mut all = headers.get_all(name).iter();
            all.next().filter(|_| all.next().is_none()).cloned()
        };
        // Two `Origin` headers count as none: the filter might allow one, and the browser read the
        // other.
        let origin = one(ORIGIN);
        let is_asking = *method == Method::OPTIONS && headers.contains_key(ORIGIN);
        let of_method = one(ACCESS_CONTROL_REQUEST_METHOD).filter(|_| is_asking);
        Self {
            origin,
            preflight: of_method.map(|method| (method, one(ACCESS_CONTROL_REQUEST_HEADERS))),
        }
    }

    /// Whether the request is a CORS preflight.
    pub fn is_preflight(&self) -> bool {
        self.preflight.is_some()
    }
}

impl Cors {
    /// Compiles the settings of a CORS filter.
    ///
    /// # Errors
    /// The text describes the invalid setting.
    pub(super) fn new(from: &HttpCors) -> Result<Self, ArcStr> {
        let origins = from.allow_origins.iter().map(|text| {
            OriginPattern::new(text).ok_or_else(|| arcstr::format!("{text:?} is no origin"))
        });
        Ok(Self {
            origins: origins.collect::<Result<_, _>>()?,
            allows_credentials: from.allow_credentials,
            methods: AllowedNames::new(&from.allow_methods)?,
            headers: AllowedNames::new(&from.allow_headers)?,
            exposed_headers: AllowedNames::new(&from.expose_headers)?,
            max_age: from.max_age.into(),
        })
    }

    /// Replaces the application's CORS headers in a response by those of the filter.
    pub fn change_response(&self, requested: &CorsRequest, headers: &mut HeaderMap) {
        for name in RESPONSE_HEADERS {
            headers.remove(name);
        }
        let is_for_all = self
            .origins
            .iter()
            .all(|one| matches!(one, OriginPattern::Any));
        if !is_for_all || self.allows_credentials {
            // Caches must not reuse the response for another origin.
            headers.append(VARY, HeaderValue::from_name(ORIGIN));
        }
        let Some(origin) = self.matching_origin(requested) else {
            return;
        };
        let origin = if is_for_all && !self.allows_credentials {
            HeaderValue::from_static(ANY_ORIGIN)
        } else {
            origin.clone()
        };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        if self.allows_credentials {
            let yes = HeaderValue::from_static("true");
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
        }
        // With credentials, `*` is a name like any other.
        let exposed = self
            .exposed_headers
            .header_value(self.allows_credentials, None);
        insert_if_some(headers, ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        let Some((method, names)) = &requested.preflight else {
            return;
        };
        let methods = self
            .methods
            .header_value(self.allows_credentials, Some(method));
        insert_if_some(headers, ACCESS_CONTROL_ALLOW_METHODS, methods);
        let names = self
            .headers
            .header_value(self.allows_credentials, names.as_ref());
        insert_if_some(headers, ACCESS_CONTROL_ALLOW_HEADERS, names);
        headers.insert(ACCESS_CONTROL_MAX_AGE, self.max_age.clone());
    }

    /// Returns the request's origin, if the filter allows it.
    fn matching_origin<'a>(&self, requested: &'a CorsRequest) -> Option<&'a HeaderValue> {
        let origin = requested.origin.as_ref()?;
        let text = origin.to_str().ok()?;
        let is_allowed = self.origins.iter().any(|one| one.matches(text));
        is_allowed.then_some(origin)
    }
}

fn insert_if_some(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    if let Some(value) = value {
        headers.insert(name, value);
    }
}

impl AllowedNames {
    fn new(names: &[ArcStr]) -> Result<Self, ArcStr> {
        if names.iter().any(|name| name == ANY_ORIGIN) {
            return Ok(Self::Any);
        }
        // Names of methods and headers have the same syntax.
        if let Some(name) = names
            .iter()
            .find(|name| HeaderName::from_bytes(name.as_bytes()).is_err())
        {
            return Err(arcstr::format!("{name:?} is no name of a header or method"));
        }
        let joined = names.join(", ");
        let value = HeaderValue::from_str(&joined);
        let value = value.map_err(|error| arcstr::format!("{joined:?}: {error}"))?;
        Ok(Self::Only((!names.is_empty()).then_some(value)))
    }

    /// Returns the header value that allows the requested names. With credentials it lists them, since `*` would then
    /// be a literal name.
    fn header_value(
        &self,
        credentials: bool,
        requested: Option<&HeaderValue>,
    ) -> Option<HeaderValue> {
        match self {
            Self::Only(names) => names.clone(),
            Self::Any if credentials => requested.cloned(),
            Self::Any => Some(HeaderValue::from_static(ANY_ORIGIN)),
        }
    }
}

impl OriginPattern {
    fn new(text: &str) -> Option<Self> {
        if text == ANY_ORIGIN {
            return Some(Self::Any);
        }
        let (scheme, host, port) = split_origin(text)?;
        let (host, has_wildcard) = match host.strip_prefix('*') {
            Some(rest) if rest.is_empty() || rest.starts_with('.') => (rest, true),
            Some(_) => return None,
            None => (host, false),
        };
        (is_host(host) || host.is_empty() && has_wildcard).then(|| Self::Pattern {
            scheme: scheme.into(),
            host: host.into(),
            has_wildcard,
            port,
        })
    }

    fn matches(&self, origin: &str) -> bool {
        let Self::Pattern {
            scheme,
            host,
            has_wildcard,
            port,
        } = self
        else {
            return true;
        };
        let Some((of_scheme, of_host, of_port)) = split_origin(origin) else {
            return false;
        };
        if !is_host(of_host) || of_scheme != scheme || of_port != *port {
            return false;
        }
        let split = of_host.len().checked_sub(host.len());
        match split.and_then(|split| of_host.split_at_checked(split)) {
            Some((begin, end)) => {
                end.eq_ignore_ascii_case(host) && begin.is_empty() != *has_wildcard
            }
            None => false,
        }
    }
}

/// Splits an origin into scheme, host and port; a missing port is the scheme's default.
fn split_origin(text: &str) -> Option<(&str, &str, u16)> {
    let (scheme, rest) = text.split_once("://")?;
    let well_known = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    match rest.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
            let port = port.parse().ok().filter(|port| is_number && *port != 0)?;
            Some((scheme, host, port))
        }
        _ => Some((scheme, rest, well_known)),
    }
}

/// Whether a text can be a host or its suffix: it has no character that would end a host.
fn is_host(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let literal = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    match literal {
        Some(literal) => literal.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !text.is_empty() && text.bytes().all(is_part),
    }
}

#[cfg(test)]
mod tests;
