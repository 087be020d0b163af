//! Parsing of the load balancing settings of a DestinationRule: algorithm, consistent hashing, warmup, locality.

use std::collections::BTreeMap;

use ambit_k8s_api::{
    ObjectMeta,
    destination::{ConsistentHash, LoadBalancer, LocalityBalancer, SimpleBalancer},
};
use ambit_model::{
    ArcStr, Balancing, HashCookie, HashPolicy, HashSource, HashTable, LocalityDistribution,
    LocalityKey, LocalityLabel, LocalityPattern, LocalityPolicy, Warmup,
};

use crate::{
    objects::destination_rule::values::{
        parse_count, parse_duration, parse_duration_or_zero, parse_in_range, parse_thousandths,
    },
    problem::{FieldError, Note},
};

/// Annotation of a DestinationRule for which Istio has no field: maximum load of an endpoint under consistent hashing,
/// in percent of the mean load.
const BALANCE_FACTOR_ANNOTATION: &str = "ambit.io/hash-balance-factor";
/// Maximum size of a Maglev table, as in Istio.
const MAX_MAGLEV_TABLE_SIZE: i64 = 5_000_011;
/// Default number of points on a hash ring.
const DEFAULT_RING_POINTS: u32 = 1024;
const DEFAULT_MAGLEV_TABLE_SIZE: u32 = 65_537;

pub(crate) fn parse_balance_factor(metadata: &ObjectMeta) -> Result<u32, FieldError> {
    let annotations = metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|all| all.get(BALANCE_FACTOR_ANNOTATION)) else {
        return Ok(0);
    };
    let factor = text.parse().ok().filter(|factor| *factor >= 100);
    factor.ok_or_else(|| {
        let at = format!("metadata.annotations[{BALANCE_FACTOR_ANNOTATION}]");
        FieldError::new(at, format!("{text:?} is no percentage from 100 on"))
    })
}

pub(crate) fn read(
    from: &LoadBalancer,
    factor: u32,
    at: &str,
    notes: &mut Vec<Note>,
) -> Result<(Balancing, Option<Warmup>), FieldError> {
    let simple = from
        .simple
        .filter(|one| *one != SimpleBalancer::Unspecified);
    if simple.is_some() && from.consistent_hash.is_some() {
        let message = "simple and consistentHash exclude each other";
        return Err(FieldError::new(at, message));
    }
    let balancing = match (&from.consistent_hash, simple) {
        (Some(of), _) => Balancing::Hash(parse_consistent_hash(
            of,
            factor,
            &format!("{at}.consistentHash"),
        )?),
        (None, Some(SimpleBalancer::RoundRobin)) => Balancing::RoundRobin,
        (None, Some(SimpleBalancer::Random)) => Balancing::Random,
        (None, Some(SimpleBalancer::Passthrough)) => {
            let message = "PASSTHROUGH has no effect: at a waypoint the address that was dialled is the service's own; LEAST_REQUEST is used";
            notes.push(Note::new(format!("{at}.simple"), message));
            Balancing::LeastRequest
        }
        _ => Balancing::LeastRequest,
    };
    if factor > 0 && !matches!(balancing, Balancing::Hash(_)) {
        let field = format!("metadata.annotations[{BALANCE_FACTOR_ANNOTATION}]");
        notes.push(Note::new(field, "has no effect without consistentHash"));
    }
    let warmup = parse_warmup(from, at)?;
    let takes_warmup = matches!(balancing, Balancing::LeastRequest | Balancing::RoundRobin);
    if warmup.is_some() && !takes_warmup {
        let message = "has an effect with ROUND_ROBIN and LEAST_REQUEST only";
        notes.push(Note::new(format!("{at}.warmup"), message));
        return Ok((balancing, None));
    }
    Ok((balancing, warmup))
}

fn parse_warmup(from: &LoadBalancer, at: &str) -> Result<Option<Warmup>, FieldError> {
    let plain = || {
        let field = format!("{at}.warmupDurationSecs");
        parse_duration(&field, from.warmup_duration_secs.as_deref())
    };
    let Some(of) = &from.warmup else {
        return Ok(plain()?.map(|duration| Warmup {
            duration,
            minimum_percent: 10,
            aggression: 1000,
        }));
    };
    let at = format!("{at}.warmup");
    let field = format!("{at}.duration");
    let time = parse_duration(&field, of.duration.as_deref())?;
    let duration = time.ok_or_else(|| FieldError::new(field, "is needed"))?;
    let field = format!("{at}.minimumPercent");
    let percent = parse_thousandths(&field, of.minimum_percent, (0.0, 100.0), 10_000)?;
    let field = format!("{at}.aggression");
    Ok(Some(Warmup {
        duration,
        minimum_percent: percent / 1000,
        aggression: parse_thousandths(&field, of.aggression, (1.0, 1000.0), 1000)?,
    }))
}

fn parse_consistent_hash(
    from: &ConsistentHash,
    factor: u32,
    at: &str,
) -> Result<HashPolicy, FieldError> {
    let header = from.http_header_name.as_deref();
    let header = header.map(|name| validate_token(&format!("{at}.httpHeaderName"), name));
    let header = header.transpose()?;
    let header = header.map(|name| HashSource::Header(name.to_ascii_lowercase().into()));
    let query = from.http_query_parameter_name.as_deref();
    if query == Some("") {
        let field = format!("{at}.httpQueryParameterName");
        return Err(FieldError::new(field, "is empty"));
    }
    let query = query.map(|name| HashSource::Query(name.into()));
    let address = from.use_source_ip.filter(|is| *is);
    let address = address.map(|_| HashSource::SourceIp);
    let cookie = parse_hash_cookie(from, at)?;
    let mut sources = [header, cookie, address, query].into_iter().flatten();
    let (Some(source), None) = (sources.next(), sources.next()) else {
        let message = "one of httpHeaderName, httpCookie, useSourceIp and httpQueryParameterName is needed, and only one";
        return Err(FieldError::new(at, message));
    };
    Ok(HashPolicy {
        source,
        table: parse_hash_table(from, at)?,
        balance_factor: factor,
    })
}

fn parse_hash_table(from: &ConsistentHash, at: &str) -> Result<HashTable, FieldError> {
    let points = |at: &str, of: Option<i64>| {
        let points = parse_count(at, of)?;
        Ok(HashTable::Ring(if points == 0 {
            DEFAULT_RING_POINTS
        } else {
            points
        }))
    };
    match (&from.ring_hash, &from.maglev) {
        (Some(_), Some(_)) => {
            let message = "ringHash and maglev exclude each other";
            Err(FieldError::new(at, message))
        }
        (Some(ring), None) => points(
            &format!("{at}.ringHash.minimumRingSize"),
            ring.minimum_ring_size,
        ),
        (None, None) => points(&format!("{at}.minimumRingSize"), from.minimum_ring_size),
        (None, Some(maglev)) => {
            let field = format!("{at}.maglev.tableSize");
            let size = parse_in_range(
                &field,
                maglev.table_size,
                2,
                MAX_MAGLEV_TABLE_SIZE,
                DEFAULT_MAGLEV_TABLE_SIZE,
            )?;
            let is_prime = (2..).take_while(|n| n * n <= size).all(|n| size % n != 0);
            if !is_prime {
                return Err(FieldError::new(field, format!("{size} is no prime")));
            }
            Ok(HashTable::Maglev(size))
        }
    }
}

/// Validates an HTTP token (RFC 9110, section 5.6.2).
fn validate_token<'a>(at: &str, name: &'a str) -> Result<&'a str, FieldError> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_part) {
        let message = format!("{name:?} is no name of HTTP");
        return Err(FieldError::new(at, message));
    }
    Ok(name)
}

/// Validates the value of a cookie attribute: printable ASCII without `;`.
fn validate_cookie_attribute(at: String, text: &str) -> Result<ArcStr, FieldError> {
    let is_part = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b';';
    if !text.bytes().all(is_part) {
        let message = format!("{text:?} cannot stand in a cookie");
        return Err(FieldError::new(at, message));
    }
    Ok(text.into())
}

fn parse_hash_cookie(from: &ConsistentHash, at: &str) -> Result<Option<HashSource>, FieldError> {
    let Some(cookie) = &from.http_cookie else {
        return Ok(None);
    };
    let at = format!("{at}.httpCookie");
    let name = validate_token(&format!("{at}.name"), &cookie.name)?;
    let path = cookie.path.as_deref().filter(|path| !path.is_empty());
    let path = path.map(|path| validate_cookie_attribute(format!("{at}.path"), path));
    let mut attributes = Vec::new();
    for (index, one) in cookie.attributes.iter().enumerate() {
        let at = format!("{at}.attributes[{index}]");
        let name = validate_token(&format!("{at}.name"), &one.name)?.into();
        attributes.push((
            name,
            validate_cookie_attribute(format!("{at}.value"), &one.value)?,
        ));
    }
    Ok(Some(HashSource::Cookie(HashCookie {
        name: name.into(),
        path: path.transpose()?,
        ttl: parse_duration_or_zero(&format!("{at}.ttl"), cookie.ttl.as_deref())?,
        attributes,
    })))
}

/// Parses locality load balancing. `may_eject` is whether outlier detection is configured, which failover needs.
pub(crate) fn parse_locality_policy(
    from: &LocalityBalancer,
    may_eject: bool,
    at: &str,
    notes: &mut Vec<Note>,
) -> Result<LocalityPolicy, FieldError> {
    let given = [
        !from.distribute.is_empty(),
        !from.failover.is_empty(),
        !from.failover_priority.is_empty(),
    ];
    if given.into_iter().filter(|is| *is).count() > 1 {
        let message = "distribute, failover and failoverPriority exclude each other";
        return Err(FieldError::new(at, message));
    }
    if from.enabled == Some(false) {
        return Ok(LocalityPolicy::Anywhere);
    }
    if !from.distribute.is_empty() {
        let mut all = Vec::new();
        for (index, one) in from.distribute.iter().enumerate() {
            let at = format!("{at}.distribute[{index}]");
            let from = parse_locality_pattern(&format!("{at}.from"), &one.from)?;
            let to = parse_locality_weights(&format!("{at}.to"), &one.to)?;
            all.push(LocalityDistribution { from, to });
        }
        return Ok(LocalityPolicy::Distribute(all));
    }
    let policy = if from.failover_priority.is_empty() {
        let mut pairs = Vec::new();
        for (index, one) in from.failover.iter().enumerate() {
            if one.from.is_empty() || one.to.is_empty() || one.from == one.to {
                let message = "two different regions are needed";
                return Err(FieldError::new(format!("{at}.failover[{index}]"), message));
            }
            pairs.push((one.from.as_str().into(), one.to.as_str().into()));
        }
        LocalityPolicy::Failover(pairs)
    } else {
        LocalityPolicy::Priority(parse_failover_priority(&from.failover_priority, at, notes))
    };
    if !may_eject {
        let message = "has no effect without outlierDetection, which triggers failover";
        notes.push(Note::new(at, message));
        return Ok(LocalityPolicy::ServicePreference);
    }
    Ok(policy)
}

fn parse_failover_priority(from: &[String], at: &str, notes: &mut Vec<Note>) -> Vec<LocalityLabel> {
    let mut labels = Vec::new();
    for (index, text) in from.iter().enumerate() {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.into())),
            None => (text.as_str(), None),
        };
        let key = match name {
            "topology.kubernetes.io/region" => LocalityKey::Region,
            "topology.kubernetes.io/zone" => LocalityKey::Zone,
            "topology.istio.io/subzone" => LocalityKey::Subzone,
            "kubernetes.io/hostname" => LocalityKey::Node,
            "topology.istio.io/network" => LocalityKey::Network,
            "topology.istio.io/cluster" => LocalityKey::Cluster,
            _ => {
                let message = format!(
                    "{name} is not compared: of endpoints waypoints know region, zone, subzone, node, network and cluster"
                );
                notes.push(Note::new(
                    format!("{at}.failoverPriority[{index}]"),
                    message,
                ));
                continue;
            }
        };
        labels.push(LocalityLabel { key, value });
    }
    labels
}

fn parse_locality_pattern(at: &str, text: &str) -> Result<LocalityPattern, FieldError> {
    let mut parts = text.split('/');
    let mut next = || {
        let part = parts.next().filter(|part| !part.is_empty() && *part != "*");
        part.map(ArcStr::from)
    };
    let pattern = LocalityPattern {
        region: next(),
        zone: next(),
        subzone: next(),
    };
    let is_gap =
        |outer: &Option<ArcStr>, inner: &Option<ArcStr>| outer.is_none() && inner.is_some();
    let has_gap = is_gap(&pattern.region, &pattern.zone) || is_gap(&pattern.zone, &pattern.subzone);
    if text.is_empty() || parts.next().is_some() || has_gap {
        let message = format!("{text:?} is no place: region/zone/subzone, with * at its end");
        return Err(FieldError::new(at, message));
    }
    Ok(pattern)
}

/// Parses the weights of localities, which must add up to 100, and sorts the most specific localities first.
fn parse_locality_weights(
    at: &str,
    from: &BTreeMap<String, i64>,
) -> Result<Vec<(LocalityPattern, u32)>, FieldError> {
    let mut shares = Vec::new();
    for (place, share) in from {
        let at = format!("{at}[{place}]");
        shares.push((
            parse_locality_pattern(&at, place)?,
            parse_in_range(&at, Some(*share), 1, 100, 0)?,
        ));
    }
    let all: u32 = shares.iter().map(|(_, share)| share).sum();
    if all != 100 {
        let message = format!("the shares are {all} together, not 100");
        return Err(FieldError::new(at, message));
    }
    let exactness = |(place, _): &(LocalityPattern, u32)| {
        let parts = [&place.region, &place.zone, &place.subzone];
        std::cmp::Reverse(parts.into_iter().flatten().count())
    };
    shares.sort_by_key(exactness);
    Ok(shares)
}
