//! Localities of endpoints, and the priorities that the locality policy assigns to them.

use ambit_model::{
    ArcStr, Locality, LocalityDistribution, LocalityKey, LocalityLabel, LocalityPattern,
    LocalityPolicy,
};

/// Location of an endpoint or of a waypoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Region, zone and subzone.
    pub locality: Locality,
    /// Name of the node.
    pub node: ArcStr,
    /// Name of the network.
    pub network: ArcStr,
    /// Name of the cluster.
    pub cluster: ArcStr,
}

impl Topology {
    fn label(&self, key: LocalityKey) -> &ArcStr {
        match key {
            LocalityKey::Region => &self.locality.region,
            LocalityKey::Zone => &self.locality.zone,
            LocalityKey::Subzone => &self.locality.subzone,
            LocalityKey::Node => &self.node,
            LocalityKey::Network => &self.network,
            LocalityKey::Cluster => &self.cluster,
        }
    }

    fn matches_pattern(&self, pattern: &LocalityPattern) -> bool {
        let LocalityPattern {
            region,
            zone,
            subzone,
        } = pattern;
        let agrees = |expected: &Option<ArcStr>, own: &ArcStr| {
            expected.as_ref().is_none_or(|expected| expected == own)
        };
        agrees(region, &self.locality.region)
            && agrees(zone, &self.locality.zone)
            && agrees(subzone, &self.locality.subzone)
    }
}

/// Group of endpoints with the same priority and the same entry in the configured distribution. Groups of a lower
/// priority number are used first; groups of one priority share its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PriorityGroup {
    pub(crate) priority: u32,
    pub(crate) distribution_index: usize,
}

/// Returns the configured distribution (`distribute`) for the waypoint's locality, if there is one.
pub(crate) fn configured_distribution<'a>(
    policy: &'a LocalityPolicy,
    own: &Topology,
) -> Option<&'a LocalityDistribution> {
    let LocalityPolicy::Distribute(all) = policy else {
        return None;
    };
    all.iter().find(|shares| own.matches_pattern(&shares.from))
}

/// Returns the priority group of an endpoint; `None` if the locality policy excludes it.
pub(crate) fn priority_group(
    policy: &LocalityPolicy,
    own: &Topology,
    of: &Topology,
    rank: u32,
) -> Option<PriorityGroup> {
    let priority = match policy {
        LocalityPolicy::Anywhere => 0,
        LocalityPolicy::ServicePreference => u32::MAX - rank,
        LocalityPolicy::Distribute(_) => {
            let Some(shares) = configured_distribution(policy, own) else {
                return Some(PriorityGroup {
                    priority: 0,
                    distribution_index: 0,
                });
            };
            let split = shares
                .to
                .iter()
                .position(|(to, _)| of.matches_pattern(to))?;
            return Some(PriorityGroup {
                priority: 0,
                distribution_index: split,
            });
        }
        LocalityPolicy::Failover(pairs) => failover_priority(pairs, own, of),
        LocalityPolicy::Priority(labels) => label_priority(labels, own, of),
    };
    Some(PriorityGroup {
        priority,
        distribution_index: 0,
    })
}

fn failover_priority(pairs: &[(ArcStr, ArcStr)], own: &Topology, of: &Topology) -> u32 {
    let (a, b) = (&own.locality, &of.locality);
    if a.region == b.region {
        return match (a.zone == b.zone, a.subzone == b.subzone) {
            (true, true) => 0,
            (true, false) => 1,
            (false, _) => 2,
        };
    }
    let next = pairs.iter().find(|(from, _)| *from == a.region);
    match next {
        Some((_, to)) if *to == b.region => 3,
        _ => 4,
    }
}

/// Returns the priority by `failoverPriority`: the number of labels from the first mismatch on. Zero is best: all
/// labels match.
fn label_priority(labels: &[LocalityLabel], own: &Topology, of: &Topology) -> u32 {
    let agrees = |label: &&LocalityLabel| {
        let expected = label.value.as_ref().unwrap_or_else(|| own.label(label.key));
        expected == of.label(label.key)
    };
    let alike = labels.iter().take_while(agrees).count();
    u32::try_from(labels.len() - alike).unwrap_or(u32::MAX)
}
