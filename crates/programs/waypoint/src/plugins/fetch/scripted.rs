//! A server of HTTP/1.1 for tests: what it hears of each request is kept, and what it answers is a matter of the path.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use parking_lot::Mutex;

pub(super) struct Scripted {
    pub(super) address: SocketAddr,
    /// The heads of requests, in small letters.
    received: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    /// Creates a server that responds with the status line and headers that `script` returns for a path.
    pub(super) fn new(script: impl Fn(&str) -> String + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::<Mutex<Vec<String>>>::default();
        let hears = received.clone();
        // It ends with the process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let head = read_head(&mut stream);
                let response = script(head.split(' ').nth(1).unwrap());
                hears.lock().push(head.to_ascii_lowercase());
                write!(stream, "HTTP/1.1 {response}\r\ncontent-length: 0\r\n\r\n").unwrap();
            }
        });
        Self { address, received }
    }

    /// Returns the received requests: path, and whether credentials were sent.
    pub(super) fn received(&self) -> Vec<(String, bool)> {
        let received = self.received.lock();
        let each = received.iter().map(|head| {
            let path = head.split(' ').nth(1).unwrap();
            (path.to_owned(), head.contains("\r\nauthorization:"))
        });
        each.collect()
    }
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}
