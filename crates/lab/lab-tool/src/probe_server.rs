//! Servers for kubelet's probes: HTTP, TCP, and the part of the gRPC health service that kubelet calls.

use std::{io, net::TcpStream, process::ExitCode, thread};

use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use http::{HeaderMap, HeaderValue, Request, Response};

use super::serve;

/// Path of the only gRPC method that kubelet calls.
const HEALTH_CHECK_PATH: &str = "/grpc.health.v1.Health/Check";
/// gRPC message (uncompressed, with its prefix) of the response `status: SERVING`.
const SERVING_RESPONSE: &[u8] = &[0, 0, 0, 0, 2, 0x08, 0x01];
/// Value of `grpc-status` for an unknown method.
const GRPC_STATUS_UNIMPLEMENTED: &str = "12";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Port for HTTP: every path answers 200
    #[arg(long, default_value_t = 8080)]
    http: u16,
    /// Port for TCP: connections are taken and closed when the client closes them
    #[arg(long, default_value_t = 8081)]
    tcp: u16,
    /// Port for gRPC health: every service is SERVING
    #[arg(long, default_value_t = 8082)]
    grpc: u16,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let (http, tcp, grpc) = (args.http, args.tcp, args.grpc);
    thread::scope(|scope| {
        let servers = [
            scope.spawn(move || serve::serve(http, |s| serve::respond(s, "probes", "", true))),
            scope.spawn(move || serve::serve_echo(tcp)),
            scope.spawn(move || serve::serve(grpc, serve_health_checks)),
        ];
        // A server that cannot listen does not stop the others: its probe fails.
        for server in servers {
            drop(server.join());
        }
    });
    ExitCode::FAILURE
}

/// Serves gRPC health checks on one connection.
fn serve_health_checks(stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream)?;
        serve_health(stream).await.map_err(io::Error::other)
    })
}

async fn serve_health(stream: tokio::net::TcpStream) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(request) = connection.accept().await {
        let (request, respond) = request?;
        health_response(&request, respond)?;
    }
    Ok(())
}

fn health_response(
    request: &Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let mut head = Response::new(());
    let headers = head.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    if request.uri().path() != HEALTH_CHECK_PATH {
        headers.insert(
            "grpc-status",
            HeaderValue::from_static(GRPC_STATUS_UNIMPLEMENTED),
        );
        return respond.send_response(head, true).map(drop);
    }
    let mut body = respond.send_response(head, false)?;
    body.send_data(Bytes::from_static(SERVING_RESPONSE), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    body.send_trailers(trailers)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Calls a gRPC method, and returns the response body and `grpc-status`, from headers or trailers.
    async fn call(port: u16, path: &str) -> (Vec<u8>, String) {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .unwrap();
        let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
        let connection = ambit_rt::spawn_abortable("connection", async move {
            drop(connection.await);
        });
        let request = Request::post(format!("http://probe{path}"))
            .body(())
            .unwrap();
        let (response, _) = send.send_request(request, true).unwrap();
        let (head, mut body) = response.await.unwrap().into_parts();
        let mut bytes = Vec::new();
        while let Some(data) = body.data().await {
            bytes.extend_from_slice(&data.unwrap());
        }
        let trailers = body.trailers().await.unwrap().unwrap_or_default();
        drop(connection);
        let status = trailers
            .get("grpc-status")
            .or_else(|| head.headers.get("grpc-status"));
        (bytes, status.unwrap().to_str().unwrap().to_owned())
    }

    #[tokio::test]
    async fn health_service_reports_serving_and_others_are_absent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                drop(serve_health_checks(stream));
            }
        });
        assert_eq!(
            call(port, HEALTH_CHECK_PATH).await,
            (SERVING_RESPONSE.to_vec(), "0".into())
        );
        let (body, status) = call(port, "/grpc.health.v1.Health/Watch").await;
        assert_eq!((body.len(), status.as_str()), (0, "12"));
    }
}
