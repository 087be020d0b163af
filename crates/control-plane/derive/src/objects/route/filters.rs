//! Parsing of the filters of route rules and of their backends.

use ambit_k8s_api::gateway::{
    self, HttpHeaderFilter, HttpPathModifier, HttpRouteFilter, HttpRouteTimeouts,
};
use ambit_model::{
    ArcStr, HeaderChanges, HttpFilter, HttpRedirect, HttpRewrite, HttpTimeouts, PathChange,
    is_reserved_header,
};

use crate::{
    objects::{
        durations,
        route::{
            cors,
            extension::ExtensionFilterInput,
            mirrors::MirrorInput,
            reader::{RuleReader, is_token},
            references,
        },
    },
    problem::FieldError,
};

/// Reason that the Gateway API defines for a condition on filters that exclude each other.
pub(crate) const INCOMPATIBLE_FILTERS: &str = "IncompatibleFilters";
/// Maximum number of filters of a rule or a backend, as in the Gateway API.
const MAX_FILTERS: usize = 16;

/// Parsed filter; references to services and objects are not resolved yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FilterInput {
    /// Filter that refers to no service and no object.
    WithoutReferences(HttpFilter),
    /// Mirror to a service, resolved when the route is rendered for a waypoint.
    Mirror(MirrorInput),
    /// Filter that refers to an object, resolved when the route is rendered for a waypoint.
    Extension(ExtensionFilterInput),
}

/// Returns the request mirrors among filters.
pub(crate) fn mirrors(filters: &[FilterInput]) -> impl Iterator<Item = &MirrorInput> {
    filters.iter().filter_map(|filter| match filter {
        FilterInput::Mirror(mirror) => Some(mirror),
        FilterInput::WithoutReferences(_) | FilterInput::Extension(_) => None,
    })
}

/// Returns the filters that refer to objects.
pub(crate) fn extensions(filters: &[FilterInput]) -> impl Iterator<Item = &ExtensionFilterInput> {
    filters.iter().filter_map(|filter| match filter {
        FilterInput::Extension(extension) => Some(extension),
        FilterInput::WithoutReferences(_) | FilterInput::Mirror(_) => None,
    })
}

impl RuleReader<'_> {
    /// Parses the filters of a rule, or of one of its backends. Unsupported filters make the rule unusable.
    pub(crate) fn parse_filters(
        &mut self,
        at: &str,
        filters: &[HttpRouteFilter],
        namespace: &str,
    ) -> Result<Vec<FilterInput>, FieldError> {
        let mut read: Vec<FilterInput> = Vec::new();
        if filters.len() > MAX_FILTERS {
            let message = format!("{} are too many: at most {MAX_FILTERS}", filters.len());
            return Err(FieldError::new(format!("{at}.filters"), message));
        }
        for (index, filter) in filters.iter().enumerate() {
            let at = format!("{at}.filters[{index}]");
            self.note_unknown_fields(&at, &filter.other);
            let Some(filter) = self.parse_filter(&at, filter, namespace)? else {
                continue;
            };
            let is_again = |other: &FilterInput| match (other, &filter) {
                (FilterInput::WithoutReferences(other), FilterInput::WithoutReferences(filter)) => {
                    std::mem::discriminant(other) == std::mem::discriminant(filter)
                }
                (FilterInput::Extension(other), FilterInput::Extension(extension)) => {
                    other.has_same_kind(extension)
                }
                _ => false,
            };
            if read.iter().any(is_again) {
                self.mark_unusable(
                    INCOMPATIBLE_FILTERS,
                    at,
                    "a filter of this type is duplicated",
                );
            }
            read.push(filter);
        }
        self.check_redirect_with_rewrite(at, &read);
        Ok(read)
    }

    /// Marks the rule as unusable if it has both a redirect and a rewrite.
    fn check_redirect_with_rewrite(&mut self, at: &str, filters: &[FilterInput]) {
        let is_any = |of: fn(&HttpFilter) -> bool| {
            let mut filters = filters.iter();
            filters.any(
                |filter| matches!(filter, FilterInput::WithoutReferences(filter) if of(filter)),
            )
        };
        if is_any(|filter| matches!(filter, HttpFilter::Redirect(_)))
            && is_any(|filter| matches!(filter, HttpFilter::Rewrite(_)))
        {
            let what = "RequestRedirect and URLRewrite exclude each other";
            self.mark_unusable(INCOMPATIBLE_FILTERS, format!("{at}.filters"), what);
        }
    }

    /// Parses `timeouts` of a rule.
    pub(crate) fn parse_timeouts(
        &mut self,
        at: &str,
        from: Option<&HttpRouteTimeouts>,
    ) -> Result<HttpTimeouts, FieldError> {
        let Some(from) = from else {
            return Ok(HttpTimeouts::default());
        };
        let at = format!("{at}.timeouts");
        self.note_unknown_fields(&at, &from.other);
        let one = |name: &str, text: Option<&str>| {
            let read = text.map(durations::read).transpose();
            let read = read.map_err(|error| FieldError::new(format!("{at}.{name}"), error))?;
            Ok(read.flatten())
        };
        let timeouts = HttpTimeouts {
            request: one("request", from.request.as_deref())?,
            backend_request: one("backendRequest", from.backend_request.as_deref())?,
        };
        if let (Some(all), Some(each)) = (timeouts.request, timeouts.backend_request)
            && each > all
        {
            let field = format!("{at}.backendRequest");
            return Err(FieldError::new(field, "is longer than timeouts.request"));
        }
        Ok(timeouts)
    }

    fn parse_mirror(
        &mut self,
        at: &str,
        from: &gateway::HttpRequestMirror,
        namespace: &str,
    ) -> Result<MirrorInput, FieldError> {
        self.note_unknown_fields(at, &from.other);
        self.note_unknown_fields(&format!("{at}.backendRef"), &from.backend_ref.other);
        MirrorInput::read(from, namespace, at, self.notes)
    }

    fn parse_filter(
        &mut self,
        at: &str,
        from: &HttpRouteFilter,
        namespace: &str,
    ) -> Result<Option<FilterInput>, FieldError> {
        let missing = || FieldError::new(at, format!("the filter {} has no settings", from.type_));
        Ok(Some(FilterInput::WithoutReferences(
            match from.type_.as_str() {
                "RequestHeaderModifier" => {
                    let of = from.request_header_modifier.as_ref().ok_or_else(missing)?;
                    let at = format!("{at}.requestHeaderModifier");
                    HttpFilter::RequestHeaders(self.parse_header_changes(&at, of))
                }
                "ResponseHeaderModifier" => {
                    let of = from.response_header_modifier.as_ref();
                    let at = format!("{at}.responseHeaderModifier");
                    let of = of.ok_or_else(missing)?;
                    HttpFilter::ResponseHeaders(self.parse_header_changes(&at, of))
                }
                "RequestRedirect" => {
                    let of = from.request_redirect.as_ref().ok_or_else(missing)?;
                    let at = format!("{at}.requestRedirect");
                    HttpFilter::Redirect(self.parse_redirect(&at, of)?)
                }
                "URLRewrite" => {
                    let of = from.url_rewrite.as_ref().ok_or_else(missing)?;
                    let at = format!("{at}.urlRewrite");
                    self.note_unknown_fields(&at, &of.other);
                    HttpFilter::Rewrite(HttpRewrite {
                        hostname: parse_hostname(&at, of.hostname.as_deref())?,
                        path: self.parse_path_change(&at, of.path.as_ref())?,
                    })
                }
                "RequestMirror" => {
                    let of = from.request_mirror.as_ref().ok_or_else(missing)?;
                    let at = format!("{at}.requestMirror");
                    return Ok(Some(FilterInput::Mirror(
                        self.parse_mirror(&at, of, namespace)?,
                    )));
                }
                "ExtensionRef" => {
                    let of = from.extension_ref.as_ref().ok_or_else(missing)?;
                    let extension = self.parse_extension(at, of, namespace)?;
                    return Ok(extension.map(FilterInput::Extension));
                }
                "CORS" => {
                    let of = from.cors.as_ref().ok_or_else(missing)?;
                    HttpFilter::Cors(cors::read(self, &format!("{at}.cors"), of)?)
                }
                other => {
                    let what = format!("the filter {other} is not supported");
                    self.mark_unsupported(at.to_owned(), &what);
                    return Ok(None);
                }
            },
        )))
    }

    fn parse_header_changes(&mut self, at: &str, from: &HttpHeaderFilter) -> HeaderChanges {
        self.note_unknown_fields(at, &from.other);
        let lines = |of: &[gateway::HttpHeader]| -> Vec<(ArcStr, ArcStr)> {
            let line = |one: &gateway::HttpHeader| {
                (
                    one.name.to_ascii_lowercase().into(),
                    one.value.as_str().into(),
                )
            };
            of.iter().map(line).collect()
        };
        let remove = from.remove.iter();
        let changes = HeaderChanges {
            set: lines(&from.set),
            add: lines(&from.add),
            remove: remove
                .map(|name| name.to_ascii_lowercase().into())
                .collect(),
        };
        let changed = changes.set.iter().chain(&changes.add);
        let names = changed.map(|(name, _)| name).chain(&changes.remove);
        for name in names {
            if is_reserved_header(name) || !is_token(name) {
                let what = format!("no route may change the header {name:?}");
                self.mark_unsupported(at.to_owned(), &what);
            }
        }
        let mut values = changes.set.iter().chain(&changes.add);
        if values.any(|(_, value)| !is_header_value(value)) {
            self.mark_unsupported(at.to_owned(), "a value that no header can have");
        }
        changes
    }

    fn parse_redirect(
        &mut self,
        at: &str,
        from: &gateway::HttpRequestRedirect,
    ) -> Result<HttpRedirect, FieldError> {
        self.note_unknown_fields(at, &from.other);
        let status = from.status_code.unwrap_or(302);
        if !matches!(status, 301 | 302 | 303 | 307 | 308) {
            let what = format!("{status} is none of 301, 302, 303, 307 and 308");
            self.mark_unsupported(format!("{at}.statusCode"), &what);
        }
        if !matches!(from.scheme.as_deref(), None | Some("http" | "https")) {
            self.mark_unsupported(format!("{at}.scheme"), "is neither http nor https");
        }
        let port = from.port.map(references::parse_port).transpose();
        Ok(HttpRedirect {
            scheme: from.scheme.as_deref().map(ArcStr::from),
            hostname: parse_hostname(at, from.hostname.as_deref())?,
            port: port.map_err(|error| FieldError::new(format!("{at}.port"), error))?,
            path: self.parse_path_change(at, from.path.as_ref())?,
            status: u16::try_from(status).unwrap_or_default(),
        })
    }

    fn parse_path_change(
        &mut self,
        at: &str,
        from: Option<&HttpPathModifier>,
    ) -> Result<Option<PathChange>, FieldError> {
        let Some(from) = from else { return Ok(None) };
        let at = format!("{at}.path");
        self.note_unknown_fields(&at, &from.other);
        let (name, text) = match from.type_.as_str() {
            "ReplaceFullPath" => ("replaceFullPath", &from.replace_full_path),
            "ReplacePrefixMatch" => ("replacePrefixMatch", &from.replace_prefix_match),
            other => {
                self.mark_unsupported(at, &format!("{other:?} is not supported"));
                return Ok(None);
            }
        };
        let at = format!("{at}.{name}");
        let text = text.as_deref();
        let text = text.ok_or_else(|| FieldError::new(at.as_str(), "is needed"))?;
        let is_prefix = name == "replacePrefixMatch";
        let is_path = text.starts_with('/') || (is_prefix && text.is_empty());
        if !is_path || text.contains(['?', '#']) {
            let message = format!("{text:?} is no path: it begins with a slash and has no query");
            return Err(FieldError::new(at, message));
        }
        Ok(Some(match (is_prefix, self.matches_text_prefixes) {
            (true, true) => PathChange::Matched(text.into()),
            (true, false) => PathChange::Prefix(text.into()),
            (false, _) => PathChange::Full(text.into()),
        }))
    }
}

fn parse_hostname(at: &str, text: Option<&str>) -> Result<Option<ArcStr>, FieldError> {
    match text {
        Some(text) if !ambit_k8s_api::is_dns_name(text, 253) => Err(FieldError::new(
            format!("{at}.hostname"),
            format!("{text:?} is no host name"),
        )),
        text => Ok(text.map(ArcStr::from)),
    }
}

/// Whether a string is a valid header value.
fn is_header_value(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte == b'\t' || (b' '..0x7f).contains(&byte))
}
