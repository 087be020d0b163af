//! Tests of revoked certificates: at handshakes, on open connections, and after changes of the file.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ambit_model::{FailureReason, Identity};
use ambit_rt::spawn_abortable;
use ambit_testkit::{Pki, wait_until};
use ambit_tls::{
    CrlError, HandshakeError, PeerRole, TrustWithdrawalReason, WorkloadCert, accept, connect,
};
use tokio::io::duplex;

fn id(name: &str) -> Identity {
    Identity::new("td", "ns", name)
}

async fn perform_handshake(
    client: &WorkloadCert,
    server: &WorkloadCert,
) -> (Result<(), HandshakeError>, Result<(), HandshakeError>) {
    let (near, far) = duplex(64 * 1024);
    let (client, server) = tokio::join!(
        connect(
            client.client_config(&[server.identity().clone()]).unwrap(),
            near
        ),
        accept(server.server_config().unwrap(), far)
    );
    (client.map(drop), server.map(drop))
}

fn write(dir: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = dir.path().join("ca-crl.pem");
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn a_revoked_leaf_is_refused_on_both_sides() {
    let (pki, crls) = Pki::with_crls();
    let (good, bad) = (pki.cert(&id("good")), pki.cert(&id("bad")));
    perform_handshake(&bad, &good).await.1.unwrap();
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(crls.load(&write(&dir, &pki.revoke(&[&bad]))).unwrap(), 1);
    // Configurations made before the list use it too.
    let refused = perform_handshake(&bad, &good).await.1.unwrap_err();
    assert_eq!(refused.reason(), FailureReason::CertRevoked);
    let refused = perform_handshake(&good, &bad).await.0.unwrap_err();
    assert_eq!(refused.reason(), FailureReason::CertRevoked);
    let other = pki.cert(&id("other"));
    perform_handshake(&other, &good).await.1.unwrap();
}

#[tokio::test]
async fn open_connections_can_be_checked_again() {
    let (pki, crls) = Pki::with_crls();
    let ours = pki.cert(&id("ours"));
    let now = SystemTime::now();
    let (good, bad) = (pki.cert(&id("good")), pki.cert(&id("bad")));
    let dir = tempfile::tempdir().unwrap();
    let names = [id("good"), id("bad")];
    let revoked = |cert: &WorkloadCert, peer| {
        ours.withdrawal_reason(peer, cert.chain(), now) == Some(TrustWithdrawalReason::Revoked)
    };
    assert!(!revoked(&bad, PeerRole::Client));
    crls.load(&write(&dir, &pki.revoke(&[&bad]))).unwrap();
    assert!(revoked(&bad, PeerRole::Client) && revoked(&bad, PeerRole::Server(&names)));
    assert!(!revoked(&good, PeerRole::Client) && !revoked(&good, PeerRole::Server(&names)));
    // Expiry since the handshake does not count.
    let old = pki.expired_cert(&id("old"));
    let then = old.not_before() + Duration::from_secs(1);
    assert_eq!(
        ours.withdrawal_reason(PeerRole::Client, old.chain(), then),
        None
    );
    assert_eq!(ours.withdrawal_reason(PeerRole::Client, &[], now), None);
}

#[tokio::test]
async fn a_revoked_intermediate_revokes_all_below() {
    let (pki, crls) = Pki::with_crls();
    let dir = tempfile::tempdir().unwrap();
    crls.load(&write(&dir, &pki.revoke_intermediate())).unwrap();
    let (client, server) = (pki.cert(&id("client")), pki.cert(&id("server")));
    assert_eq!(
        perform_handshake(&client, &server)
            .await
            .1
            .unwrap_err()
            .reason(),
        FailureReason::TlsFailure
    );
}

#[tokio::test]
async fn lists_of_other_issuers_and_empty_lists_change_nothing() {
    let (pki, crls) = Pki::with_crls();
    let stranger = Pki::new();
    let dir = tempfile::tempdir().unwrap();
    let (client, server) = (pki.cert(&id("client")), pki.cert(&id("server")));
    let foreign = stranger.revoke(&[&stranger.cert(&id("client"))]);
    crls.load(&write(&dir, &foreign)).unwrap();
    perform_handshake(&client, &server).await.1.unwrap();
    assert_eq!(crls.load(&write(&dir, "")).unwrap(), 0);
    perform_handshake(&client, &server).await.1.unwrap();
}

#[tokio::test]
async fn missing_or_broken_file_keeps_the_lists() {
    let (pki, crls) = Pki::with_crls();
    let (good, bad) = (pki.cert(&id("good")), pki.cert(&id("bad")));
    let dir = tempfile::tempdir().unwrap();
    let path = write(&dir, &pki.revoke(&[&bad]));
    crls.load(&path).unwrap();
    let broken = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
    let error = crls.load(&write(&dir, broken)).unwrap_err();
    assert!(
        matches!(error, CrlError::Malformed { index: 0, .. }),
        "{error:?}"
    );
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(crls.load(&path), Err(CrlError::Read { .. })));
    assert_eq!(
        perform_handshake(&bad, &good).await.1.unwrap_err().reason(),
        FailureReason::CertRevoked
    );
}

#[tokio::test]
async fn followed_file_is_loaded_when_it_appears_and_changes() {
    let (pki, crls) = Pki::with_crls();
    let (good, bad) = (Arc::new(pki.cert(&id("good"))), pki.cert(&id("bad")));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca-crl.pem");
    let mut changes = crls.changes();
    let _follow = spawn_abortable("follow", crls.clone().reload_on_change(path));
    write(&dir, &pki.revoke(&[&bad]));
    tokio::time::timeout(Duration::from_secs(20), changes.changed())
        .await
        .unwrap()
        .unwrap();
    assert!(perform_handshake(&bad, &good).await.1.is_err());
    // Kubernetes replaces files by renaming.
    let next = dir.path().join("next");
    std::fs::write(&next, "").unwrap();
    std::fs::rename(&next, dir.path().join("ca-crl.pem")).unwrap();
    let version = *changes.borrow_and_update();
    wait_until("another load", || *crls.changes().borrow() > version).await;
    perform_handshake(&bad, &good).await.1.unwrap();
}
