//! BackendTLSPolicies: waypoints originate TLS to the endpoints of the services that a policy is attached to.
//!
//! A policy takes precedence over `tls` of a `DestinationRule`. Of several policies for the same port, one that names
//! the port takes precedence, then the oldest. An invalid policy fails closed: requests are refused rather than sent in
//! plaintext.

pub(crate) mod conditions;

use std::{collections::BTreeSet, sync::Arc};

use ambit_k8s_api::{BackendTLSPolicy, ConfigMap, Kind, ObjectKey};
use ambit_model::{ArcStr, DestinationPolicy, DestinationTls, TlsRoots, WaypointDestination};

use crate::{
    condition::{DerivedStatus, StatusListType},
    index::{Index, change::Change},
    kinds::{kind::MeshKind, route::ports::declared_ports},
    objects::backend_tls_policy::input::{BackendTlsInput, InvalidPolicyReason},
    pod_directory::PodDirectory,
    relations::references::ReferenceKind,
    view::MeshView,
};

/// TLS settings that a policy gives a service, or one of its ports.
#[derive(Clone, Debug)]
pub(crate) struct BackendTls {
    /// Number of the service port that the settings are for; all ports if `None`.
    port: Option<u16>,
    tls: Result<Arc<DestinationTls>, ArcStr>,
}

impl BackendTls {
    /// Overrides the TLS settings of a destination record.
    pub(crate) fn override_tls(&self, destination: &mut WaypointDestination) {
        let put = |policy: &mut DestinationPolicy| match &self.tls {
            Ok(tls) => policy.tls = Some(tls.clone()),
            Err(why) => policy.unsupported = Some(why.clone()),
        };
        match self.port {
            None => {
                destination.ports.values_mut().for_each(put);
                put(&mut destination.policy);
                for subset in destination.subsets.values_mut() {
                    subset.ports.values_mut().for_each(put);
                    put(&mut subset.policy);
                }
            }
            Some(port) => {
                let whole = destination.policy.clone();
                put(destination.ports.entry(port).or_insert(whole));
                for subset in destination.subsets.values_mut() {
                    let whole = subset.policy.clone();
                    put(subset.ports.entry(port).or_insert(whole));
                }
            }
        }
    }
}

impl MeshKind for BackendTLSPolicy {
    const STATUS_LIST: Option<StatusListType> = Some(StatusListType {
        list: "ancestors",
        manager: "ambit-backend-tls",
        is_shared: true,
    });

    fn on_change(index: &mut Index, change: &Change<'_, BackendTlsInput>, _: &mut PodDirectory) {
        let targets = |policy: Option<&BackendTlsInput>| -> Vec<ObjectKey> {
            let targets = policy.into_iter().flat_map(|policy| &policy.targets);
            targets.map(|target| target.key.clone()).collect()
        };
        let (old, new) = (targets(change.old), targets(change.new));
        index.view.references.set_mesh_reference(
            ReferenceKind::BackendTlsPolicy,
            change.key,
            change.new.is_some(),
        );
        index.view.references.replace(
            ReferenceKind::PolicyTarget,
            change.key,
            old.clone(),
            new.clone(),
        );
        index.mark_object_stale(change.key.clone());
        for target in old.into_iter().chain(new) {
            index.mark_target_tls_stale(&target);
        }
    }

    fn derived_status(
        view: &MeshView,
        _: &ObjectKey,
        policy: &BackendTlsInput,
    ) -> Option<DerivedStatus> {
        Some(conditions::derived_status(view, policy))
    }
}

impl BackendTlsInput {
    /// Returns the TLS settings with the resolved CA certificates, or the reason why requests are refused.
    fn resolve_tls(&self, view: &MeshView) -> Result<Arc<DestinationTls>, InvalidPolicyReason> {
        let tls = self.tls.as_ref().map_err(Clone::clone)?;
        let roots = match &tls.ca_config_maps {
            None => TlsRoots::System,
            Some(names) => TlsRoots::Pem(self.ca_certificates(view, names)?),
        };
        Ok(Arc::new(DestinationTls {
            server_name: Some(tls.hostname.clone()),
            names: tls.subject_alt_names.clone(),
            roots,
            client: None,
        }))
    }

    /// Returns the CA certificates of all ConfigMaps that the policy names, as PEM.
    fn ca_certificates(
        &self,
        view: &MeshView,
        names: &[ArcStr],
    ) -> Result<ArcStr, InvalidPolicyReason> {
        let mut all = String::new();
        for name in names {
            let namespace = self.key.namespace.clone();
            let key = ObjectKey::new(Kind::ConfigMap, namespace, name.clone());
            let map = view.get::<ConfigMap>(&key);
            let text = map.and_then(|map| map.ca_certificates()).ok_or_else(|| {
                let message = format!("{key} does not exist, or has no certificates in ca.crt");
                InvalidPolicyReason::unresolved_reference("InvalidCACertificateRef", message)
            })?;
            all.push_str(text);
            all.push('\n');
        }
        Ok(all.into())
    }
}

impl MeshView {
    /// Returns the TLS settings that policies give a Service or ServiceEntry, in the order in which they are applied:
    /// those for all ports first, which settings for single ports override.
    pub(crate) fn backend_tls(&self, key: &ObjectKey) -> Vec<BackendTls> {
        let one = |(policy, port): (&BackendTlsInput, Option<u16>)| BackendTls {
            port,
            tls: policy.resolve_tls(self).map_err(|refused| {
                arcstr::format!("{} cannot be followed: {}", policy.key, refused.message)
            }),
        };
        let all = self.tls_policies(key);
        // Those for all ports come last, and are put first; of equals the first counts.
        let whole = all.iter().find(|(_, port)| port.is_none());
        let mut of_ports = all.clone();
        of_ports.retain(|(_, port)| port.is_some());
        of_ports.dedup_by_key(|(_, port)| *port);
        whole
            .into_iter()
            .copied()
            .chain(of_ports)
            .map(one)
            .collect()
    }

    /// Returns the policies attached to a Service or ServiceEntry, each with its port, by decreasing precedence for the
    /// same port; policies for all ports come last.
    fn tls_policies(&self, key: &ObjectKey) -> Vec<(&BackendTlsInput, Option<u16>)> {
        let policies = self.references.referrers(ReferenceKind::PolicyTarget, key);
        let of_tls = |key: &&ObjectKey| key.kind == Kind::BackendTLSPolicy;
        let policies = policies.filter(of_tls);
        let policies = policies.filter_map(|policy| self.get::<BackendTLSPolicy>(policy));
        let mut all = Vec::new();
        for policy in policies {
            for target in policy.targets.iter().filter(|target| target.key == *key) {
                match &target.port {
                    None => all.push((policy, None)),
                    Some(name) => {
                        let ports = self.port_numbers_named(key, name).into_iter();
                        all.extend(ports.map(|port| (policy, Some(port))));
                    }
                }
            }
        }
        all.sort_by(|(a, of_a), (b, of_b)| {
            let whole = of_a.is_none().cmp(&of_b.is_none());
            whole
                .then(of_a.cmp(of_b))
                .then(a.precedence_key().cmp(&b.precedence_key()))
        });
        all
    }

    /// Returns the numbers of the service ports with a name.
    fn port_numbers_named(&self, key: &ObjectKey, name: &str) -> BTreeSet<u16> {
        let ports = declared_ports(self, key).unwrap_or_default().into_iter();
        let of_name = ports.filter(|(of, ..)| *of == name);
        of_name.map(|(_, port, _)| port).collect()
    }
}

impl Index {
    /// Marks as stale the policies that name a ConfigMap with CA certificates, and the destinations of their services.
    pub(crate) fn mark_ca_policies_stale(&mut self, map: &ObjectKey) {
        let of_namespace = self
            .view
            .references
            .mesh_referrers(ReferenceKind::BackendTlsPolicy)
            .filter(|policy| policy.namespace == map.namespace);
        let policies = of_namespace.filter_map(|policy| self.view.get::<BackendTLSPolicy>(policy));
        let users = policies.filter(|policy| policy.refers_to_config_map(&map.name));
        let users: Vec<BackendTlsInput> = users.cloned().collect();
        for user in users {
            self.mark_object_stale(user.key);
            for target in user.targets {
                self.mark_target_tls_stale(&target.key);
            }
        }
    }

    /// Marks as stale the hosts of a service and all BackendTLSPolicies attached to it, whose conditions depend on each
    /// other.
    fn mark_target_tls_stale(&mut self, target: &ObjectKey) {
        for host in self.view.hosts_of(target) {
            self.mark_only_host_stale(host);
        }
        let policies: Vec<_> = self
            .view
            .references
            .referrers(ReferenceKind::PolicyTarget, target)
            .cloned()
            .collect();
        let of_tls = |key: &ObjectKey| key.kind == Kind::BackendTLSPolicy;
        for policy in policies.into_iter().filter(of_tls) {
            self.mark_object_stale(policy);
        }
    }
}
