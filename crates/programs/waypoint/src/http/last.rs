//! The last answer of a connection of HTTP/1 says that it is: a connection that is closed without a word may have
//! another request on its way already, which fails then.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, Response, StatusCode, header::CONNECTION};

/// How long a further request is waited for when the process is to end. Who has sent none for so long is not about
/// to.
pub(super) const WAIT: Duration = Duration::from_secs(5);

/// Whether the next answer is the last.
#[derive(Clone, Debug, Default)]
pub(super) struct Last(Arc<AtomicBool>);

impl Last {
    /// From now on.
    pub(super) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Says it in an answer, after which the connection ends.
    pub(super) fn tell<B>(&self, response: &mut Response<B>) {
        let goes_on = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if self.0.load(Ordering::Relaxed) && !goes_on {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_answer_says_so_and_no_other() {
        let last = Last::default();
        let mut response = Response::new(());
        last.tell(&mut response);
        assert!(response.headers().is_empty());
        last.begin();
        last.tell(&mut response);
        assert_eq!(response.headers()[CONNECTION], "close");
        let mut switched = Response::new(());
        *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        last.tell(&mut switched);
        assert!(switched.headers().is_empty());
    }
}
