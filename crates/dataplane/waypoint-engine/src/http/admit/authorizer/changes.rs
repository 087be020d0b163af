//! Applies an authorization provider's changes to the headers and the query of a request, within limits.

use ambit_wire::ext_authz::{HeaderAction, HeaderMutation};
use http::{HeaderMap, HeaderName, HeaderValue, uri::PathAndQuery};

use crate::headers::{is_mutable_header, join_cookies};

/// Maximum number of header lines of a request, and their total size in bytes, after an authorization provider's
/// changes.
const MAX_HEADERS: usize = 200;
const MAX_HEADER_BYTES: usize = 64 << 10;

fn parse_mutable_header(text: &str) -> Option<HeaderName> {
    let name = HeaderName::from_bytes(text.as_bytes()).ok();
    name.filter(is_mutable_header)
}

/// Applies header changes of an authorization provider. Returns the number of rejected changes: of headers that
/// providers may not set, or with invalid names or values.
pub(in crate::http) fn apply_header_changes(
    headers: &mut HeaderMap,
    changes: &[HeaderMutation],
) -> u64 {
    let mut refused = 0;
    for change in changes {
        let value = HeaderValue::from_bytes(&change.value).ok();
        let Some((name, value)) = parse_mutable_header(&change.name).zip(value) else {
            refused += 1;
            continue;
        };
        let is_there = headers.contains_key(&name);
        let done = match change.action {
            HeaderAction::Set => headers.try_insert(name, value).map(drop),
            HeaderAction::Append => headers.try_append(name, value).map(drop),
            HeaderAction::AddIfAbsent if !is_there => headers.try_insert(name, value).map(drop),
            HeaderAction::SetIfPresent if is_there => headers.try_insert(name, value).map(drop),
            HeaderAction::AddIfAbsent | HeaderAction::SetIfPresent => Ok(()),
        };
        refused += u64::from(done.is_err());
    }
    // Appended cookies must not be a second line.
    join_cookies(headers);
    refused
}

/// Removes headers that an authorization provider names. Returns the number of rejected removals.
pub(super) fn remove_headers(headers: &mut HeaderMap, names: &[String]) -> u64 {
    let mut refused = 0;
    for name in names {
        match parse_mutable_header(name) {
            Some(name) => drop(headers.remove(name)),
            None => refused += 1,
        }
    }
    refused
}

/// Whether the headers of a changed request are within [`MAX_HEADERS`] and [`MAX_HEADER_BYTES`].
pub(super) fn is_within_limits(headers: &HeaderMap) -> bool {
    let bytes = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    headers.len() <= MAX_HEADERS && bytes.sum::<usize>() <= MAX_HEADER_BYTES
}

/// Applies a provider's changes to the query parameters of a request target; `None` if the result is invalid.
pub(super) fn apply_query_changes(
    target: &PathAndQuery,
    set: &[(String, String)],
    remove: &[String],
) -> Option<PathAndQuery> {
    if set.is_empty() && remove.is_empty() {
        return Some(target.clone());
    }
    let name = |pair: &str| pair.split('=').next().unwrap_or_default().to_owned();
    let goes = |pair: &&str| {
        let name = name(pair);
        remove.contains(&name) || set.iter().any(|(set, _)| percent_encode(set) == name)
    };
    let pairs = target
        .query()
        .into_iter()
        .flat_map(|query| query.split('&'));
    let mut pairs: Vec<String> = pairs
        .filter(|pair| !goes(pair))
        .map(str::to_owned)
        .collect();
    let added = set
        .iter()
        .map(|(name, value)| format!("{}={}", percent_encode(name), percent_encode(value)));
    pairs.extend(added);
    let path = target.path();
    let text = match pairs.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", pairs.join("&")),
    };
    text.try_into().ok()
}

/// Percent-encodes every byte that is neither a letter nor a digit.
fn percent_encode(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_mutation(name: &str, value: &str, action: HeaderAction) -> HeaderMutation {
        HeaderMutation {
            name: name.to_owned(),
            value: value.as_bytes().to_vec(),
            action,
        }
    }

    #[test]
    fn appended_cookie_is_joined_to_the_header() {
        let mut headers = HeaderMap::new();
        headers.insert("cookie", HeaderValue::from_static("a=1"));
        let appended = header_mutation("cookie", "b=2", HeaderAction::Append);
        assert_eq!(apply_header_changes(&mut headers, &[appended]), 0);
        let lines: Vec<_> = headers.get_all("cookie").iter().collect();
        assert_eq!(lines, ["a=1; b=2"]);
    }

    #[test]
    fn provider_cannot_set_identity_or_framing_headers() {
        for name in [
            ":authority",
            "Host",
            "connection",
            "Transfer-Encoding",
            "content-length",
            "expect",
            "te",
            "upgrade",
            "trailer",
            "x-forwarded-client-cert",
            "x-ambit-original-peer",
            "x-ambit-waypoints-passed",
            "X_Forwarded_Client_Cert",
            "x_ambit_original_peer",
            "x-envoy-internal",
            "forwarded",
            "x-forwarded-for",
            "x_forwarded_for",
            "content_length",
            "bad name",
        ] {
            let mut headers = HeaderMap::new();
            assert_eq!(
                apply_header_changes(
                    &mut headers,
                    &[header_mutation(name, "x", HeaderAction::Set)]
                ),
                1,
                "{name}"
            );
            assert!(headers.is_empty());
            assert_eq!(
                remove_headers(&mut headers, &[name.to_owned()]),
                1,
                "{name}"
            );
        }
        let mut headers = HeaderMap::new();
        assert_eq!(
            apply_header_changes(
                &mut headers,
                &[header_mutation("x", "a\nb", HeaderAction::Set)]
            ),
            1
        );
    }

    #[test]
    fn headers_are_set_by_their_append_action() {
        let mut headers = HeaderMap::new();
        let changes = [
            header_mutation("A", "1", HeaderAction::Set),
            header_mutation("a", "2", HeaderAction::Append),
            header_mutation("b", "1", HeaderAction::AddIfAbsent),
            header_mutation("b", "2", HeaderAction::AddIfAbsent),
            header_mutation("c", "1", HeaderAction::SetIfPresent),
            header_mutation("b", "3", HeaderAction::SetIfPresent),
        ];
        assert_eq!(apply_header_changes(&mut headers, &changes), 0);
        let of = |name| headers.get_all(name).iter().collect::<Vec<_>>();
        assert_eq!(of("a"), ["1", "2"]);
        assert_eq!(of("b"), ["3"]);
        assert!(of("c").is_empty());
    }

    #[test]
    fn parameters_are_set_and_removed() {
        let of = |target: &str, set: &[(&str, &str)], remove: &[&str]| {
            let set: Vec<_> = set
                .iter()
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
                .collect();
            let remove: Vec<_> = remove.iter().map(|a| (*a).to_owned()).collect();
            apply_query_changes(&target.try_into().unwrap(), &set, &remove)
                .unwrap()
                .to_string()
        };
        assert_eq!(of("/a?b=1", &[], &[]), "/a?b=1");
        assert_eq!(of("/a?b=1&c=2&b=3", &[], &["b"]), "/a?c=2");
        assert_eq!(of("/a?b=1", &[], &["b"]), "/a");
        assert_eq!(of("/a?b=1&b=2", &[("b", "x y&z")], &[]), "/a?b=x%20y%26z");
    }

    #[test]
    fn provider_headers_are_bounded() {
        let mut headers = HeaderMap::new();
        assert!(is_within_limits(&headers));
        headers.insert(
            "x",
            HeaderValue::from_str(&"a".repeat(MAX_HEADER_BYTES)).unwrap(),
        );
        assert!(!is_within_limits(&headers));
    }
}
