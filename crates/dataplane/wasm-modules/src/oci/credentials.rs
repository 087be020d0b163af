//! Credentials for a registry from a pull secret (`.dockerconfigjson`).

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use serde_json::Value;

use super::error::OciError;

/// Returns the `Authorization` header for a repository, from the entry of its registry that has the longest matching
/// path.
pub(super) fn find_credentials(
    secret: &[u8],
    registry: &str,
    repository: &str,
) -> Result<Option<HeaderValue>, OciError> {
    if secret.is_empty() {
        return Ok(None);
    }
    let secret: Value = serde_json::from_slice(secret).map_err(|_| OciError::InvalidPullSecret)?;
    let auths = secret.get("auths").and_then(Value::as_object);
    let auths = auths.ok_or(OciError::InvalidPullSecret)?.iter();
    let fitting = auths.filter_map(|(key, auth)| Some((registry_path(key, registry)?, auth)));
    let fitting = fitting.filter(|(path, _)| {
        let rest = repository.strip_prefix(path);
        path.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    let Some((_, auth)) = fitting.max_by_key(|(path, _)| path.len()) else {
        return Ok(None);
    };
    let text = |name: &str| {
        let text = auth.get(name).and_then(Value::as_str);
        text.filter(|text| !text.is_empty())
    };
    let basic = match (text("auth"), text("username"), text("password")) {
        (Some(auth), ..) => auth.to_owned(),
        (None, Some(user), Some(password)) => BASE64_STANDARD.encode(format!("{user}:{password}")),
        _ => return Err(OciError::InvalidPullSecret),
    };
    let mut value = HeaderValue::from_str(&format!("Basic {basic}"))
        .map_err(|_| OciError::InvalidPullSecret)?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Returns the path of a pull secret's entry, if the entry is for the registry.
fn registry_path<'a>(key: &'a str, registry: &str) -> Option<&'a str> {
    let key = key
        .strip_prefix("https://")
        .or_else(|| key.strip_prefix("http://"))
        .unwrap_or(key);
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    let host = match host {
        "docker.io" | "index.docker.io" => "registry-1.docker.io",
        host => host,
    };
    let path = path.trim_end_matches('/');
    // Versions of the API, which some clients write as a path.
    let path = if matches!(path, "v1" | "v2") {
        ""
    } else {
        path
    };
    (host == registry).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_secret_is_for_its_registry_only() {
        let secret = br#"{"auths": {
            "https://index.docker.io/v1/": {"auth": "ZG9ja2VyOmh1Yg=="},
            "r.example/team": {"auth": "dGVhbTp0ZWFt"},
            "r.example": {"username": "u", "password": "p"}}}"#;
        let of = |registry, repository| {
            let found = find_credentials(secret, registry, repository).unwrap();
            found.map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(of("r.example", "a").unwrap(), "Basic dTpw");
        assert_eq!(of("r.example", "teams/a").unwrap(), "Basic dTpw");
        assert_eq!(of("r.example", "team/a").unwrap(), "Basic dGVhbTp0ZWFt");
        assert_eq!(
            of("registry-1.docker.io", "a").unwrap(),
            "Basic ZG9ja2VyOmh1Yg=="
        );
        for other in ["evil.r.example", "r.example:5000", "r.example.evil"] {
            assert_eq!(of(other, "a"), None, "{other}");
        }
        assert_eq!(find_credentials(b"", "r.example", "a").unwrap(), None);
        for wrong in [
            &b"{"[..],
            b"{}",
            br#"{"auths": {"r.example": {}}}"#,
            br#"{"auths": {"r.example": {"auth": "", "identitytoken": "t"}}}"#,
        ] {
            let read = find_credentials(wrong, "r.example", "a");
            assert!(matches!(read, Err(OciError::InvalidPullSecret)), "{read:?}");
        }
        // The password is not printed either.
        let value = find_credentials(secret, "r.example", "a").unwrap();
        assert_eq!(format!("{value:?}"), "Some(Sensitive)");
    }
}
