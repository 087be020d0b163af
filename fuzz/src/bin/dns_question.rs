//! Fuzzes DNS queries of a pod: the answer to any query, or its error response, is a valid DNS message.
#![no_main]

use std::net::Ipv4Addr;

use ambit_dns::{DnsQuery, QueryRejection, ResolvedName, Transport, encode_response};
use hickory_proto::op::{Message, ResponseCode};
use libfuzzer_sys::fuzz_target;
use rand::{SeedableRng, rngs::SmallRng};

fuzz_target!(|data: &[u8]| {
    let question = match DnsQuery::parse(data) {
        Ok(question) => question,
        Err(QueryRejection::ErrorResponse(refusal, _)) => {
            Message::from_vec(&refusal).expect("a refusal is a message");
            return;
        }
        Err(QueryRejection::Ignored) => return,
    };
    let refusal = question.error_response(ResponseCode::ServFail);
    Message::from_vec(&refusal).expect("a refusal is a message");
    let Some(host) = question.host_name() else {
        return;
    };
    let found = ResolvedName {
        host: "host".into(),
        // Simulates a search list that added the last label.
        alias: host.rsplit_once('.').map(|(alias, _)| alias.to_owned()),
        addresses: (0..200).map(|n| Ipv4Addr::from_bits(n).into()).collect(),
    };
    let mut rng = SmallRng::seed_from_u64(1);
    for transport in [Transport::Udp, Transport::Tcp] {
        let answer = encode_response(&question, &found, transport, &mut rng);
        let answer = Message::from_vec(&answer).expect("an answer is a message");
        assert_eq!(answer.queries.len(), 1);
    }
});
