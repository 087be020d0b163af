//! Readings of headers: their lines, the elements of lists, and names that many applications treat as equal.

use ambit_model::StringMatch;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{reading::ReadingMode, text::matches_bytes};

/// Headers whose values may contain commas that do not separate list elements.
const NON_LIST_HEADERS: [HeaderName; 9] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::DATE,
    header::EXPIRES,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
    header::PROXY_AUTHORIZATION,
    header::REFERER,
    header::USER_AGENT,
];

/// Returns the lines of a header in any spelling of its name. Applications that receive headers as variables (CGI,
/// WSGI, PHP) do not distinguish underscores from hyphens.
pub(crate) fn header_lines<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a [u8]> {
    let all = headers
        .iter()
        .filter(|(other, _)| is_same_name(other, name));
    all.map(|(_, value)| value.as_bytes())
}

/// Whether two header names are equal to applications that receive headers as variables.
pub(crate) fn is_same_name(one: &HeaderName, other: &HeaderName) -> bool {
    let fold = |byte: u8| if byte == b'_' { b'-' } else { byte };
    let (one, other) = (one.as_str(), other.as_str());
    one.len() == other.len() && one.bytes().map(fold).eq(other.bytes().map(fold))
}

/// Maximum number of spellings of one header name in a request for which all orders of its lines are compared.
const MAX_HEADER_NAME_SPELLINGS: usize = 3;

/// Whether any text matches that an application may take for the header's value. True for a request with more than
/// [`MAX_HEADER_NAME_SPELLINGS`] spellings of the name.
pub(crate) fn any_header_text_matches(
    headers: &HeaderMap,
    name: &HeaderName,
    matches: impl Fn(&[u8]) -> bool,
) -> bool {
    let lines = || header_lines(headers, name);
    lines().any(&matches)
        || lines()
            .flat_map(|line| list_elements(name, line))
            .any(&matches)
        || lines().nth(1).is_some() && any_joined_text_matches(headers, name, matches)
}

/// Whether the joined lines of a header match, in any order of the spellings of its name: a filter that removes a
/// header changes the order in which the others are sent.
fn any_joined_text_matches(
    headers: &HeaderMap,
    name: &HeaderName,
    matches: impl Fn(&[u8]) -> bool,
) -> bool {
    let spellings = headers.keys().filter(|other| is_same_name(other, name));
    let mut lines: Vec<Vec<&[u8]>> = spellings
        .map(|spelling| {
            let lines = headers.get_all(spelling).iter();
            lines.map(HeaderValue::as_bytes).collect()
        })
        .collect();
    if lines.len() > MAX_HEADER_NAME_SPELLINGS {
        return true;
    }
    let any_separator_matches = |lines: &[Vec<&[u8]>]| {
        let mut separators = list_separators(name).iter();
        separators.any(|separator| matches(&lines.concat().join(*separator)))
    };
    // The rotations of up to three lines, forwards and backwards, are all their orders.
    (0..lines.len()).any(|_| {
        lines.rotate_left(1);
        let backwards: Vec<_> = lines.iter().rev().cloned().collect();
        any_separator_matches(&lines) || any_separator_matches(&backwards)
    })
}

pub(super) fn header_matches(
    headers: &HeaderMap,
    name: &HeaderName,
    pattern: &StringMatch,
    reading: ReadingMode,
) -> bool {
    if *pattern == StringMatch::Presence {
        return match reading {
            ReadingMode::AnyReading => header_lines(headers, name).next().is_some(),
            ReadingMode::AllReadings | ReadingMode::DenialException => headers.contains_key(name),
        };
    }
    match reading {
        ReadingMode::AnyReading => {
            any_header_text_matches(headers, name, |text| matches_bytes(pattern, text))
        }
        ReadingMode::AllReadings | ReadingMode::DenialException => {
            joined_value_matches(headers, name, pattern)
        }
    }
}

/// Whether the joined lines of a header match, each line, and also each list element if a wildcard in the pattern might
/// match other elements.
fn joined_value_matches(headers: &HeaderMap, name: &HeaderName, pattern: &StringMatch) -> bool {
    let own: Vec<_> = headers
        .get_all(name)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    let separator = list_separators(name).first().copied().unwrap_or_default();
    if own.is_empty() || !matches_bytes(pattern, &own.join(separator)) {
        return false;
    }
    if *name == header::COOKIE {
        return true;
    }
    let has_wildcard = matches!(pattern, StringMatch::Prefix(_) | StringMatch::Suffix(_));
    let is_list = has_wildcard && !NON_LIST_HEADERS.contains(name);
    header_lines(headers, name).all(|line| {
        let mut elements = list_elements(name, line);
        matches_bytes(pattern, line)
            && (!is_list || elements.all(|element| matches_bytes(pattern, element)))
    })
}

/// Returns the list elements of a header line, each also without its parameters and quotes.
fn list_elements<'a>(name: &HeaderName, line: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let separator = if *name == header::COOKIE { b';' } else { b',' };
    let elements = line
        .split(move |byte| *byte == separator)
        .map(<[u8]>::trim_ascii);
    elements.flat_map(|whole| {
        let bare = whole.split(|byte| *byte == b';').next().unwrap_or_default();
        let bare = bare.trim_ascii();
        let unquoted = bare
            .strip_prefix(b"\"")
            .and_then(|rest| rest.strip_suffix(b"\""));
        [
            Some(whole),
            Some(bare).filter(|bare| *bare != whole),
            unquoted,
        ]
        .into_iter()
        .flatten()
    })
}

/// Returns the separators with which servers may join the lines of a header.
fn list_separators(name: &HeaderName) -> &'static [&'static [u8]] {
    if *name == header::COOKIE {
        &[b"; "]
    } else {
        &[b",", b", "]
    }
}
