//! Forwards a query to an upstream server under another id, and checks that the server's response belongs to it.

use hickory_proto::{
    op::{Header, MessageType, ResponseCode},
    serialize::binary::{BinDecodable, BinDecoder},
};

use crate::question::{DnsQuery, HEADER_BYTES};

/// Query forwarded to an upstream server.
#[derive(Clone, Debug)]
pub(crate) struct ForwardedQuery {
    client_id: [u8; 2],
    message: Vec<u8>,
    question_end: usize,
}

impl ForwardedQuery {
    /// Creates the query to forward. Its random id is known only to the upstream server, so that others cannot spoof a
    /// response.
    pub(crate) fn new(question: &DnsQuery, id: u16) -> Self {
        let mut message = question.bytes.clone();
        let client_id = question.metadata.id.to_be_bytes();
        set_id(&mut message, id.to_be_bytes());
        Self {
            client_id,
            message,
            question_end: question.question_end,
        }
    }

    /// Returns the message to send to the upstream server.
    pub(crate) fn message(&self) -> &[u8] {
        &self.message
    }

    /// Returns the response for the client and its code, if `bytes` is a response to this query.
    pub(crate) fn accept_response(&self, mut bytes: Vec<u8>) -> Option<(Vec<u8>, ResponseCode)> {
        let header = Header::read(&mut BinDecoder::new(&bytes)).ok()?;
        let is_ours = bytes.first_chunk::<2>() == self.message.first_chunk::<2>()
            && header.metadata.message_type == MessageType::Response;
        // Servers that do not understand a question may answer without it.
        let is_bare =
            header.counts.queries == 0 && header.metadata.response_code != ResponseCode::NoError;
        if !is_ours || !(is_bare || self.repeats_question(&bytes)) {
            return None;
        }
        set_id(&mut bytes, self.client_id);
        Some((bytes, header.metadata.response_code))
    }

    /// Whether the response repeats the question, ignoring the case of the name.
    fn repeats_question(&self, bytes: &[u8]) -> bool {
        let section = |of: &[u8]| of.get(HEADER_BYTES..self.question_end).map(<[u8]>::to_vec);
        let (Some(query), Some(answered)) = (section(&self.message), section(bytes)) else {
            return false;
        };
        // Type and class, four bytes, end it.
        let split = query.len().saturating_sub(4);
        let ((name, kind), (other_name, other_kind)) =
            (query.split_at(split), answered.split_at(split));
        name.eq_ignore_ascii_case(other_name) && kind == other_kind
    }
}

fn set_id(message: &mut [u8], id: [u8; 2]) {
    if let Some(place) = message.first_chunk_mut::<2>() {
        *place = id;
    }
}

#[cfg(test)]
mod tests;
