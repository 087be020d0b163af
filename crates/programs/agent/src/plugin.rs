//! Server on the socket that the CNI plugin calls: `POST /cmdadd` (Istio's), `GET /v1/membership` (Ambit's), and the
//! reports for operators ([`crate::report`]).

use std::{
    fs, io,
    net::IpAddr,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use ambit_rt::{
    DrainWatcher, ErrorChain,
    http::{
        Request, Response, ServerOptions, json, method_not_allowed, not_found, query_parameter,
        serve, text,
    },
    spawn_blocking,
};
use ambit_sys::netns::Netns;
use serde::{Deserialize, Serialize};
use tokio::{
    net::UnixListener,
    sync::{mpsc, oneshot},
};

use crate::{
    actions::Actions,
    enrolment::{CniAdd, PluginReply, PodRef},
    metrics::{Metrics, ResponseCode},
    report::AgentReport,
};

/// Name of the socket in the run directory.
pub const SOCKET_NAME: &str = "pluginevent.sock";

/// Request that the server passes to the enrolment loop.
#[derive(Debug)]
pub enum PluginCall {
    /// Requests the enrolment of a pod that is being started.
    CniAdd(CniAdd<Netns>),
    /// Queries whether a pod belongs to the mesh.
    IsMember(PodRef),
    /// Requests a report of all pods.
    Report,
}

/// Response of the enrolment loop to a [`PluginCall`].
#[derive(Debug)]
pub enum PluginResponse {
    /// Response to the plugin.
    Reply(PluginReply),
    /// Report for operators.
    Report(Box<AgentReport>),
}

/// Channel of calls to the enrolment loop, each with the sender of its response.
pub type CallSender = mpsc::Sender<(PluginCall, oneshot::Sender<PluginResponse>)>;

/// Body of `/cmdadd`, with the field names of Istio's plugin.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CmdAddBody {
    netns: String,
    pod_name: String,
    pod_namespace: String,
    #[serde(rename = "IPs", default)]
    ips: Option<Vec<CmdAddAddress>>,
    /// UID of the pod; empty if the plugin did not send it.
    #[serde(rename = "PodUID", default)]
    pod_uid: String,
}

#[derive(Debug, Deserialize)]
struct CmdAddAddress {
    #[serde(rename = "Address")]
    address: CmdAddNetwork,
}

#[derive(Debug, Deserialize)]
struct CmdAddNetwork {
    #[serde(rename = "IP")]
    ip: IpAddr,
}

#[derive(Serialize)]
struct MembershipBody {
    mesh: bool,
}

/// Listening socket for the CNI plugin. Dropping it removes its file, unless a successor has replaced it.
#[derive(Debug)]
pub struct PluginSocket {
    listener: UnixListener,
    file: SocketFile,
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            fs::remove_file(&self.path).ok();
        }
    }
}

/// Binds the socket in `run_dir`. It replaces an earlier agent's file: callers always find a listening socket, and the
/// earlier agent still responds to calls that it has accepted.
///
/// # Errors
/// When the directory or the socket cannot be made.
pub fn bind(run_dir: &Path) -> io::Result<PluginSocket> {
    if !run_dir.exists() {
        fs::create_dir_all(run_dir)?;
        fs::set_permissions(run_dir, fs::Permissions::from_mode(0o750))?;
    }
    let path = run_dir.join(SOCKET_NAME);
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&new)?;
    // Who may call may have any namespace served under any pod's name: root only, as which container
    // runtimes run their plugins.
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
    let inode = fs::metadata(&new)?.ino();
    fs::rename(&new, &path)?;
    Ok(PluginSocket {
        listener,
        file: SocketFile { path, inode },
    })
}

/// Serves the plugin's socket until the drain starts.
pub async fn run<A: Actions>(
    socket: PluginSocket,
    calls: CallSender,
    actions: Arc<A>,
    metrics: Metrics,
    drain: DrainWatcher,
) {
    let PluginSocket { listener, file } = socket;
    let options = ServerOptions {
        max_body: 256 * 1024,
        ..ServerOptions::default()
    };
    let handler = move |request: Request| {
        let (calls, actions, metrics) = (calls.clone(), Arc::clone(&actions), metrics.clone());
        async move {
            let started = Instant::now();
            let is_add = request.uri().path() == "/cmdadd";
            let response = handle_request(&request, &calls, actions).await;
            if is_add {
                let response_code = response.status().as_u16();
                metrics
                    .plugin_requests
                    .get_or_create(&ResponseCode { response_code })
                    .inc();
                if response_code == 200 {
                    metrics
                        .enrolment_seconds
                        .observe(started.elapsed().as_secs_f64());
                }
            }
            response
        }
    };
    serve("plugin", listener, options, drain, handler).await;
    drop(file);
}

async fn handle_request<A: Actions>(
    request: &Request,
    calls: &CallSender,
    actions: Arc<A>,
) -> Response {
    match request.uri().path() {
        // Whatever the method, as Istio's agent has it.
        "/cmdadd" => handle_add(request.body(), calls, actions).await,
        "/v1/membership" if request.method() != http::Method::GET => method_not_allowed("GET"),
        "/v1/membership" => handle_membership(request, calls).await,
        _ => report(request, calls).await.unwrap_or_else(not_found),
    }
}

async fn handle_add<A: Actions>(body: &[u8], calls: &CallSender, actions: Arc<A>) -> Response {
    let event: CmdAddBody = match serde_json::from_slice(body) {
        Ok(event) => event,
        Err(error) => return text(400, format!("the event cannot be read: {error}\n")),
    };
    for (name, value) in [
        ("Netns", &event.netns),
        ("PodName", &event.pod_name),
        ("PodNamespace", &event.pod_namespace),
    ] {
        if value.is_empty() {
            return text(400, format!("the event has an empty {name}\n"));
        }
    }
    let path = event.netns.clone();
    let opened = spawn_blocking("open namespace", move || actions.open_netns(&path)).await;
    let pod = format!("{}/{}", event.pod_namespace, event.pod_name);
    let netns = match opened {
        Ok(Ok(netns)) => netns,
        Ok(Err(error)) => return text(500, format!("pod {pod}: {}\n", ErrorChain(&error))),
        Err(error) => return text(500, format!("pod {pod}: {error}\n")),
    };
    let addresses = event.ips.unwrap_or_default();
    let call = PluginCall::CniAdd(CniAdd {
        pod: pod_ref(event.pod_namespace, event.pod_name, event.pod_uid),
        netns,
        addresses: addresses
            .iter()
            .map(|ip| ip.address.ip.to_canonical())
            .collect(),
    });
    let reply = send_call(calls, call).await;
    match &reply {
        PluginReply::Captured => tracing::info!(pod, "a starting pod is captured"),
        other => tracing::warn!(pod, reply = ?other, "a starting pod is not captured"),
    }
    reply_response(reply)
}

async fn handle_membership(request: &Request, calls: &CallSender) -> Response {
    let parameter = |name| query_parameter(request.uri(), name).unwrap_or_default();
    let (namespace, name) = (parameter("namespace"), parameter("pod"));
    if namespace.is_empty() || name.is_empty() {
        return text(400, "give namespace=...&pod=...\n");
    }
    reply_response(
        send_call(
            calls,
            PluginCall::IsMember(pod_ref(namespace, name, parameter("uid"))),
        )
        .await,
    )
}

fn pod_ref(namespace: impl AsRef<str>, name: impl AsRef<str>, uid: impl AsRef<str>) -> PodRef {
    let uid = Some(uid.as_ref()).filter(|uid| !uid.is_empty());
    PodRef {
        namespace: namespace.as_ref().into(),
        name: name.as_ref().into(),
        uid: uid.map(|uid| uid.to_ascii_lowercase().into()),
    }
}

async fn send_call(calls: &CallSender, call: PluginCall) -> PluginReply {
    let (sender, receiver) = oneshot::channel();
    let ending = || PluginReply::TryLater("the agent is ending".to_owned());
    if calls.send((call, sender)).await.is_err() {
        return ending();
    }
    match receiver.await {
        Ok(PluginResponse::Reply(reply)) => reply,
        Ok(PluginResponse::Report(_)) | Err(_) => ending(),
    }
}

/// Serves the reports `/v1/status` and `/v1/pods/NAMESPACE/NAME`; `None` for other paths.
pub async fn report(request: &Request, calls: &CallSender) -> Option<Response> {
    let pod = match request.uri().path() {
        "/v1/status" => None,
        path => Some(path.strip_prefix("/v1/pods/")?.split_once('/')?),
    };
    if request.method() != http::Method::GET {
        return Some(method_not_allowed("GET"));
    }
    let (sender, receiver) = oneshot::channel();
    let sent = calls.send((PluginCall::Report, sender)).await;
    let answer = match sent {
        Ok(()) => receiver.await.ok(),
        Err(_) => None,
    };
    let Some(PluginResponse::Report(report)) = answer else {
        return Some(text(503, "the agent is ending\n"));
    };
    let Some((namespace, name)) = pod else {
        return Some(json(200, &*report));
    };
    let found = report
        .pods
        .iter()
        .find(|pod| pod.namespace == namespace && pod.name == name);
    Some(found.map_or_else(
        || {
            text(
                404,
                format!(
                    "pod {namespace}/{name} is not known on node {}\n",
                    report.node
                ),
            )
        },
        |pod| json(200, pod),
    ))
}

fn reply_response(reply: PluginReply) -> Response {
    match reply {
        PluginReply::Captured => text(200, ""),
        PluginReply::Member(mesh) => json(200, &MembershipBody { mesh }),
        // Our plugin tries again; to others it is a failure like any.
        PluginReply::TryLater(why) => text(503, format!("{why}\n")),
        PluginReply::Failed(why) | PluginReply::Refused(why) => text(500, format!("{why}\n")),
    }
}
