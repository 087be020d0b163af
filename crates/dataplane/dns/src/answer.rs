//! Encodes DNS answers with addresses of services and workloads in the mesh.

use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use rand::{Rng, seq::SliceRandom};

use crate::{
    lookup::ResolvedName,
    question::{DnsQuery, response},
    transport::Transport,
};

/// TTL of answers, in seconds.
const TTL_SECONDS: u32 = 30;
/// Size limit of a UDP message to a client without EDNS, in bytes.
const MIN_DATAGRAM_BYTES: u16 = 512;
/// Maximum size of a DNS message in a UDP datagram, in bytes; leaves room for IP headers.
const MAX_DATAGRAM_BYTES: u16 = 65_000;

const TYPE_A: u16 = 1;
const TYPE_CNAME: u16 = 5;
const TYPE_AAAA: u16 = 28;
const TYPE_OPT: u16 = 41;
const CLASS_IN: u16 = 1;
/// Offset of the question's name in a message.
const QUESTION_OFFSET: u16 = 12;
/// Two high bits that mark a name as a compression pointer (RFC 1035, section 4.1.4).
const COMPRESSION_POINTER: u16 = 0xc000;

/// Encodes the answer to a query. Addresses may be in any order; those that exceed the client's datagram size are
/// omitted, and the message is marked as truncated, so that clients without TCP get at least some of the addresses.
pub fn encode_response(
    question: &DnsQuery,
    found: &ResolvedName,
    transport: Transport,
    rng: &mut impl Rng,
) -> Vec<u8> {
    let mut head = response(&question.metadata, ResponseCode::NoError);
    head.metadata.authoritative = true;
    head.add_query(question.query.clone());
    // A name that was parsed can be encoded.
    let mut message = ResponseWriter {
        bytes: head.to_vec().unwrap_or_default(),
        answer_count: 0,
        owner_pointer: COMPRESSION_POINTER | QUESTION_OFFSET,
    };
    let payload = question
        .edns()
        .map(|edns| edns.max_payload().max(MIN_DATAGRAM_BYTES));
    let limit = match transport {
        Transport::Udp => payload
            .unwrap_or(MIN_DATAGRAM_BYTES)
            .min(MAX_DATAGRAM_BYTES),
        Transport::Tcp => u16::MAX,
    };
    let limit = usize::from(limit) - payload.map_or(0, |_| OPT_RECORD_BYTES);
    if let Some(alias) = &found.alias {
        message.add_cname(alias);
    }
    let mut addresses = found.addresses.clone();
    addresses.shuffle(rng);
    let fit = addresses.iter().all(|ip| message.add_address(*ip, limit));
    message.finish(!fit, payload)
}

/// Size of an OPT record without options, in bytes.
const OPT_RECORD_BYTES: usize = 11;

/// Encoder of a DNS response. Every record refers to its owner's name by a compression pointer, so that an address
/// record has 12 bytes and the address, however long the name. Libraries stop compressing after some records.
struct ResponseWriter {
    bytes: Vec<u8>,
    answer_count: u16,
    /// Compression pointer to the name that owns the address records.
    owner_pointer: u16,
}

impl ResponseWriter {
    fn add_record(&mut self, kind: u16, data: &[u8]) {
        for part in [self.owner_pointer, kind, CLASS_IN] {
            self.bytes.extend(part.to_be_bytes());
        }
        self.bytes.extend(TTL_SECONDS.to_be_bytes());
        let len = u16::try_from(data.len()).unwrap_or_default();
        self.bytes.extend(len.to_be_bytes());
        self.bytes.extend(data);
        self.answer_count += 1;
    }

    fn add_cname(&mut self, name: &str) {
        let mut target = Vec::with_capacity(name.len() + 2);
        for label in name.split('.') {
            // The label is part of a name that was parsed: at most 63 bytes.
            target.push(u8::try_from(label.len()).unwrap_or_default());
            target.extend(label.as_bytes());
        }
        target.push(0);
        self.add_record(TYPE_CNAME, &target);
        let at = u16::try_from(self.bytes.len() - target.len()).unwrap_or_default();
        self.owner_pointer = COMPRESSION_POINTER | at;
    }

    /// Appends an address record unless the message would exceed `limit` bytes; returns whether it was appended.
    fn add_address(&mut self, ip: IpAddr, limit: usize) -> bool {
        let before = self.bytes.len();
        match ip {
            IpAddr::V4(ip) => self.add_record(TYPE_A, &ip.octets()),
            IpAddr::V6(ip) => self.add_record(TYPE_AAAA, &ip.octets()),
        }
        let fits = self.bytes.len() <= limit;
        if !fits {
            self.bytes.truncate(before);
            self.answer_count -= 1;
        }
        fits
    }

    fn finish(mut self, truncated: bool, payload: Option<u16>) -> Vec<u8> {
        if let Some(payload) = payload {
            // The root, no extended code, version 0, no flags, no options.
            self.bytes.push(0);
            self.bytes.extend(TYPE_OPT.to_be_bytes());
            self.bytes.extend(payload.to_be_bytes());
            self.bytes.extend([0; 6]);
        }
        let additionals = u16::from(payload.is_some());
        self.write_count(6, self.answer_count);
        self.write_count(10, additionals);
        if truncated && let Some(flags) = self.bytes.get_mut(2) {
            *flags |= 0x02;
        }
        self.bytes
    }

    fn write_count(&mut self, at: usize, count: u16) {
        if let Some(place) = self.bytes.get_mut(at..at + 2) {
            place.copy_from_slice(&count.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
