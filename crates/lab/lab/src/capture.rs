//! Packet capture between the nodes: frames of the fabric, assigned to TCP connections, checked for TLS record by
//! record, and searched for texts that must not be readable.
//!
//! [`Traffic`] performs no I/O; [`Capture`] feeds it from a packet socket.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec};

/// Number of recent frames that are remembered, since a frame is captured on two ports of the bridge and must count
/// once.
const MAX_REMEMBERED_FRAMES: usize = 4096;

/// Kind of a flow, by its port and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowKind {
    /// TCP to port 15008, every record TLS.
    Hbone,
    /// TCP to another port, every record TLS (the control plane's).
    Tls,
    /// TCP with bytes outside TLS records.
    Plaintext,
    /// TCP without payload.
    Empty,
    /// UDP datagrams with any payload.
    Udp,
}

/// Captured traffic from one client address to one server address and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowReport {
    /// IP address of the client.
    pub client: IpAddr,
    /// IP address and port of the server.
    pub server: SocketAddr,
    /// Kind of the flow, by its port and payload.
    pub kind: FlowKind,
    /// Number of connections that were opened during the capture.
    pub connections: u64,
    /// Number of frames in both directions.
    pub frames: u64,
    /// Number of payload bytes in both directions.
    pub bytes: u64,
    /// Number of payload bytes outside TLS records.
    pub clear_bytes: u64,
    /// Number of times that a marker text was readable.
    pub markers: u64,
}

/// Captured traffic, summed up for each flow.
#[derive(Debug, Default)]
pub struct Traffic {
    markers: Vec<Vec<u8>>,
    recent_frames: HashSet<u64>,
    recent_frame_order: VecDeque<u64>,
    streams: BTreeMap<(SocketAddr, SocketAddr), TcpStreamState>,
    flows: BTreeMap<(IpAddr, SocketAddr, bool), FlowReport>,
}

/// State of one direction of a captured TCP connection.
#[derive(Debug)]
struct TcpStreamState {
    next_sequence: u32,
    record: TlsRecordState,
}

/// State of the parser of TLS records in a stream.
#[derive(Debug)]
enum TlsRecordState {
    Header(Vec<u8>),
    Body(usize),
    /// The payload is no TLS record, so the rest of the stream cannot be parsed.
    NotTls,
}

struct Segment<'a> {
    from: SocketAddr,
    to: SocketAddr,
    udp: bool,
    sequence: u32,
    syn: bool,
    ack: bool,
    payload: &'a [u8],
}

impl Traffic {
    /// Creates an empty record of traffic that counts readable occurrences of `markers`.
    pub fn new(markers: Vec<Vec<u8>>) -> Self {
        Self {
            markers,
            ..Self::default()
        }
    }

    /// Adds an Ethernet frame. Ignores a frame that equals a recent one: the bridge shows each frame on two ports.
    pub fn add_frame(&mut self, frame: &[u8]) {
        let mut hasher = DefaultHasher::new();
        frame.hash(&mut hasher);
        let hash = hasher.finish();
        if !self.recent_frames.insert(hash) {
            return;
        }
        self.recent_frame_order.push_back(hash);
        if self.recent_frame_order.len() > MAX_REMEMBERED_FRAMES
            && let Some(old) = self.recent_frame_order.pop_front()
        {
            self.recent_frames.remove(&old);
        }
        if let Some(segment) = parse(frame) {
            self.add_segment(&segment);
        }
    }

    fn add_segment(&mut self, segment: &Segment<'_>) {
        let Segment { from, to, udp, .. } = *segment;
        let opens = segment.syn && !segment.ack;
        // The server is the end that a connection was opened to; for one already open, the lower port.
        let known = |client: SocketAddr, server: SocketAddr| {
            self.flows.contains_key(&(client.ip(), server, udp))
        };
        let forwards = opens || known(from, to) || (!known(to, from) && from.port() >= to.port());
        let (client, server) = if forwards { (from, to) } else { (to, from) };
        let clear = if udp {
            segment.payload.len()
        } else {
            self.add_payload(segment)
        };
        let found = self
            .markers
            .iter()
            .map(|marker| count_occurrences(segment.payload, marker))
            .sum::<u64>();
        let kind = if udp { FlowKind::Udp } else { FlowKind::Empty };
        let flow = self
            .flows
            .entry((client.ip(), server, udp))
            .or_insert_with(|| FlowReport {
                client: client.ip(),
                server,
                kind,
                connections: 0,
                frames: 0,
                bytes: 0,
                clear_bytes: 0,
                markers: 0,
            });
        flow.connections += u64::from(opens);
        flow.frames += 1;
        flow.bytes += segment.payload.len() as u64;
        flow.clear_bytes += clear as u64;
        flow.markers += found;
        if !udp && flow.bytes > 0 {
            flow.kind = match (flow.clear_bytes, server.port()) {
                (0, 15008) => FlowKind::Hbone,
                (0, _) => FlowKind::Tls,
                _ => FlowKind::Plaintext,
            };
        }
    }

    /// Passes a segment's new payload to the TLS parser of its direction; returns the number of bytes outside TLS
    /// records.
    fn add_payload(&mut self, segment: &Segment<'_>) -> usize {
        let key = (segment.from, segment.to);
        if segment.syn {
            let next = segment.sequence.wrapping_add(1);
            self.streams.insert(
                key,
                TcpStreamState {
                    next_sequence: next,
                    record: TlsRecordState::Header(Vec::new()),
                },
            );
            return 0;
        }
        // Without the connection's beginning, the first segment counts as the beginning of a record.
        let stream = self.streams.entry(key).or_insert(TcpStreamState {
            next_sequence: segment.sequence,
            record: TlsRecordState::Header(Vec::new()),
        });
        // Retransmissions count once; after a gap the borders of records are unknown.
        let behind = stream.next_sequence.wrapping_sub(segment.sequence);
        let fresh = match usize::try_from(behind) {
            Ok(behind) if behind <= segment.payload.len() => {
                segment.payload.get(behind..).unwrap_or_default()
            }
            _ => return 0,
        };
        stream.next_sequence = stream
            .next_sequence
            .wrapping_add(u32::try_from(fresh.len()).unwrap_or_default());
        stream.record.parse(fresh)
    }

    /// Returns a report of each flow.
    pub fn reports(&self) -> Vec<FlowReport> {
        self.flows.values().cloned().collect()
    }
}

impl TlsRecordState {
    fn parse(&mut self, mut bytes: &[u8]) -> usize {
        while !bytes.is_empty() {
            match self {
                Self::NotTls => return bytes.len(),
                Self::Body(left) => {
                    let step = (*left).min(bytes.len());
                    bytes = bytes.get(step..).unwrap_or_default();
                    *left -= step;
                    if *left == 0 {
                        *self = Self::Header(Vec::new());
                    }
                }
                Self::Header(header) => {
                    let (step, rest) = bytes.split_at(bytes.len().min(5 - header.len()));
                    header.extend_from_slice(step);
                    let so_far = header.len();
                    match header.as_slice() {
                        [20..=23, 3, 0..=4, high, low] => {
                            let length = usize::from(u16::from_be_bytes([*high, *low]));
                            // The largest record there is, with its overhead (RFC 8446, 5.2).
                            *self = match length {
                                0..=16_640 => Self::Body(length),
                                _ => Self::NotTls,
                            };
                            if matches!(self, Self::Body(0)) {
                                *self = Self::Header(Vec::new());
                            }
                        }
                        [20..=23] | [20..=23, 3] | [20..=23, 3, 0..=4] | [20..=23, 3, 0..=4, _] => {
                        }
                        _ => {
                            *self = Self::NotTls;
                            return so_far + rest.len();
                        }
                    }
                    bytes = rest;
                }
            }
        }
        0
    }
}

fn count_occurrences(haystack: &[u8], needle: &[u8]) -> u64 {
    if needle.is_empty() {
        return 0;
    }
    haystack
        .windows(needle.len())
        .filter(|window| *window == needle)
        .count() as u64
}

/// Parses an Ethernet frame with IPv4, or IPv6 without extension headers, and TCP or UDP; `None` for other frames.
fn parse(frame: &[u8]) -> Option<Segment<'_>> {
    let (kind, packet) = (frame.get(12..14)?, frame.get(14..)?);
    let (source, target, protocol, body): (IpAddr, IpAddr, u8, &[u8]) = match kind {
        [0x08, 0x00] => {
            let header = usize::from(packet.first()? & 0x0f) * 4;
            let length = usize::from(be_u16(packet.get(2..4)?));
            let address = |range| {
                let bytes: [u8; 4] = packet
                    .get::<std::ops::Range<usize>>(range)?
                    .try_into()
                    .ok()?;
                Some(Ipv4Addr::from(bytes))
            };
            // A length of 0 is a frame too large for the field (segmentation left to the device).
            let end = if length == 0 {
                packet.len()
            } else {
                length.min(packet.len())
            };
            (
                address(12..16)?.into(),
                address(16..20)?.into(),
                *packet.get(9)?,
                packet.get(header..end)?,
            )
        }
        [0x86, 0xdd] => {
            let length = usize::from(be_u16(packet.get(4..6)?));
            let address = |range| {
                let bytes: [u8; 16] = packet
                    .get::<std::ops::Range<usize>>(range)?
                    .try_into()
                    .ok()?;
                Some(Ipv6Addr::from(bytes))
            };
            let end = if length == 0 {
                packet.len()
            } else {
                (40 + length).min(packet.len())
            };
            (
                address(8..24)?.into(),
                address(24..40)?.into(),
                *packet.get(6)?,
                packet.get(40..end)?,
            )
        }
        _ => return None,
    };
    let from = SocketAddr::new(source, be_u16(body.get(0..2)?));
    let to = SocketAddr::new(target, be_u16(body.get(2..4)?));
    match protocol {
        6 => {
            let sequence = u32::from_be_bytes(body.get(4..8)?.try_into().ok()?);
            let offset = usize::from(*body.get(12)? >> 4) * 4;
            let flags = *body.get(13)?;
            let (syn, ack) = (flags & 2 != 0, flags & 16 != 0);
            let payload = body.get(offset..)?;
            Some(Segment {
                from,
                to,
                udp: false,
                sequence,
                syn,
                ack,
                payload,
            })
        }
        17 => {
            let payload = body.get(8..)?;
            Some(Segment {
                from,
                to,
                udp: true,
                sequence: 0,
                syn: false,
                ack: false,
                payload,
            })
        }
        _ => None,
    }
}

fn be_u16(bytes: &[u8]) -> u16 {
    bytes.try_into().map_or(0, u16::from_be_bytes)
}

/// Running packet capture, on a separate thread, until [`Capture::finish`] or until the value is dropped.
#[derive(Debug)]
pub struct Capture {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Traffic>>,
}

impl Capture {
    /// Starts to read frames from a packet socket, and to count readable occurrences of `markers`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(socket: OwnedFd, markers: Vec<Vec<u8>>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("capture".into())
            .spawn(move || read_frames(&socket, &stopped, Traffic::new(markers)))?;
        let thread = Some(thread);
        Ok(Self { stop, thread })
    }

    /// Stops the capture after all frames so far have been read, and returns the traffic.
    pub fn finish(mut self) -> Traffic {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        thread.map_or_else(Traffic::default, |thread| thread.join().unwrap_or_default())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn read_frames(socket: &OwnedFd, stop: &AtomicBool, mut traffic: Traffic) -> Traffic {
    let mut buffer = vec![0_u8; 1 << 17];
    let moment = Duration::from_millis(50);
    loop {
        let last = stop.load(Ordering::Relaxed);
        let timeout = Timespec::try_from(if last { Duration::ZERO } else { moment }).ok();
        let mut poll = [PollFd::new(socket, PollFlags::IN)];
        match rustix::event::poll(&mut poll, timeout.as_ref()) {
            Ok(0) if last => return traffic,
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return traffic,
        }
        match rustix::io::read(socket, buffer.as_mut_slice()) {
            Ok(length) => traffic.add_frame(buffer.get(..length).unwrap_or_default()),
            Err(_) => return traffic,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn tcp_frame(
        from: (u8, u16),
        to: (u8, u16),
        sequence: u32,
        flags: u8,
        payload: &[u8],
    ) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0]);
        frame.extend(u16::try_from(40 + payload.len()).unwrap().to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, from.0, 10, 0, 0, to.0]);
        frame.extend(from.1.to_be_bytes());
        frame.extend(to.1.to_be_bytes());
        frame.extend(sequence.to_be_bytes());
        frame.extend([0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        frame.extend(payload);
        frame
    }

    fn capture_connection(port: u16, parts: &[&[u8]]) -> Traffic {
        let mut traffic = Traffic::new(vec![b"SECRET".to_vec()]);
        traffic.add_frame(&tcp_frame((1, 40000), (2, port), 99, 2, b""));
        let mut sequence = 100;
        for part in parts {
            let frame = tcp_frame((1, 40000), (2, port), sequence, 16, part);
            traffic.add_frame(&frame);
            // The same frame leaves the bridge.
            traffic.add_frame(&frame);
            sequence += u32::try_from(part.len()).unwrap();
        }
        traffic
    }

    #[test]
    fn tls_records_may_be_split_anywhere() {
        let records = [&[22, 3, 1, 0, 3, 9, 9, 9][..], &[23, 3, 3, 0, 1, 9]].concat();
        for cut in 1..records.len() {
            let (first, second) = records.split_at(cut);
            let report = capture_connection(15008, &[first, second])
                .reports()
                .remove(0);
            assert_eq!(
                (report.kind, report.clear_bytes),
                (FlowKind::Hbone, 0),
                "{cut}"
            );
            assert_eq!((report.connections, report.bytes), (1, 14));
        }
    }

    #[test]
    fn plaintext_and_its_marker_are_found() {
        let report = capture_connection(8080, &[b"GET / SECRET"])
            .reports()
            .remove(0);
        assert_eq!(
            (report.kind, report.clear_bytes, report.markers),
            (FlowKind::Plaintext, 12, 1)
        );
        // Also after something that looked like TLS, and on the tunnel's own port.
        let report = capture_connection(15008, &[&[22, 3, 1, 0, 1, 0], b"SECRET"])
            .reports()
            .remove(0);
        assert_eq!(
            (report.kind, report.clear_bytes, report.markers),
            (FlowKind::Plaintext, 6, 1)
        );
    }

    #[test]
    fn replies_belong_to_the_connection_and_garbage_to_none() {
        let mut traffic = capture_connection(80, &[b"a"]);
        traffic.add_frame(&tcp_frame((2, 80), (1, 40000), 5, 18, b""));
        traffic.add_frame(&tcp_frame((2, 80), (1, 40000), 6, 16, b"bb"));
        let reports = traffic.reports();
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].bytes, 3);
        let full = tcp_frame((1, 1), (2, 2), 0, 16, b"x");
        for length in 0..full.len() {
            traffic.add_frame(&full[..length]);
        }
        traffic.add_frame(&[0xff; 100]);
    }

    /// Checks that dropping a capture stops its thread.
    #[test]
    fn a_capture_that_is_dropped_ends() {
        let (frames, socket) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let capture = Capture::start(socket.into(), Vec::new()).unwrap();
        frames.send(b"frame").unwrap();
        drop(capture);
        frames.set_nonblocking(true).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let is_read = || {
            let sent = frames.send(b"frame").map_err(|error| error.kind());
            sent != Err(io::ErrorKind::ConnectionRefused)
        };
        while is_read() {
            assert!(Instant::now() < deadline, "it reads on");
            std::thread::yield_now();
        }
    }
}
