//! Parsing of the CORS filter.

use ambit_k8s_api::gateway::HttpCorsFilter;
use ambit_model::{ArcStr, HttpCors};
use regex::Regex;

use crate::{
    objects::route::reader::{RuleReader, is_token},
    problem::FieldError,
};

/// Maximum number of entries of a list in the CORS filter, as in the Gateway API.
const MAX_LIST_ENTRIES: usize = 64;
/// Default in seconds of `maxAge`, the time for which browsers cache preflight responses, as in the Gateway API.
const DEFAULT_MAX_AGE_SECONDS: i32 = 5;
/// Regular expression of an origin in the Gateway API, which may have a port.
const ORIGIN_PATTERN: &str =
    r"^https?://(?:(?:\*\.)?(?:[a-zA-Z0-9-]+\.)*[a-zA-Z0-9-]+|\*)(?::([0-9]{1,5}))?$";

/// Predicate that validates an entry of a list in the CORS filter.
type EntryPredicate = fn(&str) -> bool;

/// Parses the CORS filter of a rule. Unsupported values make the rule unusable.
pub(crate) fn read(
    reader: &mut RuleReader<'_>,
    at: &str,
    from: &HttpCorsFilter,
) -> Result<HttpCors, FieldError> {
    reader.note_unknown_fields(at, &from.other);
    let max_age = from.max_age.unwrap_or(DEFAULT_MAX_AGE_SECONDS);
    let max_age = u32::try_from(max_age).ok().filter(|age| *age > 0);
    let max_age = max_age
        .ok_or_else(|| FieldError::new(format!("{at}.maxAge"), "is not a number of seconds"))?;
    let lists: [(_, &[String], EntryPredicate); 4] = [
        ("allowOrigins", &from.allow_origins, is_origin),
        ("allowMethods", &from.allow_methods, is_token),
        ("allowHeaders", &from.allow_headers, is_token),
        ("exposeHeaders", &from.expose_headers, is_token),
    ];
    for (name, list, is_one) in lists {
        let at = format!("{at}.{name}");
        if list.len() > MAX_LIST_ENTRIES {
            let message = format!("{} are too many: at most {MAX_LIST_ENTRIES}", list.len());
            return Err(FieldError::new(at, message));
        }
        let has_star = list.iter().any(|text| text == "*");
        if has_star && list.len() > 1 && name != "exposeHeaders" {
            reader.mark_unsupported(at.clone(), "* must be the only value");
        }
        for text in list.iter().filter(|text| *text != "*" && !is_one(text)) {
            reader.mark_unsupported(at.clone(), &format!("{text:?} is not valid here"));
        }
    }
    let texts = |list: &[String]| {
        list.iter()
            .map(|text| ArcStr::from(text.as_str()))
            .collect()
    };
    Ok(HttpCors {
        allow_origins: texts(&from.allow_origins),
        allow_credentials: from.allow_credentials.unwrap_or(false),
        allow_methods: texts(&from.allow_methods),
        allow_headers: texts(&from.allow_headers),
        expose_headers: texts(&from.expose_headers),
        max_age,
    })
}

fn is_origin(text: &str) -> bool {
    let pattern = Regex::new(ORIGIN_PATTERN).ok();
    let found = pattern.as_ref().and_then(|pattern| pattern.captures(text));
    let port = found.map(|found| found.get(1).map(|port| port.as_str().parse::<u16>()));
    match port {
        Some(Some(port)) => port.is_ok_and(|port| port != 0),
        Some(None) => true,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_as_the_api_has_them() {
        for text in [
            "http://a",
            "https://*",
            "https://*.a.b:8443",
            "http://10.0.0.1",
        ] {
            assert!(is_origin(text), "{text}");
        }
        for text in [
            "",
            "a",
            "null",
            "ftp://a",
            "https://a/",
            "https://*a",
            "https://a.*",
            "https://a:0",
            "https://a:99999",
            "https://a\n",
        ] {
            assert!(!is_origin(text), "{text:?}");
        }
    }
}
