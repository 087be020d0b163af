//! Tests of copying bodies to mirrors that keep up, and to mirrors that lag.

use http::{HeaderMap, HeaderValue};
use http_body_util::StreamBody;
use tokio::sync::oneshot::error::TryRecvError;

use super::*;
use crate::memory::Memory;

fn memory() -> ConnectionMemory {
    let memory = Memory::new(1 << 30, Arc::default());
    memory.connection(None, [10, 0, 0, 1].into())
}

/// Creates a body with a sender of its frames.
fn body() -> (mpsc::UnboundedSender<Result<Frame<Bytes>, BodyError>>, Body) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let frames = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
    (sender, StreamBody::new(frames).boxed_unsync())
}

fn data(bytes: Vec<u8>) -> Result<Frame<Bytes>, BodyError> {
    Ok(Frame::data(bytes.into()))
}

#[tokio::test]
async fn copies_equal_the_original() {
    let (sender, original) = body();
    let (mut original, copies) = tee(original, 2, &BufferedBytes::default(), &memory());
    let mut trailers = HeaderMap::new();
    trailers.insert("x-end", HeaderValue::from_static("1"));
    sender.send(data(b"one".to_vec())).unwrap();
    sender.send(data(b"two".to_vec())).unwrap();
    sender.send(Ok(Frame::trailers(trailers.clone()))).unwrap();
    drop(sender);
    while original.frame().await.is_some() {}
    for (copy, mut end) in copies {
        let copy = copy.collect().await.unwrap();
        assert_eq!(copy.trailers(), Some(&trailers));
        assert_eq!(copy.to_bytes(), "onetwo");
        assert_eq!(end.try_recv(), Ok(CopyOutcome::Complete));
    }
}

#[tokio::test]
async fn slow_mirror_is_dropped_without_delaying_the_original() {
    let buffered = BufferedBytes::default();
    let (sender, original) = body();
    let (mut original, mut copies) = tee(original, 2, &buffered, &memory());
    let (mut fast, mut fast_end) = copies.pop().unwrap();
    let (mut slow, mut slow_end) = copies.pop().unwrap();
    let piece = MAX_LAG_BYTES / 4;
    for _ in 0..8 {
        sender.send(data(vec![0; piece])).unwrap();
        let frame = original.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap().len(), piece);
        assert!(fast.frame().await.unwrap().is_ok());
        assert!(buffered.0.load(Relaxed) <= MAX_LAG_BYTES + piece + FRAME_OVERHEAD_BYTES);
    }
    assert_eq!(slow_end.try_recv(), Ok(CopyOutcome::TooSlow));
    assert_eq!(fast_end.try_recv(), Err(TryRecvError::Empty));
    // The received part must not look like a complete request.
    let error = loop {
        match slow.frame().await {
            Some(Ok(_)) => {}
            other => break other,
        }
    };
    assert!(error.unwrap().unwrap_err().is::<CopyAborted>());
    drop(sender);
    assert!(original.frame().await.is_none() && fast.frame().await.is_none());
    assert_eq!(fast_end.try_recv(), Ok(CopyOutcome::Complete));
    assert_eq!(buffered.0.load(Relaxed), 0);
}

#[tokio::test]
async fn aborted_body_is_aborted_for_mirrors() {
    for is_dropped in [false, true] {
        let (sender, original) = body();
        let (mut original, mut copies) = tee(original, 1, &BufferedBytes::default(), &memory());
        sender.send(data(b"one".to_vec())).unwrap();
        assert!(original.frame().await.unwrap().is_ok());
        if !is_dropped {
            sender.send(Err("broken".into())).unwrap();
            assert!(original.frame().await.unwrap().is_err());
        }
        drop(original);
        let (copy, _) = copies.pop().unwrap();
        assert!(copy.collect().await.is_err(), "{is_dropped}");
    }
}

#[tokio::test]
async fn dropped_copies_release_their_bytes() {
    let buffered = BufferedBytes::default();
    let (sender, original) = body();
    let (mut original, copies) = tee(original, 3, &buffered, &memory());
    for _ in 0..3 {
        sender.send(data(vec![0; 1000])).unwrap();
        assert!(original.frame().await.unwrap().is_ok());
    }
    assert_eq!(buffered.0.load(Relaxed), 9 * (1000 + FRAME_OVERHEAD_BYTES));
    drop(copies);
    assert_eq!(buffered.0.load(Relaxed), 0);
    sender.send(data(vec![0; 1000])).unwrap();
    assert!(original.frame().await.unwrap().is_ok());
    assert_eq!(buffered.0.load(Relaxed), 0);
}
