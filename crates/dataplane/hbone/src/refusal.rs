//! Header that names the policies for which a node proxy refuses a tunnel.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Response header with the policies that deny the tunnel, as `namespace/name`, separated by commas.
pub const REFUSED_BY_HEADER: HeaderName = HeaderName::from_static("x-ambit-refused-by");

/// Maximum policies that the header names.
const MAX_NAMED_POLICIES: usize = 4;
/// Maximum length of an accepted header value, in bytes: [`MAX_NAMED_POLICIES`] names of maximum length.
const MAX_HEADER_VALUE_BYTES: usize = MAX_NAMED_POLICIES * (63 + 1 + 253 + 2);

/// Returns the header that names up to [`MAX_NAMED_POLICIES`] of `policies`; an empty map without
/// policies.
pub fn header_with_policies<'a>(policies: impl IntoIterator<Item = &'a str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let named: Vec<_> = policies.into_iter().take(MAX_NAMED_POLICIES).collect();
    if named.is_empty() {
        return headers;
    }
    if let Ok(value) = HeaderValue::from_str(&named.join(", ")) {
        headers.insert(REFUSED_BY_HEADER, value);
    }
    headers
}

/// Returns the policies that a response's header names. Values with characters that are invalid in policy names are
/// ignored, since the text appears in logs and responses.
pub(crate) fn policies_in_header(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(REFUSED_BY_HEADER)?.to_str().ok()?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
    let mut names = value.split(", ");
    let is_list = names.all(|name| !name.is_empty() && name.bytes().all(is_name));
    (value.len() <= MAX_HEADER_VALUE_BYTES && is_list).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_named_and_read_back() {
        let headers = header_with_policies(["shop/a", "shop/b"]);
        assert_eq!(
            policies_in_header(&headers).as_deref(),
            Some("shop/a, shop/b")
        );
        assert!(header_with_policies([]).is_empty());
        assert_eq!(
            policies_in_header(&header_with_policies(["a/b"; 9]))
                .unwrap()
                .matches('/')
                .count(),
            4
        );
    }

    #[test]
    fn invalid_policy_names_are_ignored() {
        let long = "a".repeat(MAX_HEADER_VALUE_BYTES + 1);
        for value in ["", "a b", "a,b", "<script>", "a/b\tc", "a/b, ", &long] {
            let mut headers = HeaderMap::new();
            headers.insert(REFUSED_BY_HEADER, HeaderValue::from_str(value).unwrap());
            assert_eq!(policies_in_header(&headers), None, "{value}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(
            REFUSED_BY_HEADER,
            HeaderValue::from_bytes(b"shop/\xff").unwrap(),
        );
        assert_eq!(policies_in_header(&headers), None);
    }
}
