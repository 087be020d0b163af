use super::*;

/// Encoded denial with a status, a header and a body, byte by byte by Envoy's published message definitions.
const DENIAL: &[u8] =
    b"\x0a\x02\x08\x07\x12\x1d\x0a\x03\x08\x91\x03\x12\x10\x0a\x0e\x0a\x05x-why\x12\x05token\x1a\x04no!\x0a";

#[test]
fn a_denial_is_read() {
    let Answer::Denied(denied) = Answer::decode(DENIAL).unwrap() else {
        panic!("not denied");
    };
    assert_eq!(denied.status, Some(401));
    assert_eq!(denied.headers[0].name, "x-why");
    assert_eq!(denied.body, b"no!\n");
}

#[test]
fn ambiguous_check_response_counts_as_none() {
    assert_eq!(Answer::decode(b""), Err(AnswerError::Empty));
    // A status of OK, and a denial.
    assert_eq!(
        Answer::decode(b"\x0a\x00\x12\x00"),
        Err(AnswerError::Contradiction)
    );
    // A status of OK, and an error.
    assert_eq!(
        Answer::decode(b"\x0a\x00\x2a\x00"),
        Err(AnswerError::Contradiction)
    );
    assert!(matches!(
        Answer::decode(b"\x0a\x02\x08\x0d\x2a\x00"),
        Ok(Answer::Denied(_))
    ));
    // A status of PERMISSION_DENIED, and an admission.
    assert_eq!(
        Answer::decode(b"\x0a\x02\x08\x07\x1a\x00"),
        Err(AnswerError::Contradiction)
    );
    assert!(matches!(
        Answer::decode(b"\xff\xff"),
        Err(AnswerError::Malformed(_))
    ));
    assert_eq!(
        Answer::decode(b"\x0a\x00"),
        Ok(Answer::Allowed(Allowed::default()))
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
        header(option, unsaid).unwrap().how
    };
    use HeaderChange as C;
    assert_eq!(of(None, 0, C::Set), C::Set);
    assert_eq!(of(None, 0, C::Append), C::Append);
    assert_eq!(of(Some(true), 2, C::Set), C::Append);
    assert_eq!(of(Some(false), 0, C::Append), C::Set);
    assert_eq!(of(None, 1, C::Set), C::AddIfAbsent);
    assert_eq!(of(None, 3, C::Set), C::SetIfPresent);
}
