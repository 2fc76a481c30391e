//! As much of HTTP/1.1 (RFC 9112) as a server of one short text needs: bytes of requests in, bytes of responses
//! out.
//!
//! Requests may come in pieces, or several at once. Their bodies are skipped. Anything that is not HTTP gets an
//! error status and the end of the connection, because the start of the next request is unknown.

use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// A request head longer than this is refused.
pub const MAX_HEAD: usize = 8 << 10;
const BODY: &str = "Hello, World!";

/// The work that a connection still has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Read,
    Close,
}

/// The state of a connection between two reads.
#[derive(Debug, Default)]
pub struct Connection {
    /// The start of an incomplete request. Holds no memory in between.
    unfinished: Vec<u8>,
    /// How many bytes of a request's body to skip.
    skip: u64,
}

/// The parts of a head that matter here.
struct Request {
    head_only: bool,
    allowed: bool,
    keep_alive: bool,
    body: u64,
}

/// A status line, and the reason for it.
type Refusal = &'static str;

impl Connection {
    /// Takes the bytes that were read, and appends the bytes to be written.
    pub fn feed(&mut self, received: &[u8], answers: &mut Vec<u8>) -> Next {
        if self.unfinished.is_empty() {
            let (used, next) = self.answer(received, answers);
            self.unfinished.extend_from_slice(&received[used..]);
            return next;
        }
        let mut bytes = std::mem::take(&mut self.unfinished);
        bytes.extend_from_slice(received);
        let (used, next) = self.answer(&bytes, answers);
        if used < bytes.len() {
            bytes.drain(..used);
            self.unfinished = bytes;
        }
        next
    }

    /// Answers all complete requests. Returns how many bytes those were.
    fn answer(&mut self, bytes: &[u8], answers: &mut Vec<u8>) -> (usize, Next) {
        let mut used = 0;
        loop {
            let skipped = self.skip.min((bytes.len() - used) as u64);
            self.skip -= skipped;
            used += skipped as usize;
            // Empty lines before a request must be ignored.
            while bytes[used..].starts_with(b"\r\n") {
                used += 2;
            }
            let rest = &bytes[used..];
            let end = end_of_head(rest);
            if end.unwrap_or(rest.len()) > MAX_HEAD {
                return refuse("431 Request Header Fields Too Large", bytes, answers);
            }
            let Some(end) = end else { return (used, Next::Read) };
            match parse(&rest[..end]) {
                Ok(request) => {
                    let status =
                        if request.allowed { "200 OK" } else { "405 Method Not Allowed\r\nAllow: GET, HEAD" };
                    let body = if request.allowed { BODY } else { "" };
                    write_answer(answers, status, body, request.head_only, request.keep_alive);
                    used += end;
                    self.skip = request.body;
                    if !request.keep_alive {
                        return (bytes.len(), Next::Close);
                    }
                }
                Err(refusal) => return refuse(refusal, bytes, answers),
            }
        }
    }
}

/// The last response of a connection. The rest of what the client sent is ignored.
fn refuse(refusal: Refusal, bytes: &[u8], answers: &mut Vec<u8>) -> (usize, Next) {
    write_answer(answers, refusal, "", false, false);
    (bytes.len(), Next::Close)
}

/// Returns the length of the first head, including its empty line.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(place) = bytes[from..].iter().position(|byte| *byte == b'\n') {
        let end = from + place + 1;
        if bytes[..end].ends_with(b"\r\n\r\n") {
            return Some(end);
        }
        from = end;
    }
    None
}

fn parse(head: &[u8]) -> Result<Request, Refusal> {
    const BAD: Refusal = "400 Bad Request";
    let mut lines = head[..head.len() - 4]
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut words = lines.next().unwrap_or_default().split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(BAD);
    };
    if !is_token(method) || target.is_empty() || !target.iter().all(u8::is_ascii_graphic) {
        return Err(BAD);
    }
    let newer = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        other if other.starts_with(b"HTTP/") => return Err("505 HTTP Version Not Supported"),
        _ => return Err(BAD),
    };
    let (mut hosts, mut length, mut keep_alive) = (0, None, newer);
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':').ok_or(BAD)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        // This also refuses a name that begins with a space: the folded lines of old HTTP.
        if !is_token(name) || value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
            return Err(BAD);
        }
        if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
        } else if name.eq_ignore_ascii_case(b"connection") {
            for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                if option.eq_ignore_ascii_case(b"close") {
                    keep_alive = false;
                } else if option.eq_ignore_ascii_case(b"keep-alive") && !newer {
                    keep_alive = true;
                }
            }
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            let number =
                std::str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse::<u64>().ok());
            let number = number.ok_or(BAD)?;
            // Two different lengths are used to smuggle requests past a proxy.
            if length.replace(number).is_some_and(|other| other != number) {
                return Err(BAD);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Err("411 Length Required");
        } else if name.eq_ignore_ascii_case(b"expect") {
            // The client may or may not send the body after our response, so the connection cannot continue.
            keep_alive = false;
        }
    }
    if hosts > 1 || newer && hosts == 0 {
        return Err(BAD);
    }
    let (get, head_only) = (method == b"GET", method == b"HEAD");
    Ok(Request { head_only, allowed: get || head_only, keep_alive, body: length.unwrap_or(0) })
}

fn is_token(bytes: &[u8]) -> bool {
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !bytes.is_empty() && bytes.iter().all(token)
}

fn write_answer(answers: &mut Vec<u8>, status: &str, body: &str, head_only: bool, keep_alive: bool) {
    let connection = if keep_alive { "" } else { "Connection: close\r\n" };
    let (length, body) = (body.len(), if head_only { "" } else { body });
    // Writing to a `Vec` cannot fail.
    let _ = write!(
        answers,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n{connection}Date: "
    );
    write_date(answers);
    let _ = write!(answers, "\r\n\r\n{body}");
}

/// The time in HTTP's format, for example `Sun, 06 Nov 1994 08:49:37 GMT`. Formatted once per second and
/// thread.
fn write_date(answers: &mut Vec<u8>) {
    use std::cell::RefCell;
    thread_local! {
        static DATE: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    DATE.with_borrow_mut(|(of, text)| {
        if *of != now || text.is_empty() {
            (*of, *text) = (now, date(now));
        }
        answers.extend_from_slice(text.as_bytes());
    });
}

/// Converts seconds since 1970 to a date. Counts years from March 1st, so that the leap day comes last.
fn date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb"];
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // From March 1st of the year 0, in which a cycle of 400 years begins.
    let since = days + 719_468;
    let (cycle, day) = (since / 146_097, since % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = 400 * cycle + year + u64::from(month >= 10);
    format!(
        "{}, {day:02} {} {year:04} {:02}:{:02}:{:02} GMT",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        time / 3600,
        time / 60 % 60,
        time % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statuses that are sent, and whether the connection continues.
    fn talk(pieces: &[&str]) -> (Vec<String>, Next) {
        let (mut connection, mut answers, mut next) = (Connection::default(), Vec::new(), Next::Read);
        for piece in pieces {
            assert_eq!(next, Next::Read);
            next = connection.feed(piece.as_bytes(), &mut answers);
        }
        let text = String::from_utf8(answers).unwrap();
        let statuses =
            text.match_indices("HTTP/1.1 ").map(|(place, _)| text[place + 9..place + 12].to_owned());
        (statuses.collect(), next)
    }

    fn one(request: &str) -> (String, Next) {
        let (statuses, next) = talk(&[request]);
        (statuses.join(" "), next)
    }

    const GET: &str = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";

    #[test]
    fn a_request_is_answered_whole_in_pieces_and_in_company() {
        assert_eq!(one(GET), ("200".into(), Next::Read));
        for cut in 1..GET.len() {
            assert_eq!(talk(&[&GET[..cut], &GET[cut..]]), (vec!["200".into()], Next::Read));
        }
        let (four, half) = (GET.repeat(4), &GET[..20]);
        assert_eq!(talk(&[&(four + half), &GET[20..]]).0.len(), 5);
    }

    #[test]
    fn a_connection_that_waits_holds_no_memory() {
        let mut connection = Connection::default();
        for cut in [GET.len(), 10] {
            connection.feed(&GET.as_bytes()[..cut], &mut Vec::new());
            connection.feed(&GET.as_bytes()[cut..], &mut Vec::new());
            assert_eq!(connection.unfinished.capacity(), 0);
        }
    }

    #[test]
    fn bodies_are_skipped_and_do_not_pass_for_requests() {
        let post = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{GET}{GET}", GET.len());
        assert_eq!(talk(&[&post[..70], &post[70..]]), (vec!["405".into(), "200".into()], Next::Read));
    }

    #[test]
    fn head_gets_no_body() {
        let (mut connection, mut answers) = (Connection::default(), Vec::new());
        connection.feed(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n", &mut answers);
        assert!(answers.ends_with(b"\r\n\r\n"));
        assert!(String::from_utf8(answers).unwrap().contains("Content-Length: 13\r\n"));
    }

    #[test]
    fn connections_end_when_asked_to_and_with_old_clients() {
        assert_eq!(
            one("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
            ("200".into(), Next::Close)
        );
        assert_eq!(one("GET / HTTP/1.0\r\n\r\n"), ("200".into(), Next::Close));
        assert_eq!(one("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"), ("200".into(), Next::Read));
    }

    #[test]
    fn what_is_not_http_is_refused() {
        let with = |field: &str| one(&format!("GET / HTTP/1.1\r\nHost: h\r\n{field}\r\n\r\n"));
        for bad in ["nonsense", "no/token : x", " folded", "Content-Length: -1", "Host: two", "X: a\0b"] {
            assert_eq!(with(bad), ("400".into(), Next::Close), "{bad:?}");
        }
        assert_eq!(with("Content-Length: 1\r\nContent-Length: 2"), ("400".into(), Next::Close));
        assert_eq!(with("Transfer-Encoding: chunked"), ("411".into(), Next::Close));
        for bad in ["GET /\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "\0\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n"] {
            assert_eq!(one(bad), ("400".into(), Next::Close), "{bad:?}");
        }
        assert_eq!(one("GET / HTTP/2.0\r\nHost: h\r\n\r\n"), ("505".into(), Next::Close));
        assert_eq!(one(&"x".repeat(MAX_HEAD + 1)), ("431".into(), Next::Close));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(date(1_709_251_199), "Thu, 29 Feb 2024 23:59:59 GMT");
    }
}
