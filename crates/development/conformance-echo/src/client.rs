//! Client of the conformance tests: sends requests one after the other, and prints their responses in the suite's
//! format.

use std::{str::FromStr, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version,
    header::{CONTENT_TYPE, TE},
    uri::{PathAndQuery, Scheme},
};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

use crate::grpc;

/// Timeout until a response is received.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The arguments of the suite's own image, as far as the suite uses them.
#[derive(Debug, clap::Parser)]
pub(crate) struct Args {
    /// Where to: `http://` or `grpc://`
    url: Uri,
    /// The method; POST for gRPC
    #[arg(long, default_value = "GET")]
    method: Method,
    /// A header, `NAME:VALUE`
    #[arg(short = 'H', long)]
    header: Vec<Header>,
    /// How many requests
    #[arg(long, default_value_t = 1)]
    count: usize,
}

#[derive(Clone, Debug)]
struct Header(HeaderName, HeaderValue);

impl FromStr for Header {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, value) = text.split_once(':').context("no `:` is in the header")?;
        Ok(Self(name.parse()?, value.parse()?))
    }
}

/// Sends the requests; returns the lines of every response, separated by an empty line. A redirect is a response, and
/// is not followed.
pub(crate) async fn run(args: &Args) -> Result<String> {
    let is_grpc = match args.url.scheme_str() {
        Some("http") => false,
        Some("grpc") => true,
        other => bail!("{}: {other:?} is neither http nor grpc", args.url),
    };
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new())
        .http2_only(is_grpc)
        .build(connector);
    let mut answers = Vec::new();
    for number in 0..args.count {
        let request = request(args, is_grpc)?;
        let answer = tokio::time::timeout(RESPONSE_TIMEOUT, exchange(&client, request, is_grpc))
            .await
            .with_context(|| format!("{}: no answer within {RESPONSE_TIMEOUT:?}", args.url))?
            .with_context(|| format!("{}: request {number} failed", args.url))?;
        answers.push(format_response(number, &args.url, &answer).join("\n"));
    }
    Ok(answers.join("\n\n"))
}

fn request(args: &Args, is_grpc: bool) -> Result<Request<Full<Bytes>>> {
    let mut url = args.url.clone().into_parts();
    let mut body = Bytes::new();
    if is_grpc {
        url.scheme = Some(Scheme::HTTP);
        url.path_and_query = Some(PathAndQuery::from_static(grpc::ECHO_METHOD_PATH));
        body = grpc::encode("echo".to_owned());
    }
    let mut request = Request::new(Full::new(body));
    *request.uri_mut() = Uri::from_parts(url)?;
    *request.method_mut() = args.method.clone();
    let headers = request.headers_mut();
    for Header(name, value) in &args.header {
        headers.append(name, value.clone());
    }
    if is_grpc {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(grpc::CONTENT_TYPE));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
    }
    Ok(request)
}

/// Properties of a response that the suite parses from the client's output.
struct EchoResponse {
    /// HTTP status, or the gRPC status unless it is 0.
    status: u16,
    headers: HeaderMap,
    body: String,
}

async fn exchange(
    client: &Client<HttpConnector, Full<Bytes>>,
    request: Request<Full<Bytes>>,
    is_grpc: bool,
) -> Result<EchoResponse> {
    let (head, body) = client.request(request).await?.into_parts();
    let body = body.collect().await?;
    let mut answer = EchoResponse {
        status: head.status.as_u16(),
        headers: head.headers,
        body: String::new(),
    };
    if !is_grpc {
        answer.body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        return Ok(answer);
    }
    // A failed call may have no message, and its status among the headers.
    let trailers = body.trailers().unwrap_or(&answer.headers);
    let Some(status) = trailers.get(grpc::GRPC_STATUS) else {
        bail!("HTTP {} without a status of gRPC", answer.status);
    };
    match status
        .to_str()?
        .parse()
        .map_err(|_| anyhow!("{status:?} is no status of gRPC"))?
    {
        0 => answer.body = grpc::decode(&body.to_bytes())?,
        failure => answer.status = failure,
    }
    Ok(answer)
}

fn format_response(number: usize, url: &Uri, answer: &EchoResponse) -> Vec<String> {
    let mut lines = vec![
        format!("[{number}] Url={url}"),
        format!("[{number}] StatusCode={}", answer.status),
    ];
    let headers = answer.headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes());
        format!("[{number}] ResponseHeader={name}:{value}")
    });
    lines.extend(headers);
    // An empty line would end the response.
    let body = answer.body.lines().filter(|line| !line.is_empty());
    lines.extend(body.map(|line| format!("[{number} body] {line}")));
    lines
}
