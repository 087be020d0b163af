//! Tests of joined DATA frames: the streams' bytes stay the same, however the bytes arrive.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::http2::frames::{FrameEvent, HEADERS, PREFACE, RST_STREAM, frame};

const PADDED: u8 = 8;

/// Joins frames that arrive in reads of this size, after a preface.
fn join_in_reads(bytes: &[u8], read_bytes: usize) -> Vec<u8> {
    let mut joiner = DataJoiner::with_skipped_bytes(PREFACE.len());
    let mut joined = Vec::new();
    for read in [PREFACE, bytes].concat().chunks(read_bytes) {
        let mut read = read.to_vec();
        let kept = joiner.join(&mut read);
        assert!(kept > 0, "a read of no bytes would be an end of data");
        joined.extend(&read[..kept]);
    }
    assert_eq!(&joined[..PREFACE.len()], PREFACE);
    joined.split_off(PREFACE.len())
}

/// Joins frames that arrive at once.
fn join(frames: &[Vec<u8>]) -> Vec<u8> {
    join_in_reads(&frames.concat(), usize::MAX)
}

#[test]
fn adjacent_frames_of_a_stream_become_one() {
    let joined = join(&[
        frame(DATA, 0, 1, b"one"),
        frame(DATA, 0, 1, b"two"),
        frame(DATA, END_STREAM, 1, b"three"),
        frame(DATA, 0, 3, b"other"),
    ]);
    let expected = [
        frame(DATA, END_STREAM, 1, b"onetwothree"),
        frame(DATA, 0, 3, b"other"),
    ];
    assert_eq!(joined, expected.concat());
}

#[test]
fn frames_that_differ_in_meaning_stay_apart() {
    let apart = [
        // The end of a stream, and what an erroneous peer sends after it.
        [frame(DATA, END_STREAM, 1, b"a"), frame(DATA, 0, 1, b"b")],
        // Frames without bytes are counted.
        [frame(DATA, 0, 1, b""), frame(DATA, 0, 1, b"b")],
        [frame(DATA, 0, 1, b"a"), frame(DATA, 0, 1, b"")],
        // Padding counts for the flow-control window.
        [frame(DATA, PADDED, 1, b"\x01a0"), frame(DATA, 0, 1, b"b")],
        [frame(DATA, 0, 1, b"a"), frame(DATA, PADDED, 1, b"\x01b0")],
        [frame(DATA, 0, 1, b"a"), frame(DATA, 0, 3, b"b")],
        [frame(DATA, 0, 1, b"a"), frame(RST_STREAM, 0, 1, b"0008")],
        [frame(HEADERS, 0, 1, b"a"), frame(DATA, 0, 1, b"b")],
        [
            frame(DATA, 0, 1, &[1; MAX_JOINED_BYTES]),
            frame(DATA, 0, 1, b"b"),
        ],
    ];
    for frames in apart {
        assert_eq!(join(&frames), frames.concat());
    }
}

#[test]
fn frame_does_not_wait_for_the_rest_of_the_next_one() {
    let (first, second) = (frame(DATA, 0, 1, b"first"), frame(DATA, 0, 1, b"second"));
    for received in [5, FRAME_HEADER_BYTES, FRAME_HEADER_BYTES + 2] {
        let mut joiner = DataJoiner::with_skipped_bytes(0);
        let mut read = [&first, &second[..received]].concat();
        let whole = read.clone();
        let kept = joiner.join(&mut read);
        assert_eq!(&read[..kept], &whole[..]);
        // Its rest is no frame.
        let mut read = [&second[received..], &first[..], &first[..]].concat();
        let kept = joiner.join(&mut read);
        let expected = [&second[received..], &frame(DATA, 0, 1, b"firstfirst")].concat();
        assert_eq!(&read[..kept], &expected[..]);
    }
}

/// Returns what frames mean, regardless of the borders of DATA: the headers of frames with another type or with flags, each
/// with the data of all streams until then.
fn meaning(bytes: &[u8]) -> Vec<(FrameHeader, BTreeMap<u32, Vec<u8>>)> {
    let (mut meaning, mut data) = (Vec::new(), BTreeMap::<u32, Vec<u8>>::new());
    let mut position = 0;
    FrameParser::with_skipped_bytes(0).advance(bytes, |event| match event {
        FrameEvent::FrameBegin(_) => position += FRAME_HEADER_BYTES,
        FrameEvent::Payload(header, length) => {
            let payload = &bytes[position..position + length];
            if header.frame_type == DATA {
                data.entry(header.stream).or_default().extend(payload);
            }
            position += length;
        }
        FrameEvent::FrameEnd(header) if header.frame_type != DATA || header.flags != 0 => {
            let header = FrameHeader {
                length: if header.frame_type == DATA {
                    0
                } else {
                    header.length
                },
                ..header
            };
            meaning.push((header, data.clone()));
        }
        FrameEvent::FrameEnd(_) => {}
    });
    meaning.push((FrameHeader::parse([0; FRAME_HEADER_BYTES]), data));
    meaning
}

proptest! {
    #[test]
    fn joined_frames_mean_the_same(
        frames in proptest::collection::vec(
            (
                prop_oneof![4 => Just(DATA), 1 => Just(HEADERS), 1 => Just(8)],
                prop_oneof![6 => Just(0), 1 => Just(END_STREAM), 1 => Just(PADDED)],
                0..3_u32,
                prop_oneof![
                    proptest::collection::vec(any::<u8>(), 0..40),
                    // A payload that looks like frames.
                    Just(frame(DATA, 0, 1, b"a").repeat(4)),
                ],
            ),
            0..60,
        ),
        read_bytes in 1..2000_usize,
    ) {
        let frames: Vec<Vec<u8>> = frames
            .iter()
            .map(|(frame_type, flags, stream, payload)| frame(*frame_type, *flags, *stream, payload))
            .collect();
        let bytes = frames.concat();
        let joined = join_in_reads(&bytes, read_bytes);
        prop_assert!(joined.len() <= bytes.len());
        prop_assert_eq!(meaning(&joined), meaning(&bytes));
    }
}
