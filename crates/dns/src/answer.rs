//! The message that answers a question from the mesh.

use std::net::IpAddr;

use hickory_proto::{
    op::{Edns, Message, ResponseCode},
    rr::{
        Name, RData, Record,
        rdata::{A, AAAA, CNAME},
    },
};
use rand::{Rng, seq::SliceRandom};

use crate::{
    lookup::Found,
    question::{Question, response},
    server::Transport,
};

/// Seconds an answer may be kept.
const TTL: u32 = 30;
/// What every client takes over UDP.
const MIN_DATAGRAM: u16 = 512;
/// What fits a datagram whatever its headers.
const MAX_DATAGRAM: u16 = 65_000;

/// The answer, in wire form. Addresses come in any order; what does not fit the client's datagram is
/// left out and the answer says so.
pub fn encode(
    question: &Question,
    found: &Found,
    transport: Transport,
    rng: &mut impl Rng,
) -> Vec<u8> {
    let mut message = response(&question.metadata, ResponseCode::NoError);
    message.metadata.authoritative = true;
    let asked = question.query.name();
    message.add_query(question.query.clone());
    let alias = found
        .alias
        .as_ref()
        .and_then(|alias| Name::from_ascii(format!("{alias}.")).ok());
    if let Some(alias) = &alias {
        let cname = RData::CNAME(CNAME(alias.clone()));
        message.add_answer(Record::from_rdata(asked.clone(), TTL, cname));
    }
    let owner = alias.as_ref().unwrap_or(asked);
    let mut addresses = found.addresses.clone();
    addresses.shuffle(rng);
    message.add_answers(addresses.into_iter().map(|ip| {
        let data = match ip {
            IpAddr::V4(ip) => RData::A(A(ip)),
            IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
        };
        Record::from_rdata(owner.clone(), TTL, data)
    }));
    let mut limit = MIN_DATAGRAM;
    if let Some(edns) = question.edns() {
        limit = edns.max_payload().max(MIN_DATAGRAM);
        let mut ours = Edns::new();
        ours.set_max_payload(limit).set_version(0);
        message.set_edns(ours);
    }
    let limit = match transport {
        Transport::Udp => limit.min(MAX_DATAGRAM),
        Transport::Tcp => u16::MAX,
    };
    fit(message, usize::from(limit))
}

/// The longest beginning of the answers that fits. Clients that cannot ask again over TCP have
/// some of the addresses at least.
fn fit(mut message: Message, limit: usize) -> Vec<u8> {
    loop {
        // Names and counts are ours or were read: they can be written.
        let bytes = message.to_vec().unwrap_or_default();
        let count = message.answers.len();
        if bytes.len() <= limit || count == 0 {
            return bytes;
        }
        message.metadata.truncation = true;
        let keep = count * limit / bytes.len();
        message.answers.truncate(keep.min(count - 1));
    }
}
