//! IO error of a connection whose peer is no longer accepted, because its certificate was revoked or its trust domain
//! removed.

use std::io::{Error, ErrorKind};

use ambit_tls::TrustWithdrawalReason;

/// Kind of the IO error of such a connection. No operating system returns this kind for an open socket, so it
/// identifies the error.
const TRUST_WITHDRAWN_ERROR_KIND: ErrorKind = ErrorKind::PermissionDenied;

pub(crate) fn withdrawal_error(why: TrustWithdrawalReason) -> Error {
    let text = match why {
        TrustWithdrawalReason::Revoked => "connection closed: peer certificate revoked by CRL",
        TrustWithdrawalReason::TrustDomainChanged => {
            "connection closed: the peer's trust domain, or its root, is no longer accepted"
        }
    };
    Error::new(TRUST_WITHDRAWN_ERROR_KIND, text)
}

/// Whether a tunnel failed because its peer is no longer accepted. The check compares the kind of the IO error, since
/// HTTP/2 does not preserve its type.
pub(crate) fn is_trust_withdrawal(error: &h2::Error) -> bool {
    error
        .get_io()
        .is_some_and(|error| error.kind() == TRUST_WITHDRAWN_ERROR_KIND)
}
