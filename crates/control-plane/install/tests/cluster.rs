//! Tests installation, upgrade and removal with the test kit's API server in memory.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{cell::RefCell, time::Duration};

use ambit_install::{
    apply::{self, InstallOptions},
    attachment,
    cluster::ClusterApi,
    error::InstallError,
    object::ObjectRef,
    plan::Plan,
    remove::{self, UninstallOptions},
    render::Release,
    values::ValueOverrides,
};
use ambit_testkit::ApiServer;
use serde_json::{Value, json};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const NO_PROGRESS: &dyn Fn(&str) = &|_| {};
const NO_WAIT: InstallOptions = InstallOptions {
    ready_timeout: None,
    force_conflicts: false,
};

struct TestCluster {
    server: ApiServer,
    cluster: ClusterApi,
}

impl TestCluster {
    async fn new() -> Self {
        let server = ApiServer::start();
        let file = kube::config::Kubeconfig::from_yaml(&server.kubeconfig()).unwrap();
        let config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await;
        let client = ambit_kube_kit::client::from_config(config.unwrap(), "test").unwrap();
        Self {
            server,
            cluster: ClusterApi::new(client),
        }
    }

    async fn install(
        &self,
        settings: &[&str],
        options: InstallOptions,
    ) -> Result<(), InstallError> {
        apply::install(&self.cluster, &plan(settings), options, NO_PROGRESS).await
    }

    /// Returns the objects that the default installation with network policies applies and that are in the cluster.
    async fn existing_objects(&self) -> Vec<String> {
        self.existing_objects_with(&["global.networkPolicy.enabled=true"])
            .await
    }

    /// Returns the objects that an installation with these values applies and that are in the cluster.
    async fn existing_objects_with(&self, settings: &[&str]) -> Vec<String> {
        let mut existing = Vec::new();
        let everything = plan(settings);
        for object in everything.objects.iter().chain(&everything.crds) {
            let name = ObjectRef::from_object(object).unwrap();
            if self.cluster.get(&name).await.unwrap().is_some() {
                existing.push(name.to_string());
            }
        }
        existing
    }
}

fn plan(settings: &[&str]) -> Plan {
    let mut overrides = ValueOverrides::default();
    for setting in settings {
        overrides.set(setting, false).unwrap();
    }
    Plan::new(Release::default(), overrides).unwrap()
}

/// Returns the chosen `waypointAttachment`, and the messages of the choice.
async fn choose_attachment(lab: &TestCluster, settings: &[&str]) -> (Option<String>, Vec<String>) {
    let mut overrides = ValueOverrides::default();
    for setting in settings {
        overrides.set(setting, false).unwrap();
    }
    let printed = RefCell::new(Vec::new());
    let say = |text: &str| printed.borrow_mut().push(text.to_owned());
    attachment::choose_waypoint_attachment(&lab.cluster, "istio-system", &mut overrides, &say)
        .await
        .unwrap();
    let chosen = overrides.string_at(&["meshConfig", "waypointAttachment"]);
    (chosen.map(ToOwned::to_owned), printed.into_inner())
}

#[tokio::test]
async fn labels_attach_alone_in_clusters_with_waypoint_labels() {
    let labelled = |version: &str, kind: &str, namespace: Option<&str>| {
        json!({"apiVersion": version, "kind": kind,
            "metadata": {"name": "x", "namespace": namespace, "labels": {"istio.io/use-waypoint": "none"}}})
    };
    let istio = "networking.istio.io/v1";
    for (object, name) in [
        (labelled("v1", "Namespace", None), "Namespace x"),
        (labelled("v1", "Service", Some("a")), "Service a/x"),
        (labelled("v1", "Pod", Some("a")), "Pod a/x"),
        (
            labelled(istio, "ServiceEntry", Some("a")),
            "ServiceEntry a/x",
        ),
        (
            labelled(istio, "WorkloadEntry", Some("a")),
            "WorkloadEntry a/x",
        ),
    ] {
        let lab = TestCluster::new().await;
        assert_eq!(choose_attachment(&lab, &[]).await, (None, vec![]));
        lab.cluster.apply(&object, false).await.unwrap();
        let (chosen, printed) = choose_attachment(&lab, &[]).await;
        assert_eq!(chosen.as_deref(), Some("labels"), "{name}");
        let because =
            format!("meshConfig.waypointAttachment: labels, because {name} has the label");
        assert!(printed.concat().starts_with(&because), "{printed:?}");
        // A value that the user sets takes precedence.
        let by_hand = &["meshConfig.waypointAttachment=seed"];
        let expected = (Some("seed".to_owned()), vec![]);
        assert_eq!(choose_attachment(&lab, by_hand).await, expected, "{name}");
    }
}

#[tokio::test]
async fn labels_attach_alone_beside_istios_control_plane() {
    let istiod = |part_of: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {
            "name": "istiod", "namespace": "istio-system",
            "labels": {"app": "istiod", "app.kubernetes.io/part-of": part_of},
        }})
    };
    let lab = TestCluster::new().await;
    lab.cluster.apply(&istiod("ambit"), false).await.unwrap();
    assert_eq!(choose_attachment(&lab, &[]).await.0, None, "our own");
    lab.cluster.apply(&istiod("istio"), true).await.unwrap();
    let revision = ["global.revision=canary", "global.components=control-plane"];
    let (chosen, printed) = choose_attachment(&lab, &revision).await;
    assert_eq!(chosen.as_deref(), Some("labels"));
    let because = "because Istio's control plane, Deployment istio-system/istiod, attaches";
    assert!(printed.concat().contains(because), "{printed:?}");

    // The value stays after Istio's control plane has been removed, with or without a release of node parts.
    let labels = "meshConfig.waypointAttachment=labels";
    lab.install(&[&revision[..], &[labels]].concat(), NO_WAIT)
        .await
        .unwrap();
    let node = ["global.components=node", "ztunnel.revision=canary"];
    lab.install(&node, NO_WAIT).await.unwrap();
    let name = ObjectRef::from_object(&istiod("istio")).unwrap();
    lab.cluster
        .delete(&name, Duration::from_secs(9))
        .await
        .unwrap();
    assert_eq!(
        choose_attachment(&lab, &revision).await.0.as_deref(),
        Some("labels")
    );
    assert_eq!(choose_attachment(&lab, &[]).await.0, None);
}

#[tokio::test]
async fn upgrade_keeps_the_waypoint_attachment() {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "x", "labels": {"istio.io/use-waypoint": "way"}}});
    let lab = TestCluster::new().await;
    lab.install(&[], NO_WAIT).await.unwrap();
    lab.cluster.apply(&namespace, false).await.unwrap();
    assert_eq!(
        choose_attachment(&lab, &[]).await.0,
        None,
        "labels that came later"
    );
    let lab = TestCluster::new().await;
    lab.install(&["meshConfig.waypointAttachment=labels"], NO_WAIT)
        .await
        .unwrap();
    let (chosen, printed) = choose_attachment(&lab, &[]).await;
    assert_eq!(chosen.as_deref(), Some("labels"));
    assert!(
        printed.concat().ends_with("labels, as it is installed"),
        "{printed:?}"
    );
}

#[tokio::test]
async fn installation_is_upgraded_and_removed_by_its_inventory() {
    let lab = TestCluster::new().await;
    lab.install(
        &["global.networkPolicy.enabled=true", "global.tag=one"],
        NO_WAIT,
    )
    .await
    .unwrap();
    let first = lab.existing_objects().await;
    assert!(
        first.contains(&"NetworkPolicy istio-system/ztunnel".to_owned()),
        "{first:?}"
    );
    assert!(first.contains(&"DaemonSet istio-system/ztunnel".to_owned()));
    let inventory = apply::installed_inventory(&lab.cluster, "istio-system", "default")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(inventory.values["global"]["tag"], "one");
    assert!(inventory.made_namespace);
    assert_eq!(inventory.crds.len(), 10);

    // Applying the same again changes nothing.
    lab.install(
        &["global.networkPolicy.enabled=true", "global.tag=one"],
        NO_WAIT,
    )
    .await
    .unwrap();
    assert_eq!(lab.existing_objects().await, first);

    // Objects that are no longer in the chart are removed.
    lab.install(&[], NO_WAIT).await.unwrap();
    let second = lab.existing_objects().await;
    let gone: Vec<_> = first.iter().filter(|name| !second.contains(name)).collect();
    assert_eq!(gone.len(), 3, "{gone:?}");
    assert!(gone.iter().all(|name| name.starts_with("NetworkPolicy ")));

    let all = UninstallOptions {
        delete_crds: true,
        delete_root: true,
        delete_namespace: true,
    };
    remove::uninstall(&lab.cluster, ("istio-system", "default"), all, NO_PROGRESS)
        .await
        .unwrap();
    assert_eq!(lab.existing_objects().await, Vec::<String>::new());
    assert_eq!(lab.server.list("/api/v1/namespaces"), Vec::<Value>::new());
    assert_eq!(lab.server.list("/api/v1/configmaps"), Vec::<Value>::new());
    let again =
        remove::uninstall(&lab.cluster, ("istio-system", "default"), all, NO_PROGRESS).await;
    assert!(matches!(again, Err(InstallError::NotInstalled { .. })));
}

#[tokio::test]
async fn revision_is_installed_and_removed_beside_the_default() {
    let canary = "global.revision=canary,global.components=control-plane";
    let lab = TestCluster::new().await;
    lab.install(&[], NO_WAIT).await.unwrap();
    let first = lab.existing_objects().await;
    lab.install(&[canary], NO_WAIT).await.unwrap();
    let second = lab.existing_objects_with(&[canary]).await;
    assert!(second.contains(&"Service istio-system/istiod-canary".to_owned()));
    // An upgrade of one revision removes no object of the other.
    lab.install(&["global.tag=two"], NO_WAIT).await.unwrap();
    assert_eq!(lab.existing_objects().await, first);
    assert_eq!(lab.existing_objects_with(&[canary]).await, second);
    let inventory = apply::installed_inventory(&lab.cluster, "istio-system", "canary").await;
    assert!(!inventory.unwrap().unwrap().has_node_components());
    let all = UninstallOptions {
        delete_crds: true,
        delete_root: true,
        delete_namespace: true,
    };
    let of_canary = ("istio-system", "canary");
    remove::uninstall(&lab.cluster, of_canary, all, NO_PROGRESS)
        .await
        .unwrap();
    assert_eq!(lab.existing_objects().await, first, "the mesh goes on");
    let left = lab.existing_objects_with(&[canary]).await;
    let is_definition = |name: &String| name.starts_with("CustomResourceDefinition ");
    assert!(left.iter().all(is_definition), "{left:?}");
    let again = remove::uninstall(&lab.cluster, of_canary, all, NO_PROGRESS).await;
    assert!(matches!(again, Err(InstallError::NotInstalled { .. })));
}

#[tokio::test]
async fn helm_hooks_are_not_applied() {
    let lab = TestCluster::new().await;
    lab.install(&[], NO_WAIT).await.unwrap();
    let inventory = apply::installed_inventory(&lab.cluster, "istio-system", "default").await;
    let objects = inventory.unwrap().unwrap().objects;
    assert!(objects.iter().all(|name| name.kind != "Job"), "{objects:?}");
    let jobs = lab.server.list("/apis/batch/v1/jobs");
    assert_eq!(jobs, Vec::<Value>::new());
    for account in lab.server.list("/api/v1/serviceaccounts") {
        assert_ne!(account["metadata"]["name"], "ambit-release");
    }
}

/// Checks that an interrupted removal waits for the agents with the new selectors: older agents would leave the plugin
/// installed.
#[tokio::test]
async fn interrupted_unenrolment_waits_for_the_new_agents() {
    let lab = TestCluster::new().await;
    lab.install(&[], NO_WAIT).await.unwrap();
    let pod = |annotations: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": "a", "namespace": "shop", "annotations": annotations}})
    };
    let captured = json!({"ambient.istio.io/redirection": "enabled"});
    lab.server.put("/api/v1/pods", pod(captured));
    let agents = |template: &str| {
        let sets = "/apis/apps/v1/daemonsets";
        let mut set = lab.server.get(sets, "istio-system", "ambit-agent").unwrap();
        set["metadata"]["uid"] = json!("agents");
        set["metadata"]["annotations"]["deprecated.daemonset.template.generation"] = json!("2");
        set["status"] = json!({"observedGeneration": 99, "desiredNumberScheduled": 1});
        lab.server.put(sets, set);
        let agent = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "agent", "namespace": "istio-system",
                "labels": {"app": "ambit-agent", "pod-template-generation": template},
                "ownerReferences": [{"uid": "agents"}]},
            "spec": {"nodeName": "n1"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        lab.server.put("/api/v1/pods", agent);
    };
    agents("1");
    let release = async |time_limit| {
        remove::unenrol_all(&lab.cluster, "istio-system", time_limit, NO_PROGRESS).await
    };
    let first = release(Duration::ZERO).await;
    assert!(
        matches!(first, Err(InstallError::NotReady(..))),
        "{first:?}"
    );
    lab.server.put("/api/v1/pods", pod(json!({})));
    let time_limit = Duration::from_secs(60);
    let early = tokio::time::timeout(Duration::from_millis(500), release(time_limit)).await;
    assert!(early.is_err(), "{early:?}");
    agents("2");
    release(time_limit).await.unwrap();
}

#[tokio::test]
async fn foreign_crds_are_neither_changed_nor_deleted() {
    let lab = TestCluster::new().await;
    let theirs = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "serviceentries.networking.istio.io", "labels": {"chart": "istio"}},
        "spec": {"group": "networking.istio.io"},
    });
    lab.server.put(CRDS, theirs);
    lab.install(&[], NO_WAIT).await.unwrap();
    let name = "serviceentries.networking.istio.io";
    let spec = |lab: &TestCluster| lab.server.get(CRDS, "", name).unwrap()["spec"].clone();
    assert_eq!(spec(&lab), json!({"group": "networking.istio.io"}));
    let all = UninstallOptions {
        delete_crds: true,
        delete_root: true,
        delete_namespace: true,
    };
    remove::uninstall(&lab.cluster, ("istio-system", "default"), all, NO_PROGRESS)
        .await
        .unwrap();
    assert_eq!(spec(&lab), json!({"group": "networking.istio.io"}));
    assert_eq!(lab.server.list(CRDS).len(), 1);
}

#[tokio::test]
async fn foreign_objects_are_not_touched() {
    let lab = TestCluster::new().await;
    let theirs = |labels: Value| {
        json!({"apiVersion": "v1", "kind": "Service", "spec": {"x": 1},
            "metadata": {"name": "istiod", "namespace": "istio-system", "labels": labels}})
    };
    for labels in [
        json!({"app": "istiod"}),
        json!({"app.kubernetes.io/managed-by": "Helm"}),
    ] {
        lab.server.put("/api/v1/services", theirs(labels));
        let error = lab.install(&[], NO_WAIT).await.unwrap_err();
        assert!(matches!(error, InstallError::ForeignObject(..)), "{error}");
        assert_eq!(lab.server.list("/api/v1/configmaps"), Vec::<Value>::new());
    }
    let force = InstallOptions {
        force_conflicts: true,
        ..NO_WAIT
    };
    lab.install(&[], force).await.unwrap();
    lab.install(&[], NO_WAIT).await.unwrap();
}

#[tokio::test]
async fn objects_taken_over_by_others_survive_an_uninstallation() {
    let lab = TestCluster::new().await;
    lab.install(&[], NO_WAIT).await.unwrap();
    let theirs = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {
        "name": "ztunnel", "namespace": "istio-system",
        "labels": {"app": "ztunnel", "app.kubernetes.io/part-of": "istio"},
    }});
    lab.server.put("/apis/apps/v1/daemonsets", theirs);
    let said = RefCell::new(Vec::new());
    let of = ("istio-system", "default");
    let say = |line: &str| said.borrow_mut().push(line.to_owned());
    remove::uninstall(&lab.cluster, of, UninstallOptions::default(), &say)
        .await
        .unwrap();
    let mut left = lab.existing_objects().await;
    left.retain(|name| !name.starts_with("CustomResourceDefinition "));
    assert_eq!(left, ["DaemonSet istio-system/ztunnel"]);
    let said = said.into_inner();
    let line = "DaemonSet istio-system/ztunnel: left, it has become another installation's";
    assert!(said.iter().any(|one| one == line), "{said:#?}");
}

#[tokio::test]
async fn existing_namespace_survives_an_uninstallation() {
    let lab = TestCluster::new().await;
    lab.server.put(
        "/api/v1/namespaces",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "istio-system"}}),
    );
    lab.install(&[], NO_WAIT).await.unwrap();
    lab.install(&[], NO_WAIT).await.unwrap();
    let all = UninstallOptions {
        delete_crds: true,
        delete_root: true,
        delete_namespace: true,
    };
    remove::uninstall(&lab.cluster, ("istio-system", "default"), all, NO_PROGRESS)
        .await
        .unwrap();
    assert_eq!(lab.server.list("/api/v1/namespaces").len(), 1);
}

#[tokio::test]
async fn failed_installation_reports_the_reason_and_can_be_removed() {
    let lab = TestCluster::new().await;
    lab.server.put(
        "/api/v1/pods",
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "ambit-control-x", "namespace": "istio-system", "labels": {"app": "istiod"}},
            "spec": {"nodeName": "n1"},
            "status": {"containerStatuses": [{"name": "control", "ready": false, "state": {
                "waiting": {"reason": "ErrImageNeverPull", "message": "no such image"}}}]},
        }),
    );
    let options = InstallOptions {
        ready_timeout: Some(Duration::from_millis(10)),
        force_conflicts: false,
    };
    let error = lab.install(&[], options).await.unwrap_err().to_string();
    assert!(error.contains("istio-ca-root-cert"), "{error}");
    assert!(
        error.contains("ErrImageNeverPull: no such image"),
        "{error}"
    );
    assert!(!lab.existing_objects().await.is_empty());
    let none = UninstallOptions::default();
    remove::uninstall(&lab.cluster, ("istio-system", "default"), none, NO_PROGRESS)
        .await
        .unwrap();
    let left = lab.existing_objects().await;
    assert!(
        left.iter()
            .all(|name| name.starts_with("CustomResourceDefinition ")),
        "{left:?}"
    );
}

#[tokio::test]
async fn unpullable_image_fails_the_installation_early() {
    const PODS: &str = "/api/v1/pods";
    let lab = TestCluster::new().await;
    let pod = |name: &str, image: &str, reason: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "istio-system",
                "labels": {"app": "istiod", "app.kubernetes.io/part-of": "ambit"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "control", "image": image}]},
            "status": {"containerStatuses": [{"name": "control", "ready": false, "state": {
                "waiting": {"reason": reason, "message": "no such host"}}}]},
        })
    };
    let image = "example.com/x/control:v1";
    let mut serves = pod("serves", image, "CrashLoopBackOff");
    serves["status"]["containerStatuses"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "standby", "ready": true, "state": {"running": {}}}));
    // Pods of an earlier attempt: one with the same image, and one with an image that is no longer
    // needed.
    for reason in ["ErrImagePull", "CreateContainerError", "CrashLoopBackOff"] {
        lab.server
            .put(PODS, pod(&reason.to_lowercase(), image, reason));
    }
    lab.server
        .put(PODS, pod("other", "elsewhere/control:v1", "ErrImagePull"));
    lab.server.put(PODS, serves);
    let settings = ["global.hub=example.com/x", "global.tag=v1"];
    let printed = RefCell::new(Vec::new());
    let say = |line: &str| {
        printed.borrow_mut().push(line.to_owned());
        if line.contains("waiting for the control plane") {
            lab.server
                .put(PODS, pod("created", image, "CreateContainerError"));
        }
        // The image is reported during the wait, not at its end.
        if line.contains("CreateContainerError: no such host") {
            lab.server.put(PODS, pod("new", image, "ErrImagePull"));
        }
    };
    let options = InstallOptions {
        ready_timeout: Some(Duration::from_secs(3600)),
        force_conflicts: false,
    };
    let plan = plan(&settings);
    let installed = apply::install(&lab.cluster, &plan, options, &say);
    let installed = tokio::time::timeout(Duration::from_secs(60), installed).await;
    let error = installed.expect("it waits for the image").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the image example.com/x/control:v1 cannot be pulled: ErrImagePull: no such host"
    );
    let names = lab.server.list(PODS);
    let names: Vec<_> = names.iter().map(|pod| &pod["metadata"]["name"]).collect();
    let stay = ["created", "new", "other", "serves"];
    assert_eq!(
        names, stay,
        "pods that are held back and serve nothing are tried again"
    );
    let printed = printed.into_inner();
    for line in [
        "Pod created on n1: container control: CreateContainerError: no such host",
        "Pod serves on n1: container control: CrashLoopBackOff: no such host",
    ] {
        let count = printed.iter().filter(|printed| *printed == line).count();
        assert_eq!(count, 1, "{line}: {printed:?}");
    }
}

#[tokio::test]
async fn every_step_is_reported_in_order() {
    let lab = TestCluster::new().await;
    let messages = RefCell::new(Vec::new());
    let say = |text: &str| messages.borrow_mut().push(text.to_owned());
    apply::install(&lab.cluster, &plan(&[]), NO_WAIT, &say)
        .await
        .unwrap();
    let messages = messages.into_inner();
    let at = |wanted: &str| {
        messages
            .iter()
            .position(|text| text.starts_with(wanted))
            .unwrap()
    };
    let order = [
        "namespace istio-system",
        "CustomResourceDefinition",
        "ServiceAccount",
        "ClusterRole ",
        "ConfigMap",
        "Deployment istio-system/ambit-control",
        "DaemonSet istio-system/ambit-agent",
    ];
    assert!(order.map(at).is_sorted(), "{messages:?}");
}
