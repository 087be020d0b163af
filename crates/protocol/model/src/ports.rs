//! Well-known ports and marks of the data plane (Istio's ambient contract).

/// Port in the pod's network namespace to which its outbound connections are redirected.
pub const OUTBOUND_PORT: u16 = 15001;
/// Port in the pod's network namespace to which inbound plaintext connections are redirected.
pub const INBOUND_PLAINTEXT_PORT: u16 = 15006;
/// Port of HBONE: HTTP/2 CONNECT over mTLS.
pub const HBONE_PORT: u16 = 15008;
/// Port of the node proxy's DNS resolver in the pod's network namespace.
pub const DNS_PORT: u16 = 15053;
/// Port of the opt-in SOCKS5 listener in the pod's network namespace.
pub const SOCKS5_PORT: u16 = 15080;
/// `SO_MARK` of the node proxy's own sockets, which the pod's redirection rules exempt.
pub const PROXY_MARK: u32 = 0x539;
