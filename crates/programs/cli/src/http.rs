//! As much of an HTTP client as admin endpoints need: one request on a connection that is given.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

/// The largest answer: the dump of a very large mesh fits.
const MAX_ANSWER: u64 = 1 << 30;
/// How long the other side may be silent.
const SILENCE: Duration = Duration::from_secs(30);

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Sends one request and reads the answer to its end.
pub(crate) fn request(
    mut stream: TcpStream,
    method: &str,
    host: &str,
    path: &str,
) -> io::Result<Answer> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    stream.write_all(&question(method, host, path))?;
    let mut bytes = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut bytes)?;
    parse(&bytes).ok_or_else(|| io::Error::other("the answer is no HTTP"))
}

/// What to send.
pub(crate) fn question(method: &str, host: &str, path: &str) -> Vec<u8> {
    let length = if method == "POST" {
        "Content-Length: 0\r\n"
    } else {
        ""
    };
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{length}Accept: */*\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}

/// Whether an answer that says where it ends has ended.
pub(crate) fn is_complete(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return false;
    };
    let Some(head) = bytes
        .get(..end)
        .and_then(|head| std::str::from_utf8(head).ok())
    else {
        return true;
    };
    match (
        header(head, "transfer-encoding"),
        header(head, "content-length"),
    ) {
        (Some(_), _) => bytes.ends_with(b"0\r\n\r\n"),
        (None, Some(length)) => length
            .parse::<usize>()
            .is_ok_and(|length| bytes.len() - end - 4 >= length),
        (None, None) => false,
    }
}

/// Reads an answer; none if it is no HTTP, or cut off.
pub(crate) fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(bytes.get(..end)?).ok()?;
    let rest = bytes.get(end + 4..)?;
    let status = head.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let body = if header(head, "transfer-encoding").is_some_and(|value| value.ends_with("chunked"))
    {
        join_chunks(rest)?
    } else {
        match header(head, "content-length").and_then(|text| text.parse::<usize>().ok()) {
            // Less than was promised is an answer that was cut off.
            Some(length) => rest.get(..length)?.to_vec(),
            None => rest.to_vec(),
        }
    };
    Some(Answer { status, body })
}

fn header(head: &str, name: &str) -> Option<String> {
    head.lines().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name)
            .then(|| value.trim().to_ascii_lowercase())
    })
}

fn join_chunks(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|window| window == b"\r\n")?;
        let line = std::str::from_utf8(bytes.get(..end)?).ok()?;
        let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        let start = end.checked_add(2)?;
        let stop = start.checked_add(size)?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(bytes.get(start..stop)?);
        bytes = bytes.get(stop.checked_add(2)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_says_its_length_is_complete_when_it_is_there() {
        for (text, complete) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", false),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
                true,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
                false,
            ),
            ("HTTP/1.1 200 OK\r\n\r\nabc", false),
        ] {
            assert_eq!(is_complete(text.as_bytes()), complete, "{text:?}");
        }
    }

    #[test]
    fn bodies_by_length_by_chunks_and_to_the_end() {
        let body = |text: &str| {
            parse(text.as_bytes()).map(|a| (a.status, String::from_utf8(a.body).unwrap()))
        };
        let ok = |text: &str| Some((200, text.to_owned()));
        assert_eq!(
            body("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab"),
            ok("ab")
        );
        assert_eq!(body("HTTP/1.1 200 OK\r\n\r\nabc"), ok("abc"));
        let chunked =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x\r\nc\r\n0\r\n\r\n";
        assert_eq!(body(chunked), ok("abc"));
        for cut in [
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab",
            "HTTP/1.1 200 OK\r\n",
            "",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nab",
        ] {
            assert_eq!(body(cut), None, "{cut:?}");
        }
    }
}
