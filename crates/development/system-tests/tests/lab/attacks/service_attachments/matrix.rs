//! One cell of the matrix: the effect of each attachable kind on one caller's requests on one path, over one HTTP
//! version.

use std::{
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use ambit_system_tests::{LabNetns, wait_until};
use http::{Request, Response};
use tokio::runtime::Runtime;

use super::{APP_PORT, AttachmentFixture, CUSTOM_POLICY_PORT, OtherNetwork, pod_netns};

/// Pods in the nodes' host networks, which replace kube-proxy's node ports.
pub(super) const HOST_NETWORK_PODS: &str = "
---
apiVersion: v1
kind: Pod
metadata: {name: on-node-1, namespace: legacy}
spec: {nodeName: node-1, hostNetwork: true, containers: [{name: main, image: none, command: [$LAB_TOOL, sleep]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: on-node-2, namespace: legacy}
spec: {nodeName: node-2, hostNetwork: true, containers: [{name: main, image: none, command: [$LAB_TOOL, sleep]}]}
";

/// Route of the clients in `tenant`, which changes requests for one of its paths.
const CLIENT_ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: own, namespace: tenant}
spec:
  parentRefs: [{group: '', kind: Service, name: app, namespace: shop, port: 80}]
  rules:
  - matches: [{path: {value: /open/changed}}]
    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /open/denied}}}]
    backendRefs: [{name: app, namespace: shop, port: 80}]
  - filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: x-route, value: tenant}]}}]
    backendRefs: [{name: app, namespace: shop, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: routes, namespace: shop}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: tenant}]
  to: [{group: '', kind: Service, name: app}]
";

#[derive(Clone, Copy, Debug)]
enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    const ALL: [Self; 2] = [Self::Http1, Self::Http2];
}

/// Caller at a position in the network, such as a pod, a node or another network.
pub(super) trait Dial: std::fmt::Debug {
    /// Opens a connection to an address or service.
    fn dial(&self, scene: &AttachmentFixture, to: SocketAddr) -> std::io::Result<TcpStream>;
}

impl Dial for LabNetns {
    fn dial(&self, scene: &AttachmentFixture, to: SocketAddr) -> std::io::Result<TcpStream> {
        let dialled = scene.mesh.client().dial(self.clone(), to);
        dialled.map_err(|error| std::io::Error::other(error.to_string()))
    }
}

type Headers<'a> = &'a [(&'static str, &'a str)];

/// Sends a request to `app.shop`, and returns the response as text.
fn ask(
    scene: &AttachmentFixture,
    protocol: Protocol,
    (from, to): (&dyn Dial, SocketAddr),
    path: &str,
    headers: Headers<'_>,
) -> String {
    match protocol {
        Protocol::Http1 => {
            let lines = headers
                .iter()
                .map(|(name, value)| format!("{name}: {value}\r\n"));
            scene.ask(from, to, path, &lines.collect::<String>())
        }
        Protocol::Http2 => {
            let asking = async {
                let within = Duration::from_secs(10);
                let asking = ask_http2(scene, (from, to), path, headers);
                tokio::time::timeout(within, asking).await
            };
            match runtime().block_on(asking) {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => format!("broken: {error}"),
                Err(_) => "no answer".to_owned(),
            }
        }
    }
}

async fn ask_http2(
    scene: &AttachmentFixture,
    (from, to): (&dyn Dial, SocketAddr),
    path: &str,
    headers: Headers<'_>,
) -> Result<String, Box<dyn std::error::Error>> {
    let stream = from.dial(scene, to)?;
    stream.set_nonblocking(true)?;
    let stream = tokio::net::TcpStream::from_std(stream)?;
    let (client, connection) = h2::client::handshake(stream).await?;
    tokio::spawn(connection);
    let mut client = client.ready().await?;
    let mut request = Request::get(format!("http://app.shop{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (answer, _) = client.send_request(request.body(())?, true)?;
    let (head, mut body) = answer.await?.into_parts();
    let mut text = format!("HTTP/2 {} \r\n", head.status.as_u16());
    for (name, value) in &head.headers {
        text += &format!("{name}: {}\r\n", value.to_str()?);
    }
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        text += &String::from_utf8_lossy(&data);
    }
    Ok(text)
}

/// Returns whether the client of a connection to the application speaks HTTP/2, by its first byte: all HTTP/1.1
/// requests here are a GET.
pub(super) fn is_http2(stream: &TcpStream) -> std::io::Result<bool> {
    let mut first = [0];
    stream.peek(&mut first)?;
    Ok(first == *b"P")
}

/// Serves HTTP/2 and echoes each request in its response.
pub(super) fn serve_http2(stream: TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    let serving = async {
        let stream = tokio::net::TcpStream::from_std(stream)?;
        let mut connection = h2::server::handshake(stream).await?;
        while let Some(accepted) = connection.accept().await {
            let (request, mut respond) = accepted?;
            let mut text = String::new();
            for (name, value) in request.headers() {
                text += &format!("{name}: {}\r\n", value.to_str()?);
            }
            let mut sender = respond.send_response(Response::new(()), false)?;
            sender.send_data(text.into(), true)?;
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    runtime()
        .block_on(serving)
        .map_err(|error| std::io::Error::other(error.to_string()))
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// Checks the effect of each attachable kind on one caller's requests on one path, over both HTTP versions. `app` is
/// the server's address on this path; `asked` is its address with the CUSTOM policy, if the path has one.
pub(super) fn check_cell(
    scene: &AttachmentFixture,
    name: &str,
    from: &dyn Dial,
    app: SocketAddr,
    asked: Option<SocketAddr>,
) {
    for protocol in Protocol::ALL {
        let name = format!("{from:?} by {name}, {protocol:?}");
        let ask =
            |path: &str, headers: Headers<'_>| ask(scene, protocol, (from, app), path, headers);
        let is = |what: &str, answer: &str, status: &str| {
            assert!(answer.contains(status), "{name}: {what}: {answer}");
        };
        let open = ask("/open", &[("x-user", "forged"), ("x_user", "forged")]);
        is("what is allowed passes", &open, " 200 ");
        assert!(!open.contains("forged"), "{name}: a forged claim: {open}");
        is("the plugin sees it once", &open, "x-plugin: ");
        assert_eq!(open.matches("x-plugin: ").count(), 2, "{name}: {open}");
        is("DENY", &ask("/open/denied", &[]), " 403 ");
        is("DENY, spelt otherwise", &ask("/open//denied", &[]), " 403 ");
        is("ALLOW", &ask("/closed", &[]), " 403 ");
        let garbage = ask("/open", &[("authorization", "Bearer gar.ba.ge")]);
        is("a token", &garbage, " 401 ");
        let of_cell = [("x-cell", name.as_str())];
        is("within the limit", &ask("/open/limited", &of_cell), " 200 ");
        is("RateLimit", &ask("/open/limited", &of_cell), " 429 ");
        if let Some(asked) = asked {
            let answer = self::ask(scene, protocol, (from, asked), "/open", &[]);
            is("CUSTOM", &answer, " 403 ");
        }
    }
}

fn node_netns() -> [LabNetns; 2] {
    ["node-1", "node-2"].map(|node| LabNetns::Node(node.to_owned()))
}

/// Tests all cells of the matrix in which only the Service's owner has written objects.
pub(super) fn check_owner_cells(scene: &AttachmentFixture, app: SocketAddr, alias: SocketAddr) {
    let captured = ["shop/client", "shop/near", "tenant/near"].map(pod_netns);
    let uncaptured = ["legacy/client", "legacy/near"].map(pod_netns);
    let everybody = || {
        captured
            .iter()
            .cloned()
            .chain(uncaptured.clone())
            .chain(node_netns())
    };
    for from in everybody() {
        let asked = SocketAddr::new(app.ip(), 81);
        check_cell(scene, "VIP", &from, app, Some(asked));
        check_cell(
            scene,
            "pod address",
            &from,
            scene.pod(APP_PORT),
            Some(scene.pod(CUSTOM_POLICY_PORT)),
        );
    }
    for from in captured
        .iter()
        .filter(|from| **from != pod_netns("tenant/near"))
    {
        let asked = SocketAddr::new(alias.ip(), 81);
        check_cell(scene, "alias", from, alias, Some(asked));
    }
    check_headless(scene, &captured[0]);
    check_node_ports(scene, &[captured[0].clone(), uncaptured[0].clone()]);
}

/// Tests a Service without a VIP, whose name resolves to the pods' addresses.
fn check_headless(scene: &AttachmentFixture, from: &LabNetns) {
    let LabNetns::Pod(pod) = from else {
        return;
    };
    let url = |path: &str| format!("http://headless.shop.svc.cluster.local:{APP_PORT}{path}");
    let answer = scene.mesh.get(pod, &url("/open"));
    assert!(answer.succeeded(), "{answer:?}");
    for path in ["/open/denied", "/closed"] {
        let answer = scene.mesh.get(pod, &url(path));
        assert!(!answer.succeeded(), "{path}: {answer:?}");
    }
}

/// Checks requests to a port of either node, which kube-proxy forwards with the node's source address.
fn check_node_ports(scene: &AttachmentFixture, callers: &[LabNetns]) {
    let ip = scene.mesh.ip("shop/server");
    for node in ["node-1", "node-2"] {
        let pod = format!("legacy/on-{node}");
        let rules = format!(
            "nft -f - <<'END'
table ip node-ports {{
	chain prerouting {{
		type nat hook prerouting priority dstnat; policy accept;
		tcp dport 30081 dnat to {ip}:{APP_PORT}
		tcp dport 30082 dnat to {ip}:{CUSTOM_POLICY_PORT}
	}}
	chain postrouting {{
		type nat hook postrouting priority srcnat; policy accept;
		ct status dnat ip daddr {ip} masquerade
	}}
}}
END"
        );
        scene.mesh.run(&pod, &["sh", "-ec", &rules]);
        let at = |port| SocketAddr::new(scene.mesh.node_ip(node), port);
        for from in callers {
            check_cell(
                scene,
                &format!("NodePort of {node}"),
                from,
                at(30081),
                Some(at(30082)),
            );
        }
        scene
            .mesh
            .run(&pod, &["nft", "delete", "table", "ip", "node-ports"]);
    }
}

/// Checks that a route of the client's namespace changes neither which attached objects apply, nor requests of other
/// clients.
pub(super) fn check_client_route(
    scene: &AttachmentFixture,
    app: SocketAddr,
    other_network: &OtherNetwork<'_>,
) {
    scene.mesh.apply("client-route", CLIENT_ROUTE);
    let tenant = pod_netns("tenant/near");
    wait_until("the client's route is followed", || {
        scene
            .ask(&tenant, app, "/open", "")
            .contains("x-route: tenant")
    });
    check_cell(scene, "its own route", &tenant, app, None);
    let changed = scene.ask(&tenant, app, "/open/changed", "");
    assert!(changed.contains(" 403 "), "{changed}");
    other_network.check_own_route(scene);
    scene.mesh.remove("client-route");
    wait_until("the client's route is gone", || {
        !scene
            .ask(&tenant, app, "/open", "")
            .contains("x-route: tenant")
    });
}
