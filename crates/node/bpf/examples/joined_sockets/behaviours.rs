//! Behaviours of TCP that an application can see, each tried on a pair of connected sockets.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd as _,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::ioctl_fionread,
    net::{RecvFlags, SendFlags, recv, send, sockopt},
    pipe::{SpliceFlags, pipe, splice},
};

/// Maximum time for which a read waits.
const READ_TIMEOUT: Duration = Duration::from_millis(500);
/// Bytes after which a writer without a reader gives up.
const FLOOD: usize = 256 << 20;
const ROUND_TRIPS: u32 = 50_000;

pub(crate) type Outcome = Result<String, Box<dyn std::error::Error>>;
type Behaviour = fn(Pair) -> Outcome;

/// Two ends of a connection over loopback.
pub(crate) struct Pair {
    pub(crate) sender: TcpStream,
    pub(crate) receiver: TcpStream,
}

/// Behaviours of TCP that an application can see, as cells of the table.
pub(crate) const BEHAVIOURS: [(&str, Behaviour); 11] = [
    ("accepted from a sender whose receiver does not read", flood),
    ("the same with buffers of 8 KiB", flood_small_buffers),
    ("half-close after data, and an answer", half_close),
    (
        "sender after the receiver closed with unread data",
        close_unread,
    ),
    ("MSG_WAITALL for 10 bytes that come in two parts", wait_all),
    ("MSG_PEEK, then read, of 5 bytes", peek),
    ("FIONREAD of 5 bytes", unread_count),
    ("splice from the receiver, of 5 bytes", splice_from),
    ("stream in which the third of five bytes is urgent", urgent),
    ("round trip of 100 bytes", round_trip),
    ("throughput of writes of 64 KiB", throughput),
];

impl Pair {
    pub(crate) fn new() -> io::Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let sender = TcpStream::connect(listener.local_addr()?)?;
        let (receiver, _) = listener.accept()?;
        for socket in [&sender, &receiver] {
            socket.set_read_timeout(Some(READ_TIMEOUT))?;
        }
        sender.set_nodelay(true)?;
        receiver.set_nodelay(true)?;
        Ok(Self { sender, receiver })
    }

    /// Waits until the receiver has data or an end of it.
    fn wait_readable(&self) -> Result<bool, rustix::io::Errno> {
        let mut set = [PollFd::new(&self.receiver, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: 200_000_000,
        };
        Ok(poll(&mut set, Some(&timeout))? > 0)
    }

    /// Reads once, and returns the text.
    fn read(&mut self) -> io::Result<String> {
        let mut buffer = [0; 64];
        let length = self.receiver.read(&mut buffer)?;
        Ok(String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned())
    }
}

fn flood(mut pair: Pair) -> Outcome {
    pair.sender.set_nonblocking(true)?;
    let chunk = vec![0; 64 << 10];
    let mut accepted = 0;
    while accepted < FLOOD {
        match pair.sender.write(&chunk) {
            Ok(length) => accepted += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(format!("{} KiB", accepted >> 10));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(format!("more than {} KiB", accepted >> 10))
}

fn flood_small_buffers(pair: Pair) -> Outcome {
    sockopt::set_socket_send_buffer_size(&pair.sender, 8 << 10)?;
    sockopt::set_socket_recv_buffer_size(&pair.receiver, 8 << 10)?;
    flood(pair)
}

fn half_close(mut pair: Pair) -> Outcome {
    pair.sender.write_all(b"hello")?;
    pair.sender.shutdown(Shutdown::Write)?;
    let (data, end) = (pair.read()?, pair.read()?);
    pair.receiver.write_all(b"answer")?;
    let mut answer = [0; 6];
    pair.sender.read_exact(&mut answer)?;
    let answered = String::from_utf8_lossy(&answer);
    Ok(format!("\"{data}\", \"{end}\", \"{answered}\""))
}

fn close_unread(mut pair: Pair) -> Outcome {
    pair.sender.write_all(b"hello")?;
    pair.wait_readable()?;
    drop(pair.receiver);
    let length = pair.sender.read(&mut [0; 8])?;
    Ok(format!("reads {length} bytes: an orderly end"))
}

fn wait_all(mut pair: Pair) -> Outcome {
    pair.sender.write_all(b"hello")?;
    let receiver = pair.receiver.try_clone()?;
    let writer = thread::spawn(move || -> io::Result<()> {
        // The rest comes when the reader has taken the first part.
        let deadline = Instant::now() + READ_TIMEOUT / 2;
        while ioctl_fionread(&receiver)? > 0 && Instant::now() < deadline {
            thread::yield_now();
        }
        pair.sender.write_all(b"world")
    });
    let (_, length) = recv(&pair.receiver, &mut [0_u8; 10], RecvFlags::WAITALL)?;
    writer.join().map_err(|_| "the writer panicked")??;
    Ok(format!("{length} bytes"))
}

fn peek(mut pair: Pair) -> Outcome {
    pair.sender.write_all(b"hello")?;
    pair.wait_readable()?;
    let peeked = pair.receiver.peek(&mut [0; 9])?;
    Ok(format!("{peeked}, {}", pair.read()?.len()))
}

fn unread_count(mut pair: Pair) -> Outcome {
    pair.sender.write_all(b"hello")?;
    pair.wait_readable()?;
    Ok(ioctl_fionread(&pair.receiver)?.to_string())
}

fn splice_from(mut pair: Pair) -> Outcome {
    pair.sender.write_all(b"hello")?;
    pair.wait_readable()?;
    pair.receiver.set_nonblocking(true)?;
    let (_reader, writer) = pipe()?;
    let flags = SpliceFlags::NONBLOCK;
    let length = splice(pair.receiver.as_fd(), None, writer.as_fd(), None, 9, flags)?;
    Ok(length.to_string())
}

fn urgent(mut pair: Pair) -> Outcome {
    pair.sender.write_all(b"ab")?;
    send(&pair.sender, b"!", SendFlags::OOB)?;
    pair.sender.write_all(b"cd")?;
    pair.wait_readable()?;
    let first = pair.read()?;
    let second = pair.read().unwrap_or_default();
    Ok(format!("\"{first}\", \"{second}\""))
}

fn round_trip(mut pair: Pair) -> Outcome {
    let mut receiver = pair.receiver;
    let echo = thread::spawn(move || -> io::Result<()> {
        let mut buffer = [0; 100];
        while receiver.read(&mut buffer)? > 0 {
            receiver.write_all(&buffer)?;
        }
        Ok(())
    });
    let start = Instant::now();
    let mut buffer = [0; 100];
    for _ in 0..ROUND_TRIPS {
        pair.sender.write_all(&buffer)?;
        pair.sender.read_exact(&mut buffer)?;
    }
    let each = start.elapsed() / ROUND_TRIPS;
    pair.sender.shutdown(Shutdown::Write)?;
    echo.join().map_err(|_| "the echo panicked")??;
    Ok(format!("{:.1} us", each.as_secs_f64() * 1e6))
}

fn throughput(mut pair: Pair) -> Outcome {
    let mut receiver = pair.receiver;
    let reader =
        thread::spawn(move || -> io::Result<u64> { io::copy(&mut receiver, &mut io::sink()) });
    let chunk = vec![0; 64 << 10];
    let start = Instant::now();
    for _ in 0..20_000 {
        pair.sender.write_all(&chunk)?;
    }
    pair.sender.shutdown(Shutdown::Write)?;
    let bytes = reader.join().map_err(|_| "the reader panicked")??;
    let seconds = start.elapsed().as_secs_f64();
    Ok(format!("{} MB/s", (bytes as f64 / seconds / 1e6).round()))
}
