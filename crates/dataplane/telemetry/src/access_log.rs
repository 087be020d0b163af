//! Access log of connections: one line each, with the log target `access`.

use std::{net::SocketAddr, time::Duration};

use ambit_model::{ArcStr, Identity};
use tracing::Level;

/// Direction of a connection, seen from the proxy that logs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Connection to a local workload.
    Inbound,
    /// Connection from a local workload.
    Outbound,
}

impl Direction {
    /// Returns the value of the log field `direction`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }
}

/// Fields of a connection's access-log line; unknown ones are omitted.
#[derive(Clone, Debug)]
pub struct AccessLog {
    /// Address of the client.
    pub src: SocketAddr,
    /// Name of the source workload's pod.
    pub src_workload: Option<ArcStr>,
    /// Namespace of the source workload.
    pub src_namespace: Option<ArcStr>,
    /// Source identity, if mTLS verified it.
    pub src_identity: Option<Identity>,
    /// Cluster of the source workload.
    pub src_cluster: Option<ArcStr>,
    /// Address that the connection was made to; for inbound tunnels, the pod's HBONE port.
    pub dst: SocketAddr,
    /// Destination inside the tunnel: address or host name, and port.
    pub dst_hbone: Option<ArcStr>,
    /// Host name of the destination service.
    pub dst_service: Option<ArcStr>,
    /// Name of the destination workload's pod.
    pub dst_workload: Option<ArcStr>,
    /// Namespace of the destination workload.
    pub dst_namespace: Option<ArcStr>,
    /// Destination identity, if mTLS verified it.
    pub dst_identity: Option<Identity>,
    /// Cluster of the destination workload.
    pub dst_cluster: Option<ArcStr>,
    /// Direction of the connection, which implies the reporter.
    pub direction: Direction,
}

impl AccessLog {
    /// Creates a line that has only the addresses.
    pub fn new(direction: Direction, src: SocketAddr, dst: SocketAddr) -> Self {
        Self {
            src,
            src_workload: None,
            src_namespace: None,
            src_identity: None,
            src_cluster: None,
            dst,
            dst_hbone: None,
            dst_service: None,
            dst_workload: None,
            dst_namespace: None,
            dst_identity: None,
            dst_cluster: None,
            direction,
        }
    }

    /// Logs at level debug that the connection is established.
    pub fn log_opened(&self) {
        if tracing::enabled!(target: "access", Level::DEBUG) {
            tracing::event!(
                target: "access",
                Level::DEBUG,
                src.addr = %self.src,
                src.workload = self.src_workload.as_deref(),
                src.namespace = self.src_namespace.as_deref(),
                src.identity = self.src_identity.as_ref().map(ToString::to_string).as_deref(),
                src.cluster = self.src_cluster.as_deref(),
                dst.addr = %self.dst,
                dst.hbone_addr = self.dst_hbone.as_ref().map(tracing::field::display),
                dst.service = self.dst_service.as_deref(),
                dst.workload = self.dst_workload.as_deref(),
                dst.namespace = self.dst_namespace.as_deref(),
                dst.identity = self.dst_identity.as_ref().map(ToString::to_string).as_deref(),
                dst.cluster = self.dst_cluster.as_deref(),
                direction = self.direction.as_str(),
                "connection opened"
            );
        }
    }

    /// Logs the end of a connection: at level info, or at level error if it failed.
    ///
    /// `sent` and `received` are bytes from the local workload's view. Outbound, `sent` is client to server; inbound,
    /// `sent` is server to client.
    pub fn log_completed(&self, sent: u64, received: u64, duration: Duration, error: Option<&str>) {
        match error {
            None if tracing::enabled!(target: "access", Level::INFO) => {
                self.emit_completed::<false>(sent, received, duration, None);
            }
            Some(_) if tracing::enabled!(target: "access", Level::ERROR) => {
                self.emit_completed::<true>(sent, received, duration, error);
            }
            _ => {}
        }
    }

    fn emit_completed<const FAILED: bool>(
        &self,
        bytes_sent: u64,
        bytes_recv: u64,
        duration: Duration,
        error: Option<&str>,
    ) {
        let src_identity = self.src_identity.as_ref().map(ToString::to_string);
        let dst_identity = self.dst_identity.as_ref().map(ToString::to_string);
        let duration = format!("{}ms", duration.as_millis());
        macro_rules! line {
            ($level:expr) => {
                tracing::event!(
                    target: "access",
                    $level,
                    src.addr = %self.src,
                    src.workload = self.src_workload.as_deref(),
                    src.namespace = self.src_namespace.as_deref(),
                    src.identity = src_identity.as_deref(),
                    src.cluster = self.src_cluster.as_deref(),
                    dst.addr = %self.dst,
                    dst.hbone_addr = self.dst_hbone.as_ref().map(tracing::field::display),
                    dst.service = self.dst_service.as_deref(),
                    dst.workload = self.dst_workload.as_deref(),
                    dst.namespace = self.dst_namespace.as_deref(),
                    dst.identity = dst_identity.as_deref(),
                    dst.cluster = self.dst_cluster.as_deref(),
                    direction = self.direction.as_str(),
                    bytes_sent,
                    bytes_recv,
                    duration = duration.as_str(),
                    error,
                    "connection complete"
                )
            };
        }
        if FAILED {
            line!(Level::ERROR);
        } else {
            line!(Level::INFO);
        }
    }
}

/// Logs at level warn a connection that was denied before its workloads were known.
pub fn log_denied(src: SocketAddr, dst: SocketAddr, direction: Direction, error: &str) {
    tracing::event!(
        target: "access",
        Level::WARN,
        src.addr = %src,
        dst.addr = %dst,
        direction = direction.as_str(),
        error,
        "connection failed"
    );
}

#[cfg(test)]
mod tests;
