//! Tests with servers that redirect, refuse, and violate HTTP.

use ambit_egress::ConnectError;
use ambit_testkit::ScriptedServer;

use super::*;
use crate::AdmitAll;

/// Builds a client that may call servers on this machine.
fn local_client() -> Client {
    Client::new(guard(), "ambit-test")
}

fn guard() -> Guard {
    Guard::new(vec!["127.0.0.1/32".parse().unwrap()])
}

fn get<'a>(url: &'a str, headers: &'a [(HeaderName, HeaderValue)]) -> Get<'a> {
    Get {
        url,
        headers,
        limit: 10,
    }
}

/// Builds the response to a path below `/to/`: a redirect to the URL in it.
fn redirect_response(path: &str) -> String {
    match path.strip_prefix("/to/") {
        Some(to) => format!("307 There\r\nlocation: http://{to}"),
        None => "200 OK".to_owned(),
    }
}

#[tokio::test]
async fn forbidden_addresses_are_not_called_by_redirects_either() {
    let server = ScriptedServer::new(redirect_response);
    let port = server.address.port();
    let refused = async |client: &Client, url: &str| {
        let error = client.get(get(url, &[]), &AdmitAll).await.unwrap_err();
        matches!(error, FetchError::Connect(ConnectError::Forbidden { .. }))
    };
    let own = format!("http://{}/x", server.address);
    let client = Client::new(Guard::default(), "ambit-test");
    assert!(refused(&client, &own).await);
    assert_eq!(server.received(), []);
    for host in [
        "127.0.0.2",
        "[::1]",
        "169.254.169.254",
        "[64:ff9b::a9fe:a9fe]",
    ] {
        let to = format!("http://{}/to/{host}:{port}/x", server.address);
        assert!(refused(&local_client(), &to).await, "{host}");
    }
}

/// Admission that permits only one address.
#[derive(Debug)]
struct AdmitOnly(IpAddr);

#[derive(Debug, thiserror::Error)]
#[error("{0} is not admitted")]
struct NotAdmitted(IpAddr);

impl Admission for AdmitOnly {
    type Error = NotAdmitted;

    async fn admit(&self, _host: &str, ip: IpAddr) -> Result<(), NotAdmitted> {
        if ip == self.0 {
            Ok(())
        } else {
            Err(NotAdmitted(ip))
        }
    }
}

#[tokio::test]
async fn addresses_need_the_admission_after_redirects_too() {
    let server = ScriptedServer::new(redirect_response);
    let (address, port) = (server.address, server.address.port());
    let guard = Guard::new(vec!["127.0.0.0/8".parse().unwrap()]);
    let client = Client::new(guard, "ambit-test");
    let fetched = async |url: &str, only: [u8; 4]| {
        let response = client.get(get(url, &[]), &AdmitOnly(only.into())).await;
        response.map(|response| response.status.as_u16())
    };
    let own = format!("http://{address}/x");
    assert_eq!(fetched(&own, [127, 0, 0, 1]).await.unwrap(), 200);
    let refused = fetched(&own, [127, 0, 0, 2]).await.unwrap_err();
    assert_eq!(refused.to_string(), "127.0.0.1 is not admitted");
    let elsewhere = format!("http://{address}/to/127.0.0.3:{port}/x");
    let refused = fetched(&elsewhere, [127, 0, 0, 1]).await.unwrap_err();
    assert_eq!(refused.to_string(), "127.0.0.3 is not admitted");
}

#[tokio::test]
async fn an_embedded_address_needs_the_admission_too() {
    let nets = ["127.0.0.0/8", "64:ff9b::/96"].map(|net| net.parse().unwrap());
    let client = Client::new(Guard::new(nets.into()), "ambit-test");
    let url = "http://[64:ff9b::7f00:3]:1/";
    let own = AdmitOnly("64:ff9b::7f00:3".parse().unwrap());
    let refused = client.get(get(url, &[]), &own).await.unwrap_err();
    assert_eq!(refused.to_string(), "127.0.0.3 is not admitted");
}

#[tokio::test]
async fn no_server_after_a_redirect_elsewhere_receives_credentials() {
    let (first, other) = (
        ScriptedServer::new(redirect_response),
        ScriptedServer::new(redirect_response),
    );
    let (own, elsewhere) = (first.address, other.address);
    let secret = [(AUTHORIZATION, HeaderValue::from_static("Basic c2VjcmV0"))];
    let client = local_client();
    let fetched = async |path: &str| {
        let url = format!("http://{own}{path}");
        let response = client.get(get(&url, &secret), &AdmitAll).await.unwrap();
        response.error_for_status().unwrap().is_from_first_host
    };
    assert!(fetched(&format!("/to/{own}/end")).await);
    assert!(!fetched(&format!("/to/{elsewhere}/to/{own}/back")).await);
    let received = |path: &str, has: bool| (path.to_owned(), has);
    assert_eq!(
        first.received(),
        [
            received(&format!("/to/{own}/end"), true),
            received("/end", true),
            received(&format!("/to/{elsewhere}/to/{own}/back"), true),
            received("/back", false),
        ]
    );
    assert_eq!(
        other.received(),
        [received(&format!("/to/{own}/back"), false)]
    );
}

#[tokio::test]
async fn errors_contain_no_signatures_of_redirects() {
    let server = ScriptedServer::new(|path: &str| match path {
        "/image" => "307 There\r\nlocation: /blob?signature=secret".to_owned(),
        "/nowhere" => "307 There\r\nlocation: ftp://x/?signature=secret".to_owned(),
        _ => "403 Forbidden".to_owned(),
    });
    let at = |path: &str| format!("http://{}{path}", server.address);
    let client = local_client();
    let refused = client.get(get(&at("/image"), &[]), &AdmitAll).await;
    let refused = refused.unwrap().error_for_status().unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!("{} responds with 403 Forbidden", at("/blob"))
    );
    let nowhere = client.get(get(&at("/nowhere"), &[]), &AdmitAll).await;
    let nowhere = nowhere.unwrap_err();
    assert_eq!(
        nowhere.to_string(),
        "\"ftp://x/\" is not a URL of http or https"
    );
}

#[tokio::test]
async fn redirects_end_after_a_bound() {
    let server = ScriptedServer::new(|_: &str| "307 There\r\nlocation: /again".to_owned());
    let url = format!("http://{}/", server.address);
    let error = local_client()
        .get(get(&url, &[]), &AdmitAll)
        .await
        .unwrap_err();
    assert!(matches!(error, FetchError::TooManyRedirects), "{error}");
    assert_eq!(server.received().len(), MAX_REDIRECTS + 1);
}
