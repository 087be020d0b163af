use super::*;

/// Encoded denial with a status, a header and a body, written byte by byte from Envoy's published message definitions.
const DENIAL: &[u8] =
    b"\x0a\x02\x08\x07\x12\x1d\x0a\x03\x08\x91\x03\x12\x10\x0a\x0e\x0a\x05x-why\x12\x05token\x1a\x04no!\x0a";

#[test]
fn a_denial_is_read() {
    let CheckResponse::Denied(denied) = CheckResponse::decode(DENIAL).unwrap() else {
        panic!("not denied");
    };
    assert_eq!(denied.status, Some(401));
    assert_eq!(denied.headers[0].name, "x-why");
    assert_eq!(denied.body, b"no!\n");
}

#[test]
fn ambiguous_check_response_counts_as_none() {
    assert_eq!(
        CheckResponse::decode(b""),
        Err(CheckResponseError::NoDecision)
    );
    // A status of OK, and a denial.
    assert_eq!(
        CheckResponse::decode(b"\x0a\x00\x12\x00"),
        Err(CheckResponseError::Contradiction)
    );
    // A status of OK, and an error.
    assert_eq!(
        CheckResponse::decode(b"\x0a\x00\x2a\x00"),
        Err(CheckResponseError::Contradiction)
    );
    assert!(matches!(
        CheckResponse::decode(b"\x0a\x02\x08\x0d\x2a\x00"),
        Ok(CheckResponse::Denied(_))
    ));
    // A status of PERMISSION_DENIED, and an admission.
    assert_eq!(
        CheckResponse::decode(b"\x0a\x02\x08\x07\x1a\x00"),
        Err(CheckResponseError::Contradiction)
    );
    assert!(matches!(
        CheckResponse::decode(b"\xff\xff"),
        Err(CheckResponseError::Malformed(_))
    ));
    assert_eq!(
        CheckResponse::decode(b"\x0a\x00"),
        Ok(CheckResponse::Allowed(AllowedResponse::default()))
    );
}

#[test]
fn headers_are_set_by_the_check_response() {
    let of = |append, append_action, unsaid| {
        let option = HeaderValueOption {
            header: Some(Default::default()),
            append,
            append_action,
        };
        decode_header_mutation(option, unsaid).unwrap().action
    };
    use HeaderAction as C;
    assert_eq!(of(None, 0, C::Set), C::Set);
    assert_eq!(of(None, 0, C::Append), C::Append);
    assert_eq!(of(Some(true), 2, C::Set), C::Append);
    assert_eq!(of(Some(false), 0, C::Append), C::Set);
    assert_eq!(of(None, 1, C::Set), C::AddIfAbsent);
    assert_eq!(of(None, 3, C::Set), C::SetIfPresent);
}
