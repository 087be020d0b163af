//! Bare relay of TCP connections, in plaintext: two of them, chained, are the floor with which the mesh is compared.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::{
    io::copy_bidirectional_with_sizes,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// Bytes of a connection's buffer for each direction, as in the node proxy.
const BUFFER_SIZE: usize = 16 << 10;
const WORKERS: usize = 2;

/// Relays the connections of each listener to its target, `LISTENER=TARGET`, until the process ends.
pub(crate) fn serve(relays: &[String]) -> Result<()> {
    let relays: Vec<(SocketAddr, SocketAddr)> = relays
        .iter()
        .map(|text| parse(text))
        .collect::<Result<_>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut listeners = JoinSet::new();
        for (listen, target) in relays {
            let listener = TcpListener::bind(listen).await.with_context(|| listen)?;
            listeners.spawn(accept(listener, target));
        }
        while let Some(ended) = listeners.join_next().await {
            ended??;
        }
        Ok(())
    })
}

fn parse(text: &str) -> Result<(SocketAddr, SocketAddr)> {
    let (listen, target) = text
        .split_once('=')
        .with_context(|| format!("a relay is LISTENER=TARGET, not {text:?}"))?;
    let address = |text: &str| text.parse().with_context(|| format!("address {text:?}"));
    Ok((address(listen)?, address(target)?))
}

async fn accept(listener: TcpListener, target: SocketAddr) -> Result<()> {
    loop {
        let (mut from, _) = listener.accept().await?;
        from.set_nodelay(true)?;
        // A connection that fails ends alone: the load generator counts it.
        tokio::spawn(async move {
            let mut to = TcpStream::connect(target).await?;
            to.set_nodelay(true)?;
            copy_bidirectional_with_sizes(&mut from, &mut to, BUFFER_SIZE, BUFFER_SIZE).await
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_are_pairs_of_addresses() {
        let (listen, target) = parse("127.0.0.1:1=10.0.0.1:2").unwrap();
        assert_eq!(listen.port(), 1);
        assert_eq!(target.to_string(), "10.0.0.1:2");
        let error = parse("127.0.0.1:1").unwrap_err().to_string();
        assert!(error.contains("LISTENER=TARGET"), "{error}");
        assert!(parse("here=10.0.0.1:2").is_err());
    }
}
