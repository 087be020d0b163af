//! Tests of the evaluation of expressions, and of expressions that are rejected.

use http::HeaderMap;

use super::*;
use crate::observation::examples::answered_request;

fn is_true(expression: &str) -> bool {
    let mut headers = HeaderMap::new();
    headers.insert("x-team", "cart".parse().unwrap());
    let (request, response) = (headers, HeaderMap::new());
    let expression = Expression::new(expression).unwrap();
    expression.matches(&answered_request(&request, &response))
}

#[test]
fn filters_read_envoys_attributes() {
    for truth in [
        "response.code == 200",
        "!(response.code >= 400)",
        "request.url_path == '/a' && request.query == 'b=c'",
        "request.url_path.startsWith('/a')",
        "request.host.contains('httpbin')",
        "request.host.matches('^http[a-z]+:8000$')",
        "connection.mtls && request.method in ['GET', 'HEAD']",
        "request.headers['x-team'] == 'cart'",
        "'x-team' in request.headers && !('x-other' in request.headers)",
        "has(request.headers)",
        "!has(response.grpc_status)",
        "response.flags == 0",
        "(response.code == 200 ? 'ok' : 'bad') == 'ok'",
        "size(request.path) == 6",
        "string(destination.port) + '/x' == '8000/x'",
        "xds.route_name == 'default' && upstream.port == 80",
    ] {
        assert!(is_true(truth), "{truth}");
    }
    for lie in [
        "response.code >= 400",
        "request.headers['x-none'] == ''",
        // A missing attribute has no value, and a value that is not a boolean is not true.
        "response.grpc_status == 0",
        "request.path",
        "1 / 0 == 1",
    ] {
        assert!(!is_true(lie), "{lie}");
    }
}

#[test]
fn a_label_is_the_text_of_a_value() {
    let headers = HeaderMap::new();
    let text = |of: &str| {
        Expression::new(of)
            .unwrap()
            .evaluate_text(&answered_request(&headers, &headers))
    };
    assert_eq!(text("request.host"), Some("httpbin:8000".to_owned()));
    assert_eq!(text("destination.port"), Some("8000".to_owned()));
    assert_eq!(text("'always'"), Some("always".to_owned()));
    assert_eq!(text("connection.mtls"), Some("true".to_owned()));
    assert_eq!(text("response.grpc_status"), None);
    assert_eq!(text("[1]"), None);
}

#[test]
fn unbounded_expressions_are_refused() {
    use ExpressionError as E;
    let error = |text: &str| Expression::new(text).unwrap_err();
    assert!(matches!(error("response.code >"), E::Syntax(_)));
    assert_eq!(
        error("response.colour == 1"),
        E::UnknownAttribute("response.colour".into())
    );
    assert_eq!(
        error("reponse.code == 1"),
        E::UnknownAttribute("reponse.code".into())
    );
    assert_eq!(error("code"), E::UnknownAttribute("code".into()));
    assert_eq!(error("[1, 2].all(x, x > 0)"), E::Comprehension);
    assert_eq!(
        error("duration('1s') == 1"),
        E::UnknownFunction("duration".into())
    );
    assert!(matches!(
        error("request.path.matches(request.host)"),
        E::InvalidRegex(_)
    ));
    assert!(matches!(
        error("request.path.matches('(a{500}){500}')"),
        E::InvalidRegex(_)
    ));
    assert!(matches!(
        error("request.path.matches('(')"),
        E::InvalidRegex(_)
    ));
    assert_eq!(error(&"1".repeat(MAX_EXPRESSION_BYTES + 1)), E::TooLong);
    // Redundant text is removed before parsing, and must not exhaust the stack either.
    for flat in [
        format!("{}1{}", "(".repeat(200), ")".repeat(200)),
        format!("{}true", "!".repeat(500)),
    ] {
        drop(Expression::new(&flat));
    }
    for deep in [
        format!("{}1", "1+".repeat(300)),
        format!("{}1", "true?1:".repeat(100)),
        format!("{}1{}", "[".repeat(200), "]".repeat(200)),
    ] {
        assert!(Expression::new(&deep).is_err(), "{deep}");
    }
}

proptest::proptest! {
    #[test]
    fn any_expression_is_refused_or_evaluated(
        parts in proptest::collection::vec(
            proptest::sample::select(vec![
                "request.path", "response.code", "request.headers", "'a'", "1", "-", "!", "(", ")", "[", "]", "{", "}",
                "==", "+", "&&", "||", "?", ":", ".", ",", "in", "size", "matches", "has", "all", "x", "'(a+)+$'", " ",
            ]),
            0..40,
        ),
    ) {
        if let Ok(expression) = Expression::new(&parts.concat()) {
            let headers = HeaderMap::new();
            let observation = answered_request(&headers, &headers);
            expression.matches(&observation);
            expression.evaluate_text(&observation);
        }
    }
}
