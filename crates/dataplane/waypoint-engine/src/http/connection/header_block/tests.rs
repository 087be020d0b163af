//! Tests of the memory charge and the sizes of reads for header blocks that arrive in pieces of any size.

use std::{sync::Arc, task::Waker};

use super::*;
use crate::{http2::frames, memory::Memory};

/// Maximum size of a header section in the tests.
const MAX_SECTION_BYTES: usize = 64 << 10;
/// Maximum memory charge of a header block within the limit of header sections.
const MAX_BLOCK_BYTES: usize = MAX_SECTION_BYTES / EMPTY_FIELD_BYTES * FIELD_OVERHEAD_BYTES;

/// Encodes a frame with a payload of this length.
fn frame(kind: u8, flags: u8, stream: u32, length: usize) -> Vec<u8> {
    frames::frame(kind, flags, stream, &vec![0xbe; length])
}

/// Parses the bytes of a client in pieces of this size. Returns the resulting tracker and parser.
fn parse_in_pieces(bytes: &[u8], piece: usize) -> (HeaderBlockTracker, FrameParser) {
    let mut blocks = HeaderBlockTracker {
        max_section_bytes: MAX_SECTION_BYTES,
        ..HeaderBlockTracker::default()
    };
    let mut frames = FrameParser::with_skipped_bytes(3);
    for piece in [&b"pre"[..], bytes].concat().chunks(piece) {
        frames.advance(piece, |event| blocks.on_client_frame(event));
    }
    (blocks, frames)
}

const WHOLE: u8 = END_HEADERS | END_STREAM;

#[test]
fn block_is_open_until_the_last_byte_of_its_last_frame() {
    let begun = frame(HEADERS, 0, 1, 100);
    let more = frame(CONTINUATION, 0, 1, 50);
    let last = frame(CONTINUATION, END_HEADERS, 1, 10);
    for piece in [1, 2, 7, 9, 10, 1000] {
        let open = |parts: &[&[u8]]| parse_in_pieces(&parts.concat(), piece).0.open_block;
        assert!(open(&[&frame(6, 0, 0, 8)]).is_none());
        assert!(open(&[&begun[..8]]).is_none());
        assert!(open(&[&begun[..9]]).is_some());
        assert_eq!(open(&[&begun, &more]).unwrap().bytes, 150);
        assert!(open(&[&begun, &more, &last[..18]]).is_some());
        assert!(open(&[&begun, &more, &last]).is_none());
        assert!(open(&[&frame(HEADERS, WHOLE, 1, 0)]).is_none());
        // Frames of other streams do not count.
        assert!(open(&[&frame(HEADERS, WHOLE, 1, 20), &frame(0, 0, 1, 300)]).is_none());
    }
}

#[test]
fn open_block_is_charged_for_its_decoded_size() {
    let bytes = |parts: &[&[u8]]| parse_in_pieces(&parts.concat(), 13).0.max_total_bytes();
    assert_eq!(
        bytes(&[&frame(HEADERS, 0, 1, 100)]),
        100 * FIELD_OVERHEAD_BYTES
    );
    let much = frame(CONTINUATION, 0, 1, 16_000);
    assert_eq!(bytes(&[&frame(HEADERS, 0, 1, 1), &much]), MAX_BLOCK_BYTES);
    assert_eq!(bytes(&[&frame(HEADERS, WHOLE, 1, 100)]), 0);
}

#[test]
fn trailers_are_charged_until_their_request_ends() {
    let open = frame(HEADERS, END_HEADERS, 1, 10);
    let trailers = frame(HEADERS, WHOLE, 1, 1000);
    let both = [&open[..], &frame(HEADERS, END_HEADERS, 3, 10), &trailers].concat();
    let (mut blocks, mut frames) = parse_in_pieces(&both, 5);
    assert_eq!(blocks.max_total_bytes(), 1000 * FIELD_OVERHEAD_BYTES);
    let mut sent = FrameParser::with_skipped_bytes(0);
    let mut answer = |bytes: &[u8], blocks: &mut HeaderBlockTracker| {
        sent.advance(bytes, |event| blocks.on_waypoint_frame(event))
    };
    // A response that continues, a response to another request, and settings.
    answer(&frame(HEADERS, END_HEADERS, 1, 10), &mut blocks);
    answer(&frame(0, END_STREAM, 3, 10), &mut blocks);
    answer(&frame(4, 1, 1, 0), &mut blocks);
    assert_eq!(blocks.max_total_bytes(), 1000 * FIELD_OVERHEAD_BYTES);
    for (kind, flags, length) in [(HEADERS, WHOLE, 10), (0, END_STREAM, 0), (RST_STREAM, 0, 4)] {
        frames.advance(&trailers, |event| blocks.on_client_frame(event));
        assert!(blocks.max_total_bytes() > 0);
        answer(&frame(kind, flags, 1, length), &mut blocks);
        assert_eq!(blocks.max_total_bytes(), 0, "{kind}");
    }
    frames.advance(&trailers, |event| blocks.on_client_frame(event));
    frames.advance(&frame(RST_STREAM, 0, 1, 4), |event| {
        blocks.on_client_frame(event)
    });
    assert_eq!(blocks.max_total_bytes(), 0);
    // Trailers of gRPC and checksums are small.
    frames.advance(
        &frame(HEADERS, WHOLE, 1, MAX_UNCHARGED_TRAILERS_BYTES),
        |event| blocks.on_client_frame(event),
    );
    assert_eq!(blocks.max_total_bytes(), 0);
}

/// Reads a connection with this input to its end. Returns the size of each read; `None` where the task yielded.
fn read_sizes(bytes: &[u8]) -> Vec<Option<usize>> {
    let memory = Memory::new(1 << 30, Arc::default());
    let memory = memory.connection(None, [10, 0, 0, 1].into());
    let mut io = HeaderBlockIo::new(bytes, Duration::from_secs(60), MAX_SECTION_BYTES, memory);
    let mut cx = Context::from_waker(Waker::noop());
    let mut reads = Vec::new();
    loop {
        let mut room = [0; 16 << 10];
        let mut room = ReadBuf::new(&mut room);
        match Pin::new(&mut io).poll_read(&mut cx, &mut room) {
            Poll::Pending => reads.push(None),
            Poll::Ready(read) => {
                read.unwrap();
                match room.filled().len() {
                    0 => return reads,
                    bytes => reads.push(Some(bytes)),
                }
            }
        }
    }
}

#[tokio::test]
async fn header_blocks_are_read_in_small_parts_between_other_tasks() {
    let preface = [b'p'; PREFACE.len()];
    let blocks = frame(HEADERS, WHOLE, 1, 1500).repeat(20);
    let reads_of = |parts: &[&[u8]]| read_sizes(&parts.concat());
    let dense = reads_of(&[&preface, &blocks]);
    for turn in dense.split(Option::is_none) {
        let bytes: usize = turn.iter().flatten().sum();
        let most = MAX_BLOCK_BYTES_PER_POLL + 2 * DENSE_READ_BYTES;
        assert!(bytes <= most, "{bytes} bytes");
    }
    let all: usize = dense.iter().flatten().sum();
    assert_eq!(all, preface.len() + blocks.len());

    // Bodies are read at full speed.
    let data = frame(0, 0, 1, 60_000);
    let sparse = reads_of(&[&preface, &frame(HEADERS, END_HEADERS, 1, 100), &data]);
    assert!(!sparse.contains(&None), "{sparse:?}");
    assert!(sparse.len() <= 6, "{sparse:?}");
}
