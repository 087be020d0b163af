//! Decodes records of workloads and services, `istio.workload.Address`.

use ambit_model as model;
use prost::Message;

use super::error::{DecodeError, DecodeErrorReason};
use crate::{unknown::ISTIO_WORKLOAD_ADDRESS, workload as wire};

/// WDS record of a workload or a service.
#[derive(Clone, Debug, PartialEq)]
pub enum AddressRecord {
    /// WDS record of a workload.
    Workload(Box<model::Workload>),
    /// WDS record of a service.
    Service(Box<model::Service>),
}

impl AddressRecord {
    /// Decodes an `istio.workload.Address`.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        wire::Address::decode(bytes)
            .map_err(|source| DecodeError::new("address", DecodeErrorReason::Malformed(source)))?
            .try_into()
    }

    /// Counts the fields of an `istio.workload.Address` that this build does not know, and therefore ignores.
    pub fn unknown_field_count(bytes: &[u8]) -> u64 {
        let mut count = 0;
        let walked = ISTIO_WORKLOAD_ADDRESS.unknown_fields(bytes, &mut |_| count += 1);
        // Bytes that are not protobuf are refused by `decode`.
        walked.map_or(0, |()| count)
    }
}

impl TryFrom<wire::Address> for AddressRecord {
    type Error = DecodeError;

    fn try_from(address: wire::Address) -> Result<Self, DecodeError> {
        match address
            .r#type
            .ok_or_else(|| DecodeError::missing("address.type"))?
        {
            wire::address::Type::Workload(workload) => {
                Ok(Self::Workload(Box::new(workload.try_into()?)))
            }
            wire::address::Type::Service(service) => {
                Ok(Self::Service(Box::new(service.try_into()?)))
            }
        }
    }
}
