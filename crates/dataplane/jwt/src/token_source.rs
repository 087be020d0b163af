//! Locations of tokens in requests (headers, query parameters, cookies): finds and removes the tokens there.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::token::TokenError;

/// Location of a token in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenSource {
    /// Header with this name, and the prefix before the token, such as `Bearer `.
    Header(HeaderName, String),
    /// Query parameter of this name.
    QueryParameter(String),
    /// Cookie of this name.
    Cookie(String),
}

/// Default query parameter of tokens (RFC 6750, section 2.3).
const DEFAULT_QUERY_PARAMETER: &str = "access_token";

impl TokenSource {
    /// Returns the default locations of tokens, for rules that configure none.
    pub(crate) fn default_sources() -> Vec<Self> {
        vec![
            Self::Header(header::AUTHORIZATION, "Bearer ".to_owned()),
            Self::QueryParameter(DEFAULT_QUERY_PARAMETER.to_owned()),
        ]
    }

    /// Returns the token at this location of a request; an empty token counts as missing.
    ///
    /// # Errors
    ///
    /// When there are several tokens, or the value cannot be a token.
    pub(crate) fn find_token<'a>(
        &self,
        headers: &'a HeaderMap,
        query: Option<&'a str>,
    ) -> Result<Option<Cow<'a, str>>, TokenError> {
        match self {
            Self::Header(name, prefix) => {
                let lines = headers.get_all(name).iter();
                single_token(lines.filter_map(|line| strip_header_prefix(prefix, line)))
            }
            Self::QueryParameter(name) => {
                let parameters = query_parameters(query.unwrap_or_default());
                let named = parameters.filter(|(key, _)| percent_decode(key) == name.as_bytes());
                single_token(named.map(|(_, value)| utf8_text(percent_decode(value))))
            }
            Self::Cookie(name) => {
                let lines = headers.get_all(header::COOKIE).iter();
                let cookies = lines.flat_map(|line| parse_cookies(line.as_bytes()));
                let named = cookies.filter(|(key, _)| *key == name.as_bytes());
                single_token(named.map(|(_, value)| utf8_text(Cow::Borrowed(value))))
            }
        }
    }

    /// Removes the tokens at this location from the request's headers.
    pub(crate) fn remove_from_headers(&self, headers: &mut HeaderMap) {
        match self {
            Self::Header(name, prefix) => {
                rewrite_header_lines(headers, name, |line| {
                    match strip_header_prefix(prefix, line) {
                        Some(_) => None,
                        None => Some(line.clone()),
                    }
                });
            }
            Self::Cookie(name) => {
                rewrite_header_lines(headers, &header::COOKIE, |line| {
                    let mut others = Vec::new();
                    let mut is_there = false;
                    for (key, value) in parse_cookies(line.as_bytes()) {
                        if key == name.as_bytes() {
                            is_there = true;
                            continue;
                        }
                        let separator: &[u8] = if others.is_empty() { b"" } else { b"; " };
                        others.extend([separator, key, b"=", value].concat());
                    }
                    match (is_there, others.is_empty()) {
                        (false, _) => Some(line.clone()),
                        (true, true) => None,
                        (true, false) => HeaderValue::from_bytes(&others).ok(),
                    }
                });
            }
            Self::QueryParameter(_) => {}
        }
    }

    /// Returns the query string without the tokens at this location; `None` if no parameter is left.
    pub(crate) fn remove_from_query(&self, query: &str) -> Option<String> {
        let Self::QueryParameter(name) = self else {
            return (!query.is_empty()).then(|| query.to_owned());
        };
        let others = query.split('&').filter(|one| {
            let key = one.split('=').next().unwrap_or_default();
            percent_decode(key) != name.as_bytes()
        });
        let others: Vec<_> = others.collect();
        (!others.is_empty()).then(|| others.join("&"))
    }
}

/// Returns the only token among `all`; repetitions of the same token count as one.
fn single_token<'a>(
    tokens: impl Iterator<Item = Result<Cow<'a, str>, TokenError>>,
) -> Result<Option<Cow<'a, str>>, TokenError> {
    let mut found: Option<Cow<'a, str>> = None;
    for one in tokens {
        let one = one?;
        match &found {
            _ if one.is_empty() => {}
            Some(other) if *other != one => return Err(TokenError::MultipleTokens),
            _ => found = Some(one),
        }
    }
    Ok(found)
}

/// Returns the part of a header line after a prefix. Ignores the prefix's case, since servers that read the header
/// later may do so, too.
fn strip_header_prefix<'a>(
    prefix: &str,
    line: &'a HeaderValue,
) -> Option<Result<Cow<'a, str>, TokenError>> {
    let line = line.as_bytes();
    let begins = line.get(..prefix.len())?;
    let rest = line.get(prefix.len()..)?;
    begins
        .eq_ignore_ascii_case(prefix.as_bytes())
        .then(|| utf8_text(Cow::Borrowed(rest.trim_ascii())))
}

fn utf8_text(bytes: Cow<'_, [u8]>) -> Result<Cow<'_, str>, TokenError> {
    match bytes {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes)
            .map(Cow::Borrowed)
            .map_err(|_| TokenError::Malformed),
        Cow::Owned(bytes) => String::from_utf8(bytes)
            .map(Cow::Owned)
            .map_err(|_| TokenError::Malformed),
    }
}

fn query_parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let all = query.split('&');
    all.map(|one| one.split_once('=').unwrap_or((one, "")))
}

/// Percent-decodes a name or value of a query string.
fn percent_decode(text: &str) -> Cow<'_, [u8]> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text.as_bytes());
    }
    let hex = |byte: &u8| {
        char::from(*byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let mut read = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'+', _) => read.push(b' '),
            (b'%', [high, low, left @ ..]) if hex(high).is_some() && hex(low).is_some() => {
                let (high, low) = (hex(high).unwrap_or_default(), hex(low).unwrap_or_default());
                read.push(high << 4 | low);
                rest = left;
            }
            _ => read.push(*first),
        }
    }
    Cow::Owned(read)
}

fn parse_cookies(line: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let all = line.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    all.filter(|one| !one.is_empty()).map(|one| {
        let at = one.iter().position(|byte| *byte == b'=');
        let (key, value) = one.split_at(at.unwrap_or(one.len()));
        (
            key.trim_ascii(),
            value.get(1..).unwrap_or_default().trim_ascii(),
        )
    })
}

/// Replaces each line of a header by the result of `left`, or removes it if the result is `None`.
pub(crate) fn rewrite_header_lines(
    headers: &mut HeaderMap,
    name: &HeaderName,
    rewrite_line: impl Fn(&HeaderValue) -> Option<HeaderValue>,
) {
    let remaining: Vec<_> = headers
        .get_all(name)
        .iter()
        .filter_map(rewrite_line)
        .collect();
    headers.remove(name);
    for line in remaining {
        headers.append(name, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        lines.iter().map(line).collect()
    }

    fn found_tokens(
        source: &TokenSource,
        headers: &HeaderMap,
        query: &str,
    ) -> Result<Option<String>, TokenError> {
        let found = source.find_token(headers, Some(query))?;
        Ok(found.map(Cow::into_owned))
    }

    #[test]
    fn token_follows_its_prefix_in_any_case() {
        let source = TokenSource::Header(header::AUTHORIZATION, "Bearer ".into());
        for (lines, token) in [
            (&[("authorization", "Bearer a.b.c")][..], Ok(Some("a.b.c"))),
            (&[("authorization", "bEARER   a.b.c ")], Ok(Some("a.b.c"))),
            (&[("authorization", "Basic a.b.c")], Ok(None)),
            (&[("authorization", "Bearer")], Ok(None)),
            (
                &[("authorization", "Bearer a"), ("authorization", "Bearer a")],
                Ok(Some("a")),
            ),
            (
                &[("authorization", "Bearer a"), ("authorization", "bearer b")],
                Err(TokenError::MultipleTokens),
            ),
            (&[], Ok(None)),
        ] {
            let token = token.map(|one| one.map(str::to_owned));
            assert_eq!(
                found_tokens(&source, &headers(lines), ""),
                token,
                "{lines:?}"
            );
        }
    }

    #[test]
    fn parameters_and_cookies_are_found_as_applications_find_them() {
        let param = TokenSource::QueryParameter("access_token".into());
        let none = HeaderMap::new();
        assert_eq!(
            found_tokens(&param, &none, "x=1&access_token=a.b.c"),
            Ok(Some("a.b.c".into()))
        );
        assert_eq!(
            found_tokens(&param, &none, "access%5Ftoken=a%2Eb.c&y"),
            Ok(Some("a.b.c".into()))
        );
        assert_eq!(
            found_tokens(&param, &none, "access_token=a&access_token=b"),
            Err(TokenError::MultipleTokens)
        );
        assert_eq!(
            found_tokens(&param, &none, "access_token=&access_token"),
            Ok(None)
        );
        assert_eq!(found_tokens(&param, &none, "xaccess_token=a"), Ok(None));
        assert_eq!(
            param
                .remove_from_query("x=1&access%5Ftoken=a&y=2")
                .as_deref(),
            Some("x=1&y=2")
        );
        assert_eq!(param.remove_from_query("access_token=a"), None);
        let cookie = TokenSource::Cookie("t".into());
        let mut sent = headers(&[
            ("cookie", "a=1; t=x; b=2"),
            ("cookie", "t=x"),
            ("cookie", "c=3"),
        ]);
        assert_eq!(found_tokens(&cookie, &sent, ""), Ok(Some("x".into())));
        cookie.remove_from_headers(&mut sent);
        assert_eq!(sent, headers(&[("cookie", "a=1; b=2"), ("cookie", "c=3")]));
        let two = headers(&[("cookie", "t=x; t=y")]);
        assert_eq!(
            found_tokens(&cookie, &two, ""),
            Err(TokenError::MultipleTokens)
        );
    }
}
