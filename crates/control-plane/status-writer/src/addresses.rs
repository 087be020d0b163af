//! Allocates addresses for the hosts of ServiceEntries without addresses, as Istio does: for each host one of
//! 240.240.0.0/16 and one of 2001:2::/48, written to `status.addresses`. Does no IO.
//!
//! Every replica publishes the addresses of the status, so that they are equal in all replicas and survive restarts.
//! Only the leader allocates, once it knows all allocated ones. Of two ServiceEntries with the same address, the older
//! keeps it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ambit_k8s_api::{ObjectKey, ServiceEntry, created, istio::Resolution, labels};
use serde_json::{Value, json};

/// Lowest number that is allocated; a number is the last 16 bits of an IPv4 and of an IPv6 address.
const FIRST_ADDRESS_NUMBER: u16 = 1;
const LAST_ADDRESS_NUMBER: u16 = u16::MAX - 1;

/// Hosts of a ServiceEntry that need allocated addresses, and the addresses it has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceEntryAddresses {
    /// Creation time as text, which sorts by age.
    creation_time: String,
    /// Hosts for which addresses must be allocated.
    requested_hosts: Vec<String>,
    /// Addresses in the ServiceEntry's spec.
    spec_addresses: Vec<IpAddr>,
    /// Pairs of host and address in the ServiceEntry's status.
    status_addresses: Vec<(String, String)>,
}

impl ServiceEntryAddresses {
    /// Reads the hosts and addresses of a ServiceEntry.
    pub(crate) fn from_entry(entry: &ServiceEntry) -> Self {
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
        // Without load balancing a connection goes to its original destination: an allocated
        // address has no endpoint.
        let wants = spec.addresses.is_empty() && spec.resolution != Resolution::None && !opted_out;
        let is_eligible =
            |host: &&String| !host.starts_with('*') || spec.resolution == Resolution::DynamicDns;
        let mut requested_hosts = Vec::new();
        for host in spec.hosts.iter().filter(is_eligible).filter(|_| wants) {
            let host = host.to_ascii_lowercase();
            if !requested_hosts.contains(&host) {
                requested_hosts.push(host);
            }
        }
        let allocated = entry.status.get("addresses").and_then(Value::as_array);
        let text = |one: &Value, field: &str| -> String {
            let text = one.get(field).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        Self {
            creation_time: created(&entry.metadata),
            requested_hosts,
            spec_addresses: own,
            status_addresses: allocated
                .into_iter()
                .flatten()
                .map(|one| (text(one, "host"), text(one, "value")))
                .collect(),
        }
    }

    /// Returns the numbers of the allocatable addresses in the spec and in the status.
    fn address_numbers(&self) -> BTreeSet<u16> {
        let allocated = self.status_addresses.iter();
        let allocated = allocated.filter_map(|(_, value)| value.parse().ok());
        let all = self.spec_addresses.iter().copied().chain(allocated);
        all.filter_map(address_number).collect()
    }
}

/// Returns the number that an address of the allocated ranges ends in; `None` for other addresses.
fn address_number(ip: IpAddr) -> Option<u16> {
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

fn addresses_for_number(number: u16) -> [IpAddr; 2] {
    let [high, low] = number.to_be_bytes();
    [
        Ipv4Addr::new(240, 240, high, low).into(),
        Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, number).into(),
    ]
}

/// Numbers of allocated addresses, and the ServiceEntries that hold them.
#[derive(Debug)]
pub(crate) struct AddressPool {
    /// ServiceEntries that hold each number, oldest first; the oldest one keeps the number.
    entries_by_number: BTreeMap<u16, BTreeSet<(String, ObjectKey)>>,
    numbers_by_entry: BTreeMap<ObjectKey, (String, BTreeSet<u16>)>,
    /// Number to try next. A released number is not reused soon.
    next_number: u16,
}

impl Default for AddressPool {
    fn default() -> Self {
        Self {
            entries_by_number: BTreeMap::new(),
            numbers_by_entry: BTreeMap::new(),
            next_number: FIRST_ADDRESS_NUMBER,
        }
    }
}

impl AddressPool {
    /// Records the addresses of a ServiceEntry. Returns the ServiceEntries that must give up one of its numbers, since
    /// an older one holds it.
    pub(crate) fn update_entry(
        &mut self,
        key: &ObjectKey,
        entry: &ServiceEntryAddresses,
    ) -> BTreeSet<ObjectKey> {
        self.remove_entry(key);
        let numbers = entry.address_numbers();
        let mut younger = BTreeSet::new();
        for number in &numbers {
            let holders = self.entries_by_number.entry(*number).or_default();
            holders.insert((entry.creation_time.clone(), key.clone()));
            younger.extend(holders.iter().skip(1).map(|(_, key)| key.clone()));
        }
        if !numbers.is_empty() {
            self.numbers_by_entry
                .insert(key.clone(), (entry.creation_time.clone(), numbers));
        }
        younger
    }

    /// Removes a deleted ServiceEntry and releases its numbers.
    pub(crate) fn remove_entry(&mut self, key: &ObjectKey) {
        let Some((created, numbers)) = self.numbers_by_entry.remove(key) else {
            return;
        };
        for number in numbers {
            if let Some(holders) = self.entries_by_number.get_mut(&number) {
                holders.remove(&(created.clone(), key.clone()));
                if holders.is_empty() {
                    self.entries_by_number.remove(&number);
                }
            }
        }
    }

    /// Allocates the missing addresses of a ServiceEntry. Returns the desired status; `None` if the object has it
    /// already.
    pub(crate) fn allocate(
        &mut self,
        key: &ObjectKey,
        entry: &ServiceEntryAddresses,
    ) -> Option<Value> {
        let mut allocated: Vec<(String, String)> = Vec::new();
        for host in &entry.requested_hosts {
            let before: Vec<_> = entry
                .status_addresses
                .iter()
                .filter(|(of, _)| of == host)
                .collect();
            let is_its = |(_, value): &&(String, String)| {
                let number = value.parse().ok().and_then(address_number);
                let first = number.and_then(|number| self.entries_by_number.get(&number)?.first());
                first.is_some_and(|(_, first)| first == key)
            };
            if !before.is_empty() && before.iter().all(is_its) {
                allocated.extend(before.into_iter().cloned());
                continue;
            }
            let Some(number) = self.take_number(key, &entry.creation_time) else {
                tracing::error!(%key, host, "no address is left for this host: it has none");
                continue;
            };
            let new = addresses_for_number(number).into_iter();
            allocated.extend(new.map(|ip| (host.clone(), ip.to_string())));
        }
        // An address in the status that is not ours may be another controller's, or still in use.
        if allocated.is_empty() || allocated == entry.status_addresses {
            return None;
        }
        let one = |(host, value): &(String, String)| json!({"host": host, "value": value});
        Some(json!({"addresses": allocated.iter().map(one).collect::<Vec<_>>()}))
    }

    fn take_number(&mut self, key: &ObjectKey, created: &str) -> Option<u16> {
        let from = self.next_number;
        let mut all = (from..=LAST_ADDRESS_NUMBER).chain(FIRST_ADDRESS_NUMBER..from);
        let number = all.find(|number| !self.entries_by_number.contains_key(number))?;
        self.next_number = if number == LAST_ADDRESS_NUMBER {
            FIRST_ADDRESS_NUMBER
        } else {
            number + 1
        };
        let holder = (created.to_owned(), key.clone());
        self.entries_by_number
            .entry(number)
            .or_default()
            .insert(holder);
        let of = self.numbers_by_entry.entry(key.clone());
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

    fn entry(created: &str, allocated: &[(&str, &str)]) -> ServiceEntryAddresses {
        let pair = |(host, value): &(&str, &str)| ((*host).to_owned(), (*value).to_owned());
        ServiceEntryAddresses {
            creation_time: created.to_owned(),
            requested_hosts: vec!["a.com".to_owned()],
            status_addresses: allocated.iter().map(pair).collect(),
            ..ServiceEntryAddresses::default()
        }
    }

    fn status_values(status: Option<Value>) -> Vec<String> {
        let status = status.unwrap();
        let all = status["addresses"].as_array().unwrap().iter();
        all.map(|one| one["value"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn each_host_gets_and_keeps_one_address_of_each_family() {
        let mut pool = AddressPool::default();
        pool.update_entry(&key("a"), &entry("1", &[]));
        let first = status_values(pool.allocate(&key("a"), &entry("1", &[])));
        assert_eq!(first, ["240.240.0.1", "2001:2::1"]);
        let known = [("a.com", first[0].as_str()), ("a.com", first[1].as_str())];
        // After a restart, entries are reported in any order.
        let mut pool = AddressPool::default();
        pool.update_entry(&key("b"), &entry("2", &[]));
        pool.update_entry(&key("a"), &entry("1", &known));
        assert_eq!(pool.allocate(&key("a"), &entry("1", &known)), None);
        let second = status_values(pool.allocate(&key("b"), &entry("2", &[])));
        assert_eq!(second, ["240.240.0.2", "2001:2::2"]);
        // A released address is not reused at once.
        pool.remove_entry(&key("b"));
        let third = status_values(pool.allocate(&key("c"), &entry("3", &[])));
        assert_eq!(third[0], "240.240.0.3");
    }

    #[test]
    fn older_entry_keeps_a_duplicate_address() {
        let same = [("a.com", "240.240.0.1"), ("a.com", "2001:2::1")];
        let mut pool = AddressPool::default();
        assert!(
            pool.update_entry(&key("young"), &entry("2", &same))
                .is_empty()
        );
        let younger = pool.update_entry(&key("old"), &entry("1", &same));
        assert_eq!(younger, [key("young")].into());
        assert_eq!(pool.allocate(&key("old"), &entry("1", &same)), None);
        let other = status_values(pool.allocate(&key("young"), &entry("2", &same)));
        assert_eq!(other[0], "240.240.0.2");
    }

    #[test]
    fn addresses_of_specs_are_not_allocated() {
        let mut pool = AddressPool::default();
        let own = ServiceEntryAddresses {
            spec_addresses: vec!["240.240.0.1".parse().unwrap()],
            ..ServiceEntryAddresses::default()
        };
        pool.update_entry(&key("own"), &own);
        assert_eq!(pool.allocate(&key("own"), &own), None);
        let allocated = status_values(pool.allocate(&key("a"), &entry("1", &[])));
        assert_eq!(allocated[0], "240.240.0.2");
    }

    #[test]
    fn only_eligible_hosts_get_an_address() {
        let requested_hosts = |spec: Value| {
            let entry = json!({"spec": spec, "metadata": {"labels": {}}});
            let entry: ServiceEntry = serde_json::from_value(entry).unwrap();
            ServiceEntryAddresses::from_entry(&entry).requested_hosts
        };
        assert_eq!(
            requested_hosts(json!({"hosts": ["A.com", "*.b.com"], "resolution": "DNS"})),
            ["a.com"]
        );
        assert_eq!(
            requested_hosts(json!({"hosts": ["*.b.com"], "resolution": "DYNAMIC_DNS"})),
            ["*.b.com"]
        );
        assert!(requested_hosts(json!({"hosts": ["a.com"]})).is_empty());
        let with = json!({"hosts": ["a.com"], "resolution": "DNS", "addresses": ["192.0.2.1"]});
        assert!(requested_hosts(with).is_empty());
        let opted_out = json!({"spec": {"hosts": ["a.com"], "resolution": "DNS"},
            "metadata": {"labels": {"networking.istio.io/enable-autoallocate-ip": "false"}}});
        let opted_out: ServiceEntry = serde_json::from_value(opted_out).unwrap();
        assert!(
            ServiceEntryAddresses::from_entry(&opted_out)
                .requested_hosts
                .is_empty()
        );
    }
}
