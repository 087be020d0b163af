//! Tests with records that contain fields unknown to this build.

use super::*;

/// Encoded protobuf field with the unknown number 99 and an empty value.
const UNKNOWN_FIELD: [u8; 3] = [0x9a, 0x06, 0];

fn with_unknown_field(mut resource: Resource) -> Resource {
    resource.version = "2e".into();
    resource
        .resource
        .as_mut()
        .unwrap()
        .value
        .extend(UNKNOWN_FIELD);
    resource
}

/// Accepts a client, and sends it its first workloads and services.
async fn start_session(control_plane: &mut ControlPlane) -> Session {
    let mut session = control_plane.accept_session().await;
    session.request().await;
    session.request().await;
    session.send(ADDRESS_TYPE_URL, "a", vec![], &[]).await;
    session.request().await;
    session
}

fn last_policy(recorder: &Recorder) -> Authorization {
    match recorder.updates().last() {
        Some(MeshUpdate::Policy(policy)) => policy.clone(),
        other => panic!("no policy, but {other:?}"),
    }
}

#[tokio::test]
async fn policy_not_understood_becomes_a_deny_all_and_is_refused() {
    let mut control_plane = ControlPlane::start().await;
    let (recorder, client) = start(&control_plane.address, headers());
    let mut session = start_session(&mut control_plane).await;
    let mut push = async |nonce: &str, policy| {
        let policies = vec![policy];
        session
            .send(AUTHORIZATION_TYPE_URL, nonce, policies, &[])
            .await;
        session.request().await.error_detail
    };
    assert_eq!(push("1", policy("p")).await, None);
    let refusal = push("2", with_unknown_field(policy("p"))).await.unwrap();
    assert!(
        refusal
            .message
            .contains("ns/p: istio.security.Authorization: field 99 is unknown"),
        "{}",
        refusal.message
    );
    let substitute = last_policy(&recorder);
    assert!(substitute.not_understood.is_some());
    assert_eq!(substitute.scope, Scope::Namespace);
    // The substitute counts: the proxy is ready, and the next worker restores a substitute from the
    // cache again.
    assert!(*recorder.0.ready.borrow());
    assert_eq!(
        push("3", with_unknown_field(policy("q"))).await.map(|_| ()),
        Some(())
    );
    drop(session);
    assert_eq!(recorder.next_ending().await, StreamEnding::Closed);
    let mut session = control_plane.accept_session().await;
    session.request().await;
    let mut versions: Vec<_> = session
        .request()
        .await
        .initial_resource_versions
        .into_iter()
        .collect();
    versions.sort();
    // The versions are unknown to the server: the good version of "p" is sent again if it is
    // restored, and both removals are reported.
    let version = |name: &str| (name.to_owned(), "not-understood".to_owned());
    assert_eq!(versions, [version("ns/p"), version("ns/q")]);
    drop(client);

    let cached = recorder.0.cached.lock().unwrap().clone();
    let policies = cached
        .into_iter()
        .filter_map(|(of, cached)| (of == AUTHORIZATION_TYPE_URL).then_some(cached));
    let next = Recorder::default();
    let options = options(&control_plane.address, headers(), false);
    let mut client = Client::new(options, next.clone(), None);
    client.restore(AUTHORIZATION_TYPE_URL, policies);
    assert!(last_policy(&next).not_understood.is_some());
}

#[tokio::test]
async fn a_later_valid_version_replaces_the_substitute() {
    let mut control_plane = ControlPlane::start().await;
    let (recorder, _client) = start(&control_plane.address, headers());
    let mut session = start_session(&mut control_plane).await;
    for (nonce, policy) in [("1", with_unknown_field(policy("p"))), ("2", policy("p"))] {
        session
            .send(AUTHORIZATION_TYPE_URL, nonce, vec![policy], &[])
            .await;
        session.request().await;
    }
    assert_eq!(last_policy(&recorder).not_understood, None);
    let odd = vec![with_unknown_field(policy("p"))];
    session.send(AUTHORIZATION_TYPE_URL, "3", odd, &[]).await;
    session.request().await;
    session
        .send(AUTHORIZATION_TYPE_URL, "4", vec![], &["ns/p"])
        .await;
    session.request().await;
    assert_eq!(
        recorder.updates().last(),
        Some(&MeshUpdate::PolicyRemoved("ns/p".into()))
    );
}

#[tokio::test]
async fn last_good_version_stays_if_configured() {
    let mut control_plane = ControlPlane::start().await;
    let recorder = Recorder::default();
    let options = ClientOptions {
        invalid_policies: InvalidPolicyMode::KeepLastGood,
        ..options(&control_plane.address, headers(), false)
    };
    let client = Client::new(options, recorder.clone(), None);
    let _client = spawn_abortable("client under test", client.run());
    let mut session = start_session(&mut control_plane).await;
    let good = vec![policy("p")];
    session.send(AUTHORIZATION_TYPE_URL, "1", good, &[]).await;
    session.request().await;
    let before = recorder.updates();
    let cached = recorder.0.cached.lock().unwrap().len();
    let odd = vec![with_unknown_field(policy("p"))];
    session.send(AUTHORIZATION_TYPE_URL, "2", odd, &[]).await;
    assert!(session.request().await.error_detail.is_some());
    assert_eq!(recorder.updates(), before);
    assert_eq!(recorder.0.cached.lock().unwrap().len(), cached);
}

#[tokio::test]
async fn unknown_fields_of_a_workload_are_only_counted() {
    let mut control_plane = ControlPlane::start().await;
    let (recorder, _client) = start(&control_plane.address, headers());
    let mut session = start_session(&mut control_plane).await;
    let both = vec![with_unknown_field(workload("u")), workload("v")];
    session.send(ADDRESS_TYPE_URL, "1", both, &[]).await;
    assert_eq!(session.request().await.error_detail, None);
    assert_eq!(names(&recorder.updates()), ["u", "v"]);
    let unknown = recorder.0.unknown_fields.lock().unwrap().clone();
    assert_eq!(unknown, [(ADDRESS_TYPE_URL.to_owned(), 1)]);
}
