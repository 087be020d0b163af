//! Tests of the relay: which responses of upstream servers are accepted, and what clients receive.

use hickory_proto::{
    op::{Message, Query},
    rr::{Name, RData, Record, RecordType, rdata::A},
};

use super::*;

fn parsed_query() -> DnsQuery {
    let mut message = Message::query();
    message.metadata.id = 7;
    let name = Name::from_ascii("Example.com.").unwrap();
    message.add_query(Query::query(name, RecordType::A));
    DnsQuery::parse(&message.to_vec().unwrap()).unwrap()
}

/// Builds an upstream server's response to the forwarded query, modified by `change`.
fn upstream_response(relay: &ForwardedQuery, change: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut message = Message::from_vec(relay.message()).unwrap();
    message.metadata.message_type = MessageType::Response;
    change(&mut message);
    message.to_vec().unwrap()
}

#[test]
fn answer_gets_the_client_s_id_and_is_otherwise_unchanged() {
    let relay = ForwardedQuery::new(&parsed_query(), 4711);
    assert_eq!(
        Message::from_vec(relay.message()).unwrap().metadata.id,
        4711
    );
    let bytes = upstream_response(&relay, |message| {
        let name = message.queries[0].name().clone();
        message.add_answer(Record::from_rdata(
            name,
            60,
            RData::A(A([1, 2, 3, 4].into())),
        ));
        message.metadata.authentic_data = true;
    });
    let (back, code) = relay.accept_response(bytes.clone()).unwrap();
    assert_eq!(code, ResponseCode::NoError);
    assert_eq!(back[2..], bytes[2..]);
    assert_eq!(back[..2], 7u16.to_be_bytes());
}

#[test]
fn the_response_code_of_the_server_is_preserved() {
    let relay = ForwardedQuery::new(&parsed_query(), 1);
    let bytes = upstream_response(&relay, |message| {
        message.metadata.response_code = ResponseCode::NXDomain;
    });
    assert_eq!(
        relay.accept_response(bytes).unwrap().1,
        ResponseCode::NXDomain
    );
    let bare = upstream_response(&relay, |message| {
        message.metadata.response_code = ResponseCode::FormErr;
        message.queries.clear();
    });
    assert_eq!(
        relay.accept_response(bare).unwrap().1,
        ResponseCode::FormErr
    );
}

#[test]
fn unrelated_answers_are_ignored() {
    let relay = ForwardedQuery::new(&parsed_query(), 1);
    let other_name = Name::from_ascii("example.org.").unwrap();
    type MessageChange = fn(&mut Message);
    let changes: [(&str, MessageChange); 4] = [
        ("another id", |message| message.metadata.id = 2),
        ("a query", |message| {
            message.metadata.message_type = MessageType::Query
        }),
        ("another type", |message| {
            message.queries[0].set_query_type(RecordType::AAAA);
        }),
        ("no question", |message| message.queries.clear()),
    ];
    for (what, change) in changes {
        assert!(
            relay
                .accept_response(upstream_response(&relay, change))
                .is_none(),
            "{what}"
        );
    }
    let other = upstream_response(&relay, |message| {
        message.queries[0].set_name(other_name);
    });
    assert!(relay.accept_response(other).is_none());
    assert!(relay.accept_response(Vec::new()).is_none());
}

#[test]
fn letters_of_the_name_may_change_their_case() {
    let relay = ForwardedQuery::new(&parsed_query(), 1);
    let name = Name::from_ascii("eXAMPLE.COM.").unwrap();
    let bytes = upstream_response(&relay, |message| {
        message.queries[0].set_name(name);
    });
    assert!(relay.accept_response(bytes).is_some());
}
