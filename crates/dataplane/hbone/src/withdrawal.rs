//! Error of reading from a connection whose peer is no longer accepted, for instance since its certificate was
//! revoked.

use std::io::{Error, ErrorKind};

use ambit_tls::WithdrawalReason;

/// Kind of the IO error: no operating system returns it for a socket that was already open.
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

/// Whether a tunnel ended because its peer is no longer accepted. HTTP/2 preserves the kind of an IO error, not its
/// type.
pub(crate) fn is_withdrawal(error: &h2::Error) -> bool {
    error
        .get_io()
        .is_some_and(|error| error.kind() == WITHDRAWN_ERROR_KIND)
}
