//! As much HTTP/1.1 as a load generator needs: one request, and the head of an answer with Content-Length.

use httparse::Status;

use crate::stats::{Error, ErrorKind};

/// A head that is longer is malformed.
const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;

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
pub(super) fn parse_head(bytes: &[u8]) -> Result<Option<Head>, Error> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(bytes) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) if bytes.len() > MAX_HEAD => {
            return Err(malformed("no end of the head in 16 KiB"));
        }
        Ok(Status::Partial) => return Ok(None),
        Err(error) => return Err(Error::new(ErrorKind::Malformed, error.to_string())),
    };
    let (Some(1), Some(status)) = (response.version, response.code) else {
        return Err(malformed("no HTTP/1.1 status line"));
    };
    let mut body = None;
    for header in response.headers {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("content-length") {
            let number = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            body = Some(number.ok_or_else(|| malformed("Content-Length is not a number"))?);
        } else if header.name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case(b"close") {
            return Err(malformed("the server closes the connection after one answer"));
        }
    }
    let body = body.ok_or_else(|| malformed("an answer without Content-Length"))?;
    Ok(Some(Head { status, length, body }))
}

fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::Malformed, what)
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
            assert_eq!(parse_head(&answer[..end]).expect("no error yet"), None);
        }
    }

    #[test]
    fn answers_that_are_refused() {
        for answer in [
            &b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            &[b"HTTP/1.1 200 OK\r\nname: ", [b'x'; MAX_HEAD].as_slice()].concat(),
        ] {
            assert_eq!(parse_head(answer).expect_err("refused").kind, ErrorKind::Malformed);
        }
    }
}
