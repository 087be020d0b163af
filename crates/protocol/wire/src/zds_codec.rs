//! Encodes and decodes ZDS records. Each record is one protobuf message, converted to and from the messages of
//! `ambit-zds`.

use std::net::IpAddr;

use ambit_model::{ArcStr, PodName};
use ambit_zds::{
    Ack, MAX_ACK_TEXT_BYTES, MAX_RECORD_BYTES, Request, WorkloadInfo, truncate_to_bytes,
};
use bytes::Bytes;
use prost::Message as _;

use crate::zds::{self, workload_request, workload_response};

/// Reason why a ZDS record is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ZdsDecodeError {
    /// The record is not valid protobuf.
    #[error("the record does not decode as {what}")]
    InvalidProtobuf {
        /// Name of the message that the record should contain.
        what: &'static str,
        /// Cause of the error.
        #[source]
        source: prost::DecodeError,
    },
    /// The message has no payload.
    #[error("the {what} is empty")]
    EmptyMessage {
        /// Name of the message that the record should contain.
        what: &'static str,
    },
    /// The request has no pod UID.
    #[error("the request has an empty uid")]
    NoUid,
    /// An address of the pod is neither 4 nor 16 bytes long.
    #[error("an address of pod {uid} is {len} bytes long, not 4 or 16")]
    InvalidAddress {
        /// UID of the pod.
        uid: String,
        /// Length of the address in bytes.
        len: usize,
    },
}

/// Decodes a request that the agent sent.
///
/// # Errors
///
/// When the record is not a valid request.
pub fn decode_request(record: &[u8]) -> Result<Request, ZdsDecodeError> {
    const MESSAGE_NAME: &str = "request";
    let message =
        zds::WorkloadRequest::decode(record).map_err(|source| ZdsDecodeError::InvalidProtobuf {
            what: MESSAGE_NAME,
            source,
        })?;
    match message
        .payload
        .ok_or(ZdsDecodeError::EmptyMessage { what: MESSAGE_NAME })?
    {
        workload_request::Payload::Add(add) => {
            let info = add
                .workload_info
                .map(|info| decode_info(&add.uid, info))
                .transpose()?;
            Ok(Request::Add {
                uid: decode_uid(add.uid)?,
                info,
            })
        }
        workload_request::Payload::Del(del) => Ok(Request::Del {
            uid: decode_uid(del.uid)?,
        }),
        workload_request::Payload::Keep(keep) => Ok(Request::Keep {
            uid: decode_uid(keep.uid)?,
        }),
        workload_request::Payload::SnapshotSent(_) => Ok(Request::SnapshotSent),
    }
}

fn decode_uid(text: String) -> Result<ArcStr, ZdsDecodeError> {
    if text.is_empty() {
        Err(ZdsDecodeError::NoUid)
    } else {
        Ok(text.into())
    }
}

fn decode_info(uid: &str, info: zds::WorkloadInfo) -> Result<WorkloadInfo, ZdsDecodeError> {
    let addresses = info
        .addresses
        .iter()
        .map(|bytes| {
            decode_address(bytes).ok_or_else(|| ZdsDecodeError::InvalidAddress {
                uid: uid.to_owned(),
                len: bytes.len(),
            })
        })
        .collect::<Result<_, _>>()?;
    let pod = PodName {
        name: info.name.into(),
        namespace: info.namespace.into(),
        service_account: info.service_account.into(),
    };
    Ok(WorkloadInfo { pod, addresses })
}

fn decode_address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(v4));
    }
    <[u8; 16]>::try_from(bytes)
        .ok()
        .map(|v6| IpAddr::from(v6).to_canonical())
}

/// Encodes a request to the node proxy.
///
/// Omits the last addresses of the pod if the record would be too long: addresses only speed up the pod's first
/// connection.
pub fn encode_request(request: &Request) -> Vec<u8> {
    let payload = match request {
        Request::Add { uid, info } => workload_request::Payload::Add(zds::AddWorkload {
            uid: uid.to_string(),
            workload_info: info.as_ref().map(encode_info),
        }),
        Request::Del { uid } => workload_request::Payload::Del(zds::DelWorkload {
            uid: uid.to_string(),
        }),
        Request::Keep { uid } => workload_request::Payload::Keep(zds::KeepWorkload {
            uid: uid.to_string(),
        }),
        Request::SnapshotSent => workload_request::Payload::SnapshotSent(zds::SnapshotSent {}),
    };
    let mut message = zds::WorkloadRequest {
        payload: Some(payload),
    };
    while message.encoded_len() > MAX_RECORD_BYTES && drop_last_address(&mut message) {}
    message.encode_to_vec()
}

fn drop_last_address(message: &mut zds::WorkloadRequest) -> bool {
    let Some(workload_request::Payload::Add(add)) = &mut message.payload else {
        return false;
    };
    add.workload_info
        .as_mut()
        .is_some_and(|info| info.addresses.pop().is_some())
}

fn encode_info(info: &WorkloadInfo) -> zds::WorkloadInfo {
    zds::WorkloadInfo {
        name: info.pod.name.to_string(),
        namespace: info.pod.namespace.to_string(),
        service_account: info.pod.service_account.to_string(),
        addresses: info
            .addresses
            .iter()
            .map(|address| match address {
                IpAddr::V4(v4) => Bytes::copy_from_slice(&v4.octets()),
                IpAddr::V6(v6) => Bytes::copy_from_slice(&v6.octets()),
            })
            .collect(),
    }
}

/// Decodes an acknowledgement that a node proxy sent.
///
/// # Errors
///
/// When the record is not a valid acknowledgement.
pub fn decode_ack(record: &[u8]) -> Result<Ack, ZdsDecodeError> {
    const MESSAGE_NAME: &str = "answer";
    let message = zds::WorkloadResponse::decode(record).map_err(|source| {
        ZdsDecodeError::InvalidProtobuf {
            what: MESSAGE_NAME,
            source,
        }
    })?;
    let workload_response::Payload::Ack(ack) = message
        .payload
        .ok_or(ZdsDecodeError::EmptyMessage { what: MESSAGE_NAME })?;
    Ok(if ack.error.is_empty() {
        Ok(())
    } else {
        Err(ack.error)
    })
}

/// Encodes an acknowledgement for the agent. Truncates a long error text so that it fits into a record.
pub fn encode_ack(ack: &Ack) -> Vec<u8> {
    let error = match ack {
        Ok(()) => String::new(),
        // An empty text would read as success.
        Err(text) if text.is_empty() => "unknown failure".to_owned(),
        Err(text) => truncate_to_bytes(text, MAX_ACK_TEXT_BYTES).to_owned(),
    };
    let payload = Some(workload_response::Payload::Ack(zds::Ack { error }));
    zds::WorkloadResponse { payload }.encode_to_vec()
}

/// Encodes the hello of a node proxy, with version 1 of ZDS.
pub fn encode_hello() -> Vec<u8> {
    zds::ZdsHello {
        version: zds::Version::V1.into(),
    }
    .encode_to_vec()
}

/// Decodes the ZDS version in the hello of a node proxy. The version may be one that this build does not know.
///
/// # Errors
///
/// When the record is not a valid hello.
pub fn decode_hello(record: &[u8]) -> Result<i32, ZdsDecodeError> {
    zds::ZdsHello::decode(record)
        .map(|hello| hello.version)
        .map_err(|source| ZdsDecodeError::InvalidProtobuf {
            what: "hello",
            source,
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn info(addresses: Vec<IpAddr>) -> WorkloadInfo {
        let pod = PodName {
            name: "client".into(),
            namespace: "default".into(),
            service_account: "sa".into(),
        };
        WorkloadInfo { pod, addresses }
    }

    #[test]
    fn the_bytes_on_the_wire_are_those_of_the_contract() {
        let add = Request::Add {
            uid: "u".into(),
            info: Some(info(vec![])),
        };
        assert_eq!(
            encode_request(&add),
            b"\x0a\x1a\x0a\x01u\x12\x15\x0a\x06client\x12\x07default\x1a\x02sa"
        );
        assert_eq!(
            encode_request(&Request::Del { uid: "u".into() }),
            b"\x12\x03\x12\x01u"
        );
        assert_eq!(encode_request(&Request::SnapshotSent), b"\x1a\x00");
        assert_eq!(
            encode_request(&Request::Keep { uid: "u".into() }),
            b"\x2a\x03\x0a\x01u"
        );
        assert_eq!(encode_ack(&Ok(())), b"\x0a\x00");
        assert_eq!(encode_ack(&Err("no".into())), b"\x0a\x04\x0a\x02no");
        assert_eq!(encode_hello(), b"\x08\x01");
    }

    #[test]
    fn missing_parts_are_distinguished() {
        assert!(matches!(
            decode_request(b""),
            Err(ZdsDecodeError::EmptyMessage { .. })
        ));
        assert!(matches!(
            decode_request(b"\xff"),
            Err(ZdsDecodeError::InvalidProtobuf { .. })
        ));
        assert!(matches!(
            decode_request(b"\x12\x00"),
            Err(ZdsDecodeError::NoUid)
        ));
        assert_eq!(
            decode_request(b"\x0a\x03\x0a\x01u").unwrap(),
            Request::Add {
                uid: "u".into(),
                info: None
            }
        );
        assert!(matches!(
            decode_ack(b""),
            Err(ZdsDecodeError::EmptyMessage { .. })
        ));
        // Three bytes are no address.
        let bad = b"\x0a\x0d\x0a\x01u\x12\x08\xca\x3e\x03abc\x0a\x00";
        assert!(matches!(
            decode_request(bad),
            Err(ZdsDecodeError::InvalidAddress { len: 3, .. })
        ));
    }

    #[test]
    fn a_record_never_outgrows_what_the_peer_reads() {
        let addresses = (0..200u8).map(|n| IpAddr::from([n; 16])).collect();
        let record = encode_request(&Request::Add {
            uid: "u".into(),
            info: Some(info(addresses)),
        });
        assert!(record.len() <= MAX_RECORD_BYTES);
        assert!(matches!(
            decode_request(&record),
            Ok(Request::Add { info: Some(info), .. }) if info.addresses.len() > 20
        ));
        assert!(encode_ack(&Err("x".repeat(5000))).len() <= MAX_RECORD_BYTES);
        assert!(
            decode_ack(&encode_ack(&Err(String::new())))
                .unwrap()
                .is_err()
        );
    }

    proptest! {
        #[test]
        fn requests_read_back_as_written(uid in "[a-z0-9-]{1,36}", v4: [u8; 4], kind in 0..4) {
            let uid = ArcStr::from(uid);
            let request = match kind {
                0 => Request::Add { uid, info: Some(info(vec![IpAddr::from(v4)])) },
                1 => Request::Del { uid },
                2 => Request::Keep { uid },
                _ => Request::SnapshotSent,
            };
            prop_assert_eq!(decode_request(&encode_request(&request)).unwrap(), request);
        }

        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop((decode_request(&bytes), decode_ack(&bytes), decode_hello(&bytes)));
        }
    }
}
