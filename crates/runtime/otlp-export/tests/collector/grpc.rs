//! Tests of exports to a gRPC collector.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
};
use prost::Message as _;
use tokio::sync::mpsc;

use crate::{
    fixture::{Program, comparable_lines, decode_request},
    rendered::sample_lines,
    scripted::TEST_TIMEOUT,
};

/// Serves requests with these statuses in order, and with three rejected data points on success.
async fn serve(
    listener: tokio::net::TcpListener,
    statuses: &'static [&'static str],
    received: mpsc::UnboundedSender<(http::request::Parts, Bytes)>,
) {
    let statuses = std::sync::Arc::new(parking_lot::Mutex::new(statuses.iter()));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (received, statuses) = (received.clone(), statuses.clone());
        let answer = move |request: Request<Incoming>| {
            let (received, statuses) = (received.clone(), statuses.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                received.send((head, body)).ok();
                let status = statuses.lock().next().copied().unwrap_or("0");
                let message = ExportMetricsServiceResponse {
                    partial_success: Some(ExportMetricsPartialSuccess {
                        rejected_data_points: 3,
                        error_message: "no".to_owned(),
                    }),
                };
                let message = message.encode_to_vec();
                let mut framed = BytesMut::new();
                framed.put_u8(0);
                framed.put_u32(message.len().try_into().unwrap());
                framed.put_slice(&message);
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static(status));
                let body = Full::new(framed.freeze())
                    .with_trailers(std::future::ready(Some(Ok(trailers))));
                Ok::<_, std::convert::Infallible>(Response::new(body))
            }
        };
        let server = http2::Builder::new(TokioExecutor::new());
        let served = server.serve_connection(TokioIo::new(stream), service_fn(answer));
        tokio::spawn(async move {
            served.await.ok();
        });
    }
}

#[tokio::test]
async fn collectors_of_grpc_get_the_same_messages() {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (sender, mut received) = mpsc::unbounded_channel();
    // UNAVAILABLE at first.
    tokio::spawn(serve(listener, &["14"], sender));
    let variables = [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=shop"),
    ];
    let program = Program::start(&endpoint, &variables);
    let mut next = async || {
        let next = tokio::time::timeout(TEST_TIMEOUT, received.recv()).await;
        next.expect("a request in time").unwrap()
    };
    let (head, first) = next().await;
    assert_eq!(
        head.uri.path(),
        "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
    );
    assert_eq!(head.method, "POST");
    assert_eq!(head.headers["content-type"], "application/grpc");
    assert_eq!(head.headers["te"], "trailers");
    assert_eq!(head.headers["x-tenant"], "shop");
    assert_eq!(first[0], 0);
    let length = u32::from_be_bytes(first[1..5].try_into().unwrap());
    assert_eq!(usize::try_from(length).unwrap(), first.len() - 5);
    let pushed = decode_request(&first[5..]);
    assert_eq!(
        comparable_lines(&sample_lines(&pushed)),
        comparable_lines(&program.scrape().await)
    );
    let (_, again) = next().await;
    assert_eq!(first, again);
    program
        .wait_until_counted("ambit_otlp_rejected_total{signal=\"metrics\"}")
        .await;
}
