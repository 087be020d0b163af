//! Parses DNS queries and encodes error responses to them.

use hickory_proto::{
    op::{Edns, Header, Message, MessageType, Metadata, OpCode, Query, ResponseCode},
    rr::{DNSClass, RecordType},
    serialize::binary::{BinDecodable, BinDecoder},
};

use crate::lookup::AddressFamily;

/// Size of a DNS message's header, in bytes.
pub(crate) const HEADER_BYTES: usize = 12;

/// DNS query with exactly one question, which can be answered or forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsQuery {
    pub(crate) metadata: Metadata,
    pub(crate) query: Query,
    /// DNS message as received.
    pub(crate) bytes: Vec<u8>,
    /// Offset in the message at which the question section ends.
    pub(crate) question_end: usize,
}

/// Reason why a DNS message is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryRejection {
    /// Datagram without a complete header, which cannot be answered.
    Ignored,
    /// Error response to send, with its response code.
    ErrorResponse(Vec<u8>, ResponseCode),
}

impl DnsQuery {
    /// Parses a DNS message.
    ///
    /// # Errors
    ///
    /// When it is not a query with exactly one question.
    pub fn parse(bytes: &[u8]) -> Result<Self, QueryRejection> {
        let mut decoder = BinDecoder::new(bytes);
        let Ok(Header { metadata, counts }) = Header::read(&mut decoder) else {
            return Err(QueryRejection::Ignored);
        };
        if metadata.message_type != MessageType::Query {
            return Err(reject_query(&metadata, ResponseCode::FormErr));
        }
        if metadata.op_code != OpCode::Query {
            return Err(reject_query(&metadata, ResponseCode::NotImp));
        }
        match Query::read(&mut decoder) {
            Ok(query) if counts.queries == 1 => Ok(Self {
                metadata,
                query,
                bytes: bytes.to_vec(),
                question_end: decoder.index(),
            }),
            _ => Err(reject_query(&metadata, ResponseCode::FormErr)),
        }
    }

    /// Returns the queried name in lower case and without the final dot, if it can be a host name.
    pub fn host_name(&self) -> Option<String> {
        let mut host = String::with_capacity(self.query.name().len());
        for label in self.query.name().iter() {
            let is_plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
            if !label.iter().all(is_plain) {
                return None;
            }
            if !host.is_empty() {
                host.push('.');
            }
            host.extend(label.iter().map(|b| char::from(b.to_ascii_lowercase())));
        }
        Some(host).filter(|host| !host.is_empty())
    }

    /// Returns the queried address family; `None` for other record types.
    pub fn address_family(&self) -> Option<AddressFamily> {
        match (self.query.query_class(), self.query.query_type()) {
            (DNSClass::IN, RecordType::A) => Some(AddressFamily::V4),
            (DNSClass::IN, RecordType::AAAA) => Some(AddressFamily::V6),
            _ => None,
        }
    }

    /// Returns the mnemonic of the queried record type; `None` for a type without one.
    pub fn record_type_name(&self) -> Option<&'static str> {
        match self.query.query_type() {
            RecordType::Unknown(_) => None,
            kind => Some(kind.into()),
        }
    }

    /// Returns the queried name with the client's spelling.
    pub fn name(&self) -> &hickory_proto::rr::Name {
        self.query.name()
    }

    /// Returns the EDNS parameters of the query, if it has any.
    pub(crate) fn edns(&self) -> Option<Edns> {
        Message::from_vec(&self.bytes).ok()?.edns
    }

    /// Encodes a response that refuses the query with a code.
    pub fn error_response(&self, code: ResponseCode) -> Vec<u8> {
        let mut message = response(&self.metadata, code);
        message.add_query(self.query.clone());
        // A name that was parsed can be encoded.
        message.to_vec().unwrap_or_default()
    }
}

pub(crate) fn response(request: &Metadata, code: ResponseCode) -> Message {
    let mut message = Message::response(request.id, request.op_code);
    message.metadata.recursion_desired = request.recursion_desired;
    message.metadata.recursion_available = true;
    message.metadata.response_code = code;
    message
}

fn reject_query(request: &Metadata, code: ResponseCode) -> QueryRejection {
    match response(request, code).to_vec() {
        Ok(bytes) => QueryRejection::ErrorResponse(bytes, code),
        Err(_) => QueryRejection::Ignored,
    }
}

#[cfg(test)]
mod tests;
