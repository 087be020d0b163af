//! Builds the HTTP request to predict from the command line's flags.

use std::{fs, path::Path};

use ambit_mesh_json::explain::HttpQuery;
use hyper::{
    Method,
    http::{HeaderName, HeaderValue, uri::PathAndQuery},
};

use super::args::RequestExplainArgs;
use crate::{CliError, ErrorKind};

/// Port of the request if `--to` has none.
const DEFAULT_PORT: u16 = 80;

fn usage_error(message: impl Into<String>) -> CliError {
    CliError::new(ErrorKind::Usage, message)
}

/// Parses host and port of `--to`; `namespace/service` becomes the host name `service.namespace`.
pub(super) fn parse_target(to: &str) -> Result<(String, u16), CliError> {
    let bad = || usage_error(format!("--to {to}: no HOST[:PORT]"));
    let is_ipv6 = to.parse::<std::net::Ipv6Addr>().is_ok();
    let (host, port) = match to.rsplit_once(':') {
        Some((host, port)) if !is_ipv6 => {
            let port = port.parse().ok().filter(|port| *port != 0);
            (host, port.ok_or_else(bad)?)
        }
        _ => (to, DEFAULT_PORT),
    };
    let host = host.strip_prefix('[').unwrap_or(host);
    let host = host.strip_suffix(']').unwrap_or(host);
    let host = match host.split_once('/') {
        Some((namespace, name)) => format!("{name}.{namespace}"),
        None => host.to_owned(),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.is_empty() || !host.chars().all(is_name) {
        return Err(bad());
    }
    Ok((host, port))
}

/// Builds the request that the client would send to a host and port.
pub(super) fn build_query(
    args: &RequestExplainArgs,
    host: &str,
    port: u16,
) -> Result<HttpQuery, CliError> {
    if Method::from_bytes(args.method.as_bytes()).is_err() {
        return Err(usage_error(format!(
            "-X {}: no method of HTTP",
            args.method
        )));
    }
    if !args.path.starts_with('/') || PathAndQuery::try_from(args.path.as_str()).is_err() {
        let what = format!(
            "--path {}: no path of HTTP; it begins with a slash",
            args.path
        );
        return Err(usage_error(what));
    }
    let mut headers = Vec::new();
    let mut named = None;
    for text in &args.headers {
        let (name, value) = parse_header(text)?;
        match name.as_str() {
            "host" => named = Some(value),
            _ => headers.push((name, value)),
        }
    }
    if let Some(file) = &args.token {
        if headers.iter().any(|(name, _)| name == "authorization") {
            return Err(usage_error(
                "--token and a header Authorization exclude each other",
            ));
        }
        headers.push((
            "authorization".to_owned(),
            format!("Bearer {}", read_token(file)?),
        ));
    }
    let own = match (host.contains(':'), port) {
        (true, DEFAULT_PORT) => format!("[{host}]"),
        (true, port) => format!("[{host}]:{port}"),
        (false, DEFAULT_PORT) => host.to_owned(),
        (false, port) => format!("{host}:{port}"),
    };
    Ok(HttpQuery {
        method: args.method.clone(),
        path: args.path.clone(),
        host: named.unwrap_or(own),
        headers,
    })
}

/// Parses a header line; the name becomes lower case. Errors do not repeat the value, which may be a secret.
fn parse_header(text: &str) -> Result<(String, String), CliError> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| usage_error("-H: a header is written as 'Name: value'"))?;
    let name = HeaderName::from_bytes(name.trim().as_bytes())
        .map_err(|_| usage_error(format!("-H: {:?} is no header's name", name.trim())))?;
    let value = value.trim();
    if HeaderValue::from_str(value).is_err() {
        return Err(usage_error(format!(
            "-H: the value of {name} is not valid in HTTP"
        )));
    }
    Ok((name.to_string(), value.to_owned()))
}

fn read_token(file: &Path) -> Result<String, CliError> {
    let text = fs::read_to_string(file).map_err(|error| {
        let what = format!("--token: cannot read {}", file.display());
        CliError::new(ErrorKind::NotFound, what).with_source(error)
    })?;
    let token = text.trim();
    if token.is_empty() || HeaderValue::from_str(token).is_err() {
        let what = format!("--token: {} holds no token", file.display());
        return Err(usage_error(what));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: RequestExplainArgs,
    }

    fn args(more: &[&str]) -> RequestExplainArgs {
        let line = [&["explain", "--from", "a/b", "--to", "orders"], more].concat();
        Line::try_parse_from(line).unwrap().args
    }

    #[test]
    fn targets_are_names_services_and_addresses() {
        for (text, host, port) in [
            ("orders", "orders", 80),
            ("orders.shop:8080", "orders.shop", 8080),
            ("shop/orders:81", "orders.shop", 81),
            ("10.0.0.1:80", "10.0.0.1", 80),
            ("[fd00::1]:81", "fd00::1", 81),
            ("fd00::1", "fd00::1", 80),
        ] {
            assert_eq!(
                parse_target(text).unwrap(),
                (host.to_owned(), port),
                "{text}"
            );
        }
        for bad in [
            "",
            "a b",
            "orders:",
            "orders:0",
            "orders:x",
            ":80",
            "http://a/b",
        ] {
            assert!(parse_target(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn flags_make_the_request_that_a_client_would_send() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "aa.bb.cc").unwrap();
        let path = file.path().to_str().unwrap();
        let flags = args(&[
            "-X", "POST", "--path", "/x?y=1", "-H", "X-A:  1", "--token", path,
        ]);
        let request = build_query(&flags, "orders", 81).unwrap();
        assert_eq!(request.host, "orders:81");
        assert_eq!(
            (request.method.as_str(), request.path.as_str()),
            ("POST", "/x?y=1")
        );
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = [
            header("x-a", "1"),
            header("authorization", "Bearer aa.bb.cc"),
        ];
        assert_eq!(request.headers, expected);
        assert!(!format!("{request:?}").contains("aa.bb.cc"));
    }

    #[test]
    fn errors_name_the_flag_and_repeat_no_value_of_a_header() {
        for (flags, expected) in [
            (&["-H", "no-colon-secret"][..], "'Name: value'"),
            (&["-H", "a b: secret"], "no header's name"),
            (&["-H", "x-a: sec\u{1}ret"], "the value of x-a"),
            (&["--token", "/nowhere/token"], "cannot read /nowhere/token"),
            (&["-X", "G T"], "-X G T"),
            (&["--path", "x"], "--path x"),
            (
                &["-H", "Authorization: secret", "--token", "/dev/null"],
                "exclude each other",
            ),
        ] {
            let error = build_query(&args(flags), "orders", 80)
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{flags:?}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
