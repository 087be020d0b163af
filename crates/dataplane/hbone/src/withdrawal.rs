//! IO error of a connection whose peer is no longer accepted, because its certificate was revoked or its trust domain
//! removed.

use std::io::{Error, ErrorKind};

use ambit_tls::WithdrawalReason;

/// Kind of the IO error of such a connection. No operating system returns this kind for an open socket, so it
/// identifies the error.
const WITHDRAWN_ERROR_KIND: ErrorKind = ErrorKind::PermissionDenied;

pub(crate) fn error(why: WithdrawalReason) -> Error {
    let text = match why {
        WithdrawalReason::Revoked => "connection closed: peer certificate revoked by CRL",
        WithdrawalReason::TrustDomain => {
            "connection closed: the peer's trust domain, or its root, is no longer accepted"
        }
    };
    Error::new(WITHDRAWN_ERROR_KIND, text)
}

/// Whether a tunnel failed because its peer is no longer accepted. The check compares the kind of the IO error, since
/// HTTP/2 does not preserve its type.
pub(crate) fn is_withdrawal(error: &h2::Error) -> bool {
    error
        .get_io()
        .is_some_and(|error| error.kind() == WITHDRAWN_ERROR_KIND)
}
