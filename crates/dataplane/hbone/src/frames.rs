//! Queue of received data frames that wait for their reader or their socket. Accumulated small ones are merged, so that
//! waiting frames cost little more than their bytes.

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Buf, Bytes, BytesMut};

/// Size in bytes below which a queued frame is merged with others.
const SMALL_FRAME_BYTES: usize = 512;
/// Number of queued frames beyond which further small frames are merged.
const MAX_SEPARATE_FRAMES: usize = 4;
/// Maximum size of merged frames, in bytes.
const MAX_MERGED_BYTES: usize = 16 << 10;

/// Queue of frames. A single one, as there mostly is, is queued without an allocation, and a connection without queued
/// frames has none.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// First queued frame, which is empty only if no frame is queued.
    first: Bytes,
    further: Option<Box<FurtherFrames>>,
}

/// Frames after the first one.
#[derive(Debug, Default)]
struct FurtherFrames {
    separate_frames: VecDeque<Bytes>,
    /// Buffer of merged small frames, which is written after the other queued frames.
    merged_small_frames: BytesMut,
}

impl Frames {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    pub(crate) fn push(&mut self, frame: Bytes) {
        if frame.is_empty() {
            return;
        }
        if self.first.is_empty() {
            self.first = frame;
        } else {
            self.further.get_or_insert_default().push(frame);
        }
    }

    /// Fills `slices` with the first frames, for a vectored write.
    pub(crate) fn slices<'a, 's>(&'a self, slices: &'s mut [IoSlice<'a>]) -> &'s [IoSlice<'a>] {
        let first = (!self.first.is_empty()).then_some(&*self.first);
        let further = self.further.iter().flat_map(|further| further.iter());
        let mut count = 0;
        for (slice, frame) in slices.iter_mut().zip(first.into_iter().chain(further)) {
            *slice = IoSlice::new(frame);
            count += 1;
        }
        slices.get(..count).unwrap_or_default()
    }

    /// Removes the first queued frame and returns it.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let first = self.further.as_mut().and_then(|further| further.pop());
        if self
            .further
            .as_ref()
            .is_some_and(|further| further.is_empty())
        {
            self.further = None;
        }
        let first = std::mem::replace(&mut self.first, first.unwrap_or_default());
        (!first.is_empty()).then_some(first)
    }

    /// Removes the first `n` bytes, which have been written.
    pub(crate) fn advance(&mut self, mut n: usize) {
        while n >= self.first.len() && !self.first.is_empty() {
            n -= self.first.len();
            self.pop();
        }
        self.first.advance(n.min(self.first.len()));
    }
}

impl FurtherFrames {
    fn is_empty(&self) -> bool {
        self.separate_frames.is_empty() && self.merged_small_frames.is_empty()
    }

    fn push(&mut self, frame: Bytes) {
        let is_small =
            frame.len() < SMALL_FRAME_BYTES && self.separate_frames.len() >= MAX_SEPARATE_FRAMES;
        if !self.merged_small_frames.is_empty()
            && (!is_small || self.merged_small_frames.len() + frame.len() > MAX_MERGED_BYTES)
        {
            self.separate_frames
                .push_back(self.merged_small_frames.split().freeze());
        }
        if is_small {
            self.merged_small_frames.extend_from_slice(&frame);
        } else {
            self.separate_frames.push_back(frame);
        }
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let merged = &*self.merged_small_frames;
        let merged = (!merged.is_empty()).then_some(merged);
        self.separate_frames.iter().map(Bytes::as_ref).chain(merged)
    }

    fn pop(&mut self) -> Option<Bytes> {
        let first = self.separate_frames.pop_front();
        first.or_else(|| {
            let small = self.merged_small_frames.split().freeze();
            (!small.is_empty()).then_some(small)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes that the next vectored write would contain.
    fn next(frames: &Frames) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 4];
        let next = frames.slices(&mut slices);
        next.iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn bytes_come_out_in_order_and_small_frames_cost_their_bytes() {
        let mut frames = Frames::default();
        let mut pushed = Vec::new();
        let mut got = Vec::new();
        for round in 0_u8..3 {
            for i in 0..20_000_usize {
                let size = if i % 5_000 == 7 { 3_000 } else { i % 9 };
                let frame = vec![round.wrapping_add(u8::try_from(i % 251).unwrap()); size];
                pushed.extend_from_slice(&frame);
                frames.push(frame.into());
            }
            let further = frames.further.as_ref().unwrap();
            let separate = further.separate_frames.len();
            assert!(separate < 40, "{separate}");
            for _ in 0..1000 {
                let first = next(&frames);
                let n = first.len().min(61);
                got.extend_from_slice(first.get(..n).unwrap());
                frames.advance(n);
            }
        }
        while !frames.is_empty() {
            let first = next(&frames);
            frames.advance(first.len());
            got.extend(first);
        }
        assert!(got == pushed);
        for _ in 0..100 {
            frames.push(Bytes::from_static(b"small"));
        }
        let taken: Vec<Bytes> = std::iter::from_fn(|| frames.pop()).collect();
        assert!(taken.concat() == b"small".repeat(100) && taken.len() < 10);
        assert!(frames.further.is_none(), "no memory of an earlier backlog");
    }

    #[test]
    fn single_frames_need_no_further_memory() {
        let mut frames = Frames::default();
        frames.push(Bytes::new());
        assert!(frames.is_empty() && frames.pop().is_none());
        frames.push(Bytes::from_static(b"only"));
        assert_eq!(
            (next(&frames), frames.further.is_none()),
            (b"only".to_vec(), true)
        );
        frames.advance(1);
        frames.push(Bytes::from_static(b" and more"));
        assert_eq!(next(&frames), b"nly and more");
        frames.advance(5);
        assert_eq!(
            (next(&frames), frames.further.is_none()),
            (b"nd more".to_vec(), true)
        );
        frames.advance(7);
        assert!(frames.is_empty() && next(&frames).is_empty());
    }
}
