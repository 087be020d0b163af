//! Addresses for the hosts of ServiceEntries that have none of their own, as Istio gives them: one of
//! 240.240.0.0/16 and one of 2001:2::/48 a host, written to `status.addresses`. Pure.
//!
//! Every replica publishes the status' addresses, so an address is one for all of them and stays over restarts. Only
//! the leader gives addresses, once it knows all that are given. Of two that have the same one the older keeps it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ambit_k8s_api::{ObjectKey, ServiceEntry, created, istio::Resolution, labels};
use serde_json::{Value, json};

/// Numbers that are given: both families' addresses end in them.
const FIRST: u16 = 1;
const LAST: u16 = u16::MAX - 1;

/// Addresses that a ServiceEntry needs and has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Addresses {
    /// When it was made; sorts by age.
    created: String,
    /// The hosts that are to have addresses.
    wanted: Vec<String>,
    /// Addresses that it was written with.
    own: Vec<IpAddr>,
    /// Addresses in its status.
    given: Vec<(String, String)>,
}

impl Addresses {
    /// Addresses of an entry.
    pub(crate) fn of(entry: &ServiceEntry) -> Self {
        let spec = &entry.spec;
        let own: Vec<_> = spec
            .addresses
            .iter()
            .filter_map(|ip| ip.parse().ok())
            .collect();
        let label = entry.metadata.labels.as_ref();
        let opted_out = label
            .and_then(|labels| labels.get(labels::AUTO_ALLOCATE_IP))
            .is_some_and(|value| value.eq_ignore_ascii_case("false"));
        // Without load balancing a connection goes to its original destination: an address of ours has no endpoint.
        let wants = spec.addresses.is_empty() && spec.resolution != Resolution::None && !opted_out;
        let is_eligible =
            |host: &&String| !host.starts_with('*') || spec.resolution == Resolution::DynamicDns;
        let mut wanted = Vec::new();
        for host in spec.hosts.iter().filter(is_eligible).filter(|_| wants) {
            let host = host.to_ascii_lowercase();
            if !wanted.contains(&host) {
                wanted.push(host);
            }
        }
        let given = entry.status.get("addresses").and_then(Value::as_array);
        let text = |one: &Value, field: &str| -> String {
            let text = one.get(field).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        Self {
            created: created(&entry.metadata),
            wanted,
            own,
            given: given
                .into_iter()
                .flatten()
                .map(|one| (text(one, "host"), text(one, "value")))
                .collect(),
        }
    }

    /// The numbers that it holds, by itself or by what it was given.
    fn numbers(&self) -> BTreeSet<u16> {
        let given = self.given.iter();
        let given = given.filter_map(|(_, value)| value.parse().ok());
        let all = self.own.iter().copied().chain(given);
        all.filter_map(number).collect()
    }
}

/// The number that an address of ours ends in.
fn number(ip: IpAddr) -> Option<u16> {
    match ip {
        IpAddr::V4(ip) => match ip.octets() {
            [240, 240, high, low] => Some(u16::from_be_bytes([high, low])),
            _ => None,
        },
        IpAddr::V6(ip) => match ip.segments() {
            [0x2001, 2, 0, 0, 0, 0, 0, number] => Some(number),
            _ => None,
        },
    }
}

fn addresses(number: u16) -> [IpAddr; 2] {
    let [high, low] = number.to_be_bytes();
    [
        Ipv4Addr::new(240, 240, high, low).into(),
        Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, number).into(),
    ]
}

/// Owners of numbers.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Of several holders the first one has it.
    holders: BTreeMap<u16, BTreeSet<(String, ObjectKey)>>,
    of: BTreeMap<ObjectKey, (String, BTreeSet<u16>)>,
    /// The number to try next: one that is free again is not given again soon.
    next: u16,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            holders: BTreeMap::new(),
            of: BTreeMap::new(),
            next: FIRST,
        }
    }
}

impl Pool {
    /// A ServiceEntry is as it is now. Returns others that must give up a number to it.
    pub(crate) fn see(&mut self, key: &ObjectKey, entry: &Addresses) -> BTreeSet<ObjectKey> {
        self.forget(key);
        let numbers = entry.numbers();
        let mut younger = BTreeSet::new();
        for number in &numbers {
            let holders = self.holders.entry(*number).or_default();
            holders.insert((entry.created.clone(), key.clone()));
            younger.extend(holders.iter().skip(1).map(|(_, key)| key.clone()));
        }
        if !numbers.is_empty() {
            self.of
                .insert(key.clone(), (entry.created.clone(), numbers));
        }
        younger
    }

    /// Forgets an entry that is gone.
    pub(crate) fn forget(&mut self, key: &ObjectKey) {
        let Some((created, numbers)) = self.of.remove(key) else {
            return;
        };
        for number in numbers {
            if let Some(holders) = self.holders.get_mut(&number) {
                holders.remove(&(created.clone(), key.clone()));
                if holders.is_empty() {
                    self.holders.remove(&number);
                }
            }
        }
    }

    /// Addresses that its status should have; `None` if it has them.
    pub(crate) fn give(&mut self, key: &ObjectKey, entry: &Addresses) -> Option<Value> {
        let mut given: Vec<(String, String)> = Vec::new();
        for host in &entry.wanted {
            let before: Vec<_> = entry.given.iter().filter(|(of, _)| of == host).collect();
            let is_its = |(_, value): &&(String, String)| {
                let number = value.parse().ok().and_then(number);
                let first = number.and_then(|number| self.holders.get(&number)?.first());
                first.is_some_and(|(_, first)| first == key)
            };
            if !before.is_empty() && before.iter().all(is_its) {
                given.extend(before.into_iter().cloned());
                continue;
            }
            let Some(number) = self.take(key, &entry.created) else {
                tracing::error!(%key, host, "no address is left for this host: it has none");
                continue;
            };
            let new = addresses(number).into_iter();
            given.extend(new.map(|ip| (host.clone(), ip.to_string())));
        }
        // An undesired address in the status may be another controller's, or still in use.
        if given.is_empty() || given == entry.given {
            return None;
        }
        let one = |(host, value): &(String, String)| json!({"host": host, "value": value});
        Some(json!({"addresses": given.iter().map(one).collect::<Vec<_>>()}))
    }

    fn take(&mut self, key: &ObjectKey, created: &str) -> Option<u16> {
        let from = self.next;
        let mut all = (from..=LAST).chain(FIRST..from);
        let number = all.find(|number| !self.holders.contains_key(number))?;
        self.next = if number == LAST { FIRST } else { number + 1 };
        let holder = (created.to_owned(), key.clone());
        self.holders.entry(number).or_default().insert(holder);
        let of = self.of.entry(key.clone());
        let of = of.or_insert_with(|| (created.to_owned(), BTreeSet::new()));
        of.1.insert(number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use ambit_k8s_api::Kind;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(Kind::ServiceEntry, "shop", name)
    }

    fn entry(created: &str, given: &[(&str, &str)]) -> Addresses {
        let pair = |(host, value): &(&str, &str)| ((*host).to_owned(), (*value).to_owned());
        Addresses {
            created: created.to_owned(),
            wanted: vec!["a.com".to_owned()],
            given: given.iter().map(pair).collect(),
            ..Addresses::default()
        }
    }

    fn values(status: Option<Value>) -> Vec<String> {
        let status = status.unwrap();
        let all = status["addresses"].as_array().unwrap().iter();
        all.map(|one| one["value"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn each_host_gets_one_of_both_families_and_keeps_them() {
        let mut pool = Pool::default();
        pool.see(&key("a"), &entry("1", &[]));
        let first = values(pool.give(&key("a"), &entry("1", &[])));
        assert_eq!(first, ["240.240.0.1", "2001:2::1"]);
        let known = [("a.com", first[0].as_str()), ("a.com", first[1].as_str())];
        // After a restart, in any order.
        let mut pool = Pool::default();
        pool.see(&key("b"), &entry("2", &[]));
        pool.see(&key("a"), &entry("1", &known));
        assert_eq!(pool.give(&key("a"), &entry("1", &known)), None);
        let second = values(pool.give(&key("b"), &entry("2", &[])));
        assert_eq!(second, ["240.240.0.2", "2001:2::2"]);
        // What is free again is not given again at once.
        pool.forget(&key("b"));
        let third = values(pool.give(&key("c"), &entry("3", &[])));
        assert_eq!(third[0], "240.240.0.3");
    }

    #[test]
    fn the_older_of_two_keeps_an_address_whichever_comes_first() {
        let same = [("a.com", "240.240.0.1"), ("a.com", "2001:2::1")];
        let mut pool = Pool::default();
        assert!(pool.see(&key("young"), &entry("2", &same)).is_empty());
        let younger = pool.see(&key("old"), &entry("1", &same));
        assert_eq!(younger, [key("young")].into());
        assert_eq!(pool.give(&key("old"), &entry("1", &same)), None);
        let other = values(pool.give(&key("young"), &entry("2", &same)));
        assert_eq!(other[0], "240.240.0.2");
    }

    #[test]
    fn addresses_that_somebody_wrote_are_not_given() {
        let mut pool = Pool::default();
        let own = Addresses {
            own: vec!["240.240.0.1".parse().unwrap()],
            ..Addresses::default()
        };
        pool.see(&key("own"), &own);
        assert_eq!(pool.give(&key("own"), &own), None);
        let given = values(pool.give(&key("a"), &entry("1", &[])));
        assert_eq!(given[0], "240.240.0.2");
    }

    #[test]
    fn only_hosts_that_can_use_one_want_one() {
        let wanted = |spec: Value| {
            let entry = json!({"spec": spec, "metadata": {"labels": {}}});
            let entry: ServiceEntry = serde_json::from_value(entry).unwrap();
            Addresses::of(&entry).wanted
        };
        assert_eq!(
            wanted(json!({"hosts": ["A.com", "*.b.com"], "resolution": "DNS"})),
            ["a.com"]
        );
        assert_eq!(
            wanted(json!({"hosts": ["*.b.com"], "resolution": "DYNAMIC_DNS"})),
            ["*.b.com"]
        );
        assert!(wanted(json!({"hosts": ["a.com"]})).is_empty());
        let with = json!({"hosts": ["a.com"], "resolution": "DNS", "addresses": ["192.0.2.1"]});
        assert!(wanted(with).is_empty());
        let opted_out = json!({"spec": {"hosts": ["a.com"], "resolution": "DNS"},
            "metadata": {"labels": {"networking.istio.io/enable-autoallocate-ip": "false"}}});
        let opted_out: ServiceEntry = serde_json::from_value(opted_out).unwrap();
        assert!(Addresses::of(&opted_out).wanted.is_empty());
    }
}
