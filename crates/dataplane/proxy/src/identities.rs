//! Certificates of the identities that a proxy needs, from the CA or a SPIFFE agent.

use std::{path::PathBuf, sync::Arc, time::Duration};

use ambit_certificates::{
    CaClient, Certificates, CertificatesOptions, CsrClient, CsrClientOptions, DelegatedIdentity,
    SpiffeSocket, WorkloadApi,
};
use ambit_control_channel::{CallMetadata, create_channel};
use ambit_model::{ArcStr, Identity};
use ambit_rt::Env;
use ambit_tls::{RevocationLists, TlsSettings, TrustDomains};
use anyhow::Context as _;
use tokio::time::sleep;

use crate::{
    control_plane::{ControlPlaneService, token_source},
    state::{IdentityEvent, SharedState, follow_identities},
    warm_start::WarmCertificates,
};

/// Time for which a rejected certificate request is retried before connections fail, since the CA may not know a new
/// workload yet.
const REJECTED_CSR_RETRY_TIME: Duration = Duration::from_secs(10);

/// A SPIFFE agent that issues certificates in place of the CA.
#[derive(Clone, Debug)]
pub enum SpiffeAgent {
    /// Agent that issues the certificate of the process itself, by SPIFFE's Workload API.
    WorkloadApi(SpiffeSocket),
    /// Agent that issues certificates of the node's workloads, by SPIRE's Delegated Identity API.
    DelegatedIdentity(SpiffeSocket),
}

/// Settings for fetching certificates.
#[derive(Clone, Debug)]
pub struct CertificateSettings {
    /// SPIFFE agent that issues the certificates; without one, the CA does.
    pub spiffe: Option<SpiffeAgent>,
    /// Address of the CA.
    pub ca: ControlPlaneService,
    /// Path of the service account token that authenticates the proxy to the CA, or the token itself.
    pub auth_token: Option<String>,
    /// Cluster that issued the token.
    pub cluster_id: ArcStr,
    /// Identity of the token's service account, if the proxy also needs a certificate for itself.
    pub proxy_identity: Option<Identity>,
    /// Requested lifetime of certificates.
    pub ttl: Duration,
    /// Path of the PEM file with the certificate revocation lists; `None` if there are none.
    pub crl_path: Option<PathBuf>,
    /// Path of the file of trust domains that are accepted besides the mesh's own.
    pub trust_domains_path: Option<PathBuf>,
}

/// Starts fetching certificates: from `cache` first, unless a SPIFFE agent on the same node issues them. Headers and
/// TLS parameters come from the environment.
///
/// # Errors
/// When the settings cannot be used.
pub fn start(
    env: &Env,
    settings: &CertificateSettings,
    cache: Option<Arc<WarmCertificates>>,
) -> anyhow::Result<Certificates> {
    let mut tls = TlsSettings::from_env(env)?;
    if let Some(path) = &settings.crl_path {
        let lists = RevocationLists::new();
        if let Err(error) = lists.load(path) {
            tracing::warn!(%error, "no certificate revocation lists yet");
        }
        ambit_rt::spawn_essential(
            "revocation lists",
            lists.clone().reload_on_change(path.clone()),
        );
        tls = tls.with_crls(lists);
    }
    if let Some(path) = &settings.trust_domains_path {
        let domains = TrustDomains::new();
        if let Err(error) = domains.load(path) {
            tracing::warn!(%error, "no trust domain is accepted but the own one");
        }
        ambit_rt::spawn_essential(
            "trust domains",
            domains.clone().reload_on_change(path.clone()),
        );
        tls = tls.with_trust_domains(domains);
    }
    let client: Arc<dyn CaClient> = match &settings.spiffe {
        Some(SpiffeAgent::WorkloadApi(socket)) => Arc::new(WorkloadApi::start(socket, &tls)),
        Some(SpiffeAgent::DelegatedIdentity(socket)) => {
            Arc::new(DelegatedIdentity::start(socket, &tls))
        }
        None => Arc::new(csr_client(env, settings, tls, cache)?),
    };
    Ok(Certificates::start(client, CertificatesOptions::default()))
}

/// Builds the client of the CA's CSR API.
fn csr_client(
    env: &Env,
    settings: &CertificateSettings,
    tls: TlsSettings,
    cache: Option<Arc<WarmCertificates>>,
) -> anyhow::Result<CsrClient> {
    let upstream = settings
        .ca
        .channel(tls.clone())
        .context("CA_ADDRESS is empty: without a certificate authority no tunnel can be made")?;
    let token = token_source(settings.auth_token.as_deref());
    let headers = CallMetadata::from_env(env, "CA_HEADER_", token, &settings.cluster_id)?;
    let client = CsrClient::new(
        create_channel(&upstream).context("CA_ADDRESS")?,
        headers,
        tls,
        CsrClientOptions {
            ttl: settings.ttl,
            own_identity: settings.proxy_identity.clone(),
            ..CsrClientOptions::default()
        },
    );
    Ok(match cache {
        Some(cache) => client.with_cache(cache),
        None => client,
    })
}

/// Fetches certificates of local workloads ahead of use, and drops those of identities that have left the node. Runs
/// until the mesh state is dropped.
pub async fn prefetch_certificates(
    state: SharedState,
    certificates: Certificates,
    cache: Option<Arc<WarmCertificates>>,
) {
    follow_identities(state, |event| match event {
        IdentityEvent::Appeared(identity) => certificates.prefetch(&identity),
        IdentityEvent::Gone(identity) => {
            certificates.forget(&identity);
            if let Some(cache) = &cache {
                cache.remove_certificate(&identity);
            }
        }
    })
    .await;
}

/// Waits until the CA has issued or rejected a certificate for each of `identities`. The wait goes on while the CA is
/// unreachable, since the previous proxy process still serves. A rejection ends the wait, since it may be permanent.
pub async fn wait_for_certificates(certificates: &Certificates, identities: &[Identity]) {
    let all = async {
        for identity in identities {
            certificates.wait_until_obtained(identity).await;
        }
    };
    let all_but_refused = async {
        loop {
            sleep(REJECTED_CSR_RETRY_TIME).await;
            let mut awaited = identities.iter();
            if !awaited.any(|identity| certificates.is_awaited(identity)) {
                return;
            }
            tracing::warn!("not taking over yet: certificates are missing");
        }
    };
    tokio::select! {
        () = all => {}
        () = all_but_refused => {
            tracing::warn!("taking over although the CA refuses certificates of some pods");
        }
    }
}

#[cfg(test)]
mod tests {
    use ambit_testkit::{FakeCa, Pki, wait_until};

    use super::*;

    fn start() -> (FakeCa, Certificates, [Identity; 2]) {
        let ca = FakeCa::new(Arc::new(Pki::new()), Duration::from_secs(3600));
        let certificates =
            Certificates::start(Arc::new(ca.clone()), CertificatesOptions::default());
        let identities = ["web", "db"].map(|name| Identity::new("td", "ns", name));
        (ca, certificates, identities)
    }

    /// Waits for a future for at most `seconds`, and returns whether it completed.
    async fn completes_within(seconds: u64, waiting: impl Future<Output = ()>) -> bool {
        let limit = Duration::from_secs(seconds);
        tokio::time::timeout(limit, waiting).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_ca_that_cannot_be_reached_is_waited_for() {
        let (ca, certificates, [web, db]) = start();
        ca.fail_fetches(1_000);
        for identity in [&web, &db] {
            certificates.prefetch(identity);
        }
        let both = [web.clone(), db.clone()];
        let waiting = wait_for_certificates(&certificates, &both);
        tokio::pin!(waiting);
        assert!(!completes_within(300, &mut waiting).await);
        ca.recover();
        assert!(completes_within(200, &mut waiting).await);
        for identity in [&web, &db] {
            assert!(certificates.peek(identity).is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_identity_that_the_ca_refuses_does_not_hold_up_the_others() {
        let (ca, certificates, [web, db]) = start();
        certificates.prefetch(&web);
        wait_until("the one", || certificates.peek(&web).is_some()).await;
        ca.refuse_fetches(1_000);
        certificates.prefetch(&db);
        let both = [web.clone(), db.clone()];
        assert!(!completes_within(9, wait_for_certificates(&certificates, &both)).await);
        assert!(completes_within(11, wait_for_certificates(&certificates, &both)).await);
        assert!(certificates.peek(&db).is_none());
    }
}
