//! Tests of the types of Services, called from inside and outside the mesh.

use std::collections::BTreeSet;

use ambit_cluster_tests::{Mesh, address, assert_only_tls, wait_until};

#[test]
fn services_of_every_kind_are_reached_inside_the_mesh() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("services");
    space.label(Some("ambient"));
    space.deploy(
        "server",
        2,
        None,
        &["serve", "--port=8080", "--echo=9000", "--quiet"],
    );
    let servers = space.wait_until_ready("server", 2);
    space.wait_until_captured("server", true);
    let client = space.deploy_client("client", Some("n1"));
    space.wait_until_captured("client", true);
    space.apply(
        "apiVersion: v1
kind: Service
metadata: {name: port}
spec: {type: NodePort, selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, selector: {app: server}, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec:
  sessionAffinity: ClientIP
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec: {type: ExternalName, externalName: server.$NAMESPACE.svc.cluster.local}
",
    );
    let port = mesh.kubectl(&[
        "get",
        "service",
        "port",
        "--namespace",
        space.name(),
        "--output=jsonpath={.spec.ports[0].nodePort}",
    ]);
    for url in [
        "http://server/".to_owned(),
        "http://port/".to_owned(),
        "http://headless:8080/".to_owned(),
        "http://sticky/".to_owned(),
        "http://alias/".to_owned(),
        // By its address, too.
        format!("http://{}:8080/", address(&servers[0])),
    ] {
        space.wait_for_get("client", &url, true);
        let wire = mesh.capture_traffic(&["GET /"]);
        space.get("client", &url).unwrap();
        assert_only_tls(&wire.finish(), &[&client, &servers[0], &servers[1]]);
    }
    // A node's own address is not the mesh's.
    for node in ["11", "12"] {
        let url = format!("http://10.25{}.0.{node}:{port}/", mesh.slot());
        space.wait_for_get("client", &url, true);
    }
}

#[test]
fn a_client_of_a_service_with_session_affinity_keeps_its_pod() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("affinity");
    space.label(Some("ambient"));
    let args = ["serve", "--port=8080", "--echo=9000", "--quiet"];
    space.deploy("server", 3, None, &args);
    space.apply(
        "apiVersion: v1
kind: Service
metadata: {name: sticky}
spec:
  sessionAffinity: ClientIP
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8080}]
",
    );
    space.wait_until_ready("server", 3);
    space.deploy_client("client", Some("n1"));
    let answers = |service: &str| -> BTreeSet<String> {
        let url = format!("http://{service}/");
        space.wait_for_get("client", &url, true);
        let answers = (0..12).map(|_| space.get("client", &url));
        answers
            .map(|answer| answer.expect("whoever has been answered is answered again"))
            .collect()
    };
    // The server's answer has its name.
    wait_until("the other Service's calls are spread", || {
        answers("server").len() > 1
    });
    // Not yet, while endpoints are still being published.
    wait_until("the same pod answers each time", || {
        answers("sticky").len() == 1
    });
}

#[test]
fn host_port_reaches_a_captured_pod() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("hostport");
    space.label(Some("ambient"));
    space.apply(
        "apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  nodeName: n2
  terminationGracePeriodSeconds: 1
  containers:
  - name: tool
    image: ambit/tools:dev
    imagePullPolicy: Never
    command: [ambit-lab-tool, serve, --port=8080, --quiet]
    ports: [{containerPort: 8080, hostPort: 18080}]
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
",
    );
    space.wait_until_ready("server", 1);
    space.wait_until_captured("server", true);
    space.deploy_client("client", Some("n1"));
    let url = format!("http://10.25{}.0.12:18080/", mesh.slot());
    space.wait_for_get("client", &url, true);
}
