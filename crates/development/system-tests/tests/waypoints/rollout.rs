//! A waypoint that is replaced or made smaller fails no request, neither on kept connections nor on new ones.

use ambit_system_tests::{GATEWAY, Mesh, PAIR, binary, until, until_through};

/// The Gateway with so many replicas; another `revision` is another template of its pods.
fn gateway(replicas: u32, revision: u32) -> String {
    GATEWAY.replace(
        "{name: waypoint, namespace: shop}\nspec:",
        &format!(
            "{{name: waypoint, namespace: shop, annotations: {{ambit.io/waypoint-replicas: '{replicas}'}}}}\nspec:\n  \
             infrastructure: {{labels: {{revision: r{revision}}}}}"
        ),
    )
}

fn names(mesh: &Mesh) -> Vec<String> {
    let pods = mesh.client().status().unwrap().pods;
    let of_waypoint = pods.into_iter().filter(|pod| {
        pod.namespace == "shop" && pod.name.starts_with("waypoint-")
    });
    of_waypoint.map(|pod| pod.name).collect()
}

#[test]
fn a_rollout_and_a_scale_down_fail_no_request() {
    let apply = |mesh: &Mesh, replicas, revision| {
        mesh.apply("manifests", &format!("{PAIR}\n---{}", gateway(replicas, revision)));
    };
    let mesh = Mesh::up(&format!("{PAIR}\n---{}", gateway(2, 1)));
    let first = names(&mesh);
    assert_eq!(first.len(), 2);
    let direct = format!("http://{}:8080/", mesh.ip("shop/server"));
    until("requests go through a waypoint", || {
        let answer = mesh.get("shop/client", "http://server.shop/");
        let client = mesh.ip("shop/client");
        answer.succeeded() && !answer.body.contains(&format!("called by {client}"))
    });
    let tool = binary("ambit");
    let load = |url: &str| {
        let tool = tool.to_str().unwrap();
        let load = [
            tool, "lab-tool", "load", "--http", url, "--rate-new", "20", "--rate-keepalive", "20", "--connections",
            "3", "--timeout", "20s", "--seconds", "600",
        ];
        mesh.client().output("shop/client", &load).unwrap()
    };
    let printed = std::thread::scope(|scope| {
        let loads = ["http://server.shop/", direct.as_str()].map(|url| scope.spawn(move || load(url)));
        until("the load runs", || {
            mesh.run("shop/client", &["sh", "-c", "pgrep -fc 'lab-tool [l]oad' || true"]).trim() >= "2"
        });
        apply(&mesh, 2, 2);
        until("both pods are new", || {
            let now = names(&mesh);
            now.len() == 2 && !now.iter().any(|name| first.contains(name))
        });
        apply(&mesh, 1, 2);
        until("one pod is left", || names(&mesh).len() == 1);
        mesh.run("shop/client", &["pkill", "-TERM", "-f", "lab-tool [l]oad"]);
        loads.map(|load| load.join().unwrap().stdout)
    });
    for printed in printed {
        assert!(!printed.contains("\"event\":\"failure\""), "{printed}");
        assert!(printed.contains("\"event\":\"summary\""), "{printed}");
    }
    until_through(&mesh, &mesh.ip("shop/waypoint").to_string(), "shop/client", &direct);
}
