//! Tests of encoded responses, which a DNS library must be able to parse.

use hickory_proto::{
    op::{Edns, Message, MessageType, Query},
    rr::{Name, RData, RecordType, rdata::A},
};
use proptest::prelude::*;
use rand::{SeedableRng, rngs::SmallRng};

use super::*;

fn parsed_query(name: &str, kind: RecordType, payload: Option<u16>) -> DnsQuery {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    let labels = name.trim_end_matches('.').split('.');
    let name = Name::from_labels(labels.map(str::as_bytes)).unwrap();
    message.add_query(Query::query(name, kind));
    if let Some(payload) = payload {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        message.set_edns(edns);
    }
    DnsQuery::parse(&message.to_vec().unwrap()).unwrap()
}

fn resolved_name(alias: Option<&str>, addresses: Vec<IpAddr>) -> ResolvedName {
    ResolvedName {
        host: "host".into(),
        alias: alias.map(Into::into),
        addresses,
    }
}

fn addresses(count: u16) -> Vec<IpAddr> {
    let ip = |n: u16| IpAddr::from([10, 0, n.to_be_bytes()[0], n.to_be_bytes()[1]]);
    (0..count).map(ip).collect()
}

fn encoded_response(question: &DnsQuery, found: &ResolvedName, transport: Transport) -> Vec<u8> {
    encode_response(question, found, transport, &mut SmallRng::seed_from_u64(1))
}

fn decoded_response(question: &DnsQuery, found: &ResolvedName, transport: Transport) -> Message {
    Message::from_vec(&encoded_response(question, found, transport)).unwrap()
}

#[test]
fn answer_is_authoritative_with_ttl_and_question() {
    let question = parsed_query("Web.Shop.", RecordType::A, None);
    let answer = decoded_response(
        &question,
        &resolved_name(None, addresses(1)),
        Transport::Udp,
    );
    let metadata = &answer.metadata;
    assert_eq!(metadata.message_type, MessageType::Response);
    assert!(metadata.authoritative && metadata.recursion_available);
    assert!(metadata.recursion_desired && !metadata.truncation);
    assert_eq!(answer.queries, std::slice::from_ref(&question.query));
    let [record] = &answer.answers[..] else {
        panic!("{answer:?}")
    };
    assert_eq!(
        (record.ttl, record.name.to_ascii().as_str()),
        (30, "Web.Shop.")
    );
    assert_eq!(record.data, RData::A(A([10, 0, 0, 0].into())));
    assert!(answer.edns.is_none());
}

#[test]
fn alias_precedes_its_addresses() {
    let question = parsed_query("example.com.shop.svc.cluster.local.", RecordType::A, None);
    let found = resolved_name(Some("example.com"), addresses(2));
    let answer = decoded_response(&question, &found, Transport::Udp);
    let names: Vec<_> = answer
        .answers
        .iter()
        .map(|record| (record.name.to_ascii(), record.record_type()))
        .collect();
    let alias = "example.com.".to_owned();
    assert_eq!(
        names,
        [
            (question.query.name().to_ascii(), RecordType::CNAME),
            (alias.clone(), RecordType::A),
            (alias, RecordType::A),
        ]
    );
}

#[test]
fn known_host_without_address_of_the_family_is_no_error() {
    let question = parsed_query("web.", RecordType::AAAA, None);
    let answer = decoded_response(&question, &resolved_name(None, Vec::new()), Transport::Udp);
    assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
    assert!(answer.answers.is_empty() && answer.metadata.authoritative);
}

#[test]
fn addresses_beyond_the_datagram_limit_are_truncated() {
    for (payload, limit) in [
        (None, 512),
        (Some(100), 512),
        (Some(1232), 1232),
        (Some(4096), 4096),
    ] {
        let question = parsed_query("web.shop.svc.cluster.local.", RecordType::A, payload);
        let bytes = encoded_response(
            &question,
            &resolved_name(None, addresses(500)),
            Transport::Udp,
        );
        assert!(
            bytes.len() <= limit && bytes.len() > limit - 100,
            "{payload:?}"
        );
        let answer = Message::from_vec(&bytes).unwrap();
        assert!(answer.metadata.truncation && answer.answers.len() > 20);
        let echoed = answer.edns.map(|edns| edns.max_payload());
        assert_eq!(echoed, payload.map(|payload| payload.max(512)));
    }
}

#[test]
fn tcp_answers_are_not_truncated() {
    let question = parsed_query("web.shop.svc.cluster.local.", RecordType::A, None);
    let answer = decoded_response(
        &question,
        &resolved_name(None, addresses(2000)),
        Transport::Tcp,
    );
    assert_eq!(answer.answers.len(), 2000);
    assert!(!answer.metadata.truncation);
}

#[test]
fn addresses_come_in_any_order() {
    let question = parsed_query("web.", RecordType::A, None);
    let found = resolved_name(None, addresses(8));
    let mut first = std::collections::BTreeSet::new();
    let mut rng = SmallRng::seed_from_u64(2);
    for _ in 0..100 {
        let bytes = encode_response(&question, &found, Transport::Udp, &mut rng);
        let answer = Message::from_vec(&bytes).unwrap();
        first.insert(answer.answers[0].data.to_string());
    }
    assert_eq!(first.len(), 8);
}

proptest! {
    /// Checks that every answer can be parsed and is within the client's limits.
    #[test]
    fn an_answer_is_always_readable(
        labels in prop::collection::vec("[a-z0-9_-]{1,20}", 1..8),
        count in 0..300u16,
        payload in prop::option::of(any::<u16>()),
        aliased in any::<bool>(),
    ) {
        let name = labels.join(".");
        let question = parsed_query(&format!("{name}."), RecordType::A, payload);
        let found = resolved_name(aliased.then_some("example.com"), addresses(count));
        let bytes = encoded_response(&question, &found, Transport::Udp);
        prop_assert!(bytes.len() <= usize::from(payload.unwrap_or(512).max(512)));
        let answer = Message::from_vec(&bytes).unwrap();
        prop_assert_eq!(&answer.queries[0], &question.query);
    }
}
