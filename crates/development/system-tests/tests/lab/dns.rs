//! Tests of DNS answers for captured pods, over UDP and TCP, and over IPv4 and IPv6.

use ambit_system_tests::{
    CLIENT_AND_SERVER, IpFamily, LAB_TOOL, LogSource, Mesh, Options, built_binary, options,
    wait_until,
};

const NAMED_OBJECTS: &str = r#"
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: sql, port: 5432}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, namespace: shop, labels: {app: db, service.istio.io/workload-name: db}}
spec:
  nodeName: node-2
  hostname: db-0
  subdomain: db
  containers: [{name: main, image: none, command: [$LAB_TOOL, sleep]}]
---
apiVersion: v1
kind: Pod
metadata:
  name: opted-out
  namespace: shop
  annotations: {ambient.istio.io/dns-capture: "false"}
spec:
  nodeName: node-1
  containers: [{name: main, image: none, command: [$LAB_TOOL, sleep]}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: partner, namespace: shop}
spec:
  hosts: [api.partner.example]
  addresses: [240.240.7.1]
  ports: [{number: 80, name: http, protocol: TCP}]
  resolution: STATIC
  endpoints: [{address: 192.0.2.1}]
"#;

/// Runs `ambit-lab-tool resolve` in a pod, and returns its output.
fn resolve(mesh: &Mesh, pod: &str, arguments: &[&str]) -> String {
    let tool = built_binary(LAB_TOOL);
    let tool = tool.to_str().expect("a path in UTF-8");
    let command = [&[tool, "resolve"], arguments].concat();
    let output = mesh
        .client()
        .output(pod, &command)
        .unwrap_or_else(|error| panic!("cannot run in {pod}: {error}"));
    output.stdout + &output.stderr
}

/// Repeats a DNS query until the mesh gives the expected answer, since objects reach the mesh's DNS server with a
/// delay.
#[track_caller]
fn wait_for_answer(mesh: &Mesh, pod: &str, arguments: &[&str], expected: &str) -> String {
    let mut answer = String::new();
    wait_until(&format!("{arguments:?} in {pod} gives {expected}"), || {
        answer = resolve(mesh, pod, arguments);
        answer.contains(expected)
    });
    answer
}

fn query_arguments<'a>(name: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    [&[name], options].concat()
}

fn test_names(mesh: &Mesh, ipv6: bool) {
    let kind = if ipv6 { "AAAA" } else { "A" };
    let server = mesh.ip("shop/db-0");
    for transport in [&["--type", kind][..], &["--type", kind, "--tcp"]] {
        let ask = |name: &str| resolve(mesh, "shop/client", &query_arguments(name, transport));
        let of_mesh = |answer: &str| answer.contains(&format!(" 30 {kind} "));

        // A Service, by its names. The TTL of the lab's own DNS is five seconds.
        for name in ["server.shop.svc.cluster.local", "server.shop", "server"] {
            let answer = wait_for_answer(
                mesh,
                "shop/client",
                &query_arguments(name, transport),
                &format!(" 30 {kind} "),
            );
            assert!(answer.starts_with("NoError"), "{answer}");
        }
        // The name of a headless Service resolves to its pods, and a pod of a StatefulSet has its
        // own name.
        for name in ["db.shop", "db.shop.svc.cluster.local"] {
            wait_for_answer(
                mesh,
                "shop/client",
                &query_arguments(name, transport),
                &server.to_string(),
            );
        }
        wait_for_answer(
            mesh,
            "shop/client",
            &query_arguments("db-0.db.shop.svc.cluster.local", transport),
            &format!(" 30 {kind} {server}"),
        );
        // Names that the mesh does not know are forwarded to the pod's own server.
        assert!(ask("nowhere.example").starts_with("NXDomain"));
        let mut srv = vec!["_sql._tcp.db.shop.svc.cluster.local", "--type", "SRV"];
        srv.extend(transport.iter().filter(|option| **option == "--tcp"));
        let answer = wait_for_answer(
            mesh,
            "shop/client",
            &srv,
            "5432 db-0.db.shop.svc.cluster.local.",
        );
        assert!(answer.contains(" 5 SRV "), "{answer}");
        // A known host without addresses of the other family is not an error.
        let other = ["server.shop", "--type", if ipv6 { "A" } else { "AAAA" }];
        assert_eq!(self::resolve(mesh, "shop/client", &other).trim(), "NoError");

        assert!(of_mesh(&ask("server.shop")));
    }
    let opted_out = resolve(
        mesh,
        "shop/opted-out",
        &["server.shop.svc.cluster.local", "--type", kind],
    );
    assert!(opted_out.contains(&format!(" 5 {kind} ")), "{opted_out}");
    let short = resolve(mesh, "shop/opted-out", &["server.shop", "--type", kind]);
    assert!(short.starts_with("NXDomain"), "{short}");
    let outside = resolve(
        mesh,
        "legacy/client",
        &["server.shop.svc.cluster.local", "--type", kind],
    );
    assert!(outside.contains(&format!(" 5 {kind} ")), "{outside}");
}

#[test]
fn captured_pods_resolve_mesh_names_and_all_others() {
    let mesh = Mesh::up(&format!("{CLIENT_AND_SERVER}{NAMED_OBJECTS}"));
    test_names(&mesh, false);
    for arguments in [
        &["api.partner.example"][..],
        &["api.partner.example", "--tcp"],
        // As the pod's search list expands it.
        &["api.partner.example.shop.svc.cluster.local"],
    ] {
        wait_for_answer(&mesh, "shop/client", arguments, " 30 A 240.240.7.1");
    }
    let opted_out = resolve(&mesh, "shop/opted-out", &["api.partner.example"]);
    assert!(opted_out.starts_with("NXDomain"), "{opted_out}");
    // Through the C library, with the pod's own resolv.conf.
    let answer = mesh.run(
        "shop/client",
        &["getent", "ahostsv4", "api.partner.example"],
    );
    assert!(answer.contains("240.240.7.1"), "{answer}");
}

#[test]
fn ipv6_pods_query_over_ipv6() {
    let mesh = Mesh::up_with(
        &format!("{CLIENT_AND_SERVER}{NAMED_OBJECTS}"),
        Options {
            ip_family: IpFamily::Ipv6,
            ..options()
        },
    );
    test_names(&mesh, true);
}

/// Checks that a pod gets answers to all queries while it is enrolled and unenrolled.
#[test]
fn joining_and_leaving_loses_no_dns_query() {
    let mesh = Mesh::up(&CLIENT_AND_SERVER.replace("istio.io/dataplane-mode: ambient", "team: a"));
    let name = "server.shop.svc.cluster.local";
    let answered = |ttl: &str| {
        let answer = resolve(&mesh, "shop/client", &[name]);
        assert!(answer.starts_with("NoError"), "{answer}");
        answer.contains(ttl)
    };
    for (mode, ttl) in [
        ("ambient", " 30 A "),
        ("none", " 5 A "),
        ("ambient", " 30 A "),
    ] {
        mesh.label("shop", mode);
        wait_until(&format!("answers of the side that {mode} gives"), || {
            answered(ttl)
        });
    }
}

#[test]
fn dns_queries_are_counted_and_logged_on_demand() {
    let mut options = options();
    options
        .env
        .insert("RUST_LOG".into(), "info,dns=debug".into());
    let mesh = Mesh::up_with(CLIENT_AND_SERVER, options);
    wait_for_answer(&mesh, "shop/client", &["server.shop"], " 30 A ");
    assert!(resolve(&mesh, "shop/client", &["nowhere.example"]).starts_with("NXDomain"));
    let log = || {
        let name = "proxy".into();
        let source = LogSource::Daemon { name, node: None };
        mesh.client()
            .log_text(source)
            .expect("the proxies have a log")
    };
    wait_until("both questions are in the log", || {
        let log = log();
        let has = |parts: &[&str]| {
            log.lines()
                .any(|line| parts.iter().all(|part| line.contains(part)))
        };
        has(&[
            "\tdns\t",
            "src.workload=\"client\"",
            "server.shop",
            "endpoints=1",
        ]) && has(&["\tdns\t", "nowhere.example"])
    });
}
