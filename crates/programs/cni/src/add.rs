//! ADD: decides whether the pod belongs to the mesh, waits for its enrolment, and returns the result of the previous
//! plugins.

use std::borrow::Cow;

use crate::{
    agent::{Agent, CmdAddBody, Pod},
    config::{CniVersion, Config},
    delegate::DelegateCall,
    environment::Environment,
    error::CniError,
    result,
};

/// Name prefixes of the node agents' own pods, which must start without the agent.
const AGENT_POD_PREFIXES: [&str; 2] = ["istio-cni-node-", "ambit-agent-"];

/// Name prefixes of the mesh's other components, which must start on a node whose agent is
/// unavailable. While the agent is available, it is queried about them as about any other pod.
const MESH_POD_PREFIXES: [&str; 3] = ["ztunnel-", "ambit-control-", "istiod-"];

/// Carries out ADD and returns the result for stdout.
pub(crate) fn add(
    environment: &Environment,
    config: &Config,
    version: CniVersion,
) -> Result<String, CniError> {
    let call = DelegateCall::new(environment, config, version)?;
    let previous = match &call {
        Some(call) => call.add()?.map(Cow::Owned),
        None => config.prev_result.as_deref().map(Cow::Borrowed),
    };
    // Parsed first: a result that cannot be passed on must not leave a pod enrolled.
    let passed_on = result::output_result(previous.as_deref(), version)?;
    let arguments = CniArguments::parse(&environment.args);
    let Some(pod) = arguments.mesh_candidate(config) else {
        return Ok(passed_on);
    };
    let previous = previous.as_deref().filter(|raw| raw.get() != "null");
    let addresses = previous.map(result::parse_addresses).transpose();
    let agent = Agent::new(config);
    if agent.is_member(pod)? {
        let addresses = addresses?;
        let event = CmdAddBody::new(pod, &environment.netns, addresses.as_deref());
        agent.enrol(pod, &event)?;
    }
    Ok(passed_on)
}

/// Identity of the pod in `CNI_ARGS`.
#[derive(Debug, Default, PartialEq, Eq)]
struct CniArguments<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

impl<'a> CniArguments<'a> {
    fn parse(text: &'a str) -> Self {
        let mut arguments = Self::default();
        for (key, value) in text.split(';').filter_map(|pair| pair.split_once('=')) {
            match key {
                "K8S_POD_NAME" => arguments.name = value,
                "K8S_POD_NAMESPACE" => arguments.namespace = value,
                "K8S_POD_UID" => arguments.uid = value,
                _ => {}
            }
        }
        arguments
    }

    /// Returns the pod, unless its name, its namespace or the configuration excludes it from the mesh, whatever its
    /// labels.
    fn mesh_candidate(&self, config: &Config) -> Option<Pod<'a>> {
        let Self {
            name,
            namespace,
            uid,
        } = *self;
        let is_of = |prefixes: &[&str]| {
            namespace == config.pod_namespace
                && prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        let outside = !config.ambient_enabled
            || name.is_empty()
            || namespace.is_empty()
            || is_of(&AGENT_POD_PREFIXES)
            || config.excludes(namespace);
        (!outside).then_some(Pod {
            namespace,
            name,
            uid,
            is_mesh_component: is_of(&MESH_POD_PREFIXES),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed_by_key() {
        let text = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;junk;K8S_POD_UID=u=1;X=";
        let expected = CniArguments {
            name: "p",
            namespace: "ns",
            uid: "u=1",
        };
        assert_eq!(CniArguments::parse(text), expected);
        assert_eq!(CniArguments::parse(""), CniArguments::default());
    }

    #[test]
    fn pods_that_can_never_belong_to_the_mesh() {
        let config = |extra: &str| {
            let text = format!(
                r#"{{"pod_namespace":"mesh","exclude_namespaces":["kube-system"]{extra}}}"#
            );
            Config::parse(text.as_bytes()).unwrap()
        };
        let candidate = |config: &Config, name, namespace| {
            CniArguments {
                name,
                namespace,
                uid: "",
            }
            .mesh_candidate(config)
            .is_some()
        };
        let usual = config("");
        assert!(candidate(&usual, "app", "default"));
        assert!(
            candidate(&usual, "istio-cni-node-x", "default"),
            "only in the agent's namespace"
        );
        assert!(!candidate(&usual, "istio-cni-node-x", "mesh"));
        assert!(!candidate(&usual, "ambit-agent-x", "mesh"));
        assert!(!candidate(&usual, "app", "kube-system"));
        assert!(!candidate(&usual, "", "default"));
        assert!(!candidate(&usual, "app", ""));
        let part = CniArguments {
            name: "ztunnel-x",
            namespace: "mesh",
            uid: "",
        };
        assert!(part.mesh_candidate(&usual).unwrap().is_mesh_component);
        assert!(!candidate(
            &config(r#","ambient_enabled":false"#),
            "app",
            "default"
        ));
    }
}
