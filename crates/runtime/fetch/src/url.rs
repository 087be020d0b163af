//! Parses URLs of resources, and redirects to them.

use http::Uri;

use crate::error::FetchError;

/// Parses a URL with a host and the scheme http or https.
pub(crate) fn parse(url: &str) -> Result<Uri, FetchError> {
    let uri: Option<Uri> = url.parse().ok();
    let is_server = |uri: &Uri| {
        let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
        scheme && uri.host().is_some_and(|host| !host.is_empty())
    };
    uri.filter(is_server)
        .ok_or_else(|| FetchError::InvalidUrl(without_query(url)))
}

fn without_query(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    url.get(..end).unwrap_or_default().to_owned()
}

/// Formats a URL without its query, for error messages.
pub(crate) fn format_without_query(uri: &Uri) -> String {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let scheme = uri.scheme_str().unwrap_or_default();
    format!("{scheme}://{authority}{}", uri.path())
}

/// Returns the target of a redirect; an error for a redirect from TLS to plaintext.
pub(crate) fn redirect_target(from: &Uri, location: &str) -> Result<Uri, FetchError> {
    let to = if location.starts_with('/') && !location.starts_with("//") {
        let (scheme, authority) = (from.scheme_str(), from.authority());
        let (Some(scheme), Some(authority)) = (scheme, authority) else {
            return Err(FetchError::InvalidUrl(without_query(location)));
        };
        parse(&format!("{scheme}://{authority}{location}"))?
    } else {
        parse(location)?
    };
    if from.scheme_str() == Some("https") && to.scheme_str() != Some("https") {
        return Err(FetchError::TlsDowngrade);
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_to_servers_and_never_out_of_tls() {
        let from: Uri = "https://a.example:1/x?y".parse().unwrap();
        let to = |location| redirect_target(&from, location).map(|to| to.to_string());
        assert_eq!(to("/z").unwrap(), "https://a.example:1/z");
        assert_eq!(to("https://b.example/").unwrap(), "https://b.example/");
        assert!(matches!(
            to("http://a.example/"),
            Err(FetchError::TlsDowngrade)
        ));
        for wrong in ["", "z", "file:///etc/passwd", "//b.example/"] {
            assert!(
                matches!(to(wrong), Err(FetchError::InvalidUrl(_))),
                "{wrong:?}"
            );
        }
    }
}
