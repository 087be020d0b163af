//! Checks the destinations that a pod's connections are redirected to: never loopback, link-local, or a cloud's
//! metadata service, unless the administrator's settings allow it.
//!
//! The sockets are opened in the pod's own namespace, so that the pod cannot reach more than by
//! dialing itself. But an application that calls addresses of its users (webhooks, fetchers of
//! URLs) checks the address that it dials. The owner of a ServiceEntry with an allocated address
//! could redirect it to the application's own loopback interface or to the metadata service, past
//! that check. Kubernetes rejects such addresses in EndpointSlices, too. Addresses that the
//! application dials itself are not restricted.

use std::net::IpAddr;

use ambit_egress::{ForbiddenAddress, Guard};
use ambit_route::Route;

/// Checks the route of a connection that the application opened to the address `address`.
///
/// # Errors
///
/// [`ForbiddenAddress`] if the route's next hop is a forbidden address other than `address`.
pub(crate) fn check_redirected_address(
    guard: &Guard,
    address: IpAddr,
    route: &Route,
) -> Result<(), ForbiddenAddress> {
    let redirected = match route {
        Route::Plain(plain) => plain.addr.ip(),
        Route::Hbone(hbone) => hbone.addr.ip(),
        Route::DoubleHbone { outer, .. } => outer.addr.ip(),
        Route::Passthrough { .. } | Route::NeedsDns(_) => return Ok(()),
    };
    if redirected.to_canonical() == address.to_canonical() {
        return Ok(());
    }
    guard.check(redirected)
}
