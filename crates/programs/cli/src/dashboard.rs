//! `ambit dashboard`: serves a local page with the state of the mesh. It listens on 127.0.0.1 only and accepts requests
//! of its own page only (`guard`). The data is that of the other commands and of flow events (`traffic`).

mod api;
mod bundle;
mod feed;
mod guard;
mod mesh;
mod pods;
mod traffic;

use std::{io::Write as _, sync::Arc};

use ambit_rt::http::{self as rt_http, Request, Response, ServerOptions};
use clap::Args;
use hyper::Method;

use crate::{
    CliError, ErrorKind, cluster::Target, install::print_progress, output::print_line,
    source::Source,
};
use api::DashboardApi;
use guard::RequestGuard;

/// Maximum size of a request body in bytes; the largest are policies to rehearse.
const MAX_BODY_BYTES: usize = 1 << 20;
/// Maximum number of concurrent connections of browsers to the dashboard.
const MAX_CONNECTIONS: usize = 64;

/// Flags of `ambit dashboard`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DashboardArgs {
    /// Lab to show; otherwise the kubeconfig's cluster
    #[arg(long, env = "AMBIT_LAB")]
    lab: Option<String>,
    #[command(flatten)]
    target: Target,
    /// Port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Do not open a browser
    #[arg(long)]
    no_open: bool,
}

/// Serves the page until the process is interrupted.
pub(crate) fn run(args: &DashboardArgs) -> Result<(), CliError> {
    let source = Source::any_node_proxy(args.lab.as_deref(), &args.target);
    // A missing lab or cluster is reported at once, not in the page.
    source.all_node_proxies()?;
    let runtime = ambit_rt::current_thread_runtime().map_err(|error| {
        CliError::new(ErrorKind::Failed, "cannot serve the dashboard").with_source(error)
    })?;
    let served = runtime.block_on(serve(args, source));
    // Unanswered requests are not waited for.
    runtime.shutdown_background();
    served
}

async fn serve(args: &DashboardArgs, source: Source) -> Result<(), CliError> {
    let cannot = |what: &str| CliError::new(ErrorKind::Failed, what);
    let address = ([127, 0, 0, 1], args.port).into();
    let listener = rt_http::bind(address, "the dashboard").await;
    let listener = listener.map_err(|error| {
        cannot("cannot serve the dashboard")
            .with_source(error)
            .with_hint("--port 0 takes a free port")
    })?;
    let address = listener.local_addr();
    let port = address.map_err(|error| cannot("cannot serve the dashboard").with_source(error))?;
    let guard = RequestGuard::new(port.port());
    let api = DashboardApi::start(source);
    print_line(&format!("dashboard: {}", guard.url()))?;
    print_progress("it ends with Ctrl-C");
    // The file has the token: it stays until the end, for its user alone.
    let _opened = if args.no_open {
        None
    } else {
        open_browser(&guard)
    };
    let (_drain, watcher) = ambit_rt::drain::channel();
    let guard = Arc::new(guard);
    let handler = move |request| handle_request(guard.clone(), api.clone(), request);
    let serving = rt_http::serve("dashboard", listener, server_options(), watcher, handler);
    let mut shutdown = ambit_rt::Shutdown::on_signals()
        .map_err(|error| cannot("cannot wait for signals").with_source(error))?;
    tokio::select! {
        () = serving => {}
        _ = shutdown.wait() => {}
    }
    Ok(())
}

fn server_options() -> ServerOptions {
    ServerOptions {
        max_body: MAX_BODY_BYTES,
        max_connections: MAX_CONNECTIONS,
        max_per_address: MAX_CONNECTIONS,
        ..ServerOptions::default()
    }
}

async fn handle_request(
    guard: Arc<RequestGuard>,
    api: Arc<DashboardApi>,
    request: Request,
) -> Response {
    let path = request.uri().path();
    let mut response = if path.starts_with("/api/") {
        match guard.check_api_request(request.headers()) {
            Ok(()) => api.respond(&request).await,
            Err(refused) => refusal_response(refused),
        }
    } else {
        match guard.check_page_request(request.headers()) {
            Err(refused) => refusal_response(refused),
            Ok(()) if request.method() != Method::GET => rt_http::method_not_allowed("GET"),
            Ok(()) => bundle::file_response(path),
        }
    };
    bundle::add_security_headers(response.headers_mut());
    response
}

fn refusal_response(refusal: guard::RequestRefusal) -> Response {
    let (status, text) = refusal.response();
    rt_http::text(status, text)
}

/// Opens the dashboard in a browser, if one is installed. The address, which holds the access token, is passed in a
/// file that only this user can read, since program arguments are visible to all users of the machine.
fn open_browser(guard: &RequestGuard) -> Option<tempfile::NamedTempFile> {
    let program = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let mut file = tempfile::Builder::new()
        .prefix("ambit-dashboard-")
        .suffix(".html")
        .tempfile()
        .ok()?;
    let url = guard.url();
    let page = format!("<!doctype html><meta http-equiv=\"refresh\" content=\"0;url={url}\">");
    file.write_all(page.as_bytes()).ok()?;
    let opened = std::process::Command::new(program)
        .arg(file.path())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    match opened {
        Ok(_child) => Some(file),
        Err(_) => {
            print_progress("no browser could be opened: open the address above");
            None
        }
    }
}

#[cfg(test)]
mod tests;
