//! Tests of redaction for requests that are not authenticated yet, or whose tokens are forwarded.

use super::{
    requests::{authentication, authentications, get_request},
    *,
};

#[test]
fn tokens_are_redacted_in_every_outcome() {
    let issuer = Issuer::new("a");
    let rule = JwtRule {
        headers: vec![("x-jwt".into(), "JWT ".into())],
        params: vec!["token".into()],
        cookies: vec!["session".into()],
        forward_token: true,
        ..issuer.rule()
    };
    let mut both = authentications(vec![rule]);
    let redacted =
        |all: &RequestAuthentications, target: &str| all.redact_target(&[], target).into_owned();
    for (sent, expected) in [
        ("/a", "/a"),
        ("/a?x=1", "/a?x=1"),
        ("/a?token=secret", "/a"),
        ("/a?x=1&token=secret&y=2", "/a?x=1&y=2"),
        ("/a?tok%65n=secret&token=more&token", "/a"),
        // In any form of the target: it is not normalized, and may be invalid.
        ("/a/..;b?x=%zz&token=secret#x?token=other", "/a/..;b?x=%zz"),
        ("http://host/?token=secret", "http://host/"),
        ("/a?y=?token=1&token=secret", "/a?y=?token=1"),
    ] {
        assert_eq!(redacted(&both, sent), expected, "{sent}");
    }
    // The default sources of another rule count as well.
    both.insert(authentication("ns/b", vec![Issuer::new("b").rule()]));
    assert_eq!(redacted(&both, "/a?access_token=s&token=s&x"), "/a?x");
    let mut sent = get_request(&[
        ("x-jwt", "jwt secret"),
        ("authorization", "Bearer secret"),
        ("cookie", "a=1; session=secret"),
        ("user-agent", "curl"),
        ("referer", "http://host/a?x&token=secret"),
    ]);
    both.redact_headers(&[], &mut sent.headers);
    let left = get_request(&[
        ("cookie", "a=1"),
        ("user-agent", "curl"),
        ("referer", "http://host/a?x"),
    ]);
    assert_eq!(sent.headers, left.headers);
    // A response repeats the query, and sets the cookie again.
    let mut answer = get_request(&[
        ("location", "/b?token=secret"),
        ("content-location", "/c?token=secret&x"),
        ("set-cookie", " session = secret; Path=/"),
        ("set-cookie", "a=1"),
        ("x-jwt", "JWT secret"),
    ]);
    both.redact_headers(&[], &mut answer.headers);
    let left = get_request(&[
        ("location", "/b"),
        ("content-location", "/c?x"),
        ("set-cookie", "a=1"),
    ]);
    assert_eq!(answer.headers, left.headers);

    // The sources of tokens are unknown.
    let broken = Authentication {
        not_understood: Some("why".into()),
        ..authentication("ns/c", Vec::new())
    };
    both.insert(broken);
    assert_eq!(redacted(&both, "/a?x=1"), "/a");
    let mut sent = get_request(&[("x-any", "secret")]);
    both.redact_headers(&[], &mut sent.headers);
    assert!(sent.headers.is_empty());

    let none = RequestAuthentications::default();
    assert_eq!(redacted(&none, "/a?token=x"), "/a?token=x");
}
