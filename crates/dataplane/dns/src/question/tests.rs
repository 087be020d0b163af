//! Tests that valid queries are parsed and all other messages rejected.

use hickory_proto::{op::Query, rr::Name};
use proptest::prelude::*;

use super::*;

fn message(name: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn parse(message: &Message) -> Result<DnsQuery, QueryRejection> {
    DnsQuery::parse(&message.to_vec().unwrap())
}

#[track_caller]
fn assert_refused_with(message: &Message, code: ResponseCode) {
    let Err(QueryRejection::ErrorResponse(bytes, rcode)) = parse(message) else {
        panic!("not refused: {message:?}");
    };
    assert_eq!(rcode, code);
    let answer = Message::from_vec(&bytes).unwrap();
    assert_eq!(answer.metadata.response_code, code);
    assert_eq!(answer.metadata.id, message.metadata.id);
    assert_eq!(answer.metadata.message_type, MessageType::Response);
}

#[test]
fn names_are_lower_case_without_the_final_dot() {
    let question = parse(&message("Web.Shop.svc.", RecordType::AAAA)).unwrap();
    assert_eq!(question.host_name().as_deref(), Some("web.shop.svc"));
    assert_eq!(question.address_family(), Some(AddressFamily::V6));
    assert_eq!(question.record_type_name(), Some("AAAA"));
}

#[test]
fn invalid_host_names_are_none() {
    let host = |name: &str| parse(&message(name, RecordType::A)).unwrap().host_name();
    assert_eq!(host("."), None);
    assert_eq!(host("*.example.com."), None);
    assert_eq!(host("a\\.b.example.com."), None);
    assert_eq!(host("_http._tcp.web."), Some("_http._tcp.web".into()));
    let other = parse(&message("web.", RecordType::Unknown(65_280))).unwrap();
    assert_eq!(
        (other.address_family(), other.record_type_name()),
        (None, None)
    );
}

#[test]
fn only_class_in_has_an_address_family() {
    let mut chaos = message("version.bind.", RecordType::A);
    chaos.queries[0].set_query_class(DNSClass::CH);
    assert_eq!(parse(&chaos).unwrap().address_family(), None);
}

#[test]
fn messages_other_than_queries_are_refused() {
    let query = message("web.", RecordType::A);
    let mut response = query.clone();
    response.metadata.message_type = MessageType::Response;
    assert_refused_with(&response, ResponseCode::FormErr);
    let mut update = query.clone();
    update.metadata.op_code = OpCode::Update;
    assert_refused_with(&update, ResponseCode::NotImp);
    let mut none = query.clone();
    none.queries.clear();
    assert_refused_with(&none, ResponseCode::FormErr);
    let mut two = query.clone();
    two.add_query(query.queries[0].clone());
    assert_refused_with(&two, ResponseCode::FormErr);
    assert_eq!(DnsQuery::parse(b"short"), Err(QueryRejection::Ignored));
    assert_eq!(DnsQuery::parse(b""), Err(QueryRejection::Ignored));
}

#[test]
fn a_refusal_repeats_the_question() {
    let question = parse(&message("web.", RecordType::A)).unwrap();
    let refusal = Message::from_vec(&question.error_response(ResponseCode::ServFail)).unwrap();
    assert_eq!(refusal.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(refusal.queries, [question.query]);
    assert!(refusal.metadata.recursion_available && refusal.metadata.recursion_desired);
}

proptest! {
    #[test]
    fn parsing_arbitrary_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(question) = DnsQuery::parse(&bytes) {
            let _any = (question.host_name(), question.address_family(), question.record_type_name());
            prop_assert!(!question.error_response(ResponseCode::ServFail).is_empty());
        }
    }

    #[test]
    fn parsing_corrupted_queries_never_panics(
        at in 0..40usize,
        byte in any::<u8>(),
        cut in 0..60usize,
    ) {
        let mut bytes = message("web.shop.svc.cluster.local.", RecordType::A).to_vec().unwrap();
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
        bytes.truncate(cut.max(1));
        if let Ok(question) = DnsQuery::parse(&bytes) {
            prop_assert!(question.question_end <= bytes.len());
            let _any = question.host_name();
        }
    }
}
