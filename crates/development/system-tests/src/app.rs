//! Scripted applications in a pod, which record every byte and send the test's responses.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use crate::{LabNetns, Mesh};

/// Heads (request line and headers) of requests that an application has received.
#[derive(Clone, Debug, Default)]
pub struct RecordedHeads(Arc<Mutex<Vec<String>>>);

impl RecordedHeads {
    /// Returns the heads of the requests so far, in lower case.
    pub fn recorded(&self) -> Vec<String> {
        self.0.lock().expect("nobody panics with it").clone()
    }

    fn push(&self, head: String) {
        self.0.lock().expect("nobody panics with it").push(head);
    }
}

impl Mesh {
    /// Handles each connection to a port of a pod by a function, until the pod or the test ends.
    pub fn serve_connections(
        &self,
        pod: &str,
        port: u16,
        serve: impl Fn(TcpStream) -> io::Result<()> + Clone + Send + 'static,
    ) -> SocketAddr {
        let any = SocketAddr::from(([0, 0, 0, 0], port));
        let listener = self.client().listen(LabNetns::Pod(pod.to_owned()), any);
        let listener = listener.unwrap_or_else(|error| panic!("no port {port} in {pod}: {error}"));
        thread::spawn(move || {
            for stream in listener.incoming().filter_map(Result::ok) {
                let serve = serve.clone();
                // The test checks the end of a connection on its other side.
                thread::spawn(move || serve(stream));
            }
        });
        SocketAddr::new(self.ip(pod), port)
    }

    /// Runs an HTTP/1.1 application in a pod, which responds with the caller's address and records the heads of
    /// requests.
    pub fn serve_heads(&self, pod: &str, port: u16) -> (SocketAddr, RecordedHeads) {
        let heads = RecordedHeads::default();
        let noted = heads.clone();
        let address = self.serve_connections(pod, port, move |mut stream| {
            let caller = stream.peer_addr()?.ip();
            while let Some(head) = read_head(&mut stream)? {
                noted.push(head.to_ascii_lowercase());
                stream.write_all(caller_response(caller).as_bytes())?;
            }
            Ok(())
        });
        (address, heads)
    }
}

fn caller_response(caller: IpAddr) -> String {
    let body = format!("called by {caller}\n");
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Reads the head of a request, up to its empty line; `None` if the client has closed the connection.
///
/// # Errors
///
/// When the connection breaks.
pub fn read_head(stream: &mut impl Read) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte)? == 0 {
            return Ok(None);
        }
        head.extend(byte);
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}

/// Requests that an application has received: heads in lower case, with their bodies. Clones share
/// them.
#[derive(Clone, Debug, Default)]
pub struct RecordedRequests(Arc<Mutex<Vec<(String, String)>>>);

impl RecordedRequests {
    /// Reads the body of a request, whose length is in the lower-case head, and records head and body.
    ///
    /// # Errors
    ///
    /// When the connection breaks, or the head has no valid length.
    pub fn record(&self, head: &str, stream: &mut impl Read) -> io::Result<()> {
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map(str::parse::<usize>).transpose();
        let length = length.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let mut body = vec![0; length.unwrap_or_default()];
        stream.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        let mut all = self.0.lock().expect("nobody panics with it");
        all.push((head.to_owned(), body));
        Ok(())
    }

    /// Returns the recorded requests whose heads begin with the text `begin`.
    pub fn requests_of(&self, begin: &str) -> Vec<(String, String)> {
        let all = self.0.lock().expect("nobody panics with it");
        let all = all.iter().filter(|(head, _)| head.starts_with(begin));
        all.cloned().collect()
    }
}

/// Responds to an HTTP/1.1 request with 200 and a body.
///
/// # Errors
/// When the connection breaks.
pub fn answer_ok(stream: &mut impl Write, body: &str) -> io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}
