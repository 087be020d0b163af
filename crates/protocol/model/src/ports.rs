//! The well-known numbers of the data plane (Istio's ambient contract).

/// Where a captured pod's outbound connections are redirected to, inside its namespace.
pub const OUTBOUND_PORT: u16 = 15001;
/// Where plaintext connections to a captured pod are redirected to, inside its namespace.
pub const INBOUND_PLAINTEXT_PORT: u16 = 15006;
/// HBONE: HTTP/2 CONNECT over mTLS.
pub const HBONE_PORT: u16 = 15008;
/// The node proxy's resolver inside a pod's namespace.
pub const DNS_PORT: u16 = 15053;
/// The opt-in SOCKS5 listener inside a pod's namespace.
pub const SOCKS5_PORT: u16 = 15080;
/// `SO_MARK` of every socket the node proxy opens: the pod's rules exempt it.
pub const PROXY_MARK: u32 = 0x539;
