//! Addresses of hosts outside of the mesh: remembered for a while, asked for by few at a time, and never such as nothing of
//! the mesh calls ([`ambit_egress`]); of hosts that clients name, none of the mesh either.
//!
//! Who owns a domain says what its names resolve to. A wildcard lets clients choose a name, and so an address: without
//! this they could make the waypoint call what is for nobody outside of the mesh.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_egress::{Forbidden, Guard};
use ambit_model::ArcStr;
use ambit_proxy::ResolveError;
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
    guard: Guard,
}

impl Names {
    /// None are known; the guard says which addresses they may have.
    pub(crate) fn new(guard: Guard) -> Self {
        Self {
            known: Mutex::default(),
            good: Mutex::default(),
            asking: Semaphore::new(MAX_ASKED),
            guard,
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

    /// Whether an address that an object or a client names, or that a name has, may be called.
    pub(crate) fn check(&self, ip: IpAddr) -> Result<(), Forbidden> {
        self.guard.check(ip)
    }

    /// Whether an address need not be asked about.
    pub(crate) fn is_good(&self, ip: IpAddr) -> bool {
        let until = self.good.lock().get(&ip).copied();
        self.guard.is_allowed(ip) || until.is_some_and(|until| Instant::now() < until)
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

/// The names that are more specific for a host than a wildcard above it, the most specific first: the host itself, then
/// longer wildcards.
pub(crate) fn more_specific(wildcard: &str, text: &str) -> Option<impl Iterator<Item = String>> {
    let host = under(wildcard, text)?;
    let above = host.match_indices('.').map(|(dot, _)| dot);
    let wildcards = above.filter_map(|dot| Some(format!("*{}", host.get(dot..)?)));
    let longer = wildcards.take_while(|one| one.len() > wildcard.len());
    let longer: Vec<_> = longer.collect();
    Some(std::iter::once(host).chain(longer))
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
    fn names_between_a_host_and_its_wildcard_are_more_specific() {
        let of = |wildcard, host| more_specific(wildcard, host).map(Iterator::collect::<Vec<_>>);
        let names = ["a.b.c.example.com", "*.b.c.example.com", "*.c.example.com"];
        assert_eq!(
            of("*.example.com", "A.b.c.example.com.:443").unwrap(),
            names
        );
        assert_eq!(
            of("*.example.com", "a.example.com").unwrap(),
            ["a.example.com"]
        );
        assert_eq!(of("*.example.com", "a.example.org"), None);
        assert_eq!(of("a.example.com", "a.example.com"), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let names = Names::new(Guard::default());
        let now = Instant::now();
        for number in 0..MAX_NAMES + 10 {
            let known = (now + LONGEST, Ok(Arc::from([IpAddr::from([127, 0, 0, 1])])));
            names.remember(arcstr::format!("{number}"), now, known);
        }
        assert!(names.known.lock().len() <= MAX_NAMES);
    }
}
