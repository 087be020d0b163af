//! Rate limits and their counters, shared by the threads of the process.
//!
//! A counter survives configuration changes that leave its limit unchanged.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher as _, Hash, RandomState},
    sync::Arc,
    time::Instant,
};

use ambit_l7::{limits::RateLimitMatches, route::RouteRequest};
use ambit_model::{ArcStr, GlobalLimit, LocalLimit, NamespacedHostname, RateLimit};
use ambit_resilience::{RateLimitDecision, TokenBuckets};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::record_store::{RecordStore, RemovedRecord, to_json};

/// RateLimit object with its compiled matches and the counters of its local limits.
#[derive(Debug)]
pub(crate) struct Limiter {
    pub(crate) config: RateLimit,
    /// Matches and token buckets of the local limits, in the order of `config.local`.
    local_limiters: Vec<LocalLimiter>,
    /// Compiled matches of each descriptor of `config.global`.
    descriptor_matches: Vec<RateLimitMatches>,
}

#[derive(Debug)]
struct LocalLimiter {
    matches: RateLimitMatches,
    buckets: Arc<SharedBuckets>,
}

#[derive(Debug)]
struct SharedBuckets {
    buckets: Mutex<TokenBuckets>,
    /// Randomly keyed hash functions, so that a client cannot craft values that collide with the buckets of other
    /// clients.
    hashers: (RandomState, RandomState),
}

impl SharedBuckets {
    fn new(limit: &LocalLimit, now: Instant) -> Self {
        let rate = ambit_resilience::RateLimit {
            requests: limit.requests,
            interval: limit.per,
            burst: limit.burst,
        };
        let most = usize::try_from(limit.buckets).unwrap_or(usize::MAX);
        Self {
            buckets: Mutex::new(TokenBuckets::new(rate, most, now)),
            hashers: Default::default(),
        }
    }

    fn take_token(&self, key: impl Hash, now: Instant) -> RateLimitDecision {
        let (high, low) = &self.hashers;
        let key = u128::from(high.hash_one(&key)) << 64 | u128::from(low.hash_one(&key));
        self.buckets.lock().try_take_token(key, now)
    }
}

impl Limiter {
    fn new(config: RateLimit, before: Option<&Self>, now: Instant) -> Self {
        let local = config.local.iter().enumerate().map(|(index, of)| {
            let known = before.and_then(|before| {
                let same = before.config.local.get(index).filter(|known| *known == of);
                same.and_then(|_| before.local_limiters.get(index))
            });
            LocalLimiter {
                matches: RateLimitMatches::new(&of.matches),
                buckets: match known {
                    Some(known) => known.buckets.clone(),
                    None => Arc::new(SharedBuckets::new(of, now)),
                },
            }
        });
        let descriptors = config.global.iter().flat_map(|global| &global.descriptors);
        Self {
            local_limiters: local.collect(),
            descriptor_matches: descriptors
                .map(|one| RateLimitMatches::new(&one.matches))
                .collect(),
            config,
        }
    }

    /// Counts a request against each matching local limit, until a limit rejects it. `key` returns the values by which
    /// a limit distinguishes requests. A limit does not count the request again if it has already counted `before`, the
    /// request before its last change, under the same key.
    pub(crate) fn count_request<K: Hash + Eq>(
        &self,
        request: &RouteRequest<'_>,
        before: Option<&RouteRequest<'_>>,
        key: impl Fn(&LocalLimit, &RouteRequest<'_>) -> K,
        now: Instant,
    ) -> Vec<(&LocalLimit, RateLimitDecision)> {
        let mut met = Vec::new();
        for (of, local) in self.config.local.iter().zip(&self.local_limiters) {
            if !local.matches.includes(request) {
                continue;
            }
            let own = key(of, request);
            if before.is_some_and(|one| local.matches.includes(one) && key(of, one) == own) {
                continue;
            }
            let decision = local.buckets.take_token(own, now);
            met.push((of, decision));
            if decision.retry_after.is_some() {
                break;
            }
        }
        met
    }

    /// Returns the descriptors that a rate-limit service receives for a request.
    pub(crate) fn descriptors<'a>(
        &'a self,
        global: &'a GlobalLimit,
        request: &RouteRequest<'_>,
    ) -> impl Iterator<Item = &'a ambit_model::LimitDescriptor> {
        let all = global.descriptors.iter().zip(&self.descriptor_matches);
        all.filter(|(_, matches)| matches.includes(request))
            .map(|(descriptor, _)| descriptor)
    }
}

/// Store of the waypoint's RateLimit objects with their counters.
#[derive(Debug, Default)]
pub(crate) struct Limiters {
    by_record: BTreeMap<ArcStr, Arc<Limiter>>,
    request_limits: Arc<RequestLimits>,
}

/// RateLimit objects by target service, each list sorted by name.
#[derive(Debug, Default)]
pub(crate) struct RequestLimits {
    gateway_limiters: Arc<[Arc<Limiter>]>,
    service_limiters: HashMap<NamespacedHostname, Arc<[Arc<Limiter>]>>,
}

impl RequestLimits {
    /// Returns the RateLimit objects for requests to these services, each once; without services, those for requests to
    /// a pod.
    pub(crate) fn for_services(&self, services: &[NamespacedHostname]) -> Arc<[Arc<Limiter>]> {
        let of_one = |service| {
            self.service_limiters
                .get(service)
                .unwrap_or(&self.gateway_limiters)
        };
        match services {
            [] => self.gateway_limiters.clone(),
            [one] => of_one(one).clone(),
            several => {
                let all = several.iter().flat_map(|service| of_one(service).iter());
                let by_name = all.map(|one| (&one.config.key, one));
                let by_name: BTreeMap<_, _> = by_name.collect();
                by_name.into_values().cloned().collect()
            }
        }
    }
}

impl RecordStore for Limiters {
    type Record = RateLimit;

    /// Whether requests wait for the initial records of rate limits: without them, requests would not be counted.
    const BLOCKS_READINESS: bool = true;

    fn put(&mut self, resource: ArcStr, record: RateLimit) {
        let before = self.by_record.get(&resource).map(|before| &**before);
        let limiter = Arc::new(Limiter::new(record, before, Instant::now()));
        self.by_record.insert(resource, limiter);
        self.rebuild_request_limits();
    }

    fn remove(&mut self, resource: &ArcStr) -> Option<RemovedRecord> {
        self.by_record.remove(resource);
        self.rebuild_request_limits();
        None
    }

    fn dump(&self) -> Value {
        let one = |limiter: &Arc<Limiter>| {
            let keys = limiter.local_limiters.iter();
            let keys = keys.map(|local| local.buckets.buckets.lock().key_count());
            json!({"record": to_json(&limiter.config), "countedKeys": keys.collect::<Vec<_>>()})
        };
        self.by_record.values().map(one).collect()
    }
}

impl Limiters {
    fn rebuild_request_limits(&mut self) {
        let is_of_all = |one: &&Arc<Limiter>| one.config.for_gateway;
        let services = self.by_record.values().flat_map(|one| &one.config.services);
        let of_service = |service: &NamespacedHostname| {
            let is_of =
                |one: &&Arc<Limiter>| is_of_all(one) || one.config.services.contains(service);
            let all: Arc<[_]> = self.by_record.values().filter(is_of).cloned().collect();
            (service.clone(), all)
        };
        self.request_limits = Arc::new(RequestLimits {
            service_limiters: services.map(of_service).collect(),
            gateway_limiters: self.by_record.values().filter(is_of_all).cloned().collect(),
        });
    }

    pub(crate) fn request_limits(&self) -> &Arc<RequestLimits> {
        &self.request_limits
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_record.is_empty()
    }

    /// Returns the namespaces of RateLimit objects that name rate-limit services.
    pub(crate) fn calling_namespaces(&self) -> impl Iterator<Item = ArcStr> {
        let all = self.by_record.values();
        let checking = all.filter(|one| one.config.global.is_some());
        checking.map(|one| one.config.key.namespace.clone())
    }

    /// Returns the rate-limit services that RateLimit objects name.
    pub(crate) fn rate_limit_services(&self) -> impl Iterator<Item = &NamespacedHostname> {
        let all = self.by_record.values();
        let globals = all.filter_map(|one| one.config.global.as_ref());
        let places = globals.filter_map(|global| global.target.as_ref().ok());
        places.map(|(service, _)| service)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ambit_model::PolicyKey;

    use super::*;

    fn limit(burst: u32) -> LocalLimit {
        LocalLimit {
            matches: Vec::new(),
            bucket_keys: Vec::new(),
            requests: 1,
            per: Duration::from_secs(3600),
            burst,
            buckets: 10,
        }
    }

    fn object(name: &str, services: &[&str], local: LocalLimit) -> RateLimit {
        let services = services.iter();
        RateLimit {
            key: PolicyKey::from_resource_name(name),
            for_gateway: services.len() == 0,
            services: services
                .map(|name| NamespacedHostname::new("shop", *name))
                .collect(),
            local: vec![local],
            ..RateLimit::default()
        }
    }

    fn is_allowed(limiters: &Limiters, service: &str, key: &str) -> bool {
        let name = NamespacedHostname::new("shop", service);
        let headers = http::HeaderMap::new();
        let request = RouteRequest {
            method: "GET",
            path: "/",
            query: None,
            host: "",
            headers: &headers,
        };
        let all = limiters
            .request_limits()
            .for_services(std::slice::from_ref(&name));
        all.iter().all(|one| {
            let met = one.count_request(&request, None, |_, _| key.to_owned(), Instant::now());
            met.iter()
                .all(|(_, decision)| decision.retry_after.is_none())
        })
    }

    #[test]
    fn counts_survive_until_the_limit_changes() {
        let mut limiters = Limiters::default();
        limiters.put("r".into(), object("shop/a", &["cart"], limit(1)));
        assert!(is_allowed(&limiters, "cart", "x"));
        assert!(!is_allowed(&limiters, "cart", "x"));
        assert!(is_allowed(&limiters, "cart", "y"));
        let more = object("shop/a", &["cart", "till"], limit(1));
        limiters.put("r".into(), more);
        assert!(!is_allowed(&limiters, "cart", "x"));
        limiters.put("r".into(), object("shop/a", &["cart"], limit(2)));
        assert!(is_allowed(&limiters, "cart", "x"));
        limiters.remove(&"r".into());
        assert!(limiters.is_empty() && is_allowed(&limiters, "cart", "x"));
    }

    #[test]
    fn limits_of_service_and_waypoint_apply() {
        let mut limiters = Limiters::default();
        limiters.put("a".into(), object("shop/a", &[], limit(2)));
        limiters.put("b".into(), object("shop/b", &["cart"], limit(1)));
        let of = |name: &str| {
            let name = NamespacedHostname::new("shop", name);
            limiters
                .request_limits()
                .for_services(std::slice::from_ref(&name))
                .len()
        };
        assert_eq!((of("cart"), of("till")), (2, 1));
        assert_eq!(limiters.request_limits().for_services(&[]).len(), 1);
        assert!(is_allowed(&limiters, "cart", "x"));
        assert!(!is_allowed(&limiters, "cart", "x"));
        assert!(!is_allowed(&limiters, "till", "x"));
        // Requests to a pod of several services count against each limit once.
        limiters.put("c".into(), object("shop/c", &["cart", "till"], limit(1)));
        let both = ["till", "cart"].map(|name| NamespacedHostname::new("shop", name));
        let of_both = limiters.request_limits().for_services(&both);
        let names: Vec<_> = of_both
            .iter()
            .map(|one| one.config.key.to_string())
            .collect();
        assert_eq!(names, ["shop/a", "shop/b", "shop/c"]);
    }
}
