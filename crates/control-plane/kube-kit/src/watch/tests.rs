//! Tests of watches with a scripted API server, and of the bookkeeping alone.

use ambit_testkit::ApiServer;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Client, Config, core::PartialObjectMeta};
use serde_json::json;

use super::*;

const CONFIG_MAPS_PATH: &str = "/api/v1/configmaps";

/// Watch of one data value of ConfigMaps; ConfigMaps without it are skipped.
type ConfigMapWatch = ObjectWatch<ConfigMap, String>;

fn client(server: &ApiServer) -> Client {
    let config = Config::new(server.url().parse().unwrap());
    crate::client::from_config(config, "test").unwrap()
}

fn watch_config_maps(server: &ApiServer) -> ConfigMapWatch {
    let value = |map: &ConfigMap| map.data.as_ref()?.get("v").cloned();
    ObjectWatch::new("maps", Api::all(client(server)), watcher_config(), value)
}

fn put_config_map(server: &ApiServer, name: &str, uid: &str, value: Option<&str>) {
    let data = value.map_or_else(|| json!({}), |value| json!({"v": value}));
    server.put(
        CONFIG_MAPS_PATH,
        json!({"metadata": {"namespace": "a", "name": name, "uid": uid}, "data": data}),
    );
}

/// Waits for `count` events and returns them as text.
async fn next_events<K, V: ToString>(watch: &mut ObjectWatch<K, V>, count: usize) -> Vec<String>
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
{
    let mut events = Vec::new();
    for _ in 0..count {
        let event = tokio::time::timeout(Duration::from_secs(20), watch.next());
        let Ok(event) = event.await else {
            panic!("no event follows {events:?}");
        };
        events.push(match event {
            WatchEvent::ListStarted => "listing".to_owned(),
            WatchEvent::Object(id, value) => format!("{}={}", id.name, value.to_string()),
            WatchEvent::Removed(id) => format!("gone {}/{}", id.name, id.uid),
            WatchEvent::ListCompleted => "listed".to_owned(),
            WatchEvent::Unavailable(_) => "away".to_owned(),
        });
    }
    events
}

#[tokio::test]
async fn listing_in_pages_is_followed_by_every_change() {
    let server = ApiServer::start();
    for n in 0..250 {
        put_config_map(&server, &format!("m{n:03}"), &format!("u{n}"), Some("x"));
    }
    put_config_map(&server, "uninteresting", "u", None);
    let mut watch = watch_config_maps(&server);
    let first = next_events(&mut watch, 252).await;
    assert_eq!((&*first[0], &*first[1]), ("listing", "m000=x"));
    assert_eq!((&*first[250], &*first[251]), ("m249=x", "listed"));
    let pages = server.requests().len();
    assert!(pages >= 3, "{pages} requests");
    put_config_map(&server, "m000", "u0", Some("y"));
    put_config_map(&server, "m001", "u1", None);
    put_config_map(&server, "m001", "u1", Some("back"));
    server.delete(CONFIG_MAPS_PATH, "a", "m002");
    assert_eq!(
        next_events(&mut watch, 4).await,
        ["m000=y", "gone m001/u1", "m001=back", "gone m002/u2"]
    );
}

#[tokio::test]
async fn objects_deleted_during_an_outage_are_reported_after_it() {
    let server = ApiServer::start();
    for (name, uid) in [("stays", "1"), ("goes", "2"), ("renewed", "3")] {
        put_config_map(&server, name, uid, Some("x"));
    }
    let mut watch = watch_config_maps(&server);
    next_events(&mut watch, 5).await;
    server.set_unavailable(true);
    server.delete(CONFIG_MAPS_PATH, "a", "goes");
    server.delete(CONFIG_MAPS_PATH, "a", "renewed");
    put_config_map(&server, "renewed", "4", Some("z"));
    assert_eq!(next_events(&mut watch, 2).await, ["away", "listing"]);
    server.set_unavailable(false);
    let mut events = next_events(&mut watch, 1).await;
    // Failed listings start again.
    while events.last().is_some_and(|last| last != "listed") {
        events.extend(next_events(&mut watch, 1).await);
    }
    events.retain(|event| event != "listing");
    assert_eq!(
        events,
        [
            "gone renewed/3",
            "renewed=z",
            "stays=x",
            "gone goes/2",
            "listed"
        ]
    );
}

#[tokio::test]
async fn broken_watch_resumes_and_expired_version_is_relisted() {
    let server = ApiServer::start();
    put_config_map(&server, "m", "1", Some("a"));
    let mut watch = watch_config_maps(&server);
    assert_eq!(
        next_events(&mut watch, 3).await,
        ["listing", "m=a", "listed"]
    );
    // The watch must be open when the connection is closed.
    put_config_map(&server, "m", "1", Some("b"));
    assert_eq!(next_events(&mut watch, 1).await, ["m=b"]);
    server.close_connections();
    put_config_map(&server, "m", "1", Some("c"));
    assert_eq!(next_events(&mut watch, 1).await, ["m=c"], "no new listing");
    server.close_connections();
    server.delete(CONFIG_MAPS_PATH, "a", "m");
    server.compact();
    let mut received = Vec::new();
    while received.last().is_none_or(|last| last != "listed") {
        received.extend(next_events(&mut watch, 1).await);
    }
    // A connection that is closed before its response looks like an unreachable server.
    received.retain(|event| event != "away");
    assert_eq!(received, ["listing", "gone m/1", "listed"]);
}

#[tokio::test]
async fn restored_older_store_is_relisted() {
    let server = ApiServer::start();
    for value in ["a", "b", "c"] {
        put_config_map(&server, "m", "1", Some(value));
    }
    let mut watch = watch_config_maps(&server);
    next_events(&mut watch, 3).await;
    server.set_unavailable(true);
    assert_eq!(next_events(&mut watch, 2).await, ["away", "listing"]);
    server.reset_versions();
    put_config_map(&server, "m", "1", Some("old"));
    server.set_unavailable(false);
    let mut events = next_events(&mut watch, 2).await;
    events.retain(|event| event != "listing");
    assert_eq!(events[0], "m=old");
    put_config_map(&server, "m", "1", Some("new"));
    // The restored versions are lower than the earlier ones.
    while next_events(&mut watch, 1).await != ["m=new"] {}
}

#[tokio::test]
async fn only_metadata_is_requested_and_parsed() {
    let server = ApiServer::start();
    server.put(
        "/api/v1/namespaces",
        json!({"metadata": {"name": "shop", "labels": {"l": "v"}}, "spec": {"x": 1}}),
    );
    let label = |namespace: &PartialObjectMeta<Namespace>| {
        namespace.metadata.labels.as_ref()?.get("l").cloned()
    };
    let mut watch = ObjectWatch::new(
        "namespaces",
        Api::all(client(&server)),
        watcher_config(),
        label,
    );
    assert_eq!(
        next_events(&mut watch, 3).await,
        ["listing", "shop=v", "listed"]
    );
}

#[tokio::test]
async fn client_resubscribes_to_everything_after_a_refusal() {
    let server = ApiServer::start();
    put_config_map(&server, "m", "1", Some("a"));
    let mut watch = watch_config_maps(&server);
    next_events(&mut watch, 3).await;
    server.fail_next(&[500]);
    assert_eq!(next_events(&mut watch, 2).await, ["away", "listing"]);
    assert_eq!(next_events(&mut watch, 2).await, ["m=a", "listed"]);
}

fn id(name: &str, uid: &str) -> ObjectId {
    ObjectId {
        namespace: "a".into(),
        name: name.into(),
        uid: uid.into(),
    }
}

#[test]
fn failed_listing_loses_no_object() {
    let mut known = KnownObjects::default();
    known.begin_listing();
    for name in ["x", "y", "z"] {
        assert_eq!(known.insert(&id(name, "1")), None);
    }
    assert_eq!(known.end_listing(), []);
    known.begin_listing();
    known.insert(&id("x", "1"));
    // The listing fails here, and the next one has different objects.
    known.begin_listing();
    known.insert(&id("y", "1"));
    let mut gone = known.end_listing();
    gone.sort();
    assert_eq!(gone, [id("x", "1"), id("z", "1")]);
}

#[test]
fn late_deletion_of_a_predecessor_keeps_its_successor() {
    let mut known = KnownObjects::default();
    known.insert(&id("web-0", "1"));
    assert_eq!(known.insert(&id("web-0", "2")), Some(id("web-0", "1")));
    assert!(!known.remove(&id("web-0", "1")));
    assert!(known.remove(&id("web-0", "2")));
    assert!(!known.remove(&id("web-0", "2")));
}
