//! `baggage` header of a tunnel: describes the sender's workload, for telemetry only.
//!
//! Entries have the form `key=value`, joined by commas in a fixed order, without spaces or percent-encoding; empty
//! values are omitted. The contents are never used for authorization.

use std::fmt::Write as _;

use ambit_model::{Workload, WorkloadKind};
use arcstr::ArcStr;

/// Maximum length of an accepted header, in bytes.
const MAX_BAGGAGE_BYTES: usize = 8 * 1024;
/// Maximum number of entries in an accepted header. Other implementations may send more keys than this one does.
const MAX_BAGGAGE_ENTRIES: usize = 64;

/// Description of the sender's workload in a `baggage` header. Empty texts are unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baggage {
    /// Value of `k8s.cluster.name`.
    pub cluster: ArcStr,
    /// Value of `k8s.namespace.name`.
    pub namespace: ArcStr,
    /// Kind and name of the workload's owner: `k8s.deployment.name`, `k8s.job.name` and so on.
    pub workload: Option<(WorkloadKind, ArcStr)>,
    /// Value of `service.name`.
    pub service_name: ArcStr,
    /// Value of `service.version`.
    pub service_version: ArcStr,
    /// Value of `cloud.region`.
    pub region: ArcStr,
    /// Value of `cloud.availability_zone`.
    pub zone: ArcStr,
}

/// Reason why a `baggage` header is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseBaggageError {
    /// The header is longer than 8 KiB or has more than 64 entries.
    #[error("the baggage is too long")]
    TooLong,
    /// The header has a byte that is not printable ASCII.
    #[error("the baggage is not printable ASCII")]
    NotAscii,
    /// An entry of the header has no `=`.
    #[error("a baggage entry has no value")]
    NoValue,
}

impl Baggage {
    /// Builds the baggage that describes `workload`.
    pub fn from_workload(workload: &Workload) -> Self {
        Self {
            cluster: workload.cluster_id.clone(),
            namespace: workload.namespace.clone(),
            workload: (!workload.workload_name.is_empty())
                .then(|| (workload.workload_type, workload.workload_name.clone())),
            service_name: workload.canonical_name.clone(),
            service_version: workload.canonical_revision.clone(),
            region: workload.locality.region.clone(),
            zone: workload.locality.zone.clone(),
        }
    }

    /// Encodes the header. Omits values that the format cannot represent.
    pub fn encode(&self) -> String {
        let mut out = String::with_capacity(192);
        let mut put = |key: &str, value: &str| {
            if value.is_empty() || !value.bytes().all(is_value_byte) {
                return;
            }
            let comma = if out.is_empty() { "" } else { "," };
            // Writing to a String cannot fail.
            let _ = write!(out, "{comma}{key}={value}");
        };
        put("k8s.cluster.name", &self.cluster);
        put("k8s.namespace.name", &self.namespace);
        if let Some((kind, name)) = &self.workload {
            put(workload_key(*kind), name);
        }
        put("service.name", &self.service_name);
        put("service.version", &self.service_version);
        put("cloud.region", &self.region);
        put("cloud.availability_zone", &self.zone);
        out
    }

    /// Parses one header. Ignores unknown keys and properties (after `;`); the last entry of a repeated key applies.
    ///
    /// # Errors
    ///
    /// When the header is too long, not printable ASCII or has an entry without a value.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseBaggageError> {
        let mut baggage = Self::default();
        baggage.parse_additional_header(bytes)?;
        Ok(baggage)
    }

    /// Parses another `baggage` header of the same request, and adds its entries.
    ///
    /// # Errors
    ///
    /// As [`Baggage::parse`].
    pub fn parse_additional_header(&mut self, bytes: &[u8]) -> Result<(), ParseBaggageError> {
        if bytes.len() > MAX_BAGGAGE_BYTES {
            return Err(ParseBaggageError::TooLong);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| ParseBaggageError::NotAscii)?;
        if !text
            .bytes()
            .all(|b| b == b'\t' || (b' '..=b'~').contains(&b))
        {
            return Err(ParseBaggageError::NotAscii);
        }
        for (i, entry) in text
            .split(',')
            .map(str::trim)
            .filter(|e| !e.is_empty())
            .enumerate()
        {
            if i >= MAX_BAGGAGE_ENTRIES {
                return Err(ParseBaggageError::TooLong);
            }
            let entry = entry
                .split_once(';')
                .map_or(entry, |(entry, _properties)| entry);
            let (key, value) = entry.split_once('=').ok_or(ParseBaggageError::NoValue)?;
            self.set(key.trim(), value.trim());
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) {
        let field = match key {
            "k8s.cluster.name" => &mut self.cluster,
            "k8s.namespace.name" => &mut self.namespace,
            "service.name" => &mut self.service_name,
            "service.version" => &mut self.service_version,
            "cloud.region" => &mut self.region,
            "cloud.availability_zone" => &mut self.zone,
            _ => {
                let kind = [
                    WorkloadKind::Deployment,
                    WorkloadKind::Cronjob,
                    WorkloadKind::Pod,
                    WorkloadKind::Job,
                ]
                .into_iter()
                .find(|kind| workload_key(*kind) == key);
                if let Some(kind) = kind {
                    self.workload = (!value.is_empty()).then(|| (kind, value.into()));
                }
                return;
            }
        };
        *field = value.into();
    }
}

fn workload_key(kind: WorkloadKind) -> &'static str {
    match kind {
        WorkloadKind::Deployment => "k8s.deployment.name",
        WorkloadKind::Cronjob => "k8s.cronjob.name",
        WorkloadKind::Pod => "k8s.pod.name",
        WorkloadKind::Job => "k8s.job.name",
    }
}

/// Whether a byte may be in a value: printable ASCII except the separators `,` and `;` (more lenient than
/// `baggage-octet` in W3C Baggage).
fn is_value_byte(b: u8) -> bool {
    (b'!'..=b'~').contains(&b) && b != b',' && b != b';'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample_baggage() -> Baggage {
        Baggage {
            cluster: "Kubernetes".into(),
            namespace: "a".into(),
            workload: Some((WorkloadKind::Pod, "client-abc".into())),
            service_name: "client".into(),
            service_version: "v1".into(),
            ..Baggage::default()
        }
    }

    #[test]
    fn it_is_written_in_the_contract_s_order() {
        assert_eq!(
            sample_baggage().encode(),
            "k8s.cluster.name=Kubernetes,k8s.namespace.name=a,k8s.pod.name=client-abc,\
             service.name=client,service.version=v1"
        );
    }

    #[test]
    fn empty_values_and_no_header_are_unknown() {
        let read = Baggage::parse(b"k8s.cluster.name=,service.name=x , ,service.version=").unwrap();
        assert_eq!(
            read,
            Baggage {
                service_name: "x".into(),
                ..Baggage::default()
            }
        );
        assert_eq!(Baggage::parse(b""), Ok(Baggage::default()));
    }

    #[test]
    fn several_headers_add_up() {
        let mut read = Baggage::parse(b"k8s.cluster.name=c;prop=1").unwrap();
        read.parse_additional_header(b"k8s.job.name=j,other=1")
            .unwrap();
        assert_eq!(&*read.cluster, "c");
        assert_eq!(read.workload, Some((WorkloadKind::Job, "j".into())));
    }

    #[test]
    fn values_that_would_break_the_format_are_left_out() {
        let bad = Baggage {
            cluster: "a,b".into(),
            namespace: "n".into(),
            ..Baggage::default()
        };
        assert_eq!(bad.encode(), "k8s.namespace.name=n");
    }

    #[test]
    fn malformed_headers_are_refused() {
        assert_eq!(Baggage::parse(b"a"), Err(ParseBaggageError::NoValue));
        assert_eq!(Baggage::parse(b"a=\xff"), Err(ParseBaggageError::NotAscii));
        assert_eq!(
            Baggage::parse(&[b'a'; 9000]),
            Err(ParseBaggageError::TooLong)
        );
        assert_eq!(
            Baggage::parse("a=b,".repeat(100).as_bytes()),
            Err(ParseBaggageError::TooLong)
        );
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(baggage) = Baggage::parse(&bytes) {
                let again = Baggage::parse(baggage.encode().as_bytes());
                prop_assert!(again.is_ok());
            }
        }

        #[test]
        fn encoded_values_parse_to_themselves(
            cluster in "[!-+\\--:<-~]{0,20}", service_name in "[a-z0-9.=-]{0,20}", pod in "[a-z]{1,9}"
        ) {
            let baggage = Baggage {
                cluster: cluster.into(),
                service_name: service_name.into(),
                workload: Some((WorkloadKind::Cronjob, pod.into())),
                ..Baggage::default()
            };
            prop_assert_eq!(Baggage::parse(baggage.encode().as_bytes()), Ok(baggage));
        }
    }
}
