//! Serves DNS queries over TCP connections, one after another on each.

use std::{future::Future, net::SocketAddr, time::Duration};

use ambit_sys::socket;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    question::{DnsQuery, QueryRejection},
    server::{DnsHost, QueryStep, Server},
    transport::Transport,
};

/// Serves the queries on one TCP connection until it is idle or closed. Closes connections beyond the server's limit at
/// once.
pub async fn serve_connection<H: DnsHost>(mut stream: TcpStream, server: &Server<H>) {
    let Ok(_room) = server.connection_permits.try_acquire() else {
        return;
    };
    let resolver = socket::original_dst(&stream).ok();
    while let Some(bytes) = read_query(&mut stream, server.limits.idle_timeout).await {
        let Some(answer) = answer_query(server, &bytes, resolver).await else {
            return;
        };
        // Longer than a message can be: our messages never are.
        let Ok(len) = u16::try_from(answer.len()) else {
            return;
        };
        let framed = [&len.to_be_bytes()[..], &answer].concat();
        if with_timeout(server.limits.idle_timeout, stream.write_all(&framed))
            .await
            .is_none()
        {
            return;
        }
    }
}

/// Reads the next query; `None` if the client closes the connection or sends no complete query in time.
async fn read_query(stream: &mut TcpStream, idle: Duration) -> Option<Vec<u8>> {
    let read = async {
        let len = stream.read_u16().await?;
        // Grows with the received bytes, not with the announced length.
        let mut bytes = Vec::new();
        stream.take(len.into()).read_to_end(&mut bytes).await?;
        Ok((bytes.len() == usize::from(len)).then_some(bytes))
    };
    with_timeout(idle, read).await?
}

async fn with_timeout<T>(
    limit: Duration,
    work: impl Future<Output = std::io::Result<T>>,
) -> Option<T> {
    timeout(limit, work).await.ok()?.ok()
}

async fn answer_query<H: DnsHost>(
    server: &Server<H>,
    bytes: &[u8],
    resolver: Option<SocketAddr>,
) -> Option<Vec<u8>> {
    let question = match DnsQuery::parse(bytes) {
        Ok(question) => question,
        Err(QueryRejection::ErrorResponse(refusal, _)) => return Some(refusal),
        Err(QueryRejection::Ignored) => return None,
    };
    Some(match server.start_query(&question, Transport::Tcp) {
        QueryStep::Answer(answer) => answer,
        QueryStep::Pending(later) => match server.try_acquire_query_permit() {
            None => server.refuse_query(&question, Transport::Tcp),
            Some(_room) => {
                server
                    .complete_query(&question, Transport::Tcp, later, resolver)
                    .await
            }
        },
    })
}

#[cfg(test)]
mod tests;
