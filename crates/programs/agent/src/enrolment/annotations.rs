//! Annotations of a pod that change its redirection.

use ambit_netplan::{RedirectionSpec, SpecError};

use crate::source::Labels;

/// Annotation that exempts inbound plaintext from capture.
const BYPASS_INBOUND: &str = "ambient.istio.io/bypass-inbound-capture";
/// Annotation that enables or disables the capture of DNS queries.
const DNS_CAPTURE: &str = "ambient.istio.io/dns-capture";
/// Annotation with the interfaces in the pod's namespace whose arriving connections are captured as outbound
/// connections of the pod.
const VIRTUAL_INTERFACES: &str = "istio.io/reroute-virtual-interfaces";

/// Invalid annotation of a pod.
#[derive(Debug, thiserror::Error)]
#[error("its annotations require impossible redirection: {0}")]
pub struct AnnotationError(#[from] SpecError);

/// Returns the redirection of a pod: the common specification, changed by the pod's annotations.
pub(super) fn redirection_spec(
    usual: &RedirectionSpec,
    annotations: &Labels,
) -> Result<RedirectionSpec, AnnotationError> {
    let flag = |name| annotations.get(name).and_then(|text| parse_bool(text));
    let mut spec = usual.clone();
    if let Some(bypass) = flag(BYPASS_INBOUND) {
        spec.ingress_bypass = bypass;
    }
    if let Some(capture) = flag(DNS_CAPTURE) {
        spec.dns_capture = capture;
    }
    if let Some(list) = annotations.get(VIRTUAL_INTERFACES) {
        let names = list
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        spec.virtual_interfaces = names.map(str::to_owned).collect();
    }
    spec.validate()?;
    Ok(spec)
}

/// Parses a boolean like Go's `ParseBool`; any other value counts as unset.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(pairs: &[(&str, &str)]) -> Result<RedirectionSpec, AnnotationError> {
        let pairs = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        redirection_spec(&RedirectionSpec::default(), &pairs)
    }

    #[test]
    fn annotations_override_the_settings_of_the_mesh() {
        let spec = spec(&[
            (BYPASS_INBOUND, "true"),
            (DNS_CAPTURE, "1"),
            (VIRTUAL_INTERFACES, " k6t-net0, docker0,,"),
        ])
        .unwrap();
        assert!(spec.ingress_bypass && spec.dns_capture);
        assert_eq!(spec.virtual_interfaces, ["k6t-net0", "docker0"]);
    }

    #[test]
    fn values_that_are_no_boolean_are_ignored() {
        let spec = spec(&[(BYPASS_INBOUND, "yes"), (DNS_CAPTURE, "")]).unwrap();
        assert_eq!(spec, RedirectionSpec::default());
    }

    #[test]
    fn invalid_interface_is_named_in_the_error() {
        let error = spec(&[(VIRTUAL_INTERFACES, "a b")]).unwrap_err();
        assert!(error.to_string().contains("a b"));
    }
}
