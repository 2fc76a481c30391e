//! As much HTTP/1.1 as a load generator needs: one request, and the head of an answer with Content-Length.

use super::tally::{Fault, Kind};

/// A head longer than this is not one.
pub(super) const MAX_HEAD: usize = 16 * 1024;

/// The head of an answer.
#[derive(Debug, PartialEq)]
pub(super) struct Head {
    pub(super) status: u16,
    /// Where the body begins.
    pub(super) length: usize,
    /// How long the body is.
    pub(super) body: usize,
}

/// The request, up to its body.
pub(super) fn request(host: &str, path: &str, post_size: Option<usize>) -> Vec<u8> {
    let method = if post_size.is_some() { "POST" } else { "GET" };
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n");
    if let Some(size) = post_size {
        head += &format!("Content-Type: application/octet-stream\r\nContent-Length: {size}\r\n");
    }
    head += "\r\n";
    head.into_bytes()
}

/// The head at the start of `bytes`; `None` while it is not complete.
pub(super) fn parse_head(bytes: &[u8]) -> Result<Option<Head>, Fault> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if bytes.len() > MAX_HEAD {
            Err(malformed("no end of the head in 16 KiB"))
        } else {
            Ok(None)
        };
    };
    let text = str::from_utf8(&bytes[..end]).map_err(|_| malformed("the head is not text"))?;
    let mut lines = text.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1.1 "))
        .and_then(|rest| rest.get(..3))
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| malformed("no HTTP/1.1 status line"))?;
    let mut body = None;
    for line in lines {
        let (name, value) = line.split_once(':').ok_or_else(|| malformed("a header line without a colon"))?;
        if name.eq_ignore_ascii_case("content-length") {
            body = Some(value.trim().parse().map_err(|_| malformed("Content-Length is not a number"))?);
        } else if name.eq_ignore_ascii_case("connection") && value.trim().eq_ignore_ascii_case("close") {
            return Err(malformed("the server closes the connection after one answer"));
        }
    }
    let body = body.ok_or_else(|| malformed("an answer without Content-Length"))?;
    Ok(Some(Head { status, length: end + 4, body }))
}

fn malformed(what: &str) -> Fault {
    Fault::new(Kind::Malformed, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_head() {
        let answer = b"HTTP/1.1 200 OK\r\ndate: today\r\nContent-LENGTH: 5\r\n\r\nhello";
        let head = parse_head(answer).expect("well-formed");
        assert_eq!(head, Some(Head { status: 200, length: answer.len() - 5, body: 5 }));
    }

    #[test]
    fn every_prefix_is_incomplete() {
        let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        for end in 0..answer.len() {
            assert_eq!(parse_head(&answer[..end]).expect("no fault yet"), None);
        }
    }

    #[test]
    fn what_it_does_not_take() {
        for answer in [
            &b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            &[b'x'; MAX_HEAD + 1],
        ] {
            assert_eq!(parse_head(answer).expect_err("not taken").kind, Kind::Malformed);
        }
    }
}
