//! Address of another controller's Gateway, from its status.

use std::net::IpAddr;

use ambit_k8s_api::{gateway::GatewayAddress as StatusAddress, is_dns_name};
use ambit_model::ArcStr;
use serde::Deserialize;
use serde_json::Value;

/// Address of another controller's Gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    /// IP address of the Gateway, in the cluster's network.
    Ip(IpAddr),
    /// Host name of the Gateway, which clients look up in the Gateway's namespace.
    Host(ArcStr),
}

/// Returns the address in a Gateway's status: a host name if there is one, else the first IP address. Unknown address
/// types are ignored.
pub(crate) fn parse_status_address(status: &Value) -> Option<Address> {
    let all = Vec::<StatusAddress>::deserialize(status.get("addresses")?).ok()?;
    let of_type = |wanted: &'static str| {
        let all = all.iter();
        all.filter(move |one| one.type_.as_deref().unwrap_or("IPAddress") == wanted)
    };
    let mut names = of_type("Hostname").filter(|one| is_dns_name(&one.value, 253));
    let name = names
        .next()
        .map(|one| Address::Host(one.value.as_str().into()));
    let mut ips = of_type("IPAddress").filter_map(|one| one.value.parse::<IpAddr>().ok());
    name.or_else(|| Some(Address::Ip(ips.next()?.to_canonical())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_host_name_goes_before_addresses_and_what_is_neither_is_left_out() {
        let host = |name: &str| Some(Address::Host(name.into()));
        let ip = |text: &str| Some(Address::Ip(text.parse().unwrap()));
        for (addresses, expected) in [
            (
                json!([{"value": "10.0.0.1"}, {"value": "10.0.0.2"}]),
                ip("10.0.0.1"),
            ),
            (
                json!([{"type": "IPAddress", "value": "fd00::1"}]),
                ip("fd00::1"),
            ),
            (json!([{"value": "::ffff:10.0.0.1"}]), ip("10.0.0.1")),
            (
                json!([{"value": "10.0.0.1"}, {"type": "Hostname", "value": "wp.shop.svc.cluster.local"}]),
                host("wp.shop.svc.cluster.local"),
            ),
            (
                json!([{"type": "Hostname", "value": "not a name"}, {"value": "10.0.0.1"}]),
                ip("10.0.0.1"),
            ),
            (
                json!([{"type": "example.com/vip", "value": "10.0.0.9"}]),
                None,
            ),
            (json!([{"value": "nothing"}, {"value": ""}]), None),
            (json!([]), None),
            (json!("10.0.0.1"), None),
            (json!([{"type": 1, "value": "10.0.0.1"}]), None),
        ] {
            let status = json!({"addresses": addresses});
            assert_eq!(parse_status_address(&status), expected, "{status}");
        }
        assert_eq!(parse_status_address(&Value::Null), None);
    }
}
