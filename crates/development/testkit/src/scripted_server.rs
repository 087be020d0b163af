//! HTTP/1.1 server that responds by the path of a request, and records the requests.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use parking_lot::Mutex;

/// HTTP/1.1 server whose responses have no bodies. It runs until the process ends.
#[derive(Debug)]
pub struct ScriptedServer {
    /// Address of the server, on the loopback interface.
    pub address: SocketAddr,
    /// Heads (request line and headers) of the received requests, in lower case.
    received: Arc<Mutex<Vec<String>>>,
}

impl ScriptedServer {
    /// Starts a server that responds with the status line and headers that `script` returns for a path.
    pub fn new(script: impl Fn(&str) -> String + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let received = Arc::<Mutex<Vec<String>>>::default();
        let heads = received.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let head = read_head(&mut stream);
                let response = script(head.split(' ').nth(1).expect("a request line"));
                heads.lock().push(head.to_ascii_lowercase());
                write!(stream, "HTTP/1.1 {response}\r\ncontent-length: 0\r\n\r\n")
                    .expect("a client that reads");
            }
        });
        Self { address, received }
    }

    /// Returns path of each received request, and whether it had an `authorization` header.
    pub fn received(&self) -> Vec<(String, bool)> {
        let received = self.received.lock();
        let each = received.iter().map(|head| {
            let path = head.split(' ').nth(1).expect("a request line");
            (path.to_owned(), head.contains("\r\nauthorization:"))
        });
        each.collect()
    }
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a complete head");
        head.extend(byte);
    }
    String::from_utf8(head).expect("a head of ASCII")
}
