//! HTTP/2 frames (RFC 9113, section 4.1): their headers, and a parser that finds them in the bytes of a connection.

/// Connection preface of HTTP/2 clients (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const FRAME_HEADER_BYTES: usize = 9;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// Parsed header of an HTTP/2 frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) length: usize,
    pub(crate) frame_type: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl FrameHeader {
    pub(crate) fn parse(bytes: [u8; FRAME_HEADER_BYTES]) -> Self {
        let [a, b, c, kind, flags, stream @ ..] = bytes;
        Self {
            length: usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX),
            frame_type: kind,
            flags,
            stream: u32::from_be_bytes(stream) & 0x7fff_ffff,
        }
    }
}

/// Event of the frame parser for one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameEvent {
    /// Header of a new frame.
    FrameBegin(FrameHeader),
    /// Payload bytes of the frame, with their number.
    Payload(FrameHeader, usize),
    /// End of the frame's payload.
    FrameEnd(FrameHeader),
}

impl FrameEvent {
    /// Returns the number of payload bytes that belong to a header block.
    pub(crate) fn header_block_bytes(self) -> usize {
        match self {
            Self::Payload(head, bytes) if matches!(head.frame_type, HEADERS | CONTINUATION) => {
                bytes
            }
            Self::FrameBegin(_) | Self::Payload(..) | Self::FrameEnd(_) => 0,
        }
    }
}

/// Parser of the HTTP/2 frames in one direction of a connection.
#[derive(Debug)]
pub(crate) struct FrameParser {
    /// Bytes to skip before the first frame (the connection preface).
    bytes_to_skip: usize,
    header: [u8; FRAME_HEADER_BYTES],
    received_header_bytes: usize,
    /// Frame whose payload is being received, and the remaining bytes of the payload.
    frame: Option<(FrameHeader, usize)>,
}

impl FrameParser {
    pub(crate) fn with_skipped_bytes(skip: usize) -> Self {
        Self {
            bytes_to_skip: skip,
            header: [0; FRAME_HEADER_BYTES],
            received_header_bytes: 0,
            frame: None,
        }
    }

    /// Parses all of `bytes`.
    pub(crate) fn advance(&mut self, mut bytes: &[u8], mut on_event: impl FnMut(FrameEvent)) {
        while !bytes.is_empty() {
            bytes = self.step(bytes, &mut on_event);
        }
    }

    /// Parses `bytes` up to the end of the frame that has begun before them, if there is one; returns the rest.
    pub(crate) fn finish_frame<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [u8] {
        while !bytes.is_empty() && !self.is_between_frames() {
            bytes = self.step(bytes, &mut |_| {});
        }
        bytes
    }

    fn is_between_frames(&self) -> bool {
        self.bytes_to_skip == 0 && self.received_header_bytes == 0 && self.frame.is_none()
    }

    /// Parses the next bytes: at most the rest of what is skipped, of a header or of a payload. Returns the bytes after
    /// them.
    fn step<'a>(&mut self, bytes: &'a [u8], on_event: &mut impl FnMut(FrameEvent)) -> &'a [u8] {
        if self.bytes_to_skip > 0 {
            let skipped = self.bytes_to_skip.min(bytes.len());
            self.bytes_to_skip -= skipped;
            return bytes.get(skipped..).unwrap_or_default();
        }
        let Some((head, left)) = &mut self.frame else {
            let missing = FRAME_HEADER_BYTES - self.received_header_bytes;
            let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
            if let Some(room) = self
                .header
                .get_mut(self.received_header_bytes..self.received_header_bytes + taken.len())
            {
                room.copy_from_slice(taken);
            }
            self.received_header_bytes += taken.len();
            if self.received_header_bytes == FRAME_HEADER_BYTES {
                self.received_header_bytes = 0;
                let head = FrameHeader::parse(self.header);
                on_event(FrameEvent::FrameBegin(head));
                if head.length == 0 {
                    on_event(FrameEvent::FrameEnd(head));
                } else {
                    self.frame = Some((head, head.length));
                }
            }
            return rest;
        };
        let head = *head;
        let taken = (*left).min(bytes.len());
        *left -= taken;
        let is_over = *left == 0;
        on_event(FrameEvent::Payload(head, taken));
        if is_over {
            self.frame = None;
            on_event(FrameEvent::FrameEnd(head));
        }
        bytes.get(taken..).unwrap_or_default()
    }
}

/// Encodes a frame.
#[cfg(test)]
pub(crate) fn frame(frame_type: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([frame_type, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}
