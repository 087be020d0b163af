//! Decides which addresses may be called on behalf of one object.

use std::{convert::Infallible, error::Error, net::IpAddr};

/// Decides which addresses may be called on behalf of one object, in addition to the guard that applies to all
/// objects.
pub trait Admission: Sync {
    /// Reason why an address is refused.
    type Error: Error + Send + Sync + 'static;

    /// Decides whether an address of a host may be called. The client asks for the address in canonical form and for
    /// each IPv4 address that it embeds, and connects only if all are admitted.
    ///
    /// # Errors
    ///
    /// When the address may not be called, or the decision cannot be made.
    fn admit(&self, host: &str, ip: IpAddr)
    -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Admission for the administrator's own objects: every address that the guard permits.
#[derive(Clone, Copy, Debug)]
pub struct AdmitAll;

impl Admission for AdmitAll {
    type Error = Infallible;

    async fn admit(&self, _host: &str, _ip: IpAddr) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Makes `None` admit every address, like [`AdmitAll`].
impl<A: Admission> Admission for Option<A> {
    type Error = A::Error;

    async fn admit(&self, host: &str, ip: IpAddr) -> Result<(), A::Error> {
        match self {
            Some(admission) => admission.admit(host, ip).await,
            None => Ok(()),
        }
    }
}
