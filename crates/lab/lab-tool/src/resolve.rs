//! Sends one DNS query and prints the complete answer, of which `getent` shows only a part.

use std::{
    fs,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    process::ExitCode,
    time::Duration,
};

use hickory_proto::{
    op::{Edns, Message, Query, ResponseCode},
    rr::{Name, RecordType},
};

/// UDP payload size that the query offers (EDNS) by default, the same as most resolvers.
const DEFAULT_UDP_PAYLOAD_BYTES: u16 = 1232;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The whole name: no search list is used
    name: String,
    /// Type of record
    #[arg(long = "type", default_value = "A")]
    kind: RecordType,
    /// Whom to ask; else the first server of /etc/resolv.conf
    #[arg(long)]
    server: Option<IpAddr>,
    /// Resolve over TCP
    #[arg(long)]
    tcp: bool,
    /// Bytes of a datagram that are taken; 0 does without EDNS
    #[arg(long, default_value_t = DEFAULT_UDP_PAYLOAD_BYTES)]
    payload: u16,
    /// Milliseconds to wait for the answer
    #[arg(long, default_value_t = 5000)]
    timeout: u64,
}

/// Sends the query, and prints the response code and the records. Exits with 0 for NOERROR, 2 for another code, 1
/// without an answer.
#[expect(clippy::print_stdout, reason = "its output is the answer")]
pub(crate) fn run(args: &Args) -> ExitCode {
    match send_query(args) {
        Ok(answer) => {
            let code = answer.metadata.response_code;
            let truncated = if answer.metadata.truncation {
                " truncated"
            } else {
                ""
            };
            println!("{code:?}{truncated}");
            for record in &answer.answers {
                let (name, ttl) = (&record.name, record.ttl);
                println!("{name} {ttl} {} {}", record.record_type(), record.data);
            }
            ExitCode::from(if code == ResponseCode::NoError { 0 } else { 2 })
        }
        Err(error) => {
            eprintln!("no answer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn send_query(args: &Args) -> io::Result<Message> {
    let server = SocketAddr::new(args.server.map_or_else(first_nameserver, Ok)?, 53);
    let mut name = Name::from_ascii(&args.name).map_err(io::Error::other)?;
    name.set_fqdn(true);
    let mut question = Message::query();
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(name, args.kind));
    if args.payload > 0 {
        let mut edns = Edns::new();
        edns.set_max_payload(args.payload);
        question.set_edns(edns);
    }
    let bytes = question.to_vec().map_err(io::Error::other)?;
    let timeout = Duration::from_millis(args.timeout.max(1));
    let answer = if args.tcp {
        query_over_tcp(server, &bytes, timeout)?
    } else {
        query_over_udp(server, &bytes, timeout)?
    };
    let answer = Message::from_vec(&answer).map_err(io::Error::other)?;
    if answer.metadata.id == question.metadata.id {
        Ok(answer)
    } else {
        Err(io::Error::other("the answer is to another question"))
    }
}

fn first_nameserver() -> io::Result<IpAddr> {
    fs::read_to_string("/etc/resolv.conf")?
        .lines()
        .find_map(|line| line.strip_prefix("nameserver")?.trim().parse().ok())
        .ok_or_else(|| io::Error::other("/etc/resolv.conf names no server"))
}

fn query_over_udp(server: SocketAddr, question: &[u8], timeout: Duration) -> io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(timeout))?;
    socket.connect(server)?;
    socket.send(question)?;
    let mut answer = vec![0; 65_535];
    let len = loop {
        match socket.recv(&mut answer) {
            // The kernel does not restart calls with a timeout (`signal(7)`).
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            received => break received?,
        }
    };
    answer.truncate(len);
    Ok(answer)
}

fn query_over_tcp(server: SocketAddr, question: &[u8], timeout: Duration) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    let len = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&len.to_be_bytes()[..], question].concat())?;
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    let mut answer = vec![0; u16::from_be_bytes(len).into()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}
