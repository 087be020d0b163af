//! Benchmark of new pods: their node's proxy requests their certificates over a separate connection, from its own
//! address, as after its start.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_certificates::CertificateRequest;
use ambit_model::Identity;
use ambit_wire::citadel::IstioCertificateRequest;
use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use prost_types::{Struct, Value, value::Kind};

use super::{
    population::ClusterSize,
    proxies::{self, ControlPlaneTarget},
};

/// Number of new pods per second.
const PODS_PER_SECOND: u32 = 50;
/// Timeout until a pod has its certificate.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Timeout of one certificate request. [`RETRY_INTERVAL`] is the pause before the next attempt. Both are those of node
/// proxies.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const CREATE_CERTIFICATE_PATH: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";

/// Creates pods at a steady rate by calling `bring` with their numbers, and returns the time until each pod's
/// certificate was issued.
pub(super) fn certificates(
    target: &ControlPlaneTarget,
    size: ClusterSize,
    numbers: Range<u32>,
    bring: impl Fn(u32),
) -> Result<Vec<Duration>> {
    let found = Arc::<Mutex<Vec<Duration>>>::default();
    let runtime = ambit_rt::current_thread_runtime()?;
    runtime.block_on(async {
        let start = Instant::now();
        let mut asking = Vec::new();
        for (at, number) in (0..).zip(numbers) {
            let due = Duration::from_secs(1) * at / PODS_PER_SECOND;
            tokio::time::sleep(due.saturating_sub(start.elapsed())).await;
            bring(number);
            let (node, identity) = size.churning_identity(number);
            let (target, found) = (target.clone(), Arc::clone(&found));
            asking.push(ambit_rt::spawn("new pod", async move {
                let begin = Instant::now();
                while begin.elapsed() < TIMEOUT {
                    let attempt = certificate(&target, node, &identity);
                    match tokio::time::timeout(ATTEMPT_TIMEOUT, attempt).await {
                        Ok(Ok(())) => {
                            found.lock().push(begin.elapsed());
                            return;
                        }
                        _ => tokio::time::sleep(RETRY_INTERVAL).await,
                    }
                }
            }));
        }
        let expected = asking.len();
        for asked in asking {
            asked.await?;
        }
        let found = std::mem::take(&mut *found.lock());
        ensure!(
            found.len() == expected,
            "{} of {expected} new pods have no certificate after {TIMEOUT:?}",
            expected - found.len()
        );
        Ok(found)
    })
}

async fn certificate(target: &ControlPlaneTarget, node: u32, identity: &Identity) -> Result<()> {
    let connected = target.connect(proxies::address(node), |stream| stream);
    let (mut send, driver) = connected.await?;
    let csr = CertificateRequest::new(identity)?.pem;
    let token = proxies::token(node);
    let status =
        send_certificate_request(&mut send, &certificate_request(csr, Some(identity)), &token)
            .await?;
    drop(driver);
    ensure!(status == "0", "refused with status {status}");
    Ok(())
}

/// Returns a certificate request, which impersonates `identity` if it is given.
pub(super) fn certificate_request(
    csr: String,
    identity: Option<&Identity>,
) -> IstioCertificateRequest {
    let text = |identity: &Identity| Value {
        kind: Some(Kind::StringValue(identity.to_string())),
    };
    let field = |identity| ("ImpersonatedIdentity".to_owned(), text(identity));
    IstioCertificateRequest {
        csr,
        validity_duration: 3600,
        metadata: identity.map(|identity| Struct {
            fields: [field(identity)].into(),
        }),
    }
}

/// Sends a certificate request and returns its gRPC status.
pub(super) async fn send_certificate_request(
    send: &mut h2::client::SendRequest<bytes::Bytes>,
    request: &IstioCertificateRequest,
    token: &str,
) -> Result<String> {
    let head = http::Request::post(format!("https://istiod{CREATE_CERTIFICATE_PATH}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", format!("Bearer {token}"))
        .body(())?;
    let mut ready = send.clone().ready().await?;
    let (response, mut body) = ready.send_request(head, false)?;
    body.send_data(proxies::frame(request), true)?;
    let response = response.await?;
    let status = |headers: &http::HeaderMap| {
        let status = headers.get("grpc-status")?;
        Some(status.to_str().ok()?.to_owned())
    };
    if let Some(status) = status(response.headers()) {
        return Ok(status);
    }
    let mut body = response.into_body();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data?.len())?;
    }
    let trailers = body.trailers().await?.context("no trailers")?;
    status(&trailers).context("no status")
}
