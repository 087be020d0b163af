//! Tests of the certificate store with a fake CA, on paused time.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use ambit_certificates::{CertError, CertificateMetrics, Certificates, CertificatesOptions};
use ambit_model::{FailureReason, Identity};
use ambit_rt::spawn;
use ambit_testkit::{FakeCa, Pki, advance_time, wait_until};

const DAY: Duration = Duration::from_secs(86_400);

fn test_identity(name: &str) -> Identity {
    Identity::new("td", "ns", name)
}

fn start_store() -> (FakeCa, Certificates) {
    let ca = FakeCa::new(Arc::new(Pki::new()), DAY);
    let certificates = Certificates::start(Arc::new(ca.clone()), CertificatesOptions::default());
    (ca, certificates)
}

#[tokio::test]
async fn certificate_is_fetched_once_and_then_cached() {
    let (ca, certificates) = start_store();
    assert!(certificates.peek(&test_identity("a")).is_none());
    let first = certificates.get(&test_identity("a")).await.unwrap();
    assert_eq!(first.identity(), &test_identity("a"));
    let second = certificates.get(&test_identity("a")).await.unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    assert!(Arc::ptr_eq(
        &first,
        &certificates.peek(&test_identity("a")).unwrap()
    ));
    assert_eq!(ca.requested(), [test_identity("a")]);
}

#[tokio::test]
async fn concurrent_callers_share_one_fetch() {
    let (ca, certificates) = start_store();
    ca.hold_fetches();
    certificates.prefetch(&test_identity("a"));
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let certificates = certificates.clone();
            spawn("wait", async move {
                certificates.get(&test_identity("a")).await
            })
        })
        .collect();
    wait_until("the fetch", || ca.requested().len() == 1).await;
    ca.release_fetches(1);
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
    }
    assert_eq!(ca.requested().len(), 1);
}

#[tokio::test]
async fn fetch_for_a_connection_overtakes_prefetches() {
    let (ca, certificates) = start_store();
    ca.hold_fetches();
    for index in 0..20 {
        certificates.prefetch(&test_identity(&format!("pod-{index}")));
    }
    wait_until("eight fetches", || ca.requested().len() == 8).await;
    let urgent = {
        let certificates = certificates.clone();
        spawn("urgent", async move {
            certificates.get(&test_identity("pod-19")).await
        })
    };
    // The request reaches the loop before the fetches go on.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    ca.release_fetches(1);
    wait_until("a ninth fetch", || ca.requested().len() == 9).await;
    assert_eq!(ca.requested().last(), Some(&test_identity("pod-19")));
    ca.release_fetches(20);
    urgent.await.unwrap().unwrap();
    wait_until("all fetches", || ca.requested().len() == 20).await;
    assert_eq!(ca.max_concurrent_fetches(), 8);
}

#[tokio::test(start_paused = true)]
async fn renewal_at_half_life_replaces_the_certificate() {
    let (ca, certificates) = start_store();
    let first = certificates.get(&test_identity("a")).await.unwrap();
    advance_time(DAY / 2 - Duration::from_secs(300)).await;
    assert_eq!(ca.requested().len(), 1);
    advance_time(Duration::from_secs(600)).await;
    wait_until("a renewal", || ca.requested().len() == 2).await;
    wait_until("another certificate", || {
        certificates
            .peek(&test_identity("a"))
            .is_some_and(|cert| !Arc::ptr_eq(&cert, &first))
    })
    .await;
}

#[tokio::test]
async fn counts_follow_a_certificate_to_its_expiry() {
    let (ca, certificates) = start_store();
    ca.hold_fetches();
    certificates.prefetch(&test_identity("a"));
    let now = SystemTime::now();
    assert_eq!(certificates.counts(now).initializing, 1);
    ca.release_fetches(1);
    let expiry = certificates
        .get(&test_identity("a"))
        .await
        .unwrap()
        .not_after();
    let counts = certificates.counts(now);
    assert_eq!((counts.available, counts.overdue), (1, 0));
    assert_eq!(counts.earliest_expiry, Some(expiry));
    let counts = certificates.counts(expiry - Duration::from_secs(60));
    assert_eq!((counts.available, counts.overdue), (0, 1));
    let counts = certificates.counts(expiry + Duration::from_secs(60));
    assert_eq!((counts.overdue, counts.unavailable), (0, 1));

    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(CertificateMetrics(certificates)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for sample in [
        "ambit_certificates{state=\"available\"} 1\n",
        "ambit_certificates{state=\"unavailable\"} 0\n",
        "ambit_certificate_earliest_expiry_timestamp_seconds ",
    ] {
        assert!(text.contains(sample), "{sample} is missing in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_keeps_the_old_certificate() {
    let (ca, certificates) = start_store();
    let first = certificates.get(&test_identity("a")).await.unwrap();
    ca.fail_fetches(10_000);
    advance_time(DAY * 3 / 4).await;
    assert!(ca.requested().len() > 10, "renewal is retried");
    assert!(Arc::ptr_eq(
        &certificates.get(&test_identity("a")).await.unwrap(),
        &first
    ));
    ca.recover();
    advance_time(Duration::from_secs(200)).await;
    let renewed = certificates.get(&test_identity("a")).await.unwrap();
    assert!(!Arc::ptr_eq(&renewed, &first));
}

#[tokio::test(start_paused = true)]
async fn callers_fail_at_once_without_a_certificate() {
    let (ca, certificates) = start_store();
    ca.fail_fetches(2);
    let error = certificates.get(&test_identity("a")).await.unwrap_err();
    assert_eq!(error.reason(), FailureReason::IdentityError);
    assert_eq!(
        error.to_string(),
        "identity error: no certificate for spiffe://td/ns/ns/sa/a: \
         the CA answered Unavailable: the fake CA is set to fail"
    );
    let began = tokio::time::Instant::now();
    certificates.get(&test_identity("a")).await.unwrap_err();
    assert_eq!(began.elapsed(), Duration::ZERO, "no waiting for the retry");
    assert_eq!(ca.requested().len(), 1, "callers do not hurry it");
    advance_time(Duration::from_secs(5)).await;
    certificates.get(&test_identity("a")).await.unwrap();
    assert_eq!(ca.requested().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn certificates_are_available_two_seconds_after_the_ca_is_back() {
    let (ca, certificates) = start_store();
    let all = [test_identity("a"), test_identity("b"), test_identity("c")];
    ca.fail_fetches(10_000);
    for identity in &all {
        certificates.get(identity).await.unwrap_err();
    }
    advance_time(Duration::from_secs(100)).await;
    assert!(
        ca.requested().len() < 200,
        "{} attempts",
        ca.requested().len()
    );
    ca.recover();
    advance_time(Duration::from_secs(2)).await;
    for identity in &all {
        assert!(certificates.peek(identity).is_some(), "{identity}");
    }
}

#[tokio::test(start_paused = true)]
async fn obtained_waits_through_failures_and_refusals() {
    let (ca, certificates) = start_store();
    let [away, refused] = [test_identity("away"), test_identity("refused")];
    ca.fail_fetches(3);
    certificates.prefetch(&away);
    wait_until("the first attempt", || ca.requested().len() == 1).await;
    assert!(certificates.is_awaited(&away), "no way to the CA");
    certificates.wait_until_obtained(&away).await;
    assert!(certificates.peek(&away).is_some());
    assert!(!certificates.is_awaited(&away));
    assert_eq!(ca.requested().len(), 4);

    ca.refuse_fetches(1_000);
    certificates.prefetch(&refused);
    assert!(certificates.is_awaited(&refused), "not asked yet");
    wait_until("the refusal", || !certificates.is_awaited(&refused)).await;
    assert!(certificates.peek(&refused).is_none());
    let waiter = {
        let certificates = certificates.clone();
        let refused = refused.clone();
        spawn("wait", async move {
            certificates.wait_until_obtained(&refused).await
        })
    };
    wait_until("more attempts", || ca.requested().len() > 6).await;
    assert!(!waiter.is_finished());
    certificates.forget(&refused);
    waiter.await.unwrap();
    certificates
        .wait_until_obtained(&test_identity("never asked for"))
        .await;
}

#[tokio::test]
async fn forgetting_fails_waiting_callers_and_later_calls_fetch_again() {
    let (ca, certificates) = start_store();
    ca.hold_fetches();
    let waiter = {
        let certificates = certificates.clone();
        spawn("wait", async move {
            certificates.get(&test_identity("a")).await
        })
    };
    wait_until("the fetch", || ca.requested().len() == 1).await;
    certificates.forget(&test_identity("a"));
    assert!(matches!(
        waiter.await.unwrap(),
        Err(CertError::IdentityForgotten(_))
    ));
    assert_eq!(certificates.dump(), []);
    ca.release_fetches(2);
    certificates.get(&test_identity("a")).await.unwrap();
    assert_eq!(ca.requested().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn forgotten_certificates_are_not_renewed() {
    let (ca, certificates) = start_store();
    certificates.get(&test_identity("a")).await.unwrap();
    certificates.forget(&test_identity("a"));
    advance_time(2 * DAY).await;
    assert_eq!(ca.requested().len(), 1);
    assert!(certificates.peek(&test_identity("a")).is_none());
}

#[tokio::test(start_paused = true)]
async fn the_dump_has_the_keys_istioctl_reads() {
    let (ca, certificates) = start_store();
    certificates.get(&test_identity("b")).await.unwrap();
    ca.fail_fetches(1);
    certificates.get(&test_identity("a")).await.unwrap_err();
    ca.hold_fetches();
    certificates.prefetch(&test_identity("c"));
    let dump = serde_json::to_value(certificates.dump()).unwrap();
    assert_eq!(dump[0]["identity"], "spiffe://td/ns/ns/sa/a");
    assert_eq!(
        dump[0]["state"],
        "Unavailable: the CA answered Unavailable: the fake CA is set to fail"
    );
    assert_eq!(dump[1]["state"], "Available");
    assert_eq!(dump[1]["certChain"].as_array().unwrap().len(), 2);
    let leaf = &dump[1]["certChain"][0];
    for key in ["pem", "serialNumber", "validFrom", "expirationTime"] {
        assert!(leaf[key].is_string(), "{key} in {leaf}");
    }
    assert!(
        leaf["serialNumber"]
            .as_str()
            .unwrap()
            .bytes()
            .all(|digit| digit.is_ascii_digit())
    );
    assert_eq!(dump[1]["rootCerts"].as_array().unwrap().len(), 1);
    assert_eq!(dump[2]["state"], "Initializing");
}

#[tokio::test]
async fn certificates_are_served_to_other_threads() {
    let (_ca, certificates) = start_store();
    let (result, done) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let runtime = ambit_rt::current_thread_runtime().unwrap();
        let got = runtime.block_on(async { certificates.get(&test_identity("a")).await.is_ok() });
        result.send(got).unwrap();
    });
    assert!(done.await.unwrap());
}
