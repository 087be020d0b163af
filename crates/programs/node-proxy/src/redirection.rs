//! Addresses to which a pod's connections are redirected: never to loopback, link-local, or a cloud's metadata service,
//! unless the administrator's settings allow it.
//!
//! The sockets are made in the pod's own namespace, so a pod reaches nothing by them that it could not dial itself. But
//! an application that calls addresses of its users (webhooks, fetchers of URLs) checks the address that it dials: an
//! address that the mesh gave to a ServiceEntry, whose owner could have it end at the application's own loopback
//! interface or at the metadata service, past that check. Kubernetes takes no such addresses in EndpointSlices either.
//! What the application dials itself stays as it is.

use std::net::IpAddr;

use ambit_egress::{Forbidden, Guard};
use ambit_route::Route;

/// Checks the destination of a connection to `dialled`.
///
/// # Errors
/// The reason, if it is a forbidden address that was not dialed.
pub(crate) fn check(guard: &Guard, dialled: IpAddr, route: &Route) -> Result<(), Forbidden> {
    let redirected = match route {
        Route::Plain(plain) => plain.addr.ip(),
        Route::Hbone(hbone) => hbone.addr.ip(),
        Route::DoubleHbone { outer, .. } => outer.addr.ip(),
        Route::Passthrough { .. } | Route::NeedsDns(_) => return Ok(()),
    };
    if redirected.to_canonical() == dialled.to_canonical() {
        return Ok(());
    }
    guard.check(redirected)
}
