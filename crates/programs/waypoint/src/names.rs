//! Addresses of hosts outside of the mesh: remembered for a while, asked for by few at a time, and never such as lead
//! back into the waypoint; of hosts that clients name, none of the mesh either.
//!
//! Who owns a domain says what its names resolve to. A wildcard lets clients choose a name, and so an address: without
//! this they could make the waypoint call what is for nobody outside of the mesh.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_model::ArcStr;
use ambit_proxy::ResolveError;
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// Most names that are remembered.
const MAX_NAMES: usize = 4096;
/// Most names that are asked for at the same time.
const MAX_ASKED: usize = 64;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an answer is good, whatever its server says.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// The same of a failure.
const FAILURE: Duration = Duration::from_secs(1);

type Known = Result<Arc<[IpAddr]>, ResolveError>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Names {
    known: Mutex<HashMap<ArcStr, (Instant, Known)>>,
    asking: Semaphore,
    /// Addresses of which the control plane has said that they are not the mesh's, and until when that is believed.
    good: Mutex<HashMap<IpAddr, Instant>>,
    /// Addresses that hosts of wildcards may have, although they are of the kinds that these may not.
    allowed: Vec<IpNet>,
}

/// An address that is not called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Forbidden {
    #[error("{0} is an address of this machine or of nobody")]
    Own(IpAddr),
    #[error("{0} is an address of the node's own network (link-local, or of its metadata service)")]
    Link(IpAddr),
    #[error("{0} is an address that the mesh gives to hosts")]
    Given(IpAddr),
}

/// What leads back to the waypoint itself, or to nobody.
fn is_own(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback()
        || ip.is_unspecified()
        || ip.is_multicast()
        || ip == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Whether a host that a client names may have an address.
fn check(ip: IpAddr) -> Result<(), Forbidden> {
    let ip = ip.to_canonical();
    // Of clouds' metadata services those that are not link-local.
    const METADATA: [IpAddr; 2] = [
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
        IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    ];
    let is_link = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let is_given = match ip {
        IpAddr::V4(ip) => ip.octets().starts_with(&[240, 240]),
        IpAddr::V6(ip) => ip.segments().starts_with(&[0x2001, 2, 0]),
    };
    let is_this_network = matches!(ip, IpAddr::V4(ip) if ip.octets().first() == Some(&0));
    if is_own(ip) || is_this_network {
        Err(Forbidden::Own(ip))
    } else if is_link || METADATA.contains(&ip) {
        Err(Forbidden::Link(ip))
    } else if is_given {
        Err(Forbidden::Given(ip))
    } else {
        Ok(())
    }
}

impl Names {
    pub(crate) fn new(allowed: Vec<IpNet>) -> Self {
        Self {
            known: Mutex::default(),
            good: Mutex::default(),
            asking: Semaphore::new(MAX_ASKED),
            allowed,
        }
    }

    /// The addresses of a host; never none.
    pub(crate) async fn of(&self, host: &str) -> Known {
        if let Some((until, known)) = self.known.lock().get(host)
            && Instant::now() < *until
        {
            return known.clone();
        }
        let failed = |why: String| ResolveError::Lookup {
            host: host.into(),
            why,
        };
        let looking = async {
            // Never closed.
            let _asking = self.asking.acquire().await;
            ambit_rt::lookup_name(host).await
        };
        let now = Instant::now();
        let (known, good) = match tokio::time::timeout(PATIENCE, looking).await {
            Err(_) => (
                Err(failed(format!("no answer within {PATIENCE:?}"))),
                FAILURE,
            ),
            Ok(Err(error)) => (Err(failed(error.to_string())), FAILURE),
            Ok(Ok((all, _))) if all.is_empty() => (Err(failed("no addresses".to_owned())), FAILURE),
            Ok(Ok((all, until))) => {
                let good = until.saturating_duration_since(now);
                let all: Arc<[IpAddr]> = all.into_iter().map(|ip| ip.to_canonical()).collect();
                (Ok(all), good.clamp(SHORTEST, LONGEST))
            }
        };
        self.remember(host.into(), now, (now + good, known.clone()));
        known
    }

    fn remember(&self, host: ArcStr, now: Instant, known: (Instant, Known)) {
        let mut all = self.known.lock();
        if all.len() >= MAX_NAMES {
            all.retain(|_, (until, _)| now < *until);
        }
        if all.len() >= MAX_NAMES {
            all.clear();
        }
        all.insert(host, known);
    }

    /// Why a host that a client names may not have an address, whatever the mesh says of it.
    pub(crate) fn forbidden(&self, ip: IpAddr) -> Option<Forbidden> {
        if self.is_allowed(ip) {
            return None;
        }
        check(ip).err()
    }

    fn is_allowed(&self, ip: IpAddr) -> bool {
        self.allowed.iter().any(|net| net.contains(&ip))
    }

    /// What nobody may have called here, however it is named: the waypoint itself would answer.
    pub(crate) fn is_own(&self, ip: IpAddr) -> bool {
        is_own(ip) && !self.is_allowed(ip)
    }

    /// Whether an address need not be asked about.
    pub(crate) fn is_good(&self, ip: IpAddr) -> bool {
        let until = self.good.lock().get(&ip).copied();
        self.is_allowed(ip) || until.is_some_and(|until| Instant::now() < until)
    }

    /// An address is not the mesh's.
    pub(crate) fn found_good(&self, ip: IpAddr) {
        let now = Instant::now();
        let mut all = self.good.lock();
        if all.len() >= MAX_NAMES {
            all.retain(|_, until| now < *until);
        }
        if all.len() >= MAX_NAMES {
            all.clear();
        }
        all.insert(ip, now + LONGEST);
    }
}

/// The host that a text names, if it is one below a wildcard (`*.` and a domain): in lower case, without a port.
pub(crate) fn under(wildcard: &str, text: &str) -> Option<String> {
    let name = match text.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        Some(_) => return None,
        None => text,
    };
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_label = |label: &str| {
        let of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(of_name)
    };
    let end = wildcard.strip_prefix('*')?;
    let first = name.strip_suffix(end)?;
    (name.len() <= 253 && !first.is_empty() && name.split('.').all(is_label)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_below_the_wildcard_are_hosts_of_it() {
        for (text, expected) in [
            ("api.example.com", Some("api.example.com")),
            ("API.Example.com.", Some("api.example.com")),
            ("a.b.example.com:8443", Some("a.b.example.com")),
            ("example.com", None),
            (".example.com", None),
            ("a..example.com", None),
            ("api.example.com.evil.org", None),
            ("evilexample.com", None),
            ("api.example.com:80:80", None),
            ("api.example.com:x", None),
            ("a b.example.com", None),
            ("a\0.example.com", None),
            ("[::1]:80", None),
            ("127.0.0.1", None),
            ("", None),
        ] {
            assert_eq!(under("*.example.com", text).as_deref(), expected, "{text}");
        }
        assert_eq!(under("example.com", "a.example.com"), None);
    }

    #[test]
    fn what_is_the_nodes_or_the_meshs_is_no_host() {
        let names = Names::new(vec!["127.0.0.2/32".parse().unwrap()]);
        for (ip, is_good) in [
            ("127.0.0.1", false),
            ("127.0.0.2", true),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("0.0.0.0", false),
            ("0.1.2.3", false),
            ("169.254.169.254", false),
            ("fe80::1", false),
            ("fd00:ec2::254", false),
            ("100.100.100.200", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("240.240.0.7", false),
            ("2001:2::7", false),
            ("192.0.2.1", true),
            ("10.0.0.1", true),
            ("2001:db8::1", true),
        ] {
            let forbidden = names.forbidden(ip.parse().unwrap());
            assert_eq!(forbidden.is_none(), is_good, "{ip}: {forbidden:?}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let names = Names::new(Vec::new());
        let now = Instant::now();
        for number in 0..MAX_NAMES + 10 {
            let known = (
                now + LONGEST,
                Ok(Arc::from([IpAddr::V4(Ipv4Addr::LOCALHOST)])),
            );
            names.remember(arcstr::format!("{number}"), now, known);
        }
        assert!(names.known.lock().len() <= MAX_NAMES);
    }
}
