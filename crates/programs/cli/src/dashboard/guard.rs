//! Access control of the dashboard: only its own page gets responses. Refused are pages of other origins in the same
//! browser, host names that resolve to this machine (DNS rebinding), and other users of this machine. Pure.

use http::{HeaderMap, header};
use rand::Rng as _;

/// Request header with the access token. A page of another origin cannot send it without a CORS preflight, which is
/// never allowed.
pub(super) const TOKEN_HEADER: &str = "x-ambit-token";

/// Number of random bytes in an access token.
const TOKEN_BYTES: usize = 32;

/// Checks the `Host`, the `Origin` and the access token of requests.
#[derive(Clone)]
pub(super) struct RequestGuard {
    /// Values of `Host` that are accepted: `127.0.0.1:PORT` and `localhost:PORT`.
    hosts: [String; 2],
    token: String,
}

/// Reason for which the dashboard refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestRefusal {
    /// The `Host` header is not the dashboard's, as after DNS rebinding.
    Host,
    /// The request comes from a page of another origin, by its headers `Origin` and `Sec-Fetch-Site`.
    Origin,
    /// The access token is missing in the request, or wrong.
    Token,
}

impl RequestRefusal {
    /// Returns the status code and the text of the response.
    pub(super) fn response(self) -> (u16, &'static str) {
        match self {
            Self::Host => (
                421,
                "this is the dashboard of 127.0.0.1 and localhost alone\n",
            ),
            Self::Origin => (403, "the dashboard answers no pages of other origins\n"),
            Self::Token => (
                401,
                "open the address that `ambit dashboard` printed: it has the token\n",
            ),
        }
    }
}

impl RequestGuard {
    /// Creates the guard of a server on a port of 127.0.0.1, with a random token.
    pub(super) fn new(port: u16) -> Self {
        let mut bytes = [0_u8; TOKEN_BYTES];
        rand::rng().fill(&mut bytes);
        let token = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            hosts: [format!("127.0.0.1:{port}"), format!("localhost:{port}")],
            token,
        }
    }

    /// Returns the URL of the page. The token is in its fragment, which browsers do not send to servers.
    pub(super) fn url(&self) -> String {
        let [host, _] = &self.hosts;
        format!("http://{host}/#token={}", self.token)
    }

    /// Checks a request for one of the page's files, which needs no token.
    pub(super) fn check_page_request(&self, headers: &HeaderMap) -> Result<(), RequestRefusal> {
        let host = headers.get(header::HOST);
        let is_named = |name: &String| host.is_some_and(|host| host == name.as_str());
        self.hosts
            .iter()
            .any(is_named)
            .then_some(())
            .ok_or(RequestRefusal::Host)
    }

    /// Checks a request to the API, which needs the token.
    pub(super) fn check_api_request(&self, headers: &HeaderMap) -> Result<(), RequestRefusal> {
        self.check_page_request(headers)?;
        let is_own = |name: &str| {
            let host = headers.get(header::HOST).map(|host| host.as_bytes());
            let value = headers.get(name).map(|value| value.as_bytes());
            value.is_none_or(|value| value.strip_prefix(b"http://") == host)
        };
        let site = headers.get("sec-fetch-site");
        if !is_own("origin") || site.is_some_and(|site| site != "same-origin") {
            return Err(RequestRefusal::Origin);
        }
        let token = headers.get(TOKEN_HEADER);
        let is_known =
            token.is_some_and(|token| constant_time_eq(token.as_bytes(), self.token.as_bytes()));
        is_known.then_some(()).ok_or(RequestRefusal::Token)
    }
}

/// Compares two byte strings in a time that does not depend on where they differ.
fn constant_time_eq(left: &[u8], right: &[u8]) -> bool {
    let differences = left.iter().zip(right).fold(0, |all, (a, b)| all | (a ^ b));
    left.len() == right.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_map(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair =
            |(name, value): &(&'static str, &str)| (name.parse().unwrap(), value.parse().unwrap());
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn only_the_page_itself_gets_data() {
        let guard = RequestGuard::new(7000);
        let token = guard.token.clone();
        let own = [
            ("host", "127.0.0.1:7000"),
            ("x-ambit-token", &*token),
            ("sec-fetch-site", "same-origin"),
            ("origin", "http://127.0.0.1:7000"),
        ];
        assert_eq!(guard.check_api_request(&header_map(&own)), Ok(()));
        assert_eq!(guard.check_api_request(&header_map(&own[..2])), Ok(()));
        for (number, value, refused) in [
            (0, "evil.example:7000", RequestRefusal::Host),
            (0, "127.0.0.1", RequestRefusal::Host),
            (0, "127.0.0.1:7001", RequestRefusal::Host),
            (0, "[::1]:7000", RequestRefusal::Host),
            (1, "", RequestRefusal::Token),
            (1, &token[1..], RequestRefusal::Token),
            (1, &"0".repeat(64), RequestRefusal::Token),
            (2, "cross-site", RequestRefusal::Origin),
            (2, "same-site", RequestRefusal::Origin),
            (2, "none", RequestRefusal::Origin),
            (3, "null", RequestRefusal::Origin),
            (3, "http://127.0.0.1:7001", RequestRefusal::Origin),
            (3, "http://localhost:7000", RequestRefusal::Origin),
            (3, "https://127.0.0.1:7000", RequestRefusal::Origin),
            (3, "http://evil.example", RequestRefusal::Origin),
        ] {
            let mut request = own;
            request[number].1 = value;
            assert_eq!(
                guard.check_api_request(&header_map(&request)),
                Err(refused),
                "{value}"
            );
        }
        assert_eq!(
            guard.check_api_request(&header_map(&own[1..])),
            Err(RequestRefusal::Host)
        );
        assert_eq!(
            guard.check_api_request(&header_map(&own[..1])),
            Err(RequestRefusal::Token)
        );
    }

    #[test]
    fn files_of_the_page_need_no_token_but_the_right_host() {
        let guard = RequestGuard::new(7000);
        assert_eq!(
            guard.check_page_request(&header_map(&[("host", "localhost:7000")])),
            Ok(())
        );
        let rebound = header_map(&[("host", "rebound.example:7000")]);
        assert_eq!(
            guard.check_page_request(&rebound),
            Err(RequestRefusal::Host)
        );
    }

    #[test]
    fn tokens_are_drawn_anew_and_stay_in_the_fragment() {
        let (one, other) = (RequestGuard::new(1), RequestGuard::new(1));
        assert_ne!(one.token, other.token);
        assert_eq!(one.token.len(), 2 * TOKEN_BYTES);
        let (address, fragment) = one
            .url()
            .split_once('#')
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        assert_eq!(address, "http://127.0.0.1:1/");
        assert!(fragment.contains(&one.token));
    }
}
