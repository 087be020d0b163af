use bytes::Bytes;
use http_body_util::BodyExt;

use super::{Request, Response};

pub(crate) fn get(uri: &str) -> Request {
    request("GET", uri)
}

pub(crate) fn request(method: &str, uri: &str) -> Request {
    http::Request::builder()
        .method(method)
        .uri(uri)
        .body(Bytes::new())
        .unwrap()
}

pub(crate) fn body_text(response: Response) -> String {
    let mut body = response.into_body();
    let frame = std::pin::pin!(body.frame());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match frame.poll(&mut context) {
        std::task::Poll::Ready(Some(frame)) => {
            String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap()
        }
        _ => String::new(),
    }
}
