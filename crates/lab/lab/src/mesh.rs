//! Starts the processes of the mesh: a control plane, and an agent and a node proxy on each node, with their files and
//! environments.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_k8s_api::{Kind, ObjectKey};
use ambit_waypoint_objects::{Files, Settings};
use serde_json::{Value, json};

use crate::{
    Options,
    cluster::SYSTEM_NAMESPACE,
    cni::agent_run_dir,
    daemon::Daemon,
    dns::{CLUSTER_DOMAIN, resolv_conf},
    fabric::Node,
    lab_state::{LabState, etc_bind_mounts},
    shim::Shim,
    tokens::{self, TokenIssuer, TokenSubject},
};

/// Port on which the control plane serves xDS and the CSR API.
const XDS_PORT: u16 = 15012;
/// Timeout for the control plane to write its root certificate.
const ROOT_CERT_WAIT: Duration = Duration::from_secs(20);

/// Starts the processes of the mesh: the control plane first, and the others once it has written its root certificate.
pub(crate) async fn start(
    board: &Arc<LabState>,
    control: Vec<IpAddr>,
    issuer: Arc<TokenIssuer>,
) -> io::Result<()> {
    fs::write(board.layout.token_keys(), issuer.public_pem())?;
    control_daemon(board, &control)?.spawn_and_restart(board.clone());
    wait_for_root_cert(board).await?;
    for node in &board.nodes {
        fs::create_dir_all(agent_run_dir(node))?;
        write_token(&issuer, node)?;
        write_etc_files(&node.dir, &node.name, &node.ips, &control, &node.ips)?;
        agent_daemon(board, node).spawn_and_restart(board.clone());
        node_proxy_daemon(board, node, &control).spawn_and_restart(board.clone());
    }
    let nodes = board.nodes.clone();
    drop(ambit_rt::spawn("tokens", async move {
        loop {
            tokio::time::sleep(tokens::TOKEN_RENEW_INTERVAL).await;
            for node in &nodes {
                if let Err(error) = write_token(&issuer, node) {
                    tracing::error!(node = node.name, %error, "cannot renew the proxy's token");
                }
            }
        }
    }));
    Ok(())
}

/// Returns the Pod objects of the node proxies and their Namespace, as in a cluster. Node proxies authenticate to the
/// control plane as these pods.
pub(crate) fn proxy_pod_objects(
    nodes: &[Arc<Node>],
    options: &Options,
) -> BTreeMap<ObjectKey, Value> {
    let mut objects = BTreeMap::new();
    let namespace = ObjectKey::new(Kind::Namespace, "", SYSTEM_NAMESPACE);
    objects.insert(
        namespace,
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}),
    );
    for node in nodes {
        let name = proxy_pod(node);
        let ips: Vec<_> = node
            .ips
            .iter()
            .map(|ip| json!({"ip": ip.to_string()}))
            .collect();
        objects.insert(
            ObjectKey::new(Kind::Pod, SYSTEM_NAMESPACE, name.as_str()),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": name, "namespace": SYSTEM_NAMESPACE, "uid": proxy_uid(node),
                    "labels": proxy_labels(node, options),
                },
                "spec": {
                    "nodeName": node.name, "serviceAccountName": "ztunnel", "hostNetwork": true,
                    "containers": [{"name": "istio-proxy", "image": "ambit-node-proxy"}],
                },
                "status": {
                    "phase": "Running", "podIPs": ips,
                    "podIP": node.ips.first().map(ToString::to_string),
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }),
        );
    }
    objects
}

/// Returns the labels of a node proxy's pod in the chart; for another implementation's proxy without the label that
/// names Ambit.
fn proxy_labels(node: &Node, options: &Options) -> Value {
    let mut labels = json!({"app": "ztunnel", "istio.io/dataplane-mode": "none"});
    if !options.node_proxies.contains_key(&node.name)
        && let Some(labels) = labels.as_object_mut()
    {
        labels.insert("app.kubernetes.io/part-of".to_owned(), "ambit".into());
    }
    labels
}

fn proxy_pod(node: &Node) -> String {
    format!("ztunnel-{}", node.name)
}

fn proxy_uid(node: &Node) -> String {
    format!("00000000-0000-4000-8000-{:012}", node.number)
}

fn write_token(issuer: &TokenIssuer, node: &Node) -> io::Result<()> {
    let bound = TokenSubject {
        namespace: SYSTEM_NAMESPACE,
        service_account: "ztunnel",
        pod: &proxy_pod(node),
        pod_uid: &proxy_uid(node),
        node: &node.name,
    };
    issuer.write(&bound, &node.dir.join("token"))
}

/// Returns the settings for generated waypoints: one replica unless the Gateway sets another number, Ambit's own
/// program, and paths of the pod's files. `None` if the lab has no mesh.
pub(crate) fn waypoint_settings(board: &LabState, control: &[IpAddr]) -> Option<Settings> {
    let options = &board.options;
    if !options.mesh {
        return None;
    }
    // Each pod finds its own.
    let token = board.layout.pod("$(POD_UID)").join(tokens::TOKEN_FILE_NAME);
    Some(Settings {
        image: "ambit-waypoint".into(),
        command: vec![program_path(board, "ambit-waypoint")],
        replicas: 1,
        termination_grace_period_seconds: 30,
        control_address: xds_url(control),
        trust_domain: CLUSTER_DOMAIN.into(),
        cluster_domain: CLUSTER_DOMAIN.into(),
        env: options.env.clone(),
        files: Files {
            token: token.display().to_string(),
            root_cert: board.layout.root_cert().display().to_string(),
            trust_domains: board.layout.trust_domains().display().to_string(),
            ..Files::default()
        },
        ..Settings::default()
    })
}

/// Returns the URL of the control plane's xDS port.
fn xds_url(control: &[IpAddr]) -> String {
    control.first().map_or_else(String::new, |ip| {
        format!("https://{}", SocketAddr::new(*ip, XDS_PORT))
    })
}

/// Writes `resolv.conf` and `hosts` of a node or pod, which are mounted over those of `/etc`.
pub(crate) fn write_etc_files(
    dir: &std::path::Path,
    hostname: &str,
    own: &[IpAddr],
    control: &[IpAddr],
    dns: &[IpAddr],
) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    fs::write(dir.join("resolv.conf"), resolv_conf(dns, "default"))?;
    let mut hosts = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
    for ip in own {
        hosts.push_str(&format!("{ip} {hostname}\n"));
    }
    for ip in control {
        hosts.push_str(&format!(
            "{ip} istiod.{SYSTEM_NAMESPACE}.svc istiod.{SYSTEM_NAMESPACE}.svc.{CLUSTER_DOMAIN}\n"
        ));
    }
    fs::write(dir.join("hosts"), hosts)
}

fn control_daemon(board: &LabState, control: &[IpAddr]) -> io::Result<Daemon> {
    let layout = &board.layout;
    let dir = layout.node("control");
    write_etc_files(
        &dir,
        "control",
        control,
        control,
        &board
            .nodes
            .first()
            .map_or(Vec::new(), |node| node.ips.clone()),
    )?;
    fs::create_dir_all(layout.ca())?;
    let any = unspecified_address(board);
    let mut command = vec![program_path(board, "ambit-control")];
    let mut flag = |name: &str, value: String| command.extend([format!("--{name}"), value]);
    for dir in manifest_dirs(board) {
        flag("manifests", dir.display().to_string());
    }
    flag("listen-xds", SocketAddr::new(any, XDS_PORT).to_string());
    flag("listen-monitoring", SocketAddr::new(any, 15014).to_string());
    flag("ca-dir", layout.ca().display().to_string());
    flag("root-cert-out", layout.root_cert().display().to_string());
    flag(
        "trust-domains-out",
        layout.trust_domains().display().to_string(),
    );
    flag("token-keys", layout.token_keys().display().to_string());
    flag("server-san", format!("istiod.{SYSTEM_NAMESPACE}.svc"));
    for ip in control {
        flag("server-san", ip.to_string());
    }
    let shim = Shim {
        hostname: "control".into(),
        binds: etc_bind_mounts(&dir),
        working_dir: None,
        cgroup: None,
        socket: None,
        command,
    };
    Ok(Daemon {
        name: "control".into(),
        node: None,
        netns: board.control.clone(),
        shim,
        env: environment(board, &[]),
        log: layout.daemon_log("control", None),
        ready_log_text: None,
    })
}

fn agent_daemon(board: &LabState, node: &Node) -> Daemon {
    let mut command = vec![program_path(board, "ambit-agent")];
    let mut flag = |name: &str, value: String| command.extend([format!("--{name}"), value]);
    flag("node", node.name.clone());
    for dir in manifest_dirs(board) {
        flag("manifests", dir.display().to_string());
    }
    flag("status-dir", board.layout.status().display().to_string());
    flag("run-dir", agent_run_dir(node).display().to_string());
    flag("zds-socket", zds_socket(node).display().to_string());
    flag("discover", "environ".into());
    let v6 = board.options.ip_family.has_ipv6().to_string();
    let variables = [
        ("NODE_NAME", node.name.clone()),
        ("AMBIENT_IPV6", v6),
        ("AMBIT_BPF_DIR", bpf_dir(board, node)),
        ("SYSTEM_NAMESPACE", SYSTEM_NAMESPACE.into()),
        (
            "XTABLES_LOCKFILE",
            board.layout.xtables_lock().display().to_string(),
        ),
    ];
    node_daemon(board, node, "agent", command, &variables)
}

fn node_proxy_daemon(board: &LabState, node: &Node, control: &[IpAddr]) -> Daemon {
    let ours = || program_path(board, "ambit-node-proxy");
    let other = board.options.node_proxies.get(&node.name);
    let program = other.map_or_else(ours, |path| path.display().to_string());
    let root = board.layout.root_cert().display().to_string();
    let control = xds_url(control);
    let first = node
        .ips
        .first()
        .map(ToString::to_string)
        .unwrap_or_default();
    let variables = [
        ("XDS_ADDRESS", control.clone()),
        ("CA_ADDRESS", control),
        ("XDS_ROOT_CA", root.clone()),
        ("CA_ROOT_CA", root),
        (
            "AMBIT_TRUST_DOMAINS_PATH",
            board.layout.trust_domains().display().to_string(),
        ),
        ("AUTH_TOKEN", node.dir.join("token").display().to_string()),
        ("INPOD_UDS", zds_socket(node).display().to_string()),
        ("AMBIT_BPF_DIR", bpf_dir(board, node)),
        ("NODE_NAME", node.name.clone()),
        ("POD_NAME", proxy_pod(node)),
        ("POD_NAMESPACE", SYSTEM_NAMESPACE.into()),
        ("SERVICE_ACCOUNT", "ztunnel".into()),
        ("INSTANCE_IP", first),
        ("TRUST_DOMAIN", CLUSTER_DOMAIN.into()),
        ("CLUSTER_ID", "Kubernetes".into()),
        ("ISTIO_META_CLUSTER_ID", "Kubernetes".into()),
        ("CLUSTER_DOMAIN", CLUSTER_DOMAIN.into()),
        ("IPV6_ENABLED", "true".into()),
        ("RUST_LOG", "info".into()),
    ];
    let command = vec![program, "proxy".into(), "ztunnel".into()];
    Daemon {
        ready_log_text: Some("taking connections"),
        ..node_daemon(board, node, "proxy", command, &variables)
    }
}

fn node_daemon(
    board: &LabState,
    node: &Node,
    name: &str,
    command: Vec<String>,
    variables: &[(&str, String)],
) -> Daemon {
    Daemon {
        name: name.into(),
        node: Some(node.name.clone()),
        netns: node.host.netns().clone(),
        shim: Shim {
            hostname: node.name.clone(),
            binds: etc_bind_mounts(&node.dir),
            working_dir: None,
            cgroup: None,
            socket: None,
            command,
        },
        env: environment(board, variables),
        log: board.layout.daemon_log(name, Some(&node.name)),
        ready_log_text: None,
    }
}

fn environment(board: &LabState, variables: &[(&str, String)]) -> Vec<(String, String)> {
    let mut env: BTreeMap<String, String> = BTreeMap::new();
    env.insert("PATH".into(), path_variable(board));
    // The processes of the mesh log to a file of the lab.
    env.insert("RUST_BACKTRACE".into(), "1".into());
    env.extend(
        variables
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone())),
    );
    env.extend(board.options.env.clone());
    env.into_iter().collect()
}

/// Returns `PATH` for the lab's processes: the directories of the mesh's programs come first.
pub(crate) fn path_variable(board: &LabState) -> String {
    let inherited = std::env::var("PATH").unwrap_or_default();
    let own = board
        .options
        .ambit
        .parent()
        .map(|dir| dir.display().to_string());
    let bin = board.options.bin_dir.display().to_string();
    [own.unwrap_or_default(), bin, inherited]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(":")
}

fn manifest_dirs(board: &LabState) -> [PathBuf; 3] {
    [
        board.options.manifests.clone(),
        board.layout.live(),
        board.layout.status(),
    ]
}

fn program_path(board: &LabState, name: &str) -> String {
    board.options.bin_dir.join(name).display().to_string()
}

fn zds_socket(node: &Node) -> PathBuf {
    node.dir.join("ztunnel.sock")
}

/// Returns the directory of BPF programs of a node's pods.
fn bpf_dir(board: &LabState, node: &Node) -> String {
    let dir = board.layout.bpffs().join(&node.name);
    dir.display().to_string()
}

fn unspecified_address(board: &LabState) -> IpAddr {
    match board.options.ip_family.has_ipv6() {
        true => std::net::Ipv6Addr::UNSPECIFIED.into(),
        false => std::net::Ipv4Addr::UNSPECIFIED.into(),
    }
}

async fn wait_for_root_cert(board: &LabState) -> io::Result<()> {
    let started = Instant::now();
    while !fs::metadata(board.layout.root_cert()).is_ok_and(|meta| meta.len() > 0) {
        if started.elapsed() > ROOT_CERT_WAIT {
            let log = fs::read_to_string(board.layout.daemon_log("control", None));
            let log = log.unwrap_or_default();
            let last = log
                .lines()
                .rev()
                .find(|line| !line.is_empty())
                .unwrap_or("it has no output");
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the control plane wrote no root certificate: {last}"),
            ));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
