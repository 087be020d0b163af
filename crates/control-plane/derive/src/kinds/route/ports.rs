//! Service ports that routes apply to.

use ambit_k8s_api::{Kind, ObjectKey, Service, ServiceEntry};
use ambit_model::AppProtocol;

use crate::{
    objects::route::input::{RouteInput, RouteParent},
    view::MeshView,
};

impl RouteParent {
    /// Returns the ports of the service that the parent reference selects; empty for all ports.
    ///
    /// # Errors
    ///
    /// If the service does not exist, or has no such port.
    pub(crate) fn selected_ports(&self, view: &MeshView) -> Result<Vec<u16>, String> {
        let target = &self.target;
        let ports = declared_ports(view, target);
        let ports = ports.ok_or_else(|| format!("there is no {target}"))?;
        let (number, name) = (self.port, self.reference.section_name.as_deref());
        if number.is_none() && name.is_none() {
            return Ok(Vec::new());
        }
        let is_meant = |(its_name, its_number, _): &DeclaredPort<'_>| {
            number.is_none_or(|number| *its_number == number)
                && name.is_none_or(|name| *its_name == name)
        };
        let meant = ports.into_iter().filter(is_meant).map(|(_, port, _)| port);
        let meant: Vec<u16> = meant.collect();
        if meant.is_empty() {
            let number = number.map(|port| port.to_string()).unwrap_or_default();
            let requested: Vec<_> = name.into_iter().chain([number.as_str()]).collect();
            return Err(format!(
                "{target} has no port {}",
                requested.join(" ").trim()
            ));
        }
        Ok(meant)
    }
}

/// Name, number and application protocol of a service port.
pub(crate) type DeclaredPort<'a> = (&'a str, u16, AppProtocol);

/// Returns the TCP ports of a Service, or the ports of a ServiceEntry; `None` if it does not exist.
pub(crate) fn declared_ports<'a>(
    view: &'a MeshView,
    target: &ObjectKey,
) -> Option<Vec<DeclaredPort<'a>>> {
    if target.kind == Kind::Service {
        let service = view.get::<Service>(target)?;
        let tcp = service.ports.iter().filter(|port| port.is_tcp);
        let ports = tcp.map(|port| (port.name.as_str(), port.port, port.app_protocol));
        return Some(ports.collect());
    }
    let entry = view.get::<ServiceEntry>(target)?;
    Some(entry.declared_ports().collect())
}

impl RouteInput {
    /// Returns the ports of a service that the route applies to, empty for all; `None` if it applies to no port.
    pub(crate) fn applicable_ports(&self, view: &MeshView, target: &ObjectKey) -> Option<Vec<u16>> {
        let parents = self
            .parents
            .iter()
            .filter(|parent| parent.target == *target);
        let meant: Vec<Vec<u16>> = parents
            .filter_map(|parent| parent.selected_ports(view).ok())
            .collect();
        if meant.is_empty() {
            return None;
        }
        if meant.iter().any(Vec::is_empty) {
            return Some(Vec::new());
        }
        let mut ports = meant.concat();
        ports.sort_unstable();
        ports.dedup();
        Some(ports)
    }
}
