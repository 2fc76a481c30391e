//! Reads the head of a request. Any bytes may come: nothing here panics, and nothing of a request is sent back.

use std::net::IpAddr;

/// The longest head, in bytes.
pub(super) const LONGEST: usize = 8 << 10;
const MOST_HEADERS: usize = 64;

/// The kind of head that the bytes so far are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// The beginning of a head.
    Incomplete,
    /// A request, whose head has so many bytes.
    Complete(Request, usize),
    /// Something that is answered with this status, and ends the connection.
    Refused(u16),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) path: String,
    pub(super) query: String,
    /// The answer has a body: the method is not HEAD.
    pub(super) wants_body: bool,
    /// Another request may follow.
    pub(super) keeps_alive: bool,
}

impl Request {
    /// The value of a parameter in the query. Nothing in it is decoded.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(key, value)| (key == name).then_some(value))
    }

    /// The answer is about the next seconds of the process, and costs something until then. So the request ends with
    /// its connection.
    pub(super) fn takes_seconds(&self) -> bool {
        matches!(self.path.as_str(), "/trace" | "/labels")
    }
}

/// Reads a head. With a `name`, `Host` has to be that name, or an address: another name may be that of a page in a
/// browser, which the owner of the name lets lead here.
pub(super) fn parse(data: &[u8], name: Option<&str>) -> Head {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(data) {
        Ok(httparse::Status::Complete(length)) if length <= LONGEST => length,
        Ok(httparse::Status::Partial) if data.len() < LONGEST => return Head::Incomplete,
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Head::Refused(431),
        Err(httparse::Error::Version) => return Head::Refused(505),
        Err(_) => return Head::Refused(400),
    };
    let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
        return Head::Refused(400);
    };
    let (mut host, mut keeps_alive) = (None, version == 1);
    for header in request.headers.iter() {
        let Ok(value) = str::from_utf8(header.value) else { return Head::Refused(400) };
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("host") && host.replace(value).is_some() {
            return Head::Refused(400);
        }
        let ends = is("connection") && value.to_ascii_lowercase().contains("close");
        // A body is not read.
        let has_body = is("transfer-encoding") || is("content-length") && value.trim_ascii() != "0";
        keeps_alive &= !ends && !has_body;
    }
    if host.is_none() && version == 1 || !target.starts_with('/') && target != "*" {
        return Head::Refused(400);
    }
    if name.is_some_and(|name| !is_ours(host.unwrap_or_default(), name)) {
        return Head::Refused(421);
    }
    if !matches!(method, "GET" | "HEAD") {
        return Head::Refused(405);
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let request =
        Request { path: path.to_owned(), query: query.to_owned(), wants_body: method == "GET", keeps_alive };
    Head::Complete(request, length)
}

fn is_ours(host: &str, name: &str) -> bool {
    let without_port = match host.rsplit_once(':') {
        Some((before, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => before,
        _ => host,
    };
    let bare = without_port.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(without_port);
    bare.parse::<IpAddr>().is_ok() || ["localhost", name].iter().any(|ours| bare.eq_ignore_ascii_case(ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(head: &str) -> Head {
        parse(head.as_bytes(), Some("shop"))
    }

    #[test]
    fn a_head_is_read_whole_or_not_at_all() {
        let head = "HEAD /slow?a=1&seconds=2 HTTP/1.1\r\nHost: shop:80\r\n\r\n";
        for end in 0..head.len() {
            assert_eq!(get(&head[..end]), Head::Incomplete, "{end}");
        }
        let Head::Complete(request, length) = get(&format!("{head}GET /")) else { panic!("{head}") };
        assert_eq!(
            (request.path.as_str(), request.parameter("seconds"), length),
            ("/slow", Some("2"), head.len())
        );
        assert!(!request.wants_body && request.keeps_alive);
    }

    #[test]
    fn a_name_that_is_not_ours_is_refused_on_a_tcp_address() {
        let of = |host: &str| get(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        for ours in ["shop", "SHOP:9000", "localhost", "127.0.0.1:9", "10.1.2.3", "[::1]:9000", "[::1]"] {
            assert!(matches!(of(ours), Head::Complete(..)), "{ours}");
        }
        for other in
            ["evil.example", "shop.evil.example", "127.0.0.1.evil.example", "", "localhost:80:80", "shop "]
        {
            assert!(matches!(of(other), Head::Refused(421)) || other.ends_with(' '), "{other}");
        }
        let anything = parse(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", None);
        assert!(matches!(anything, Head::Complete(..)));
    }

    #[test]
    fn what_is_no_request_has_a_status() {
        for (head, status) in [
            ("POST / HTTP/1.1\r\nHost: shop\r\n\r\n".to_owned(), 405),
            ("OPTIONS * HTTP/1.1\r\nHost: shop\r\n\r\n".to_owned(), 405),
            ("GET http://shop/ HTTP/1.1\r\nHost: shop\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\nHost: shop\r\nHost: shop\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/2.0\r\n\r\n".to_owned(), 505),
            ("\0\u{1}\u{2}".to_owned(), 400),
            (format!("GET /{} HTTP/1.1\r\nHost: shop\r\n\r\n", "a".repeat(LONGEST)), 431),
            (format!("GET /{}", "a".repeat(LONGEST)), 431),
            (format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MOST_HEADERS + 1)), 431),
        ] {
            assert_eq!(get(&head), Head::Refused(status), "{head:.60}");
        }
    }

    #[test]
    fn a_request_that_may_have_a_body_is_the_last_one() {
        for (header, keeps) in [
            ("Content-Length: 0", true),
            ("Content-Length: 1", false),
            ("Transfer-Encoding: chunked", false),
            ("Connection: Close", false),
            ("Connection: keep-alive", true),
        ] {
            let head = format!("GET / HTTP/1.1\r\nHost: shop\r\n{header}\r\n\r\n");
            let Head::Complete(request, _) = get(&head) else { panic!("{header}") };
            assert_eq!(request.keeps_alive, keeps, "{header}");
        }
        assert!(matches!(
            get("GET / HTTP/1.0\r\nHost: shop\r\n\r\n"),
            Head::Complete(Request { keeps_alive: false, .. }, _)
        ));
    }
}
